//! Momentum correction (Deep Gradient Compression): accumulates momentum before compression, so that delayed coordinates keep their
//! velocity.
//!
//! **Why, and when not.** Error feedback under a momentum optimizer delays gradients and then applies the optimizer's momentum to the late
//! sum; at high ratios that costs points of accuracy. Here each rank keeps the velocity itself and exchanges the accumulated *velocity*.
//! **The inner optimizer must then be plain SGD, without momentum**, and weight decay belongs on the local gradient
//! (`DistributedOptimizer::with_local_weight_decay`). Not for Adam. To keep the optimizer's own momentum, as
//! `auto` does, use [`InnerMomentum`](super::InnerMomentum).
//!
//! **Method.** On every rank:
//!
//! | paper | here |
//! |---|---|
//! | clip `∇_k` to norm `thr·W^-½` | `clip`: the rank's mean gradient `g = W·∇_k` is clipped to norm `clip·W^½` |
//! | `u ← m·u + g` | `velocity`, `momentum` |
//! | `v ← v + u` | `pending` |
//! | send `v·mask`; `v ← v − sent` | the remainder in `pending` is the residual |
//! | `u ← u·¬mask` | factor masking: `velocity` is 0 where something was sent |
//!
//! The paper's update is the sum of the ranks' `∇_k`, each a sum over the rank's samples divided by the number of samples on all ranks.
//! Here it is the mean of the ranks' means, `W` times as long. Ranks with independent gradients have means that are `√W` times as long as
//! the mean over ranks, so a clip at that mean's norm leaves them unchanged.
//!
//! With `nesterov`: `u ← m·(u + g)`, `v ← v + u + g`.
//!
//! **Properties.** Conserves `v`: `pending_before + u = sent + pending_after`. If every exchange is dense it *is* momentum SGD (zero
//! dampening): a dense exchange sends all of `v` and does not mask `u`, because a full mask would destroy the momentum (a constant gradient
//! of 1 would send 1, 1, 1 instead of 1, 1.9, 2.71).
//!
//! A slot for which no rank has a gradient is [held](crate::reduce::Reducer::hold): its velocity neither decays nor is sent.
//!
//! **State.** Velocity and pending: two vectors per rank; during an exchange, three more.
//!
//! **Knobs.** `momentum` in [0, 1), default 0.9; `clip` a positive norm, default none; `nesterov`, default off; `masking`, default on. A
//! warm-up is a schedule of the factor: [`Schedule`](crate::control::Schedule).
//!
//! **Deviations.** `v` keeps the *difference* between the vector and the contribution, so quantized values lose nothing (the paper zeroes
//! the masked coordinates). A coordinate whose sent value is 0 counts as not sent. One-dimensional tensors (biases, norms) are compressed
//! like the others unless [rules](crate::config::Rule) select otherwise; the authors' code sends them dense. The threshold of top-k is
//! exact, not estimated from a sample. A dense exchange does not mask (above). Clipping applies to the gradient as given: scaled by the
//! rank's share of the samples, and including weight decay.
//!
//! **Reference.** Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, *Deep Gradient Compression*, ICLR 2018
//! (arXiv 1712.01887), §3 and algorithm 4.
//!
//! ```
//! use briquette_core::{Key, Layout, comm::Local, reduce::{Dense, AgreedStep, Reducer, Round}};
//! use briquette_core::wrapper::{Momentum, MomentumCorrection};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = MomentumCorrection::new(Dense, Momentum::default())?;
//! let layout = Layout::flat(1);
//! let mut sums = vec![];
//! for _ in 0..3 {
//!     let mut average = [0.0];
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &[1.0], average: &mut average, sent: None }, &mut comm)?;
//!     sums.push(average[0]);
//! }
//! assert_eq!(sums, [1.0, 1.9, 2.71]); // momentum SGD's velocity
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use super::feed::{Delivery, FedVector};
use super::keep_unsent;
use crate::config::{Described, Exchange, FeedbackRequirement, FeedbackSettings};
use crate::error::{ConfigError, ReduceError};
use crate::layout::absent;
use crate::math::{all_finite, norm2};
use crate::parallel::SEGMENT;
use crate::reduce::{Arriving, CompleteVector, Exchanged, Reducer, Round};
use crate::report::{Report, Waiting};
use crate::state::Staged;
use crate::stateful;
use crate::{Layout, Session};

