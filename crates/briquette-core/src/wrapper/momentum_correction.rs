//! Momentum correction (Deep Gradient Compression): accumulates momentum before compression, so that coordinates that are sent late
//! keep their velocity.
//!
//! **Why, and when not.** Error feedback under a momentum optimizer delays gradients, and the optimizer applies its momentum to their late
//! sum. At high ratios that costs points of accuracy. Here each rank keeps the velocity itself and exchanges the accumulated *velocity*.
//! **The inner optimizer must then be plain SGD, without momentum**, and weight decay must be applied to the local gradient
//! (`DistributedOptimizer::with_local_weight_decay`). Not for Adam. To keep the optimizer's own momentum, as `auto` does, use
//! [`InnerMomentum`](crate::wrapper::inner_momentum::InnerMomentum).
//!
//! **Method.** On every rank, with `W` ranks and the paper's `∇_k`:
//!
//! | paper | here |
//! |---|---|
//! | clip `∇_k` to norm `thr·W^-½` | `clip`: the rank's mean gradient `g = W·∇_k` is clipped to norm `clip·W^½` |
//! | `u ← m·u + g` | `velocity`, `momentum` |
//! | `v ← v + u` | `pending` |
//! | send `v·mask`; `v ← v − sent` | the remainder in `pending` is the residual |
//! | `u ← u·¬mask` | factor masking: `velocity` is 0 where something was sent |
//!
//! The paper's update is the sum of the ranks' `∇_k`; each is a sum over the rank's samples divided by the number of samples on all
//! ranks. Here the update is the mean of the ranks' means `g`, and `g` is `W` times as long as `∇_k`. If ranks have independent
//! gradients, their means are `√W` times as long as the mean over ranks. A clip at the norm of that mean therefore leaves them unchanged.
//!
//! With `nesterov`: `u ← m·(u + g)`, `v ← v + u + g`.
//!
//! **Masking.** The mask removes a velocity that is out of date. It also removes the momentum of a value that is sent at every step, whose updates are
//! then `1 − m` of those of the optimizer. An embedding under SGD has most of its gradient in such values, and training stalls. With `waited`, a value
//! is masked only if it exceeds its velocity by a quarter (`|sent| > 1.25·|u|`), so that a part of it had waited. While `‖v‖² > 2·‖u‖²` most of the vector waits,
//! and all that is sent is masked. This rule is not in the paper, and not for `nesterov`, where a value without a residual is not its velocity.
//!
//! **Properties.** Conserves `v`: `pending_before + u = sent + pending_after`. If every exchange is dense the result *is* momentum SGD
//! (without dampening): a dense exchange sends all of `v` and does not mask `u`. A full mask would destroy the momentum (a constant
//! gradient of 1 would send 1, 1, 1 instead of 1, 1.9, 2.71).
//!
//! A slot for which no rank has a gradient is [held](crate::seam::Reducer::hold): its velocity neither decays nor is sent.
//!
//! **State.** Velocity and pending: two vectors per rank; during an exchange, two more, and `sent` if the inner reducer cannot subtract its
//! messages.
//!
//! **Knobs.** `momentum` in [0, 1), default 0.9; `clip` a positive norm, default none; `nesterov`, default off; `masking`: `sent` (default, the paper's), `waited` or `off`.
//! A warm-up is a schedule of the ratio: [`Schedule`](crate::control::schedule::Schedule).
//!
//! **Deviations.** After an exchange, `v` is the *difference* between the vector and the contribution, so quantization loses nothing (the
//! paper zeroes the masked coordinates). A coordinate whose sent value is 0 counts as not sent. One-dimensional tensors (biases, norms)
//! are compressed like the others unless [rules](crate::settings::Rule) select otherwise; the authors' code sends them dense. The
//! threshold of top-k is exact, not estimated from a sample. A dense exchange does not mask (see above). Clipping applies to the gradient
//! as passed to the exchange: scaled by the rank's share of the samples, and including weight decay.
//!
//! **Reference.** Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, *Deep Gradient Compression*, ICLR 2018
//! (arXiv 1712.01887), §3 and algorithm 4.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep, Reducer, Round};
//! use briquette_core::wrapper::momentum_correction::{MomentumCorrectionConfig, MomentumCorrection};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = MomentumCorrection::new(Dense, MomentumCorrectionConfig::default())?;
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

use super::feed::{Delivery, FedOnDevice, FedVector};
use super::residual::Residual;
use super::unsent::FedEnergies;
use super::{check_finite, keep_unsent};
use crate::error::{ConfigError, ReduceError};
use crate::layout::absent;
use crate::math::{Mask, Velocity, norm2};
use crate::report::Report;
use crate::seam::{
    Arriving, CompleteVector, DevicePart, DevicePlace, Exchanged, Reducer, Round, Selection, SentVelocity,
};
use crate::settings::{Described, Exchange, FeedbackRequirement, FeedbackSettings};
use crate::state::fields::Cell;
use crate::{Layout, Session, Slot, stateful};

