//! Momentum correction for an optimizer that keeps its own momentum.
//!
//! **Why, and when not.** [`MomentumCorrection`] exchanges velocities, so the optimizer around it must have no momentum. This wrapper gives
//! an optimizer with heavy-ball momentum a vector that makes the optimizer's own velocity equal to the agreed one, so the optimizer needs
//! no change. Not for Adam or Nesterov's form, and not if gradients are clipped after the exchange.
//!
//! **Method.** `s_t` is the velocity that [`MomentumCorrection`] agrees on at step `t`, with the momentum `m` of the optimizer. The average
//! is
//!
//! ```text
//! g'_t = s_t − m·s_{t−1}        s_{−1} = 0
//! ```
//!
//! From it the optimizer computes `v_t = m·v_{t−1} + g'_t = s_t`. Weight decay inside the optimizer is added as without compression, and
//! dampening scales `g'_t` as it would scale a gradient, because the optimizer is linear. If every exchange is dense, `g'_t` is the mean
//! gradient, and training equals that of the optimizer with dense exchanges, to rounding. Some steps after a change from sparse to dense
//! the same holds.
//!
//! **Properties.** `m·s_{t−1}` is also subtracted from `sent`, so that the mean of `sent` is the average (law 2). The conserved quantity
//! is that of [`MomentumCorrection`]: `pending_before + u = (sent + m·s_{t−1}) + pending_after` (law 3). A slot without a gradient on any
//! rank is updated as long as its velocity lasts, whereas a plain optimizer skips it.
//!
//! **State.** The rank-local state of [`MomentumCorrection`], and `s_{t−1}`, replicated. During an exchange, one more vector. If
//! this state is kept, the optimizer's momenta must be kept too.
//!
//! **Knobs.** `momentum` in [0, 1): the optimizer's. If it differs from the optimizer's momentum, velocities are wrong. `masking`, default `waited`:
//! values that are sent without a wait keep their velocity, as in the optimizer alone.
//!
//! **Source.** The correction is that of [`momentum_correction`](super::momentum_correction); exchanging differences is this project's.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep, Reducer, Round};
//! use briquette_core::wrapper::inner_momentum::{InnerMomentum, InnerMomentumConfig};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = InnerMomentum::new(Dense, InnerMomentumConfig { momentum: 0.5, ..Default::default() })?;
//! let layout = Layout::flat(1);
//! let mut averages = vec![];
//! for input in [1.0, 2.0, 4.0] {
//!     let mut average = [0.0];
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &[input], average: &mut average, sent: None }, &mut comm)?;
//!     averages.push(average[0]);
//! }
//! assert_eq!(averages, [1.0, 2.0, 4.0]); // dense: the gradients, of which the optimizer makes 1, 2.5, 5.25
//! assert_eq!(reducer.agreed_velocity(), [5.25]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use super::feed::Delivery;
use super::residual::Residual;
use super::{
    check_finite,
    momentum_correction::{Masking, MomentumCorrection, MomentumCorrectionConfig},
};
use crate::error::{ConfigError, ReduceError};
use crate::layout::absent;
use crate::math::subtract_velocity;
use crate::report::Report;
use crate::seam::{Arriving, CompleteVector, DevicePart, Exchanged, Reducer, Round, check_average, overflow};
use crate::settings::{Described, Exchange, FeedbackRequirement, FeedbackSettings, InnerOptimizer};
use crate::state::fields::Cell;
use crate::{Layout, Session, Slot, stateful};

/// Settings of [`InnerMomentum`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "inner-momentum",
    help = "momentum correction around an SGD optimizer that has this momentum itself (0.9)"
)]
pub struct InnerMomentumConfig {
    /// The optimizer's momentum, in [0, 1).
    #[setting(default = 0.9, range = "[0, 1)", syntax = "DECAY")]
    pub momentum: f32,
    /// Momentum factor masking; `waited` by default.
    #[setting(default = Masking::Waited, syntax = "sent")]
    pub masking: Masking,
}

