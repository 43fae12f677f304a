//! Parts of a configuration: named values, and the rules that choose the rest.
//!
//! The rules do not depend on which part is named. If none is, they give [`Config::auto`]. Naming a part does not change another,
//! unless the two are incompatible. The [`Choice`] then gives the reason.
//!
//! | part left open | value |
//! |---|---|
//! | strategy | `every-step` |
//! | reducer | If a controller is named, the reducer [whose ratio it sets](super::ControllerSettings::reducer); else the ladder that `auto` uses. If a named feedback [needs](super::FeedbackRequirement) an unbiased compressor (`qsgd:4`) or a contractive one and that reducer is not, a gather. Dense if the strategy [says so](super::StrategySettings::dense_because) |
//! | controller | `auto` if the reducer is open, or [accepts any ratio](super::ReducerSettings::accepts_any_ratio). None if a reducer is named: its ratio is then the named one |
//! | feedback | The one that [suits the optimizer](super::Feedback::ByOptimizer) if the reducer needs one and the strategy allows one, else none |
//!
//! ```
//! use briquette_core::config::{Config, Parts};
//! use briquette_core::control::AutoConfig;
//! let (config, choices) = Parts::default().with_controller(AutoConfig::default()).choose();
//! assert_eq!(config, Config::auto());
//! assert_eq!(choices[1].to_string(), "reducer ladder:topk:20x:q8, because controller auto chooses among its levels");
//! ```

use std::fmt;

use super::class::is_identity;
use super::{
    AggregatorConfig, Config, ControllerConfig, Exchange, Feedback, FeedbackRequirement, ReducerConfig, StrategyConfig,
};
use crate::compress::ErrorBound;
use crate::control::AutoConfig;
use crate::reduce::GatherConfig;

/// The explicitly named parts of a configuration; see the [module](self). In TOML these are the keys of a [`Config`] that are given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parts {
    /// The strategy, which decides when ranks exchange.
    pub strategy: Option<StrategyConfig>,
    /// The reducer, which combines vectors.
    pub reducer: Option<ReducerConfig>,
    /// The feedback, which handles the residual that was not sent.
    pub feedback: Option<Feedback>,
    /// The controller, which chooses the compression ratio.
    pub controller: Option<ControllerConfig>,
    /// The other keys, which have their own defaults. The parts above replace the corresponding fields.
    pub rest: Exchange,
}

/// The value of one part of a configuration, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// `strategy`, `reducer`, `feedback` or `controller`.
    pub part: &'static str,
    /// The value, as text.
    pub value: String,
    /// The reason, which follows "because"; `None` if the part was named.
    pub reason: Option<String>,
}

impl Choice {
    /// Creates the choice for a part that was left open.
    pub fn because(part: &'static str, value: impl fmt::Display, reason: impl Into<String>) -> Self {
        Choice { part, value: value.to_string(), reason: Some(reason.into()) }
    }

    /// Creates the choice for a part that was named.
    pub fn named(part: &'static str, value: impl fmt::Display) -> Self {
        Choice { part, value: value.to_string(), reason: None }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { part, value, reason } = self;
        match reason {
            Some(reason) => write!(f, "{part} {value}, because {reason}"),
            None => write!(f, "{part} {value}, as given"),
        }
    }
}

impl Parts {
    /// Sets the strategy.
    #[must_use]
    pub fn with_strategy(self, strategy: impl Into<StrategyConfig>) -> Self {
        Parts { strategy: Some(strategy.into()), ..self }
    }

    /// Sets the reducer.
    #[must_use]
    pub fn with_reducer(self, reducer: impl Into<ReducerConfig>) -> Self {
        Parts { reducer: Some(reducer.into()), ..self }
    }

    /// Sets the feedback.
    #[must_use]
    pub fn with_feedback(self, feedback: impl Into<Feedback>) -> Self {
        Parts { feedback: Some(feedback.into()), ..self }
    }

    /// Sets the controller.
    #[must_use]
    pub fn with_controller(self, controller: impl Into<ControllerConfig>) -> Self {
        Parts { controller: Some(controller.into()), ..self }
    }

