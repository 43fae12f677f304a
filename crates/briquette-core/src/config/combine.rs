//! Rules for combining the parts of a configuration.
//!
//! [`check`] builds nothing: it reads the traits and error bounds that the parts declare. The model and the number of ranks are optional.
//! [`Config::build`] first makes its checks of the strategy, [`Exchange::build_reducer`] those of the exchange, and the Burn integration
//! those of the [`optimizer`]. The parts themselves check only properties of built values: ranges, the edges of a graph, and the step of
//! DIANA's memory. The book's tables of combinations are generated with `check`, and `briquette check` prints its result.
//!
//! ```
//! # briquette_zoo::install();
//! use briquette_core::config::{Config, combine};
//! let check = |text: &str, run| -> Result<(), briquette_core::error::ConfigError> {
//!     Ok(combine::check(&text.parse::<Config>()?, &run)?)
//! };
//! let two = combine::Run::default().with_world(2);
//! assert_eq!(check("auto", two), Ok(()));
//! assert_eq!(
//!     check("aggregator=krum:1", two).unwrap_err().to_string(),
//!     "aggregator krum:1 does not go with a world of 2 ranks: it needs at least 5 ranks; start more ranks, or use aggregator mean"
//! );
//! ```

mod optimizer;

pub use crate::settings::{InnerOptimizer, Sends, StrategyTraits};
pub use optimizer::{optimizer, reads_optimizer};

use super::{CompressorConfig, Config, Exchange, ReducerConfig, ServerConfig};
use crate::Layout;
use crate::error::{ConfigError, Conflict, world_of};
use crate::reduce::{dense::Dense, gather::GatherConfig, ladder::LadderConfig};
use crate::seam::{Agrees, Plan};
use crate::wrapper::{adaptive::Probing, error_feedback::ErrorFeedbackConfig, no_feedback::NoFeedback};

/// Properties of a run that affect which parts may be combined. Unknown properties are not checked.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Run<'a> {
    /// Number of ranks.
    pub world: Option<usize>,
    /// Layout of the model.
    pub layout: Option<&'a Layout>,
    /// The optimizer that steps with the averaged gradients.
    pub optimizer: Option<InnerOptimizer>,
    /// The server policy, if ranks do not step together.
    pub server: Option<&'a ServerConfig>,
}

impl<'a> Run<'a> {
    /// Sets the number of ranks.
    #[must_use]
    pub fn with_world(self, world: usize) -> Self {
        Run { world: Some(world), ..self }
    }

    /// Sets the layout of the model. Without one, every reducer is checked with one slot of 1000 values.
    #[must_use]
    pub fn with_layout(self, layout: &'a Layout) -> Self {
        Run { layout: Some(layout), ..self }
    }

    /// Sets the optimizer that steps with the averaged gradients.
    #[must_use]
    pub fn with_optimizer(self, optimizer: InnerOptimizer) -> Self {
        Run { optimizer: Some(optimizer), ..self }
    }

    /// Sets the server policy.
    #[must_use]
    pub fn with_server(self, server: &'a ServerConfig) -> Self {
        Run { server: Some(server), ..self }
    }
}

/// Checks that all parts of a configuration may be combined in a run.
///
/// # Errors
/// [`Conflict`] names the first two settings that cannot be combined.
pub fn check(config: &Config, run: &Run<'_>) -> Result<(), Conflict> {
    if let Some(policy) = run.server {
        server(config, policy)?;
    }
    strategy(config)?;
    exchange(&config.exchange, run.world, run.layout)?;
    run.optimizer.map_or(Ok(()), |inner| optimizer(config, inner))
}

/// Checks a configuration for a model that is not known yet: [`check`], then a build for a small model, in which rules match nothing.
///
/// # Errors
/// [`ConfigError`] for every setting that cannot work.
pub fn check_without_model(config: &Config, run: &Run<'_>) -> Result<(), ConfigError> {
    check(config, run)?;
    let mut config = config.clone();
    config.exchange.rules.clear();
    if config.strategy.get().traits().uses.is_none_or(|(keys, _)| keys.contains(&"dense_below")) {
        config.exchange.dense_below = Some(0);
    }
    let slots = config.strategy.get().fewest_slots().clamp(1, 1000);
    let layout = Layout::new((0..slots).map(|slot| (slot.to_string(), vec![1000])));
    let fewest = config.min_ranks();
    let fits = |world: &usize| exchange(&config.exchange, Some(*world), None).is_ok();
    let world = run.world.or_else(|| (fewest..=64).find(fits)).unwrap_or(fewest);
    config.build(&layout, world).map(drop)
}

