//! SYNTHESIS: a gradient estimate that is updated by gradient differences, which ranks send at their own pace.
//!
//! **Why, and when not.** Over a finite set of samples, an occasional full gradient plus gradient differences of small batches
//! estimates the gradient with a noise that vanishes as the model settles: `√N/ε²` gradients of `N` samples, compared with
//! `1/ε⁴` for SGD. The cost is a pass over all data in every epoch, and two gradients a batch. If augmentation or dropout
//! change the function at every pass, there is no finite set, and nothing is gained.
//!
//! **Method.** The server keeps an estimate `v`. At the start of an epoch, a version that is a multiple of `q`, every worker
//! sends the gradient over all its data, and `v` is their mean. At other versions a worker receives `x_s` and `x_{s−1}` and
//! sends the difference of its next batch's gradients there. When it arrives,
//!
//! ```text
//! v ← v + ∇f(x_s; ξ) − ∇f(x_{s−1}; ξ)        x ← x − η·v
//! ```
//!
//! if it is of this epoch and `t − s ≤ Δ`. Otherwise it is rejected.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `Δ = 0` | SPIDER |
//! | `q = 1` | gradient descent |
//!
//! **On the wire.** `14 + 8d` bytes to a worker (`14 + 4d` for a full gradient), and `29` bytes and a message from it.
//!
//! **State.** The two newest models, `v` and the optimizer, on the server.
//!
//! **Knobs.** `epoch` `q`, updates, default 16; `delay` `Δ` below it, default 4.
//!
//! **Deviations.** We had the paper's abstract, not its listing. The abstract states that only full gradients are waited for,
//! that delays are bounded, and that the estimate is SPIDER's. We decided that a difference is between the model that a worker
//! receives and the previous one, and that a difference of an earlier epoch is rejected. SPIDER's normalized step is left to
//! the optimizer. Differences shrink, so compress them with unbiased compressors, or not at all. Error feedback is rejected: it
//! would carry differences of one epoch into the next, and would add late differences to the estimate after all.
//!
//! **Reference.** Z. Liu, X. Zhang, J. Liu, *SYNTHESIS: A Semi-Asynchronous Path-Integrated Stochastic Gradient Method for Distributed Learning in
//! Computing Clusters*, MobiHoc 2022 (arXiv 2208.08425); C. Fang, C. J. Li, Z. Lin, T. Zhang, *SPIDER*, NeurIPS 2018 (arXiv 1807.01695),
//! algorithm 1.
//!
//! ```
//! use briquette_core::server::{Arrival, PolicySettings, Task, Verdict};
//! use briquette_zoo::server::synthesis::Synthesis;
//! let mut policy = Synthesis { epoch: 8, delay: 2 }.build(3)?;
//! assert_eq!((policy.task(16), policy.quorum(16)), (Task::Full, 3));
//! let (mut full, mut difference) = ([2.0], [0.5]);
//! policy.direct(&mut full, 16);
//! assert_eq!((policy.task(17), policy.quorum(17)), (Task::Difference, 1));
//! policy.direct(&mut difference, 17);
//! assert_eq!((full, difference), ([2.0], [2.5])); // v, and v with the difference
//! let judge = |version, now| policy.judge(&Arrival { version, now, distance: &|| 0.0 });
//! assert_eq!((judge(17, 19), judge(17, 20), judge(15, 17)), (Verdict::Accepted, Verdict::Late, Verdict::Late));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::config::Described;
use briquette_core::error::ConfigError;
use briquette_core::server::{Arrival, Policy, PolicySettings, Task, Verdict};

/// Settings of SYNTHESIS; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "synthesis",
    help = "differences of gradients as they come, full gradients every EPOCH updates (16)",
    representatives("synthesis:4,delay=2", "synthesis:1,delay=0")
)]
pub struct Synthesis {
    /// Updates between full gradients.
    #[setting(default = 16, range = "[1, inf)")]
    pub epoch: u64,
    /// Maximum delay of a difference, in updates.
    #[setting(default = 4, range = "(-inf, epoch)")]
    pub delay: u64,
}