impl InnerMomentumConfig {
    fn correction(self) -> MomentumCorrectionConfig {
        let InnerMomentumConfig { momentum, masking } = self;
        MomentumCorrectionConfig { momentum, masking, ..MomentumCorrectionConfig::default() }
    }
}

/// Makes the optimizer's velocity the agreed one; see the [module](self).
#[derive(Debug)]
pub struct InnerMomentum<R> {
    correction: MomentumCorrection<R>,
    momentum: f32,
    /// The velocity agreed on last.
    agreed: Residual,
}

impl<R: Reducer> InnerMomentum<R> {
    /// Creates a wrapper around a reducer that reports its contribution in `sent`.
    ///
    /// # Errors
    /// [`ConfigError`] if `momentum` is outside [0, 1).
    pub fn new(inner: R, settings: InnerMomentumConfig) -> Result<Self, ConfigError> {
        let correction = MomentumCorrection::new(inner, settings.correction())?;
        Ok(InnerMomentum { correction, momentum: settings.momentum, agreed: Residual::default() })
    }

    /// Returns the velocity that ranks agreed on last; empty before the first exchange. It is the optimizer's velocity without weight decay
    /// and dampening.
    pub fn agreed_velocity(&self) -> Vec<f32> {
        Cell::now(&self.agreed).into_owned()
    }
}

impl<R: Reducer> InnerMomentum<R> {
    fn reduce_velocities(
        &mut self,
        round: Round<'_>,
        values: &mut dyn Arriving,
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let len = round.average.len();
        if values.on_device().is_none() {
            self.agreed.on_host(len)?;
        }
        let Round { key, slots, agreed_step, input, average, mut sent } = round;
        let velocities = Round { key, slots, agreed_step, input, average: &mut *average, sent: sent.as_deref_mut() };
        let exchanged = delivery.reduce(&mut self.correction, velocities, values, comm)?;
        if let Some(device) = values.device(0..len, comm).filter(DevicePart::is_averaged) {
            self.subtract_on_device(device, slots, average, comm.rank())?;
        } else {
            let (before, next) = self.agreed.on_host(len)?;
            if !subtract_velocity(average, before, next, self.momentum) {
                check_average(average, slots)?;
            }
            if let Some(sent) = sent {
                sent.iter_mut().zip(before).for_each(|(sent, before)| *sent -= self.momentum * before);
                check_finite(sent, slots, comm.rank())?;
            }
            self.agreed.stage();
        }
        self.agreed.hold(&absent(slots));
        Ok(exchanged)
    }

    /// Subtracts the agreed velocity on the device that has computed the average, and stages the next one there.
    fn subtract_on_device(
        &mut self,
        mut device: DevicePart<'_>,
        slots: &[Slot],
        average: &[f32],
        rank: usize,
    ) -> Result<(), ReduceError> {
        let failed = |source| ReduceError::Device { rank, source };
        let before = self.agreed.on_device(&mut device).map_err(failed)?;
        let (next, bad) = device.subtract_velocity(average, before, self.momentum).map_err(failed)?;
        if let Some(bad) = bad {
            return Err(overflow(bad, slots));
        }
        self.agreed.stage_on_device(next);
        Ok(())
    }
}

stateful! {
    impl<R: Reducer> Stateful for InnerMomentum<R> {
        agreed: vector("agreed_velocity"),
        correction: flatten(),
    }
}

impl<R: Reducer> Reducer for InnerMomentum<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let mut input = CompleteVector(round.input);
        self.reduce_velocities(round, &mut input, Delivery::Complete, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        self.reduce_velocities(round, input, Delivery::InParts, comm)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.agreed.hold(absent);
        self.correction.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.correction.report(report);
    }
}

impl FeedbackSettings for InnerMomentumConfig {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(InnerMomentum::new(inner, *self)?))
    }

    fn has_momentum(&self) -> bool {
        true
    }

    fn optimizer(&self) -> Option<InnerOptimizer> {
        Some(InnerOptimizer::HeavyBall { momentum: self.momentum })
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }

    fn is_identity_when_dense(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