/// Values whose velocity is set to 0 once they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Masking {
    /// All values that are sent.
    #[default]
    Sent,
    /// Values of which a part had waited; all that are sent while most of the vector waits.
    Waited,
    /// No values.
    Off,
}

/// Ratio of `‖v‖²` to `‖u‖²` above which most of a vector waits.
const FRESH: f64 = 2.0;

impl Masking {
    /// Returns the rule for a vector with these `‖v‖²` and `‖u‖²` of its slots.
    fn mask(self, sums: &[[f64; 2]]) -> Option<Mask> {
        let [pending, velocity] = sums.iter().fold([0.0; 2], |total, slot| [total[0] + slot[0], total[1] + slot[1]]);
        match self {
            Masking::Sent => Some(Mask::SENT),
            Masking::Waited if pending > FRESH * velocity => Some(Mask::SENT),
            Masking::Waited => Some(Mask::WAITED),
            Masking::Off => None,
        }
    }
}

/// Settings of [`MomentumCorrection`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "momentum",
    help = "Deep Gradient Compression's momentum correction, with plain SGD as the inner optimizer (0.9)",
    representatives("momentum:0.9,clip=3")
)]
pub struct MomentumCorrectionConfig {
    /// The velocity's decay, in [0, 1).
    #[setting(default = 0.9, range = "[0, 1)", syntax = "DECAY")]
    pub momentum: f32,
    /// Enables Nesterov's form.
    pub nesterov: bool,
    /// Norm of the mean gradient over all ranks above which it is clipped, as estimated by each rank. Its own gradient is clipped to
    /// `clip·√W`, the length that corresponds to such a mean if ranks are independent.
    #[setting(range = "(0, inf)")]
    pub clip: Option<f64>,
    /// Momentum factor masking.
    #[setting(syntax = "waited")]
    pub masking: Masking,
}

/// Accumulates velocity before compression; see the [module](self).
#[derive(Debug)]
pub struct MomentumCorrection<R> {
    inner: R,
    settings: MomentumCorrectionConfig,
    velocity: Residual,
    pending: Residual,
    /// The contribution, if the inner reducer cannot subtract its messages.
    sent: Vec<f32>,
    energies: FedEnergies,
}

impl<R: Reducer> MomentumCorrection<R> {
    /// Creates a wrapper around a reducer that reports its contribution in `sent`, or subtracts it.
    ///
    /// # Errors
    /// [`ConfigError`] if `momentum` is outside [0, 1), `clip` is not positive, or `nesterov` has the masking `waited`.
    pub fn new(inner: R, settings: MomentumCorrectionConfig) -> Result<Self, ConfigError> {
        settings.check()?;
        if settings.nesterov && settings.masking == Masking::Waited {
            return Err(ConfigError::conflict(
                "masking waited",
                "nesterov",
                "a value that has not waited is longer than its velocity there",
                "use masking sent or off",
            ));
        }
        let (velocity, pending, sent) = (Residual::default(), Residual::default(), Vec::new());
        Ok(MomentumCorrection { inner, settings, velocity, pending, sent, energies: FedEnergies::default() })
    }

    /// Returns the accumulated velocity that has not been sent yet (the paper's `v`); empty before the first exchange.
    pub fn pending(&self) -> Vec<f32> {
        Cell::now(&self.pending).into_owned()
    }

    /// Returns the velocity (the paper's `u`); empty before the first exchange.
    pub fn velocity(&self) -> Vec<f32> {
        Cell::now(&self.velocity).into_owned()
    }

    /// Returns the settings of a step. `norm2` is `‖gradient‖²`, for clipping.
    fn step(&self, norm2: f64, world: usize) -> Velocity {
        let MomentumCorrectionConfig { momentum, nesterov, clip, .. } = self.settings;
        let scale = clip.map_or(1.0, |clip| {
            let (norm, limit) = (norm2.sqrt(), clip * (world as f64).sqrt());
            if norm > limit { (limit / norm) as f32 } else { 1.0 }
        });
        Velocity { momentum, nesterov, scale }
    }

