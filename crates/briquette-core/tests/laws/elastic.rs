//! Laws of elastic worlds.

use crate::representatives;
use briquette_core::config::{Config, Feedback};
use briquette_core::laws::{self, Setup};

/// Returns the strategies whose worlds may be elastic, in worlds of `world` ranks or more that lose `lost`.
fn elastic(world: usize, lost: usize) -> Vec<Config> {
    let is_elastic = |config: &Config| laws::is_elastic(&Setup::short(config, world), lost);
    representatives().into_iter().filter(is_elastic).collect()
}

#[test]
fn law_11_a_lost_rank_leaves_one_of_two_histories() {
    let configs = elastic(3, 1);
    assert!(configs.len() > 40, "{}", configs.len());
    let (mut committed, mut discarded) = (0, 0);
    for config in configs {
        let setup = Setup::short(&config, 3);
        let steps = laws::steps_to_fail_at(&setup);
        for lost in 0..setup.world {
            // At the first step, ranks have no state that differs.
            let steps = &steps[if lost == 0 { 0 } else { steps.len() - 1 }..];
            for step in steps {
                let [with_all, without] = laws::continues_without_lost(&setup, *step, &[lost]);
                (committed, discarded) = (committed + with_all, discarded + without);
            }
        }
    }
    assert!(committed > 10 && discarded > 1000, "{committed} {discarded}");
}

fn last_step_of_a_world(world: usize, lost: &[usize]) {
    let mut tried = 0;
    for config in elastic(world, lost.len()) {
        let setup = Setup::short(&config, world);
        if setup.world == world {
            laws::continues_without_lost(&setup, *laws::steps_to_fail_at(&setup).last().unwrap(), lost);
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn law_11_holds_for_two_ranks_of_five() {
    last_step_of_a_world(5, &[0, 4]);
    last_step_of_a_world(5, &[1, 2]);
}

#[test]
fn law_11_holds_for_one_rank_of_two() {
    last_step_of_a_world(2, &[1]);
}

#[test]
fn law_11_residuals_of_survivors_keep_their_weight() {
    let mut tried = 0;
    for (world, lost) in [(2, 1), (3, 0), (5, 2)] {
        for config in elastic(world, 1) {
            let feedback = config.exchange.feedback.get();
            // Others change the vector itself, by momentum or by its variance.
            let is_error = matches!(config.exchange.feedback.name(), "error" | "error-inside");
            let fades = config.exchange.feedback != Feedback::error() && config.exchange.feedback.name() == "error";
            // After an alarm, the loss guard discards the residual.
            let discards = matches!(config.exchange.controller.name(), "loss-guard" | "auto");
            if is_error && !fades && !discards && config.exchange.aggregator.get().is_mean() {
                let setup = Setup::short(&config, world);
                tried += usize::from(laws::conserves_over_survivors(&setup, (3, feedback.reads_rate()), lost));
            }
        }
    }
    assert!(tried > 30, "{tried}");
}
