//! Backup workers: the first `N` of `N + b` gradients make an update, without waiting for stragglers.
//!
//! **Why, and when not.** A synchronous step takes as long as its slowest rank, and with many ranks one of them is slow at most
//! steps. `b` spare ranks cut off the tail of that distribution, at the cost of `b/(N + b)` of the machines. Every gradient
//! comes from the newest model, unlike in [`async_sgd`](briquette_core::server::async_sgd). A rank that is always the slowest contributes
//! nothing, so its data is not used.
//!
//! **Method.** All workers compute at `x_t`. The server takes the mean of the first `N` gradients of version `t`, and steps:
//! `x_{t+1} = x_t − γ·mean`. A gradient of an older version is rejected, and its worker restarts at the newest model. With an
//! [`Uplink`](briquette_core::server::Uplink) with error feedback, a rejected contribution is put back into the residual.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `b = 0` | synchronous SGD |
//!
//! **On the wire.** For each gradient, `14 + 4d` bytes to a worker, and `29` bytes and a message from it.
//!
//! **State.** The model and the optimizer, on the server.
//!
//! **Knobs.** `ranks` `N`, workers whose gradients count, at least 1; `spare` `b`, default 1. There must be `N + b` workers.
//!
//! **Deviations.** A straggler gets the rejection only after it has finished its gradient. The paper's workers abort as soon
//! as there is a newer model.
//!
//! **Reference.** J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, *Revisiting Distributed Synchronous SGD*, 2016 (arXiv 1604.00981),
//! algorithms 3 and 4.
//!
//! ```
//! use briquette_core::server::{Arrival, PolicySettings, Verdict};
//! use briquette_zoo::server::backup::Backup;
//! let policy = Backup { ranks: 3, spare: 1 }.build(4)?;
//! let judge = |version| policy.judge(&Arrival { version, now: 7, distance: &|| 0.0 });
//! assert_eq!((judge(7), judge(6), policy.quorum(7)), (Verdict::Accepted, Verdict::Late, 3));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::config::Described;
use briquette_core::error::ConfigError;
use briquette_core::server::{Arrival, Policy, PolicySettings, Verdict};

/// Accepts the first gradients of a version; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "backup",
    help = "the first RANKS gradients of each version, of RANKS + spare workers",
    representatives("backup:2")
)]
pub struct Backup {
    /// Number of gradients that make an update.
    #[setting(default = 1, range = "[1, inf)")]
    pub ranks: usize,
    /// Number of additional workers.
    #[setting(default = 1)]
    pub spare: usize,
}

impl PolicySettings for Backup {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        briquette_core::server::check(self, workers)?;
        let Self { ranks, spare } = *self;
        if ranks.checked_add(spare) != Some(workers) {
            return Err(ConfigError::conflict(
                format!("server backup:{ranks},spare={spare}"),
                format!("{workers} workers"),
                format!("it is for {ranks} + {spare} workers, besides the server"),
                "change the number of ranks, or ranks and spare of backup",
            ));
        }
        Ok(Box::new(*self))
    }

    fn batches_of_an_update(&self, _: usize) -> u64 {
        self.ranks as u64
    }

    fn workers(&self) -> Option<usize> {
        self.ranks.checked_add(self.spare)
    }
}

impl Policy for Backup {
    fn judge(&self, arrival: &Arrival<'_>) -> Verdict {
        if arrival.version == arrival.now { Verdict::Accepted } else { Verdict::Late }
    }

    fn quorum(&self, _: u64) -> usize {
        self.ranks
    }

    fn puts_back(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_sim::Paces;
    use briquette_testkit::server::{Noisy, simulate};

    /// Claim: up to `b` stragglers do not change the time of a step, and the numbers are those of the `N` other workers.
    #[test]
    fn a_straggler_costs_no_time_and_changes_nothing() {
        let noisy = Noisy::default();
        let all = simulate(&Backup { ranks: 3, spare: 0 }, 3, "50ms", &noisy, 30);
        // Rank 4 is the straggler.
        let with = simulate(&Backup { ranks: 3, spare: 1 }, 4, "50ms,50ms,50ms,50ms,510ms", &noisy, 30);
        assert_eq!(with.model, all.model);
        // The last message goes to the straggler, which is at its third gradient.
        assert!(
            (all.seconds - 1.5).abs() < 1e-9 && (with.seconds - 1.53).abs() < 1e-9,
            "{} {}",
            all.seconds,
            with.seconds
        );
        assert_eq!((with.served.accepted, with.served.late), (90, 3));
        let waits = simulate(&Backup { ranks: 4, spare: 0 }, 4, "50ms,50ms,50ms,50ms,510ms", &noisy, 30);
        assert!(waits.seconds > 15.0, "{}", waits.seconds);
    }

    /// Without spares it takes the mean of all gradients at each step, in f64 up to rounding.
    #[test]
    fn without_spares_it_is_synchronous_sgd() {
        let noisy = Noisy::default();
        let run = simulate(&Backup { ranks: 3, spare: 0 }, 3, "50ms;lognormal=0.5", &noisy, 30);
        let (mut x, mut out) = (noisy.start(), Vec::new());
        for batch in 0..30 {
            let mut mean = vec![0.0_f64; x.len()];
            for rank in 1..=3 {
                noisy.gradient_of(rank, batch, &x, &mut out);
                mean.iter_mut().zip(&out).for_each(|(mean, g)| *mean += f64::from(*g) / 3.0);
            }
            x.iter_mut().zip(&mean).for_each(|(x, g)| *x -= noisy.rate * *g as f32);
        }
        assert!(run.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{:?} {x:?}", run.model);
        assert_eq!(run.served.late, 0);
    }

    /// Claim: 100 machines with log-normal times, of which 3 % are ten times as long. Progress per second is best at some
    /// number of spares: none and too many are slower. Computed from order statistics alone, as the state machine has no clock.
    #[test]
    fn there_is_a_best_number_of_spares() {
        let paces: Paces = "1s;lognormal=0.2;slow=0.03x10".parse().unwrap();
        let cost = |spare: usize| {
            let of_step = |step| {
                let mut seconds: Vec<f64> = (0..100).map(|rank| paces.seconds(rank, step)).collect();
                seconds.sort_by(f64::total_cmp);
                seconds[99 - spare]
            };
            (0..300).map(of_step).sum::<f64>() / 300.0 * 100.0 / (100 - spare) as f64
        };
        let costs = [0, 4, 6, 10, 40].map(cost);
        assert!(
            costs[0] > 3.0 * costs[1] && costs[1] > costs[2] && costs[2] > costs[3] && costs[4] > costs[3],
            "{costs:?}"
        );
    }

    #[test]
    fn other_than_all_workers_is_refused() {
        let error = Backup { ranks: 3, spare: 1 }.build(5).unwrap_err().to_string();
        assert!(error.contains("3 + 1 workers") && error.contains("5 workers"), "{error}");
        assert!(Backup { ranks: 0, spare: 1 }.build(1).unwrap_err().to_string().contains("ranks of backup"));
    }
}
