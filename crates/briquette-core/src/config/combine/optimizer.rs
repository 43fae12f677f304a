//! Checks the optimizer against strategy, reducer and feedback.

use std::fmt;

use crate::config::Config;
use crate::error::Conflict;

/// The kind of the optimizer that steps with the averages, if it can be determined.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum InnerOptimizer {
    /// SGD without momentum.
    Sgd,
    /// SGD with momentum in (0, 1), in the usual form; dampened or not.
    HeavyBall {
        /// The velocity's decay.
        momentum: f32,
    },
    /// Another optimizer that still moves parameters in a step without a gradient: Adam, Nesterov momentum.
    OtherMomentum,
    /// 1-bit Adam.
    OneBitAdam,
    /// Any other: clipped gradients, parameter groups that differ, an optimizer that cannot be probed.
    Other,
    /// The exchange has no access to the optimizer.
    Unseen,
}

impl InnerOptimizer {
    /// The momentum of heavy-ball SGD.
    pub fn momentum(self) -> Option<f32> {
        match self {
            InnerOptimizer::HeavyBall { momentum } => Some(momentum),
            _ => None,
        }
    }
}

impl fmt::Display for InnerOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InnerOptimizer::Sgd => f.write_str("SGD without momentum"),
            InnerOptimizer::HeavyBall { momentum } => write!(f, "SGD, momentum {momentum}"),
            InnerOptimizer::Other => f.write_str("an optimizer that is not SGD with heavy-ball momentum"),
            InnerOptimizer::OneBitAdam => f.write_str("OneBitAdam, an optimizer with momentum"),
            InnerOptimizer::OtherMomentum => {
                f.write_str("an optimizer with momentum that is not SGD with heavy-ball momentum")
            }
            InnerOptimizer::Unseen => f.write_str("the optimizer cannot be seen"),
        }
    }
}

/// Returns whether [`optimizer`] depends on the optimizer, so that it must be known.
pub fn reads_optimizer(config: &Config) -> bool {
    let requires = config.exchange.feedback.get().optimizer().is_some();
    requires_plain_sgd(config).is_some() || (requires && config.steps_with_averages())
}

/// Checks a configuration with the optimizer that steps with its averages. One that cannot be determined is accepted.
///
/// # Errors
/// [`Conflict`] between the optimizer and the strategy, the reducer or the feedback.
pub fn optimizer(config: &Config, optimizer: InnerOptimizer) -> Result<(), Conflict> {
    use InnerOptimizer::{HeavyBall, OneBitAdam, Other, OtherMomentum, Sgd, Unseen};
    if let Some(plain) = requires_plain_sgd(config).filter(|_| !matches!(optimizer, Sgd | Unseen)) {
        let why = "it counts on steps of the learning rate times the average";
        let instead = "use SGD without momentum, gradient clipping and parameter groups, or leave it out";
        return Err(Conflict::new(plain, optimizer.to_string(), why, instead));
    }
    let feedback = &config.exchange.feedback;
    let conflict = |right: String, why: String, instead: String| {
        Err(Conflict::new(format!("feedback {feedback}"), right, why, instead))
    };
    match (feedback.get().optimizer(), optimizer) {
        (Some(HeavyBall { momentum }), _) => {
            let why = format!("it is for SGD with momentum {momentum}, which steps with the exchanged gradients");
            let right = match optimizer {
                _ if !config.steps_with_averages() => {
                    format!("strategy {}, which exchanges parameters", config.strategy)
                }
                Unseen => return Ok(()),
                HeavyBall { momentum: its } if (its - momentum).abs() <= 1e-6 => return Ok(()),
                Sgd if momentum == 0.0 => return Ok(()),
                other => other.to_string(),
            };
            conflict(right, why, "use feedback by-optimizer, or error".to_owned())
        }
        _ if !config.steps_with_averages() => Ok(()),
        (Some(OneBitAdam), OneBitAdam | Unseen) | (None, _) => Ok(()),
        (Some(OneBitAdam), _) => {
            let why = "it is for optimizer OneBitAdam with the same warm-up".to_owned();
            conflict(optimizer.to_string(), why, "use that optimizer, or feedback error".to_owned())
        }
        (Some(_), Sgd | Other | Unseen) => Ok(()),
        (Some(_), HeavyBall { .. } | OtherMomentum | OneBitAdam) => {
            let instead = match optimizer {
                HeavyBall { momentum } => format!("feedback inner-momentum:{momentum} or error"),
                OneBitAdam => "feedback one-bit-adam".to_owned(),
                _ => "feedback error".to_owned(),
            };
            let why = "it is for an optimizer without momentum, whose momentum would act on top".to_owned();
            conflict(optimizer.to_string(), why, format!("use SGD without momentum, or {instead}"))
        }
    }
}

/// Returns the strategy or reducer that requires plain SGD as the optimizer, if there is one.
fn requires_plain_sgd(config: &Config) -> Option<String> {
    if config.strategy.get().requires_plain_sgd() {
        return Some(format!("strategy {}", config.strategy));
    }
    let mut reducers = config.exchange.reducers().filter(|_| config.steps_with_averages());
    reducers.find(|reducer| reducer.get().requires_plain_sgd()).map(|reducer| format!("reducer {reducer}"))
}