    /// Returns the complete configuration, and the choice of each of its four parts with the reason. A feedback that depends on the
    /// optimizer stays open until the optimizer is [known](Config::choose_feedback).
    pub fn choose(self) -> (Config, Vec<Choice>) {
        let Parts { strategy, reducer, feedback, controller, rest } = self;
        let strategy = decide("strategy", strategy, || (StrategyConfig::EveryStep, "no other was named".into()));
        let is_named = reducer.is_some();
        let reducer = decide("reducer", reducer, || {
            open_reducer(&strategy.0, feedback.as_ref(), controller.as_ref(), &rest.aggregator)
        });
        let controller =
            decide("controller", controller, || open_controller(&strategy.0, &reducer.0, is_named, &rest.aggregator));
        let exchange = Exchange { reducer: reducer.0, controller: controller.0, ..rest };
        let feedback = decide("feedback", feedback, || open_feedback(&strategy.0, &exchange));
        let choices = vec![strategy.1, reducer.1, controller.1, feedback.1];
        (Config { strategy: strategy.0, exchange: Exchange { feedback: feedback.0, ..exchange } }, choices)
    }
}

impl From<Parts> for Config {
    fn from(parts: Parts) -> Config {
        parts.choose().0
    }
}

/// Returns the named value, or else the value that the rule chooses, with the reason.
fn decide<T: fmt::Display>(part: &'static str, named: Option<T>, open: impl FnOnce() -> (T, String)) -> (T, Choice) {
    match named {
        Some(value) => {
            let choice = Choice::named(part, &value);
            (value, choice)
        }
        None => {
            let (value, reason) = open();
            let choice = Choice::because(part, &value, reason);
            (value, choice)
        }
    }
}

fn open_reducer(
    strategy: &StrategyConfig,
    feedback: Option<&Feedback>,
    controller: Option<&ControllerConfig>,
    aggregator: &AggregatorConfig,
) -> (ReducerConfig, String) {
    let per_slot = controller.is_some_and(|controller| controller.get().per_slot());
    let gather = |compressor| GatherConfig { compressor, per_slot }.into();
    let usual = GatherConfig::default().compressor;
    if !aggregator.get().is_mean() {
        return (gather(usual), format!("aggregator {aggregator} combines whole messages"));
    }
    let (reducer, why) = reducer_under(strategy, controller);
    let Some(feedback) = feedback.filter(|feedback| !suits(feedback.get().requirement(), &reducer)) else {
        return (reducer, why);
    };
    let (compressor, class) = match feedback.get().requirement() {
        FeedbackRequirement::Unbiased => ("qsgd:4".parse().expect("a compressor's text"), "an unbiased"),
        _ => (usual, "a contractive"),
    };
    (gather(compressor), format!("feedback {} needs {class} compressor", feedback.name()))
}

/// Returns whether the errors of a reducer are of the class that a feedback asks for.
fn suits(requirement: FeedbackRequirement, reducer: &ReducerConfig) -> bool {
    use ErrorBound::{Contractive, MeanContractive, Unbiased};
    let class = reducer.get().error_bound(1000);
    match requirement {
        FeedbackRequirement::Nothing | FeedbackRequirement::Bounded => true,
        FeedbackRequirement::Unbiased => {
            class.is_some_and(|class| is_identity(class) || matches!(class, Unbiased { .. }))
        }
        FeedbackRequirement::Contractive => class
            .is_some_and(|class| is_identity(class) || matches!(class, Contractive { .. } | MeanContractive { .. })),
    }
}

fn reducer_under(strategy: &StrategyConfig, controller: Option<&ControllerConfig>) -> (ReducerConfig, String) {
    match (controller, strategy.get().dense_because()) {
        (None | Some(ControllerConfig::None), Some(why)) => {
            (ReducerConfig::Dense, format!("strategy {} {why}", strategy.name()))
        }
        (None, None) => (
            ControllerConfig::from(AutoConfig::default()).get().reducer(),
            "controller auto chooses among its levels".into(),
        ),
        (Some(ControllerConfig::None), None) => {
            (GatherConfig::default().into(), "without a controller it is the ratio that the ladder of auto has".into())
        }
        (Some(controller), _) => {
            let reducer = controller.get().reducer();
            let what = if reducer.get().accepts_any_ratio() { "chooses among its levels" } else { "sets its ratio" };
            (reducer, format!("controller {} {what}", controller.name()))
        }
    }
}

