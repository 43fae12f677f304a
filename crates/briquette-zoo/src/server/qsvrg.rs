//! QSVRG: quantized gradient differences to a common reference point, with an exact full gradient once per epoch.
//!
//! **Why, and when not.** Quantized batch gradients have two sources of noise, the batch and the quantizer, and at a constant
//! rate the loss stops above its minimum. Over a finite set of samples, the difference between the gradients of one batch at
//! two points loses both as the points approach each other: the quantizer's error is proportional to its input, which
//! vanishes. The loss therefore falls linearly at a constant rate, with the bits of QSGD. The cost is a pass over all data in
//! every epoch, and two gradients per batch. If augmentation or dropout change the function at every pass, there is no finite
//! set, and nothing is gained.
//!
//! **Method.** At a version that is a multiple of `T + 1` every worker sends the gradient over all its data, dense, and the
//! model is marked. At other versions all workers send a message of a difference.
//!
//! | paper | here |
//! |---|---|
//! | `y`, the point of an epoch; `∇f(y)` in floats | the marked model, `H`; the update of that version is `x ← y − ηH` |
//! | `u = Q(∇f_j(x) − ∇f_j(y) + ∇f(y))` of each processor, `Q` of QSGD with `s = √n` levels | `H + mean Q(∇f(x; ξ) − ∇f(y; ξ))`, `Q` the workers' compressor, such as `qsgd:s22:512:l2:elias` |
//! | `x ← x − η·mean u`, `T` times | the optimizer, plain SGD |
//!
//! | setting | equivalent to |
//! |---|---|
//! | `epoch` = 1 | gradient descent |
//! | a dense compressor | SVRG |
//!
//! **On the wire.** `14 + 8d` bytes to a worker (`14 + 4d` for a full gradient), and 29 bytes and a message from it. In an
//! epoch of `T + 1` updates a worker sends `4d` bytes for the full gradient and `T` messages. With Elias codes and `√n` levels
//! a message has about `2.8n + 32` bits according to the paper, and 3.1 bits a value here, where lower-order terms are counted.
//!
//! **Properties.** On a strongly convex sum of smooth functions, with an unbiased compressor and epochs proportional to the
//! condition number, the excess loss falls by a constant factor an epoch (the paper: 0.9). The update does not depend on the
//! order of arrival.
//!
//! **State.** The model, the marked one, `H` and the optimizer, on the server.
//!
//! **Knobs.** `epoch`, `T + 1`, updates, default 16.
//!
//! **Deviations.** Only the difference is quantized, and the server adds the full gradient: the quantized vector is shorter
//! near the optimum, and the workers need not know `∇f(y)`. The next epoch starts at the last iterate, as in SVRG's option I;
//! the proof uses the mean of the iterates. Every update waits for all workers. A worker draws batches only from its own data.
//! Error feedback is rejected: it would carry differences of one epoch into the next.
//!
//! **Reference.** D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnović, *QSGD: Communication-Efficient SGD via Gradient Quantization and
//! Encoding*, NIPS 2017 (arXiv 1610.02132), the section on variance-reduced SGD and its appendix; R. Johnson, T. Zhang, *Accelerating Stochastic
//! Gradient Descent using Predictive Variance Reduction*, NIPS 2013.
//!
//! ```
//! use briquette_core::server::{PolicySettings, Task};
//! use briquette_zoo::server::qsvrg::Qsvrg;
//! let mut policy = Qsvrg { epoch: 8 }.build(3)?;
//! assert_eq!((policy.task(16), policy.quorum(16), policy.marks(16)), (Task::Exact, 3, true));
//! let (mut full, mut difference) = ([2.0], [0.5]);
//! policy.direct(&mut full, 16);
//! assert_eq!((policy.task(17), policy.quorum(17), policy.marks(17)), (Task::Difference, 3, false));
//! policy.direct(&mut difference, 17);
//! assert_eq!((full, difference), ([2.0], [2.5])); // H, and H with the mean difference
//! policy.direct(&mut difference, 18);
//! assert_eq!(difference, [4.5]); // differences do not add up: each is to the marked model
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::config::Described;
use briquette_core::error::ConfigError;
use briquette_core::server::{Arrival, Policy, PolicySettings, Task, Verdict};

/// Settings of QSVRG; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "qsvrg",
    help = "all ranks' differences to the gradients of a marked model, which is replaced every EPOCH updates (16)",
    representatives("qsvrg:4", "qsvrg:3")
)]
pub struct Qsvrg {
    /// Updates between full gradients.
    #[setting(default = 16, range = "[1, inf)")]
    pub epoch: u64,
}

impl PolicySettings for Qsvrg {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        briquette_core::server::check(self, workers)?;
        Ok(Box::new(Running { epoch: self.epoch, workers, full: Vec::new() }))
    }

    fn allows_residual(&self) -> bool {
        false
    }

    fn requires_all_data(&self) -> bool {
        true
    }

    fn batches_of_an_update(&self, workers: usize) -> u64 {
        workers as u64
    }
}

#[derive(Debug)]
struct Running {
    epoch: u64,
    workers: usize,
    /// `H`.
    full: Vec<f32>,
}

