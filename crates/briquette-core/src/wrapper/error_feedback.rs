//! Error feedback: keeps the residual of each exchange and adds it to the next vector.
//!
//! **Why, and when not.** A contractive compressor alone can diverge on several ranks; with error feedback, it converges like the
//! uncompressed method. Unbiased compressors do not need it. Under an inner optimizer with momentum it loses accuracy at high ratios: see
//! [`MomentumCorrection`](crate::wrapper::momentum_correction::MomentumCorrection).
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `p = g + e` | input + `residual` |
//! | `Δ = C(p)` | `sent` |
//! | `e ← p − Δ` | the new `residual` |
//! | `β`, in `p = g + βe` (SparseLoCo) | `decay`, 1 if not set |
//!
//! By default the residual is *outside* the learning rate: a coordinate that is sent late is applied with the rate of the step that sends
//! it. [Inside](ErrorFeedback::inside_learning_rate) the learning rate (the paper's form, `p = γg + e`, `x ← x − Δ`) it keeps the rate `γ`
//! of the step from which it comes. The optimizer multiplies by `γ` afterwards, so `g + e/γ` is exchanged, and the residual is
//! `e ← γ·(g + e/γ − Δ)`. In the units of a gradient, `e` is thus rescaled by `γ_{t−1}/γ_t` at every step. While `γ` is constant both forms are the
//! same, bit for bit if `γ` is a power of two. At a step with `γ = 0` nothing would be applied, so the residual is unchanged and excluded
//! from the exchange.
//!
//! With a decay `β` below 1, the residual decays: a value that has waited for `n` exchanges is weighted by `βⁿ`. Stale progress of long local
//! periods then does not reverse later progress.
//!
//! **Properties.** Outside the learning rate, conserves: `input + β·residual_before = sent + residual_after`, bit for bit if the sent
//! values are the vector's own (top-k with f32 values). With a dense exchange the residual is exactly 0.
//!
//! A slot for which no rank has a gradient is [held](crate::seam::Reducer::hold): its residual stays bit-identical.
//!
//! **Knobs.** `decay` β in (0, 1], default 1. The setting `error` keeps the residual outside the learning rate.
//!
//! **State.** The residual: one vector per rank. During an exchange, also the vector `p`, and `sent` if the inner reducer cannot subtract its
//! messages from `p`.
//!
//! **Deviations.** The learning rate is outside the residual unless requested, as in GraVAC. If parameter groups have different rates, the
//! inside form uses the base rate. The identity `Σ γΔ + e = Σ γg` holds for plain SGD only. An inner momentum continues to multiply `e/γ`
//! by later rates, which has a large effect after a very small rate (a restart). Adam's step is not a multiple of the gradient at all. A
//! controller inside the wrapper may [discard the residual](crate::seam::Controller::discards_residual); at that step nothing is conserved.
//!
//! **Reference.** S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, *Error Feedback Fixes SignSGD and other Gradient
//! Compression Schemes*, ICML 2019 (arXiv 1901.09847), algorithm 2. A. Sarfi et al., *Communication Efficient LLM Pre-training with SparseLoCo*, 2025
//! (arXiv 2508.15706), for the decay.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::aggregate::mean::Mean;
//! use briquette_core::comm::Local;
//! use briquette_core::compress::top_k::TopK;
//! use briquette_core::wrapper::error_feedback::ErrorFeedback;
//! use briquette_core::reduce::{AgreedStep, gather::Gather, Reducer, Round};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = ErrorFeedback::new(Gather::new(TopK::fraction(0.5)?, Mean));
//! let layout = Layout::flat(2);
//! let mut step = |input: [f32; 2]| {
//!     let mut average = [0.0; 2];
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None }, &mut comm).map(|_| average)
//! };
//! assert_eq!(step([3.0, 2.0])?, [3.0, 0.0]); // 2 stays behind …
//! assert_eq!(step([3.0, 2.0])?, [0.0, 4.0]); // … and now wins with 2 + 2
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::{Range, RangeInclusive};