    /// Exchanges the sum of the velocity and the pending velocity.
    fn reduce_accumulated(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let (len, rank) = (round.average.len(), comm.rank());
        // The norm needs the whole vector.
        let gradient2 = self.settings.clip.map_or(0.0, |_| norm2(input.wait(0..len, comm)));
        let step = self.step(gradient2, comm.world());
        let Round { key, slots, agreed_step, input: whole, average, sent: wanted } = round;
        let by_messages = wanted.is_none() && self.inner.can_subtract_sent();
        self.sent.resize(if by_messages { 0 } else { len }, 0.0);
        let sent = (!by_messages).then_some(&mut self.sent[..]);
        let ((velocity, next_velocity), (pending, next_pending)) =
            (self.velocity.on_host(len)?, self.pending.on_host(len)?);
        let (mut sums, fed) = (vec![[0.0; 2]; slots.len()], next_pending);
        let add = |index: usize, input: &[f32], fed: &mut [f32]| {
            if slots[index].is_absent() {
                fed.fill(0.0);
                return true;
            }
            let place = slots[index].range();
            let now = [&velocity[place.clone()], &pending[place.clone()]];
            sums[index] = step.accumulate(input, now, [&mut next_velocity[place], fed]);
            sums[index][0].is_finite()
        };
        let feed = FedVector::new(input, slots, fed, add);
        let inner = Round { key, slots, agreed_step, input: whole, average, sent };
        let exchanged = feed.reduce(&mut self.inner, inner, delivery, comm)?;
        self.energies.set_fed(&sums, slots, rank)?;
        self.energies.set_entered(sums.iter().map(|[_, entered]| *entered));
        let mask = self.settings.masking.mask(&sums);
        let (velocity, pending) = (self.velocity.next_mut(), self.pending.next_mut());
        if by_messages {
            let velocity = mask.map_or(SentVelocity::None, |mask| SentVelocity::Host(velocity, mask));
            if !self.energies.subtract(&mut self.inner, slots, pending, None, velocity) {
                check_finite(pending, slots, rank)?;
            }
        } else {
            self.energies.set_left(keep_unsent(pending, &self.sent, 1.0, slots, rank)?);
            let selected = (0..slots.len()).filter(|index| exchanged.selection.chose(*index));
            for (place, mask) in selected.flat_map(|index| Some((slots[index].range(), mask?))) {
                for (u, sent) in velocity[place.clone()].iter_mut().zip(&self.sent[place]) {
                    *u = mask.apply(*u, *sent);
                }
            }
        }
        if let Some(wanted) = wanted {
            wanted.copy_from_slice(&self.sent);
        }
        if self.inner.discards_residual() {
            self.pending.next_mut().fill(0.0);
            self.energies.discard();
        }
        self.pending.stage();
        self.pending.hold(&absent(slots));
        self.velocity.stage();
        self.velocity.hold(&absent(slots));
        Ok(exchanged)
    }

    /// Exchanges the sum on the gradient's device, where both velocities stay.
    fn reduce_on_device(
        &mut self,
        round: Round<'_>,
        (input, place): (&mut dyn Arriving, DevicePlace),
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let (slots, rank) = (round.slots, comm.rank());
        let failed = |source| ReduceError::Device { rank, source };
        // The norm needs the whole vector.
        let waits_for = if self.settings.clip.is_some() { place.len } else { 0 };
        let mut device = input.device(0..waits_for, comm).expect("a vector on a device");
        let gradient2 = self.settings.clip.map_or(Ok(0.0), |_| device.norm2()).map_err(failed)?;
        let step = self.step(gradient2, comm.world());
        let velocity = self.velocity.on_device(&mut device).map_err(failed)?;
        let pending = self.pending.on_device(&mut device).map_err(failed)?;
        let mut next = device.memory().map_err(failed)?;
        let feed =
            |mut part: DevicePart<'_>, slots: &[Slot]| part.accumulate(step, ([velocity, pending], &mut *next), slots);
        let fed = FedOnDevice::new(input, place, slots, feed);
        let (exchanged, sums) = fed.reduce((&mut self.inner, &mut self.energies), round, comm)?;
        let mut velocity = next;
        self.energies.set_entered(sums.iter().map(|[_, entered]| *entered));
        let mask = self.settings.masking.mask(&sums).filter(|_| exchanged.selection != Selection::All);
        let parts = (&mut self.inner, &mut self.pending);
        let Some(mask) = mask else {
            self.energies.subtract_and_stage(parts, (slots, 1.0), input, SentVelocity::None, comm)?;
            self.velocity.stage_on_device(velocity);
            self.velocity.hold(&absent(slots));
            return Ok(exchanged);
        };
        if parts.0.subtracts_on_device() {
            self.energies.subtract_and_stage(
                parts,
                (slots, 1.0),
                input,
                SentVelocity::Device(&mut *velocity, mask),
                comm,
            )?;
            self.velocity.stage_on_device(velocity);
        } else {
            *self.velocity.next_mut() = velocity.fetch();
            let masked = SentVelocity::Host(self.velocity.next_mut(), mask);
            self.energies.subtract_and_stage(parts, (slots, 1.0), input, masked, comm)?;
            self.velocity.stage();
        }
        self.velocity.hold(&absent(slots));
        Ok(exchanged)
    }
}

stateful! {
    impl<R: Reducer> Stateful for MomentumCorrection<R> {
        velocity: vector("velocity").rank_local(Keep),
        pending: vector("residual").exactly_like("velocity").rank_local(Waits),
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
        let whole = input.on_device().filter(|place| place.len == round.average.len());
        let stays = round.sent.is_none() && self.inner.can_subtract_sent();
        if let Some(place) = whole.filter(|_| stays) {
            return self.reduce_on_device(round, (input, place), comm);
        }
        self.reduce_accumulated(round, input, Delivery::InParts, comm)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.velocity.hold(absent);
        self.pending.hold(absent);
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        self.energies.report(report);
    }
}

impl FeedbackSettings for MomentumCorrectionConfig {
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