impl Running {
    /// Returns whether an epoch starts at this version. It also does without a full gradient, as after a start within an epoch.
    fn begins_epoch(&self, version: u64) -> bool {
        version.is_multiple_of(self.epoch) || self.full.is_empty()
    }
}

impl Policy for Running {
    fn task(&self, version: u64) -> Task {
        if self.begins_epoch(version) { Task::Exact } else { Task::Difference }
    }

    fn judge(&self, Arrival { version, now, .. }: &Arrival<'_>) -> Verdict {
        if version == now { Verdict::Accepted } else { Verdict::Late }
    }

    fn quorum(&self, _: u64) -> usize {
        self.workers
    }

    fn direct(&mut self, mean: &mut [f32], version: u64) {
        if self.begins_epoch(version) {
            self.full.clear();
            self.full.extend_from_slice(mean);
        } else {
            mean.iter_mut().zip(&self.full).for_each(|(mean, full)| *mean += full);
        }
    }

    fn looks_back(&self) -> bool {
        true
    }

    fn marks(&self, version: u64) -> bool {
        self.begins_epoch(version)
    }

    fn memory(&mut self) -> Option<&mut Vec<f32>> {
        Some(&mut self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::backup::Backup;
    use briquette_core::compress::{Norm, qsgd::Qsgd};
    use briquette_core::server::Uplink;
    use briquette_testkit::server::{Finite, Leg, Run, simulate, simulated, train};

    const PACES: &str = "0ms,20ms,50ms,90ms";

    /// Returns the mean over three workers of the vector that each computes.
    fn mean(mut of: impl FnMut(usize, &mut Vec<f32>)) -> Vec<f32> {
        let (mut mean, mut out) = (vec![0.0; 8], Vec::new());
        for rank in 1..=3 {
            of(rank, &mut out);
            mean.iter_mut().zip(&out).for_each(|(mean, g)| *mean += g / 3.0);
        }
        mean
    }

    #[test]
    fn with_a_dense_compressor_it_is_svrg() {
        let finite = Finite::default();
        let run = simulate(&Qsvrg { epoch: 5 }, 3, PACES, &finite, 23);
        let (mut x, mut y, mut full, mut batch) = (finite.start(), Vec::new(), Vec::new(), 0);
        for step in 0..23 {
            let direction = if step % 5 == 0 {
                y = x.clone();
                full = mean(|rank, out| finite.gradient_of(rank, None, &y, out));
                batch += finite.batches();
                full.clone()
            } else {
                let at = |point: &[f32]| mean(|rank, out| finite.gradient_of(rank, Some(batch), point, out));
                let (here, there) = (at(&x), at(&y));
                batch += 1;
                (0..8).map(|i| full[i] + here[i] - there[i]).collect()
            };
            x.iter_mut().zip(&direction).for_each(|(x, g)| *x -= finite.rate * g);
        }
        assert!(run.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{:?} {x:?}", run.model);
        assert_eq!((run.served.late, run.served.delays), (0, 0), "all wait for the slowest");
    }

    #[test]
    fn of_epochs_of_1_it_is_gradient_descent() {
        let finite = Finite::default();
        let run = simulate(&Qsvrg { epoch: 1 }, 3, PACES, &finite, 12);
        let mut x = finite.start();
        for _ in 0..12 {
            let g = mean(|rank, out| finite.gradient_of(rank, None, &x, out));
            x.iter_mut().zip(&g).for_each(|(x, g)| *x -= finite.rate * g);
        }
        assert!(run.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    /// Runs with three levels of the norm of eight values; three is `√n`.
    fn quantized(settings: &dyn PolicySettings, updates: u64) -> Run {
        let legs = [Leg { until: updates, resumed: false }];
        let uplink = || Uplink::new(Qsgd::new(3, 8, Norm::L2).expect("levels and a bucket"), false);
        train(simulated(3, PACES), settings, &Finite::default(), &legs, uplink)
    }

    /// Claim: linear convergence at a constant rate and few bits, where quantized batch gradients stop at the same rate.
    #[test]
    fn quantized_differences_converge_linearly_where_quantized_gradients_stop() {
        let (finite, all) = (Finite::default(), Backup { ranks: 3, spare: 0 });
        let norm = |run: &Run| finite.norm(&run.model, 3);
        let after = [80, 160, 240].map(|updates| norm(&quantized(&Qsvrg { epoch: 16 }, updates)));
        // Five epochs, each reducing the loss by at least 0.9, and so the gradient by its square root.
        let factor = 0.9_f32.powf(2.5);
        assert!(after[1] < factor * after[0] && after[2] < factor * after[1] && after[2] < 1e-3, "{after:?}");
        let stops = [160, 240].map(|updates| norm(&quantized(&all, updates)));
        assert!(stops.iter().all(|norm| *norm > 30.0 * after[2]), "{stops:?}, {after:?}");
    }

    #[test]
    fn a_full_gradient_is_sent_exactly_whatever_the_compressor() {
        let (finite, one) = (Finite::default(), Qsvrg { epoch: 1 });
        let dense = simulate(&one, 3, PACES, &finite, 6);
        assert_eq!(quantized(&one, 6).model, dense.model);
    }
}
