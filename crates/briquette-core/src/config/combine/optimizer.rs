//! Checks the optimizer against strategy, reducer and feedback.

use crate::config::Config;
use crate::error::Conflict;
use crate::settings::InnerOptimizer;

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