/// Checks the strategy with the exchange.
pub(super) fn strategy(Config { strategy, exchange }: &Config) -> Result<(), Conflict> {
    let (left, feedback) = (format!("strategy {strategy}"), exchange.feedback.get());
    if exchange.during_backward && !strategy.is_every_step() {
        let why = "during_backward exchanges gradients as they are computed";
        return Err(Conflict::new(
            left,
            "during_backward",
            why,
            "use strategy every-step, or leave during_backward out",
        ));
    }
    let StrategyTraits { uses, sends } = strategy.get().traits();
    if let Some((key, setting)) = uses.and_then(|(keys, _)| exchange.unused(keys)) {
        let why = format!("it {}, so {key} would be ignored", uses.map_or("", |(_, why)| why));
        return Err(Conflict::new(left, setting, why, format!("leave {key} out")));
    }
    let what = match (sends, feedback.has_momentum(), feedback.reads_rate()) {
        (Sends::Progress, true, _) => {
            "it exchanges the progress of parameters, momentum included, which the feedback would add once more"
        }
        (Sends::Progress, false, true) => {
            "it exchanges the progress of parameters, learning rates included, which the feedback would apply once more"
        }
        (Sends::Accelerated, true, _) => "it accelerates gradients, which the feedback would do a second time",
        _ => return equal_averages(left, exchange, strategy.is_every_step()),
    };
    Err(Conflict::new(left, format!("feedback {}", exchange.feedback), what, "use feedback error"))
}

fn equal_averages(strategy: String, exchange: &Exchange, is_every_step: bool) -> Result<(), Conflict> {
    match exchange.reducers().find(|reducer| !is_every_step && !reducer.get().averages_equal()) {
        None => Ok(()),
        Some(reducer) => Err(Conflict::new(
            strategy,
            format!("reducer {reducer}"),
            "the reducer sends each rank a different average, and the strategy requires equal averages",
            "use strategy every-step",
        )),
    }
}

/// Checks the parts of an exchange with each other, and with the number of ranks and the model if they are known.
pub(super) fn exchange(exchange: &Exchange, world: Option<usize>, layout: Option<&Layout>) -> Result<(), Conflict> {
    controller(exchange)?;
    reducers(exchange, world)?;
    aggregator(exchange, world)?;
    exchange.check_class(layout)
}

fn controller(exchange: &Exchange) -> Result<(), Conflict> {
    let (controller, reducer) = (&exchange.controller, &exchange.reducer);
    let (left, right) = (format!("controller {controller}"), format!("reducer {reducer}"));
    // With other ratios than those of its ladder, a lossless exchange would lose bits.
    let ladder = |reducer: &ReducerConfig| reducer.downcast_ref().is_some_and(LadderConfig::is_lossless);
    match (controller.get().reducer().is_some_and(|reducer| ladder(&reducer)), ladder(reducer)) {
        (true, false) => {
            let instead = "use reducer ladder:rungs=lossless, or leave the reducer out";
            return Err(Conflict::new(left, right, "it chooses between dense and a lossless ring", instead));
        }
        (false, true) => {
            let why = "the ladder has a lossless ring alone, and it does not choose that";
            return Err(Conflict::new(left, right, why, "use controller auto:rungs=lossless"));
        }
        _ => {}
    }
    if controller.is_none() {
        return match exchange.probing == Probing::default() {
            true => Ok(()),
            false => Err(Conflict::new(
                left,
                "probing first",
                "nothing is probed without a controller",
                "set a controller, or leave probing out",
            )),
        };
    }
    if !reducer.get().has_knob() {
        let (what, instead) = match reducer.get().compressor() {
            Some(compressor) => {
                (format!("compressor {compressor}"), format!("use one of {}", CompressorConfig::tunable().join(", ")))
            }
            None => (
                "the reducer".to_owned(),
                "use gather with topk or qsgd, ladder, shared-random-k, or controller none".to_owned(),
            ),
        };
        let why = format!("it sets the compression ratio, and {what} has no adjustable ratio");
        return Err(Conflict::new(left, right, why, instead));
    }
    if controller.get().per_slot() && !reducer.get().traits().is_per_slot {
        let why = "it sets a compression ratio for each slot, and the reducer compresses all slots together";
        let instead = "use gather with a message for each slot (per_slot = true), or a controller for the whole vector";
        return Err(Conflict::new(left, right, why, instead));
    }
    Ok(())
}

fn reducers(exchange: &Exchange, world: Option<usize>) -> Result<(), Conflict> {
    for reducer in exchange.reducers() {
        let (settings, fewest) = (reducer.get(), reducer.get().min_ranks());
        if let Some(world) = world.filter(|world| *world < fewest) {
            let why = format!("it needs at least {fewest} ranks");
            return Err(Conflict::new(
                format!("reducer {reducer}"),
                world_of(world),
                why,
                "start more ranks, or use another reducer",
            ));
        }
        world.map_or(Ok(()), |world| settings.check_world(world))?;
        settings.check_within(exchange)?;
    }
    Ok(())
}

