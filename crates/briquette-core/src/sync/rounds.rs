//! Default periods derived from the number of steps of a run, if that is known and no period is set.

use crate::config::StrategyConfig;
use crate::error::ConfigError;

/// Minimum number of exchanges between local steps in a run. With fewer, the ranks' local progress is hardly combined.
pub(crate) const FEWEST_EXCHANGES: u64 = 20;

/// Returns the default period, or a shorter one with which a run of `steps` steps has [`FEWEST_EXCHANGES`] exchanges.
pub(super) fn period_of(usual: u64, steps: Option<u64>) -> u64 {
    steps.map_or(usual, |steps| usual.min((steps / FEWEST_EXCHANGES).max(1)))
}

/// Checks that a period, if set, is not 0 steps.
pub(super) fn check_period(what: &'static str, period: Option<u64>) -> Result<(), ConfigError> {
    ConfigError::unless(period != Some(0), what, "at least 1", 0)
}

/// Returns the settings with a period if none is set, and the reason for its length.
pub(super) fn in_rounds(
    named: Option<u64>,
    (usual, period): (u64, u64),
    steps: Option<u64>,
    with: impl FnOnce(u64) -> StrategyConfig,
) -> Option<(StrategyConfig, String)> {
    if named.is_some() {
        return None;
    }
    let why = match steps {
        None => format!("its usual period is {usual} steps"),
        Some(steps) if period == usual => format!("a run of {steps} steps has {} of its usual periods", steps / usual),
        Some(steps) => format!(
            "a run of {steps} steps has {} periods of {period} steps, and would have {} of the usual {usual}",
            steps / period,
            steps / usual
        ),
    };
    Some((with(period), why))
}

#[cfg(test)]
mod tests {
    use super::super::SyncStrategy;
    use super::super::testkit::{Sgd, mean, noisy, train};
    use crate::Layout;
    use crate::config::{Config, representatives};

    /// Returns the evaluated model after `steps` steps. The gradient of the last step differs if `other` is set.
    fn evaluated(config: &Config, world: usize, steps: u64, (other, is_known): (bool, bool)) -> Vec<f64> {
        let strategy = || {
            let mut strategy = config.build(&Layout::flat(10), world).unwrap();
            if is_known {
                strategy.ends_at(steps - 1);
            }
            strategy
        };
        let gradient = |rank: usize, step: u64, x: &[f32]| {
            let last = if other && step + 1 == steps { 1.0 } else { 0.0 };
            noisy(rank, step, x).into_iter().map(|g| g + last).collect()
        };
        let sgd = Sgd { rate: 0.05, momentum: 0.0, steps };
        mean(&train(world, strategy, &[3.0; 10], (sgd, &gradient)))
    }

    /// A run of any length ends with the progress of its last step in the model, or of the step before under `delayed`.
    #[test]
    fn what_the_last_step_learns_is_in_the_model_that_is_evaluated() {
        let (mut tried, mut would_not) = (0, Vec::new());
        for config in representatives() {
            let name = config.strategy.name();
            let config = Config::dense().with_strategy(config.strategy);
            let world = config.fewest_ranks().max(4);
            if name == "delayed" || config.build(&Layout::flat(10), world).is_err() {
                continue;
            }
            for steps in 1..=7 {
                let learns = |is_known| {
                    let [a, b] = [false, true].map(|other| evaluated(&config, world, steps, (other, is_known)));
                    a.iter().zip(&b).any(|(a, b)| (a - b).abs() > 1e-6)
                };
                assert!(learns(true), "{} after {steps} steps", config.strategy);
                tried += 1;
                if !learns(false) {
                    would_not.push(name);
                }
            }
        }
        would_not.dedup();
        assert!(tried > 80, "{tried}");
        assert_eq!(would_not, ["easgd", "minibatch", "parle"], "without the number of steps");
    }
}