impl PolicySettings for Synthesis {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        briquette_core::server::check(self, workers)?;
        Ok(Box::new(Running { settings: *self, workers, estimate: Vec::new() }))
    }

    fn allows_residual(&self) -> bool {
        false
    }

    fn requires_all_data(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Running {
    settings: Synthesis,
    workers: usize,
    /// `v`.
    estimate: Vec<f32>,
}

impl Running {
    /// Returns whether an epoch starts at this version. It also does without an estimate, as after a start within an epoch.
    fn begins_epoch(&self, version: u64) -> bool {
        version.is_multiple_of(self.settings.epoch) || self.estimate.is_empty()
    }
}

impl Policy for Running {
    fn task(&self, version: u64) -> Task {
        if self.begins_epoch(version) { Task::Full } else { Task::Difference }
    }

    fn judge(&self, Arrival { version, now, .. }: &Arrival<'_>) -> Verdict {
        let Synthesis { epoch, delay } = self.settings;
        let counts = match self.begins_epoch(*now) {
            true => version == now,
            false => version / epoch == now / epoch && now - version <= delay,
        };
        if counts { Verdict::Accepted } else { Verdict::Late }
    }

    fn quorum(&self, version: u64) -> usize {
        if self.begins_epoch(version) { self.workers } else { 1 }
    }

    fn direct(&mut self, mean: &mut [f32], version: u64) {
        if self.begins_epoch(version) {
            self.estimate.clear();
            self.estimate.extend_from_slice(mean);
        } else {
            self.estimate.iter_mut().zip(&*mean).for_each(|(v, difference)| *v += difference);
            mean.copy_from_slice(&self.estimate);
        }
    }

    fn looks_back(&self) -> bool {
        true
    }

    fn memory(&mut self) -> Option<&mut Vec<f32>> {
        Some(&mut self.estimate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::server::async_sgd::AsyncSgd;
    use briquette_testkit::server::{Finite, simulate};

    /// Returns the mean of the workers' full gradients, as the server computes it.
    fn full(finite: &Finite, x: &[f32]) -> Vec<f32> {
        let (mut mean, mut out) = (vec![0.0; x.len()], Vec::new());
        for rank in 1..=3 {
            finite.gradient_of(rank, None, x, &mut out);
            mean.iter_mut().zip(&out).for_each(|(mean, g)| *mean += g / 3.0);
        }
        mean
    }

    /// Three workers, of which the first is more than twice as fast, without delays: SPIDER, with all small batches from the
    /// first worker.
    #[test]
    fn without_delays_it_is_spider() {
        let finite = Finite::default();
        let run = simulate(&Synthesis { epoch: 5, delay: 0 }, 3, "0ms,20ms,50ms,90ms", &finite, 23);
        let (mut x, mut before, mut v, mut batch) = (finite.start(), finite.start(), vec![0.0; 8], 0);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for step in 0..23 {
            if step % 5 == 0 {
                v = full(&finite, &x);
                batch += finite.batches();
            } else {
                finite.gradient_of(1, Some(batch), &x, &mut here);
                finite.gradient_of(1, Some(batch), &before, &mut there);
                batch += 1;
                v.iter_mut().zip(here.iter().zip(&there)).for_each(|(v, (here, there))| *v += here - there);
            }
            before.clone_from(&x);
            x.iter_mut().zip(&v).for_each(|(x, v)| *x -= finite.rate * v);
        }
        assert!(run.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6), "{:?} {x:?}", run.model);
        assert!(run.served.late > 5 && run.served.longest_delay == 0, "the others are late: {:?}", run.served);
    }

    #[test]
    fn of_epochs_of_1_it_is_gradient_descent() {
        let finite = Finite::default();
        let descent = simulate(&Synthesis { epoch: 1, delay: 0 }, 3, "50ms,90ms,20ms", &finite, 12);
        let mut x = finite.start();
        for _ in 0..12 {
            let g = full(&finite, &x);
            x.iter_mut().zip(&g).for_each(|(x, g)| *x -= finite.rate * g);
        }
        assert!(descent.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    /// Claim: on a finite sum, with delays, it reaches a gradient norm that asynchronous SGD at the same rate does not reach
    /// with as many batch gradients.
    #[test]
    fn it_beats_asynchronous_sgd_in_gradients() {
        let finite = Finite::default();
        let paces = "0ms,100ms,50ms";
        let run = simulate(&Synthesis { epoch: 32, delay: 8 }, 4, paces, &finite, 640);
        let plain = simulate(&AsyncSgd, 4, paces, &finite, run.served.gradients);
        let (ours, theirs) = (finite.norm(&run.model, 4), finite.norm(&plain.model, 4));
        assert!(ours < 0.2 * theirs, "{ours} {theirs} {:?}", run.served);
        assert!(run.served.longest_delay <= 8 && run.served.delays > 0, "{:?}", run.served);
    }

    #[test]
    fn delays_beyond_an_epoch_are_refused() {
        let error = Synthesis { epoch: 4, delay: 4 }.build(2).unwrap_err().to_string();
        assert!(error.contains("delay of synthesis must be below epoch"), "{error}");
    }
}