/// Settings of [`MomentumCorrection`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Momentum {
    /// The velocity's decay, in [0, 1).
    pub momentum: f32,
    /// Enables Nesterov's form.
    pub nesterov: bool,
    /// Norm of the mean gradient over all ranks above which it is clipped, as estimated by each rank. Its own gradient is clipped to
    /// `clip·√W`, the length that corresponds to such a mean if ranks are independent.
    pub clip: Option<f64>,
    /// Enables momentum factor masking.
    pub masking: bool,
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum { momentum: 0.9, nesterov: false, clip: None, masking: true }
    }
}

/// Accumulates velocity before compression; see the [module](self).
#[derive(Debug)]
pub struct MomentumCorrection<R> {
    inner: R,
    settings: Momentum,
    velocity: Staged<Vec<f32>>,
    pending: Staged<Vec<f32>>,
    sent: Vec<f32>,
    waiting: Waiting,
    /// Energy of each slot's pending velocity.
    left: Vec<f64>,
}

impl<R: Reducer> MomentumCorrection<R> {
    /// Creates a wrapper around a reducer that reports its contribution in `sent`.
    ///
    /// # Errors
    /// [`ConfigError`] if `momentum` is outside [0, 1) or `clip` is not positive.
    pub fn new(inner: R, settings: Momentum) -> Result<Self, ConfigError> {
        settings.check()?;
        let (velocity, pending) = (Staged::default(), Staged::default());
        let (sent, waiting, left) = (Vec::new(), Waiting::default(), Vec::new());
        Ok(MomentumCorrection { inner, settings, velocity, pending, sent, waiting, left })
    }

    /// Returns the accumulated velocity that was not sent (the paper's `v`); empty before the first exchange.
    pub fn pending(&self) -> &[f32] {
        self.pending.now()
    }

    /// Returns the paper's `u`; empty before the first exchange.
    pub fn velocity(&self) -> &[f32] {
        self.velocity.now()
    }

    /// Returns the factor that scales the gradient so that its norm is at most the limit.
    fn scale(&self, input: &[f32], world: usize) -> f32 {
        self.settings.clip.map_or(1.0, |clip| {
            let (norm, limit) = (norm2(input).sqrt(), clip * (world as f64).sqrt());
            if norm > limit { (limit / norm) as f32 } else { 1.0 }
        })
    }