fn open_controller(
    strategy: &StrategyConfig,
    reducer: &ReducerConfig,
    is_named: bool,
    aggregator: &AggregatorConfig,
) -> (ControllerConfig, String) {
    if reducer.get().accepts_any_ratio() && strategy.get().dense_because().is_none() {
        return (AutoConfig::default().into(), "it decides where no ratio was named".into());
    }
    let why = match (reducer.get().traits().is_dense, is_named) {
        (true, _) => "dense has no ratio to decide".to_owned(),
        (false, true) => format!("reducer {} has the ratio that was named", reducer.name()),
        (false, false) if aggregator.get().is_mean() => {
            format!("reducer {} has no levels to choose among", reducer.name())
        }
        (false, false) => "dense steps would not be aggregated the same way".to_owned(),
    };
    (ControllerConfig::None, why)
}

fn open_feedback(strategy: &StrategyConfig, exchange: &Exchange) -> (Feedback, String) {
    if let Some(why) = strategy.get().no_feedback_because() {
        return (Feedback::None, format!("strategy {} {why}", strategy.name()));
    }
    match exchange.reducers().find(|reducer| reducer.get().traits().needs_feedback) {
        Some(reducer) => {
            (Feedback::ByOptimizer, format!("reducer {} needs one, and the optimizer decides which", reducer.name()))
        }
        None => (Feedback::None, format!("reducer {} needs none", exchange.reducer.name())),
    }
}

