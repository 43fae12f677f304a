//! Asynchronous local SGD: each rank takes some local steps, and the server mixes each rank's change into the model as it
//! arrives.
//!
//! **Why, and when not.** Like [`async_sgd`](briquette_core::server::async_sgd), with fewer bytes by a factor of the period. Ranks take
//! their steps at their own speed. A contribution comes from an older model and consists of a whole period; the mixing factor keeps one
//! rank's contribution from moving the model too far.
//!
//! **Method.** A worker takes `H` steps of its own optimizer from `x_v` to `y`. The server, at `x_t`:
//!
//! ```text
//! x_{t+1} = x_t − α·(x_v − y)
//! ```
//!
//! | setting | equivalent to |
//! |---|---|
//! | one worker, `α = 1` | its optimizer alone |
//!
//! **On the wire.** As for [`async_sgd`](briquette_core::server::async_sgd), once per period.
//!
//! **State.** The model, on the server; each worker's optimizer is rank-local.
//!
//! **Knobs.** `period` `H`, steps, default 8, at most 10 000; `mixing` `α` in (0, 1], by default `1/W` for `W` workers, so that
//! one contribution from each worker moves the model by their mean.
//!
//! **Deviations.** Stich's workers add their changes since their last read to a shared model, each with weight `1/W`; here the
//! server does.
//!
//! **Reference.** S. U. Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019 (arXiv 1805.09767), section 5
//! (asynchronous local SGD); H. Yu, S. Yang, S. Zhu, *Parallel Restarted SGD with Faster Convergence and Less Communication*,
//! AAAI 2019 (arXiv 1807.06629), for ranks at their own speed.
//!
//! ```
//! use briquette_zoo::server::async_local_sgd::AsyncLocalSgd;
//! use briquette_core::server::{PolicySettings, Task, Update};
//! let policy = AsyncLocalSgd::default().build(4)?;
//! assert_eq!((policy.task(0), policy.update()), (Task::Steps(8), Update::Subtract(0.25)));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::config::Described;
use briquette_core::error::ConfigError;
use briquette_core::server::{Arrival, Policy, PolicySettings, Task, Update, Verdict};

/// Settings of asynchronous local SGD; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "async-local-sgd",
    help = "PERIOD steps (8) of each rank by itself, mixed into the model as they come",
    representatives("async-local-sgd:3", "async-local-sgd:1,mixing=1")
)]
pub struct AsyncLocalSgd {
    /// Steps of a period. The server waits for them, and a worker that is asked to stop finishes them.
    #[setting(default = 8, range = "[1, 10000]")]
    pub period: u32,
    /// Factor of a worker's change. If absent, one over the number of workers.
    #[setting(range = "(0, 1]", syntax = "1/workers")]
    pub mixing: Option<f32>,
}

impl PolicySettings for AsyncLocalSgd {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        briquette_core::server::check(self, workers)?;
        Ok(Box::new(Running { period: self.period, mixing: self.mixing.unwrap_or(1.0 / workers as f32) }))
    }

    fn batches_of_an_update(&self, _: usize) -> u64 {
        u64::from(self.period)
    }
}

#[derive(Debug)]
struct Running {
    period: u32,
    mixing: f32,
}

impl Policy for Running {
    fn task(&self, _: u64) -> Task {
        Task::Steps(self.period)
    }

    fn judge(&self, _: &Arrival<'_>) -> Verdict {
        Verdict::Accepted
    }

    fn update(&self) -> Update {
        Update::Subtract(self.mixing)
    }

    fn puts_back(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_testkit::server::{Noisy, simulate};

    #[test]
    fn one_worker_is_its_optimizer_alone() {
        let noisy = Noisy { rate: 0.05, ..Noisy::default() };
        let run = simulate(&AsyncLocalSgd { period: 4, mixing: None }, 1, "50ms", &noisy, 10);
        let (mut x, mut out) = (noisy.start(), Vec::new());
        for batch in 0..40 {
            noisy.gradient_of(1, batch, &x, &mut out);
            x.iter_mut().zip(&out).for_each(|(x, g)| *x -= noisy.rate * g);
        }
        assert!(run.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5));
        assert_eq!(run.served.gradients, 40);
    }

    /// Claim: it reaches the loss of asynchronous SGD with as many gradients and fewer bytes by a factor of the period; one
    /// rank is three times slower.
    #[test]
    fn it_learns_with_a_period_of_times_fewer_bytes() {
        let noisy = Noisy { rate: 0.05, ..Noisy::default() };
        let paces = "0ms,150ms,50ms";
        let every = simulate(&AsyncLocalSgd { period: 1, mixing: None }, 4, paces, &noisy, 1600);
        let local = simulate(&AsyncLocalSgd { period: 8, mixing: None }, 4, paces, &noisy, 200);
        assert!(noisy.loss(&local.model) < 1.2 * noisy.loss(&every.model) + 0.01);
        assert!(local.bytes * 7 < every.bytes, "{} {}", local.bytes, every.bytes);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (config, what) in [
            (AsyncLocalSgd { period: 0, mixing: None }, "period of async-local-sgd must be 1 to 10000"),
            (AsyncLocalSgd { period: 1, mixing: Some(1.5) }, "mixing of async-local-sgd must be in (0, 1]"),
        ] {
            let error = config.build(2).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
