//! Parts of a configuration: named values, and the rules that choose the other parts.
//!
//! The rules are the same whichever parts are named. If none is, they choose [`Config::auto`]. Naming a part does not change
//! another, unless the two are incompatible. The [`Choice`] then states the reason.
//!
//! | part left open | value |
//! |---|---|
//! | strategy | `every-step` |
//! | reducer | If a controller is named, the reducer [whose ratio it sets](super::ControllerSettings::reducer); else the ladder that `auto` uses. If a named feedback [needs](super::FeedbackRequirement) an unbiased compressor (`qsgd:4`) or a contractive one and that reducer is not, a gather. Dense if the strategy [says so](super::StrategySettings::dense_reason) |
//! | controller | `auto` if the reducer is open, or [accepts any ratio](super::ReducerSettings::accepts_any_ratio). None if a reducer is named: its ratio is then the named one |
//! | feedback | The one that [suits the optimizer](ByOptimizer) if the reducer needs one and the strategy allows one, else none |
//!
//! ```
//! use briquette_core::config::{Config, Parts};
//! use briquette_core::control::auto::Auto;
//! let (config, choices) = Parts::default().with_controller(Auto::default()).choose();
//! assert_eq!(config, Config::auto());
//! assert_eq!(choices[1].to_string(), "reducer ladder:topk:20x:q8, because controller auto chooses among its ratios");
//! ```

use std::fmt;

use super::{
    AggregatorConfig, Config, ControllerConfig, ControllerSettings, Exchange, Feedback, FeedbackRequirement,
    ReducerConfig, StrategyConfig,
};
use crate::control::auto::Auto;
use crate::reduce::gather::GatherConfig;
use crate::seam::ErrorBound;
use crate::wrapper::by_optimizer::ByOptimizer;

/// The explicitly named parts of a configuration; see the [module](self). In TOML these are the keys of a [`Config`] that are given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parts {
    /// The strategy, which decides when ranks exchange.
    pub strategy: Option<StrategyConfig>,
    /// The reducer, which combines vectors.
    pub reducer: Option<ReducerConfig>,
    /// The feedback, which handles the residual.
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
    /// optimizer is left open until the optimizer is [known](Config::choose_feedback).
    pub fn choose(self) -> (Config, Vec<Choice>) {
        let Parts { strategy, reducer, feedback, controller, rest } = self;
        let strategy = decide("strategy", strategy, || (StrategyConfig::every_step(), "no other was named".into()));
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

/// Returns whether the errors of a reducer are of the class that a feedback requires.
fn suits(requirement: FeedbackRequirement, reducer: &ReducerConfig) -> bool {
    use ErrorBound::{Contractive, MeanContractive, Unbiased};
    let class = reducer.get().error_bound(1000);
    match requirement {
        FeedbackRequirement::Nothing | FeedbackRequirement::Bounded => true,
        FeedbackRequirement::Unbiased => {
            class.is_some_and(|class| class.is_identity() || matches!(class, Unbiased { .. }))
        }
        FeedbackRequirement::Contractive => class
            .is_some_and(|class| class.is_identity() || matches!(class, Contractive { .. } | MeanContractive { .. })),
    }
}

/// Returns the reducer whose ratio a controller sets if no reducer is named.
fn turned_by(controller: &dyn ControllerSettings) -> ReducerConfig {
    let gather = || GatherConfig { per_slot: controller.per_slot(), ..GatherConfig::default() }.into();
    controller.reducer().unwrap_or_else(gather)
}

fn reducer_under(strategy: &StrategyConfig, controller: Option<&ControllerConfig>) -> (ReducerConfig, String) {
    match (controller, strategy.get().dense_reason()) {
        (None, Some(why)) => (ReducerConfig::dense(), format!("strategy {} {why}", strategy.name())),
        (Some(controller), Some(why)) if controller.is_none() => {
            (ReducerConfig::dense(), format!("strategy {} {why}", strategy.name()))
        }
        (None, None) => (turned_by(&Auto::default()), "controller auto chooses among its ratios".into()),
        (Some(controller), None) if controller.is_none() => {
            (GatherConfig::default().into(), "without a controller it is the ratio that the ladder of auto has".into())
        }
        (Some(controller), _) => {
            let reducer = turned_by(controller.get());
            let what = if reducer.get().accepts_any_ratio() { "chooses among its ratios" } else { "sets its ratio" };
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
    if reducer.get().accepts_any_ratio() && strategy.get().dense_reason().is_none() {
        let auto = Auto { delay: strategy.get().longest_delay(), ..Auto::default() };
        return (auto.into(), "it decides where no ratio was named".into());
    }
    let why = match (reducer.get().traits().is_dense, is_named) {
        (true, _) => "dense has no ratio to decide".to_owned(),
        (false, true) => format!("reducer {} has the ratio that was named", reducer.name()),
        (false, false) if aggregator.get().is_mean() => {
            format!("reducer {} has no ratios to choose among", reducer.name())
        }
        (false, false) => "dense steps would not be aggregated the same way".to_owned(),
    };
    (ControllerConfig::none(), why)
}

fn open_feedback(strategy: &StrategyConfig, exchange: &Exchange) -> (Feedback, String) {
    if let Some(why) = strategy.get().no_feedback_because() {
        return (Feedback::none(), format!("strategy {} {why}", strategy.name()));
    }
    match exchange.reducers().find(|reducer| reducer.get().traits().needs_feedback) {
        Some(reducer) => {
            (Feedback::by_optimizer(), format!("reducer {} needs one, and the optimizer decides which", reducer.name()))
        }
        None => (Feedback::none(), format!("reducer {} needs none", exchange.reducer.name())),
    }
}

impl Config {
    /// Chooses a feedback that was left [open](ByOptimizer), for an optimizer that is SGD with heavy-ball momentum
    /// `momentum` in (0, 1), or for any other optimizer (`None`). Returns `None` if the feedback was not open.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// let choice = Config::auto().choose_feedback(Some(0.9), "SGD with momentum 0.9").expect("it is open");
    /// assert_eq!(choice.to_string(), "feedback inner-momentum:0.9, because the optimizer is SGD with momentum 0.9");
    /// ```
    pub fn choose_feedback(&mut self, momentum: Option<f32>, optimizer: &str) -> Option<Choice> {
        if !self.exchange.feedback.is::<ByOptimizer>() {
            return None;
        }
        let steps_with_it = self.steps_with_averages();
        *self = self.clone().for_optimizer(momentum);
        let why = match steps_with_it {
            true => format!("the optimizer is {optimizer}"),
            false => format!("strategy {} exchanges parameters", self.strategy.name()),
        };
        Some(Choice::because("feedback", &self.exchange.feedback, why))
    }
}