impl Config {
    /// Chooses a feedback that was left [open](Feedback::ByOptimizer), for an optimizer that is SGD with heavy-ball momentum
    /// `momentum` in (0, 1), or for any other optimizer (`None`). Returns `None` if the feedback was not open.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// let choice = Config::auto().choose_feedback(Some(0.9), "SGD with momentum 0.9").expect("it is open");
    /// assert_eq!(choice.to_string(), "feedback inner-momentum:0.9, because the optimizer is SGD with momentum 0.9");
    /// ```
    pub fn choose_feedback(&mut self, momentum: Option<f32>, optimizer: &str) -> Option<Choice> {
        if self.exchange.feedback != Feedback::ByOptimizer {
            return None;
        }
        let steps_with_it = self.steps_with_averages();
        *self = self.clone().for_optimizer(momentum);
        let why = match steps_with_it {
            true => format!("the optimizer is {optimizer}"),
            false => format!("strategy {} exchanges parameters", self.strategy.name()),
        };
        Some(Choice::because("feedback", self.exchange.feedback, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Config {
        toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Naming any part of the default with its default value gives the default.
    #[test]
    fn each_part_of_the_default_typed_out_is_the_default() {
        let auto = Config::auto();
        let Exchange { reducer, aggregator, feedback, controller, .. } = &auto.exchange;
        for named in [
            format!("strategy = '{}'", auto.strategy),
            format!("reducer = '{reducer}'"),
            "reducer = 'ladder'".to_owned(),
            format!("aggregator = '{aggregator}'"),
            format!("feedback = '{feedback}'"),
            format!("controller = '{controller}'"),
            "controller = 'auto'".to_owned(),
            "probing = 'late'".to_owned(),
            "rules = []".to_owned(),
            format!("strategy = 'every-step'\ncontroller = '{controller}'"),
            format!("reducer = '{reducer}'\nfeedback = '{feedback}'"),
        ] {
            assert_eq!(read(&named), auto, "{named}");
        }
        let Config { strategy, exchange } = auto.clone();
        let in_code = Parts { strategy: Some(strategy), controller: Some(exchange.controller), ..Parts::default() };
        assert_eq!(in_code.choose().0, auto);
    }

    #[test]
    fn a_part_that_is_named_changes_no_other() {
        let auto = Config::auto();
        for (named, change) in [
            (
                "controller = 'cost-aware:50x'",
                Config::auto().with_controller("cost-aware:50x".parse::<ControllerConfig>().unwrap()),
            ),
            ("feedback = 'error'", Config::auto().with_feedback(Feedback::Error)),
            ("feedback = 'none'", Config::auto().with_feedback(Feedback::None)),
            (
                "dense_below = 7",
                Config { exchange: Exchange { dense_below: Some(7), ..auto.exchange.clone() }, ..auto.clone() },
            ),
            (
                "threads = 2",
                Config { exchange: Exchange { threads: Some(2), ..auto.exchange.clone() }, ..auto.clone() },
            ),
        ] {
            assert_eq!(read(named), change, "{named}");
        }
        // The feedback suits the optimizer, independent of the other named parts.
        for named in [
            "reducer = 'gather:topk:20x:q8'",
            "reducer = 'power-sgd:2'",
            "controller = 'gravac'",
            "aggregator = 'krum:1'",
        ] {
            assert_eq!(read(named).exchange.feedback, Feedback::ByOptimizer, "{named}");
            assert_eq!(
                read(named).for_optimizer(Some(0.9)).exchange.feedback.to_string(),
                "inner-momentum:0.9",
                "{named}"
            );
        }
    }

    #[test]
    fn what_cannot_go_together_is_said() {
        let reasons = |text: &str| {
            let parts: Parts = toml::from_str(text).unwrap();
            parts.choose().1.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        for (text, says) in [
            ("", "controller auto:100x, because it decides where no ratio was named"),
            (
                "strategy = 'local-sgd:8'",
                "reducer dense, because strategy local-sgd exchanges parameters, once in a period",
            ),
            ("strategy = 'sgp'", "feedback none, because strategy sgp sends parameters as they are"),
            (
                "strategy = 'easgd'\nreducer = 'gather:topk:8x'",
                "feedback none, because strategy easgd exchanges differences",
            ),
            ("reducer = 'gather:topk:20x'", "controller none, because reducer gather has the ratio that was named"),
            ("reducer = 'gather:qsgd:4'", "feedback none, because reducer gather needs none"),
            ("reducer = 'dense'", "controller none, because dense has no ratio to decide"),
            ("controller = 'gravac'", "reducer gather:topk:20x:q8, because controller gravac sets its ratio"),
            (
                "controller = 'l-greco'",
                "reducer gather:topk:20x:q8,per-slot=true, because controller l-greco sets its ratio",
            ),
            ("aggregator = 'krum:1'", "reducer gather:topk:20x:q8, because aggregator krum:1 combines whole messages"),
            ("feedback = 'error'", "feedback error, as given"),
            (
                "feedback = 'diana'",
                "reducer gather:qsgd:4:512:max, because feedback diana needs an unbiased compressor",
            ),
            ("feedback = 'diana'", "controller none, because reducer gather has no levels to choose among"),
            ("feedback = 'ef21'", "reducer gather:topk:20x:q8, because feedback ef21 needs a contractive compressor"),
            ("feedback = 'ef21'\ncontroller = 'gravac'", "because controller gravac sets its ratio"),
            (
                "feedback = 'ef21'\ncontroller = 'l-greco'",
                "reducer gather:topk:20x:q8,per-slot=true, because controller l-greco",
            ),
            ("feedback = 'diana'\nstrategy = 'local-sgd:8'", "reducer dense, because strategy local-sgd"),
            (
                "aggregator = 'krum:1'\ncontroller = 'l-greco'",
                "reducer gather:topk:20x:q8,per-slot=true, because aggregator krum:1 combines whole messages",
            ),
        ] {
            assert!(reasons(text).contains(says), "{text}: {}", reasons(text));
        }
        let mut local = read("strategy = 'local-sgd:8'\nreducer = 'gather:topk:8x'");
        let choice = local.choose_feedback(Some(0.9), "SGD with momentum 0.9").unwrap();
        assert_eq!(choice.to_string(), "feedback error, because strategy local-sgd exchanges parameters");
        assert_eq!((local.exchange.feedback, local.choose_feedback(None, "")), (Feedback::Error, None));
    }

    /// Every chosen configuration can be built: the rules never make a named part impossible.
    #[test]
    fn whatever_is_named_alone_builds() {
        let layout = crate::Layout::new((0..10).map(|i| (i.to_string(), vec![3000])));
        let builds = |parts: Parts| {
            let (config, choices) = parts.choose();
            for momentum in [Some(0.9), None] {
                let built = config.clone().for_optimizer(momentum).build(&layout, 6).map(drop);
                built.unwrap_or_else(|error| panic!("{choices:?}: {error}"));
            }
        };
        ControllerConfig::all().into_iter().for_each(|controller| builds(Parts::default().with_controller(controller)));
        ReducerConfig::all().into_iter().for_each(|reducer| builds(Parts::default().with_reducer(reducer)));
        StrategyConfig::all().into_iter().for_each(|strategy| builds(Parts::default().with_strategy(strategy)));
        Feedback::all().into_iter().for_each(|feedback| builds(Parts::default().with_feedback(feedback)));
        for aggregator in ["mean", "krum:1", "median", "trimmed-mean:1"] {
            let rest = Exchange { aggregator: aggregator.parse().unwrap(), ..Exchange::default() };
            builds(Parts { rest, ..Parts::default() });
        }
    }
}