use super::feed::{Delivery, FedOnDevice, FedVector};
use super::residual::Residual;
use super::unsent::FedEnergies;
use super::{check_finite, keep_unsent};
use crate::error::{ConfigError, ReduceError};
use crate::layout::absent;
use crate::math::add_scaled;
use crate::report::Report;
use crate::seam::{
    AgreedStep, Arriving, CompleteVector, DevicePart, DevicePlace, Exchanged, Reducer, Round, SentVelocity,
};
use crate::settings::{Described, Exchange, FeedbackRequirement, FeedbackSettings};
use crate::state::fields::Cell;
use crate::{Layout, Session, Slot, stateful};

/// Learning rates, inside which a residual may stay on a device: 0 leaves it as it is, a rate above 1 may make it too large, and one below 2⁻²⁰ so
/// small that some devices take it for 0.
const ON_DEVICE: RangeInclusive<f32> = 1.0 / (1 << 20) as f32..=1.0;

/// Feeds the residual back; see the [module](self).
#[derive(Debug)]
pub struct ErrorFeedback<R> {
    inner: R,
    inside: bool,
    decay: f32,
    /// The residual. The next value is the fed vector until the contribution is known.
    residual: Residual,
    /// The contribution, if the inner reducer cannot subtract its messages.
    sent: Vec<f32>,
    energies: FedEnergies,
}

impl<R: Reducer> ErrorFeedback<R> {
    /// Creates a wrapper around any reducer that reports its contribution in `sent`.
    pub fn new(inner: R) -> Self {
        let (residual, sent, energies) = (Residual::default(), Vec::new(), FedEnergies::default());
        ErrorFeedback { inner, inside: false, decay: 1.0, residual, sent, energies }
    }

    /// Creates a wrapper with the residual inside the learning rate. Rounds must then give the rate, see
    /// [`AgreedStep::learning_rate`](crate::seam::AgreedStep::learning_rate).
    pub fn inside_learning_rate(inner: R) -> Self {
        ErrorFeedback { inside: true, ..ErrorFeedback::new(inner) }
    }

    /// Multiplies the residual by `decay` at each exchange.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if it is not in (0, 1].
    pub fn with_decay(self, decay: f32) -> Result<Self, ConfigError> {
        ErrorFeedbackConfig { decay: Some(decay) }.check()?;
        Ok(ErrorFeedback { decay, ..self })
    }

    /// Returns the inner reducer.
    #[cfg(test)]
    pub(crate) fn inner(&mut self) -> &mut R {
        &mut self.inner
    }

    /// Returns the learning rate of the residual; 1 if it is outside.
    fn rate(&self, agreed_step: &AgreedStep) -> Result<f32, ReduceError> {
        if self.inside { agreed_step.rate() } else { Ok(1.0) }
    }

    /// Returns the factor of the residual in the sum. A rate of 0 applies nothing: the residual stays.
    fn weight(&self, rate: f32) -> f32 {
        if rate == 0.0 { 0.0 } else { self.decay / rate }
    }

    /// Exchanges the sum of the vector and the residual.
    fn reduce_fed(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let rate = self.rate(round.agreed_step)?;
        let weight = self.weight(rate);
        let (len, rank) = (round.average.len(), comm.rank());
        let Round { key, slots, agreed_step, input: whole, average, sent: wanted } = round;
        let by_messages = wanted.is_none() && self.inner.can_subtract_sent();
        self.sent.resize(if by_messages { 0 } else { len }, 0.0);
        let sent = (!by_messages).then_some(&mut self.sent[..]);
        let (residual, fed) = self.residual.on_host(len)?;
        let (mut energies, mut entered) = (std::mem::take(&mut self.energies.fed), vec![0.0; slots.len()]);
        energies.clear();
        energies.resize(slots.len(), 0.0);
        let add = |index: usize, input: &[f32], fed: &mut [f32]| {
            if slots[index].is_absent() {
                fed.fill(0.0);
                return true;
            }
            [energies[index], entered[index]] = add_scaled(&residual[slots[index].range()], weight, input, fed);
            // Any part may stay in the residual, times the rate.
            energies[index].is_finite() && (rate <= 1.0 || fed.iter().all(|v| (v * rate).is_finite()))
        };
        let feed = FedVector::new(input, slots, fed, add);
        let inner = Round { key, slots, agreed_step, input: whole, average, sent };
        let exchanged = feed.reduce(&mut self.inner, inner, delivery, comm)?;
        self.energies.fed = energies;
        self.energies.set_entered(entered.into_iter());
        if by_messages {
            self.subtract_sent(slots, rate, rank)?;
        } else if rate != 0.0 {
            let fed = self.residual.next_mut();
            let mut left = keep_unsent(fed, &self.sent, rate, slots, rank)?;
            left.iter_mut().for_each(|left| *left /= f64::from(rate).powi(2));
            self.energies.set_left(left);
        }
        if let Some(wanted) = wanted {
            wanted.copy_from_slice(&self.sent);
        }
        if self.inner.discards_residual() {
            self.residual.next_mut().fill(0.0);
            self.energies.discard();
        }
        if rate != 0.0 {
            self.residual.stage();
            self.residual.hold(&absent(slots));
        }
        Ok(exchanged)
    }

