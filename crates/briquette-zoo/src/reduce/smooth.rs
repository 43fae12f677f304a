//! DCGD+ and, with a memory, DIANA+: compression noise shaped by the smoothness of the loss.
//!
//! **Why, and when not.** A compressor's error is the same in all coordinates. If the loss curves steeply in some and hardly in others, the
//! steep ones limit the learning rate, and noise in them costs most. Here each rank divides its gradient by `√L`, coordinate by coordinate,
//! before it compresses, and receivers multiply by `√L` again: in units of the loss the noise is the same everywhere. It helps on
//! ill-conditioned problems. For networks the diagonal is an estimate, and the paper makes no claim.
//!
//! **Method.** `Lᵢ` is rank `i`'s smoothness, a diagonal; or one diagonal for all ranks.
//!
//! | paper | here |
//! |---|---|
//! | `Δᵢ = Cᵢ(Lᵢ^{†½}(gᵢ − hᵢ))` | the message of `(x − h)/w`, with `w = √Lᵢ` |
//! | `g = mean(hᵢ + Lᵢ^{½}Δᵢ)`, `hᵢ ← hᵢ + αLᵢ^{½}Δᵢ` | decoded, times `wᵢ`; `memory`, and the mean of all ranks' |
//! | DCGD+: no `hᵢ` | `alpha=0` |
//! | importance sampling: coordinate `j` with `pⱼ = Lⱼ/(Lⱼ + ρ)`, sent as `xⱼ/pⱼ` | `importance`: mean sampling ratio, instead of a compressor |
//!
//! `Lᵢ` is [given](Smooth::given) in code, or estimated. For the estimate, gradients are exchanged dense for `warm_up` steps. It is
//! the largest `|gⱼ(t) − gⱼ(t−1)|/(γ|aⱼ(t−1)|)` so far, because plain SGD has moved by `γ` times the average `a`. Values below the
//! largest divided by `condition` are raised to it.
//!
//! **On the wire.** As [`Gather`](briquette_core::reduce::gather::Gather): a length (4 bytes) and a [message](briquette_core::Message) to each other rank. With `per_rank`,
//! once, after the warm-up, `4d` bytes of weights to each other rank.
//!
//! **Properties.** Linear in `sent` (law 2), unbiased if the compressor is; `sent` is `h + w·message`. `α` is at most `1/(1+ω)`. If `L` is
//! the same in all coordinates it is DIANA, or the gather of the compressor, to rounding.
//!
//! **State.** `w`: one vector on every rank, or with `per_rank` the vectors of all ranks; and the state of [`Shifted`]. During the warm-up
//! instead: the estimate, the previous gradient, and the previous step. After a change of the world size, ranks use the means.
//!
//! **Deviations.** Diagonals only. The paper's blocks are the bucket of [`Qsgd`](briquette_core::compress::qsgd::Qsgd), and its steps `hⱼ ∝ 1/√Lⱼ` after
//! `L^{−½}` are one step for the gradient itself. The estimate is this project's; it requires plain SGD.
//!
//! *Blocks.* With `n` blocks on `n` ranks, the paper needs fewer bits than with one block by a factor of `O(n)`. Blocks with the same
//! number of levels do not show this: on 1024 values, in Elias codes, 4 and 16 blocks need 1.6 and 1.55 times fewer bits at one level
//! each, and 1.3 times fewer and 1.3 times *more* if each has its best number of levels (`claims two-way` in `benches/`). Only the
//! abstract was available, not the theorem; levels per block are not implemented here.
//!
//! **Reference.** B. Wang, M. Safaryan, P. Richtárik, *Theoretically Better and Numerically Faster Distributed Optimization with
//! Smoothness-Aware Quantization Techniques*, NeurIPS 2022 (arXiv 2106.03524), algorithms 1 and 2; importance sampling: M. Safaryan,
//! F. Hanzely, P. Richtárik, *Smoothness Matrices Beat Smoothness Constants: Better Communication Compression Techniques for Distributed
//! Optimization*, NeurIPS 2021 (arXiv 2102.07245).
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round};
//! use briquette_zoo::reduce::smooth::Smooth;
//! let (layout, mut comm) = (Layout::flat(2), Local::world(1).remove(0));
//! let settings = Smooth { compressor: "sign".parse()?, alpha: Some(0.0), ..Smooth::default() };
//! let mut reducer = settings.given(&[vec![16.0, 1.0]])?;
//! let mut average = [0.0; 2];
//! reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &[8.0, -2.0], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [8.0, -2.0]); // (8, −2) divided by (4, 1) is (2, −2), which signs and a scale hold
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod importance;
mod norm;

