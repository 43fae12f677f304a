//! The last step of a run: its progress is in the model that is evaluated.

use briquette_core::Layout;
use briquette_core::config::{Config, representatives};
use briquette_core::laws::train::{Sgd, mean, noisy, train};
use briquette_core::sync::SyncStrategy;

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
        // Large enough to change signs.
        let last = if other && step + 1 == steps { -100.0 } else { 0.0 };
        noisy(rank, step, x).into_iter().map(|g| g + last).collect()
    };
    let sgd = Sgd { rate: 0.05, momentum: 0.0, steps };
    mean(&train(world, strategy, &[3.0; 10], (sgd, &gradient)))
}

/// A run of any length ends with the progress of its last step in the model, or of the step before under `delayed`.
#[test]
fn what_the_last_step_learns_is_in_the_model_that_is_evaluated() {
    briquette_zoo::install();
    let (mut tried, mut would_not) = (0, Vec::new());
    for config in representatives() {
        let name = config.strategy.name();
        let config = Config::dense().with_strategy(config.strategy);
        let world = config.min_ranks().max(4);
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