    /// Exchanges the sum of the velocity and the pending velocity.
    fn reduce_accumulated(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let len = round.average.len();
        self.velocity.fit(len)?;
        self.pending.fit(len)?;
        self.sent.resize(len, 0.0);
        // The norm needs the whole vector.
        let scale = self.settings.clip.map_or(1.0, |_| self.scale(input.wait(0..len, comm), comm.world()));
        let Momentum { momentum, nesterov, .. } = self.settings;
        let ((velocity, next_velocity), (pending, next_pending)) = (self.velocity.both(), self.pending.both());
        let Round { key, slots, agreed_step, input: whole, average, sent: wanted } = round;
        let mut entered = vec![0.0; slots.len()];
        let add = |index: usize, input: &[f32], fed: &mut [f32]| {
            if slots[index].is_absent() {
                fed.fill(0.0);
                return true;
            }
            let place = slots[index].range();
            let next_velocity = &mut next_velocity[place.clone()];
            let old = velocity[place.clone()].chunks(SEGMENT).zip(pending[place].chunks(SEGMENT));
            let new = next_velocity.chunks_mut(SEGMENT).zip(fed.chunks_mut(SEGMENT));
            // Segment by segment, so that values are still cached when they are read again.
            input.chunks(SEGMENT).zip(old).zip(new).fold(true, |finite, ((input, (u, v)), (next_u, next_v))| {
                accumulate((momentum, nesterov, scale), input, (u, v), next_u, next_v);
                entered[index] += norm2(next_u);
                all_finite(next_v) & finite
            })
        };
        let feed = FedVector::new(input, slots, next_pending, add);
        let inner = Round { key, slots, agreed_step, input: whole, average, sent: Some(&mut self.sent) };
        let exchanged = feed.reduce(&mut self.inner, inner, delivery, comm)?;
        self.waiting.entered = entered.iter().sum();
        self.left = keep_unsent(self.pending.next_mut(), &self.sent, 1.0, slots, comm.rank())?;
        self.waiting.left = self.left.iter().sum();
        if let Some(wanted) = wanted {
            wanted.copy_from_slice(&self.sent);
        }
        let velocity = self.velocity.next_mut();
        let masked = |index: &usize| self.settings.masking && exchanged.selection.chose(*index);
        for place in (0..slots.len()).filter(masked).map(|index| slots[index].range()) {
            for (u, sent) in velocity[place.clone()].iter_mut().zip(&self.sent[place]) {
                *u = if *sent == 0.0 { *u } else { 0.0 };
            }
        }
        if self.inner.discards_residual() {
            self.pending.next_mut().fill(0.0);
            self.left.fill(0.0);
            self.waiting.left = 0.0;
        }
        self.velocity.stage();
        self.pending.stage();
        let absent = absent(slots);
        self.velocity.hold(&absent);
        self.pending.hold(&absent);
        Ok(exchanged)
    }
}

/// Computes the next velocity, and the vector to send.
fn accumulate(
    (m, nesterov, scale): (f32, bool, f32),
    input: &[f32],
    (u, v): (&[f32], &[f32]),
    next_u: &mut [f32],
    next_v: &mut [f32],
) {
    for (((&g, (&u, &v)), next_u), next_v) in input.iter().zip(u.iter().zip(v)).zip(next_u).zip(next_v) {
        let g = g * scale;
        if nesterov {
            *next_u = m * (u + g);
            *next_v = v + (*next_u + g);
        } else {
            *next_u = m * u + g;
            *next_v = v + *next_u;
        }
    }
}

stateful! {
    impl<R: Reducer> Stateful for MomentumCorrection<R> {
        velocity: vector("velocity").rank_local(Spread),
        pending: vector("residual").exactly_like("velocity").rank_local(Spread),
        inner: part("inner"),
    }
}

impl<R: Reducer> Reducer for MomentumCorrection<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let mut input = CompleteVector(round.input);
        self.reduce_accumulated(round, &mut input, Delivery::Complete, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        self.reduce_accumulated(round, input, Delivery::InParts, comm)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.velocity.hold(absent);
        self.pending.hold(absent);
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        report.put_waiting(self.waiting, &self.left);
    }
}

impl Momentum {
    pub(super) fn check(self) -> Result<(), ConfigError> {
        if !(0.0..1.0).contains(&self.momentum) {
            return Err(ConfigError::range("momentum", "in [0, 1)", self.momentum));
        }
        match self.clip.filter(|c| !(c.is_finite() && *c > 0.0)) {
            Some(clip) => Err(ConfigError::range("clip", "a positive norm", clip)),
            None => Ok(()),
        }
    }
}

impl Described for Momentum {
    const NAME: &'static str = "momentum";
    const SETTINGS: &'static str = "DECAY[,nesterov=true,clip=NORM,masking=false]";
    const HELP: &'static str =
        "Deep Gradient Compression's momentum correction, with plain SGD as the inner optimizer (0.9)";

    fn check(&self) -> Result<(), ConfigError> {
        Momentum::check(*self)
    }

    fn representatives() -> Vec<Self> {
        vec![Momentum { clip: Some(3.0), ..Momentum::default() }]
    }
}

impl FeedbackSettings for Momentum {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(MomentumCorrection::new(inner, *self)?))
    }

    fn has_momentum(&self) -> bool {
        true
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }
}

#[cfg(test)]
mod tests;