pub use config::Smooth;

use std::fmt;
use std::ops::Range;

use norm::Norm;

use crate::wrapper::shifted::Shifted;
use briquette_core::error::ReduceError;
use briquette_core::reduce::{Exchanged, Reducer, Round, Selection, dense::Dense};
use briquette_core::report::Report;
use briquette_core::state::{Place, Staged};
use briquette_core::{CompressionRatio, Session, stateful};

/// Compression in the norm of the loss; see the [module](self).
pub struct SmoothnessAware {
    settings: Smooth,
    warm_up: WarmUp,
    /// Compresses differences to a memory, each rank in its own norm.
    shifted: Shifted<Norm>,
}

/// State of the smoothness estimate.
#[derive(Debug, Default)]
struct WarmUp {
    /// Placement of the curvature and of the gradient before: rank-local if each rank estimates its own.
    place: Place,
    steepest: Staged<Vec<f32>>,
    before: Staged<Vec<f32>>,
    moved: Staged<Vec<f32>>,
}

impl fmt::Debug for SmoothnessAware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmoothnessAware").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl WarmUp {
    /// Records one step: the current gradient, of this rank or of all, and the average that the optimizer applies.
    fn observe(&mut self, gradient: &[f32], average: &[f32], rate: f32) -> Result<(), ReduceError> {
        let is_first = self.before.now().is_empty();
        [&mut self.steepest, &mut self.before, &mut self.moved].into_iter().try_for_each(|m| m.fit(gradient.len()))?;
        let (steepest, next) = self.steepest.both();
        next.copy_from_slice(steepest);
        let (before, moved) = (self.before.now(), self.moved.now());
        for (i, next) in next.iter_mut().enumerate().filter(|_| !is_first) {
            let curvature = ((gradient[i] - before[i]) / moved[i]).abs();
            if curvature.is_finite() {
                *next = next.max(curvature);
            }
        }
        self.before.next_mut().copy_from_slice(gradient);
        self.moved.next_mut().iter_mut().zip(average).for_each(|(moved, average)| *moved = rate * average);
        self.each(Staged::stage);
        Ok(())
    }

    fn each(&mut self, act: impl Fn(&mut Staged<Vec<f32>>)) {
        [&mut self.steepest, &mut self.before, &mut self.moved].into_iter().for_each(act);
    }

    /// Returns `√L`, from the staged estimate.
    fn weights(&self, condition: f64) -> Vec<f32> {
        let steepest = self.steepest.latest();
        let largest = steepest.iter().copied().fold(0.0, f32::max);
        let least = (f64::from(largest) / condition) as f32;
        let weight = |l: &f32| if largest > 0.0 { l.max(least).max(f32::MIN_POSITIVE).sqrt() } else { 1.0 };
        steepest.iter().map(weight).collect()
    }
}

impl SmoothnessAware {
    /// Runs a dense exchange and updates the estimate; the last one computes the weights.
    fn warm_up(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let rate = round.agreed_step.rate()?;
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let before = comm.traffic();
        Dense.reduce(Round { key, slots, agreed_step, input, average: &mut *average, sent }, comm)?;
        self.warm_up.observe(if self.settings.per_rank { input } else { average }, average, rate)?;
        if agreed_step.step + 1 >= self.settings.warm_up {
            let weights = self.warm_up.weights(self.settings.condition);
            self.shifted.inner().stage_weights(weights, self.settings.per_rank, comm)?;
        }
        Ok(Exchanged { traffic: comm.traffic() - before, selection: Selection::All })
    }

    /// Frees the estimate once the weights are known.
    fn end_warm_up(&mut self) {
        if self.shifted.inner().knows_weights() {
            self.warm_up = WarmUp { place: self.warm_up.place, ..WarmUp::default() };
        }
    }
}

stateful! {
    impl Stateful for SmoothnessAware {
        warm_up: flatten(),
        shifted: flatten(),
    }
    after_commit: Self::end_warm_up;
}

stateful! {
    impl Stateful for WarmUp as it {
        steepest: vector("steepest").of_any_length().at(it.place),
        before: vector("before").of_any_length().at(it.place),
        moved: vector("moved").of_any_length(),
    }
}

impl Reducer for SmoothnessAware {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        if self.shifted.inner().knows_weights() { self.shifted.reduce(round, comm) } else { self.warm_up(round, comm) }
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.warm_up.each(|memory| memory.hold(absent));
        self.shifted.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.shifted.report(report);
        // Norms are not known yet: the exchange was dense.
        report.ratio = report.ratio.or(Some(CompressionRatio::DENSE));
    }
}

#[cfg(test)]
mod tests;