/// Checks that the aggregator, unless it is the mean, sees every rank's contribution to every value. A rank alone could otherwise
/// determine values that the aggregator does not see.
fn aggregator(exchange: &Exchange, world: Option<usize>) -> Result<(), Conflict> {
    let (name, aggregator) = (&exchange.aggregator, exchange.aggregator.get());
    let conflict =
        |right: String, why: &str, instead: &str| Err(Conflict::new(format!("aggregator {name}"), right, why, instead));
    if let Some(world) = world.filter(|world| *world < aggregator.min_ranks()) {
        let why = format!("it needs at least {} ranks", aggregator.min_ranks());
        return conflict(world_of(world), &why, "start more ranks, or use aggregator mean");
    }
    if aggregator.is_mean() {
        return Ok(());
    }
    if !exchange.reducer.get().traits().aggregates {
        return conflict(
            format!("reducer {}", exchange.reducer),
            "it combines messages, and the reducer exchanges otherwise",
            "use reducer gather (with compressor dense, if nothing is to be compressed)",
        );
    }
    let averaged =
        [("rules", !exchange.rules.is_empty()), ("dense_below", exchange.dense_below.is_some_and(|below| below > 0))];
    if let Some((key, _)) = averaged.into_iter().find(|(_, given)| *given) {
        let instead = "leave out rules and dense_below, whose slots are averaged";
        return conflict(key.to_owned(), "it combines all slots", instead);
    }
    if !exchange.controller.is_none() {
        let why = "it combines every step, and under a controller dense steps are averaged";
        return conflict(format!("controller {}", exchange.controller), why, "use controller none");
    }
    if aggregator.rates() && exchange.is_cut() {
        let cut = if exchange.during_backward { "during_backward" } else { "bucket_values" };
        return conflict(cut.to_owned(), "it rates whole contributions", "leave out bucket_values and during_backward");
    }
    if exchange.feedback.get().requirement().sends_differences() {
        let why = "it is not linear, and the memories of diana and ef21 need a mean";
        return conflict(format!("feedback {}", exchange.feedback), why, "use feedback none or error");
    }
    Ok(())
}

/// Checks an exchange of a server's workers, which send their gradients dense or as one message.
fn server(Config { strategy, exchange }: &Config, policy: &ServerConfig) -> Result<(), Conflict> {
    let conflict =
        |right: String, why: &str, instead: &str| Err(Conflict::new(format!("server {policy}"), right, why, instead));
    if !strategy.is_every_step() {
        return conflict(format!("strategy {strategy}"), "workers do not step together", "leave the strategy out");
    }
    if let Some((key, setting)) = exchange.unused(&["reducer", "feedback"]) {
        let why = format!("workers send gradients dense or as one message, so {key} would be ignored");
        return conflict(setting, &why, &format!("leave {key} out"));
    }
    let gather = exchange.reducer.downcast_ref::<GatherConfig>();
    let is_one_message = exchange.reducer.is::<Dense>() || gather.is_some_and(|gather| !gather.per_slot);
    if !is_one_message {
        let why = "workers send gradients dense or as one message";
        return conflict(
            format!("reducer {}", exchange.reducer),
            why,
            "use reducer dense, or gather with a compressor",
        );
    }
    let residual = exchange.feedback.downcast_ref::<ErrorFeedbackConfig>();
    let (why, instead) = match residual.is_some() {
        _ if exchange.feedback.is::<NoFeedback>() => return Ok(()),
        _ if residual.is_some_and(|residual| residual.decay.is_some()) => {
            ("a worker's residual does not fade", "use feedback error without a decay")
        }
        true if policy.get().allows_residual() => return Ok(()),
        true => ("it allows workers no memory", "use feedback none, and a compressor without bias such as qsgd:4"),
        false => ("a worker keeps a residual or nothing", "use feedback error or none"),
    };
    conflict(format!("feedback {}", exchange.feedback), why, instead)
}

/// Checks that parameters may be re-broadcast under a strategy with this plan.
///
/// # Errors
/// [`Conflict`] if replicas differ by design, if the strategy exchanges parameters itself, or if the aggregator is not the mean, so that rank
/// 0 may not decide for the others.
pub fn rebroadcast(plan: Plan, weights_by_samples: bool) -> Result<(), Conflict> {
    let (right, why) = match (plan.gradients, plan.replicas_equal) {
        (true, true) if weights_by_samples => return Ok(()),
        (true, true) => {
            ("an aggregator other than the mean", "re-broadcast parameters are rank 0's, whatever the aggregator")
        }
        (true, false) => ("averages that differ", "ranks are sent averages of their own, and replicas differ by them"),
        (false, _) => ("this strategy", "it exchanges parameters itself, and re-broadcasting would be ignored"),
    };
    Err(Conflict::new("re-broadcasting", right, why, "do not set re-broadcasting"))
}

/// Checks that the exchange of gradients keeps replicas equal after every step, as `feature` requires.
///
/// # Errors
/// [`Conflict`] if replicas differ between exchanges.
pub fn equal_replicas(plan: Plan, feature: &str) -> Result<(), Conflict> {
    if plan.gradients && plan.replicas_equal && !plan.parameters && plan.agrees == Agrees::World {
        return Ok(());
    }
    Err(Conflict::new(
        feature,
        "replicas that differ",
        "it requires the same parameters on all ranks after every step",
        "use strategy every-step, and a reducer that sends all ranks the same average",
    ))
}