    /// Computes the residual of the fed vector, times the rate.
    fn subtract_sent(&mut self, slots: &[Slot], rate: f32, rank: usize) -> Result<(), ReduceError> {
        let vector = &mut self.residual.next_mut()[..];
        let finite = self.energies.subtract(&mut self.inner, slots, vector, None, SentVelocity::None);
        if rate == 0.0 || (rate == 1.0 && finite) {
            return Ok(());
        }
        vector.iter_mut().for_each(|input| *input *= rate);
        check_finite(vector, slots, rank)
    }

    /// Exchanges the sum of a vector and the residual on the vector's device, where the residual stays.
    fn reduce_on_device(
        &mut self,
        round: Round<'_>,
        (input, place): (&mut dyn Arriving, DevicePlace),
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let (slots, rank, rate) = (round.slots, comm.rank(), self.rate(round.agreed_step)?);
        let weight = self.weight(rate);
        let mut device = input.device(0..0, comm).expect("a vector on a device");
        let residual = self.residual.on_device(&mut device);
        let residual = residual.map_err(|source| ReduceError::Device { rank, source })?;
        let feed = |mut part: DevicePart<'_>, slots: &[Slot]| part.add_residual((residual, weight), slots);
        let fed = FedOnDevice::new(input, place, slots, feed);
        let (exchanged, sums) = fed.reduce((&mut self.inner, &mut self.energies), round, comm)?;
        self.energies.set_entered(sums.iter().map(|[_, entered]| *entered));
        let parts = (&mut self.inner, &mut self.residual);
        self.energies.subtract_and_stage(parts, (slots, rate), input, SentVelocity::None, comm)?;
        Ok(exchanged)
    }

    /// Returns the residual: the part of this rank's vectors that was not sent, times the learning rate if that is inside. Empty before the
    /// first exchange.
    pub fn residual(&self) -> Vec<f32> {
        Cell::now(&self.residual).into_owned()
    }
}

stateful! {
    impl<R: Reducer> Stateful for ErrorFeedback<R> {
        residual: vector("residual").rank_local(Waits),
        inner: part("inner"),
    }
}

impl<R: Reducer> Reducer for ErrorFeedback<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let mut input = CompleteVector(round.input);
        self.reduce_fed(round, &mut input, Delivery::Complete, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let whole = input.on_device().filter(|place| place.len == round.average.len());
        let has_rate = ON_DEVICE.contains(&self.rate(round.agreed_step)?);
        let stays = has_rate && round.sent.is_none() && self.inner.can_subtract_sent();
        if let Some(place) = whole.filter(|_| stays) {
            return self.reduce_on_device(round, (input, place), comm);
        }
        self.reduce_fed(round, input, Delivery::InParts, comm)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.residual.hold(absent);
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        self.energies.report(report);
    }
}

/// Settings of [`ErrorFeedback`] outside the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "error",
    help = "it is added to the next vector, times DECAY (1)",
    representatives("error", "error:0.75")
)]
pub struct ErrorFeedbackConfig {
    /// Factor of the residual at each exchange; 1 if absent.
    #[setting(range = "(0, 1]")]
    pub decay: Option<f32>,
}

impl FeedbackSettings for ErrorFeedbackConfig {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::new(inner).with_decay(self.decay.unwrap_or(1.0))?))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }

    fn is_identity_when_dense(&self) -> bool {
        true
    }
}

/// Settings of [`ErrorFeedback`] inside the learning rate: none.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(
    name = "error-inside",
    help = "the same, where what was not sent counts by the learning rate of its own step"
)]
pub struct ErrorInside;

impl FeedbackSettings for ErrorInside {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::inside_learning_rate(inner)))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }

    fn reads_rate(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
