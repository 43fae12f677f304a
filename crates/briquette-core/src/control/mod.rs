//! Controllers: choose compression ratios from numbers that all ranks agree on.
//!
//! A [`Controller`] states the measurements that it [needs](Needs) and receives only agreed numbers ([`Agreed`]), so the copies on all
//! ranks decide identically. It never communicates: [`Adaptive`](crate::wrapper::Adaptive) measures and agrees.

pub mod accordion;
pub mod adaqs;
pub mod auto;
pub mod cost_aware;
pub mod delay_limit;
pub mod dq_sgd;
pub mod gravac;
pub mod l_greco;
pub mod loss_guard;
pub mod no_controller;
pub mod schedule;

pub use accordion::Accordion;
pub use adaqs::Adaqs;
pub use auto::AutoConfig;
pub use cost_aware::{CostAware, CostAwareConfig};
pub use delay_limit::{DelayLimit, DelayLimitConfig};
pub use dq_sgd::DqSgd;
pub use gravac::{GraVac, GraVacConfig, Policy};
pub use l_greco::LGreco;
pub use loss_guard::{LossGuard, LossGuardConfig};
pub use no_controller::NoController;
pub use schedule::{Schedule, ScheduleConfig};

use crate::CompressionFactor;
use crate::Slot;
use crate::reduce::{AgreedStep, Energies, Levels};
use crate::state::Stateful;

/// Measurements of a step's vector that a controller needs; by default none. They are agreed with the next step's header, or in an
/// all-reduce with one `f64` per number ([`Probing`](crate::wrapper::Probing)). The contents of the step header ([`AgreedStep`]:
/// losses, samples, and the seconds and bytes of the previous exchange) are always agreed, at no additional cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Needs<'a> {
    /// The factors whose gain is needed, from the smallest to the largest. Each costs a compression. The message of the chosen factor
    /// is the message sent.
    pub gains: &'a [CompressionFactor],
    /// Set if the energies of each slot are needed instead of those of the whole vector. With `gains` this needs a reducer that
    /// compresses each slot separately: see [`Controller::per_slot`].
    pub slots: bool,
    /// Set if `‖x‖²` is needed.
    pub norm: bool,
    /// Set if the mean and standard deviation of the vector's values are needed.
    pub moments: bool,
}

/// Inputs of a decision, equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Agreed<'a> {
    /// The step, loss, samples, compute seconds, and the previous exchange.
    pub agreed_step: &'a AgreedStep,
    /// The slots that the decision applies to.
    pub slots: &'a [Slot],
    /// `Σ_ranks ‖x‖²`; 0 unless something is needed.
    pub norm2: f64,
    /// Mean and standard deviation of the values of all ranks' vectors; zero unless needed.
    pub moments: Moments,
    /// The gain of each factor in [`Needs::gains`], over all ranks, in that order.
    pub gains: &'a [f64],
    /// Energies from which the gains are computed, summed over ranks, with a row for each slot if slots are needed.
    pub energies: &'a Energies,
}

impl<'a> Agreed<'a> {
    /// Creates the inputs of a controller without needs.
    pub fn new(agreed_step: &'a AgreedStep, slots: &'a [Slot]) -> Self {
        const NONE: &Energies = &Energies::new();
        Agreed { agreed_step, slots, norm2: 0.0, moments: Moments::default(), gains: &[], energies: NONE }
    }
}

/// First and second moments of a set of values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    /// Mean of the values.
    pub mean: f64,
    /// Standard deviation of the values themselves (not an estimate for a larger population).
    pub deviation: f64,
}

impl Moments {
    /// Returns the moments of `count` values with this sum and sum of squares.
    pub fn of(count: f64, sum: f64, norm2: f64) -> Self {
        if count == 0.0 {
            return Moments::default();
        }
        let mean = sum / count;
        Moments { mean, deviation: (norm2 / count - mean * mean).max(0.0).sqrt() }
    }
}

/// A controller's decision: the compression factors of this step.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<'a> {
    /// The factors. The exchange is dense if every factor is 1.
    pub levels: Levels<'a>,
    /// A text with the reason, if the decision differs from the last one.
    pub reason: Option<String>,
}

impl Decision<'_> {
    /// Creates a decision with one factor for the whole vector.
    pub fn all(factor: CompressionFactor, reason: Option<String>) -> Self {
        Decision { levels: Levels::All(factor), reason }
    }

    /// Returns the factor of the whole vector, if there is one factor.
    pub fn factor(&self) -> Option<CompressionFactor> {
        match self.levels {
            Levels::All(factor) => Some(factor),
            Levels::Own | Levels::PerSlot(_) => None,
        }
    }
}

/// Chooses compression ratios from agreed observations.
///
/// The order of calls in a step is [`observe`](Controller::observe), [`needs`](Controller::needs), [`decide`](Controller::decide). If
/// numbers are agreed [late](crate::wrapper::Probing), `needs` is called again after `decide`, and the result states the next
/// measurement. If `needs` returns the same after the next `observe`, the measured numbers are passed to `decide`. The result of
/// `needs` must depend only on saved state: after a failed exchange some ranks have already decided, and all ranks must agree on the
/// measured numbers. When the exchange fails, the caller restores the state before the first call through [`Stateful`].
pub trait Controller: Stateful + Send {
    /// Returns whether it may decide for each slot, or needs the gains of each slot. The reducer must then compress each slot separately.
    fn per_slot(&self) -> bool {
        false
    }

    /// Receives the numbers agreed by the step header, with the seconds and bytes of the previous exchange if there was one.
    fn observe(&mut self, _facts: &AgreedStep) {}

    /// Returns the measurements that are needed of this step's vector.
    fn needs(&self) -> Needs<'_> {
        Needs::default()
    }

    /// Decides the compression factors of this step.
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_>;

    /// Returns the predicted time in seconds to compress and exchange a dense vector at present, if it has a cost model.
    fn dense_seconds(&self) -> Option<f64> {
        None
    }

    /// Returns whether the residual is discarded at the step that was just decided. A stale residual would do harm when it is sent at a lower ratio.
    fn discards_residual(&self) -> bool {
        false
    }

    /// Notifies the controller that an outer controller sends `levels` instead of its last decision. It never raises a ratio.
    fn overruled(&mut self, _levels: Levels<'_>) {}

    /// Describes its present state for people. The text is computed on request, and no decision depends on it. Returns `None` if there
    /// is nothing to add to its decision.
    fn describe(&self) -> Option<String> {
        None
    }
}

/// Joins the texts of a controller and of its inner controller.
fn both(own: String, inner: Option<String>) -> Option<String> {
    Some([Some(own), inner].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

impl<C: Controller + ?Sized> Controller for Box<C> {
    fn per_slot(&self) -> bool {
        (**self).per_slot()
    }
    fn observe(&mut self, agreed_step: &AgreedStep) {
        (**self).observe(agreed_step);
    }
    fn needs(&self) -> Needs<'_> {
        (**self).needs()
    }
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        (**self).decide(agreed)
    }
    fn dense_seconds(&self) -> Option<f64> {
        (**self).dense_seconds()
    }
    fn discards_residual(&self) -> bool {
        (**self).discards_residual()
    }
    fn overruled(&mut self, levels: Levels<'_>) {
        (**self).overruled(levels);
    }
    fn describe(&self) -> Option<String> {
        (**self).describe()
    }
}
