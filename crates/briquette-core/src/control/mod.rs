//! How much to compress, decided from what all ranks agree on.
//!
//! A [`Controller`] states what it [needs](Needs) and sees only agreed numbers ([`Agreed`]), so every rank's copy decides alike.
//! It never communicates: [`Adaptive`](crate::wrapper::Adaptive) measures and agrees.

pub mod accordion;
pub mod adaqs;
pub mod auto;
pub mod constant;
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
pub use constant::{Constant, ConstantConfig};
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

/// What a controller needs measured of a step's vector; by default nothing. What is needed is agreed with the next step's header, or in
/// an all-reduce of as many `f64` as there are numbers ([`Probing`](crate::wrapper::Probing)); what the step header carries ([`AgreedStep`]: losses, samples, seconds and bytes of the exchange
/// before) is agreed anyway and costs nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Needs<'a> {
    /// The gain of each of these factors, from the smallest to the largest. Each is a compression; the message of the factor
    /// that is chosen is the message sent.
    pub gains: &'a [CompressionFactor],
    /// The energies of each slot instead of those of the whole vector. With `gains` this needs a reducer that compresses each
    /// slot by itself: see [`Controller::per_slot`].
    pub slots: bool,
    /// `‖x‖²`.
    pub norm: bool,
    /// Mean and standard deviation of the vector's values.
    pub moments: bool,
}

/// What is known when a controller decides, equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreed<'a> {
    /// Step, loss, samples, compute seconds, and the exchange before.
    pub agreed_step: &'a AgreedStep,
    /// The tensors that the decision is about.
    pub slots: &'a [Slot],
    /// `Σ_ranks ‖x‖²`; 0 unless anything is needed.
    pub norm2: f64,
    /// Mean of the values of all ranks' vectors, and their standard deviation; zeros unless needed.
    pub moments: Moments,
    /// The gain of each factor in [`Needs::gains`], over all ranks, in that order.
    pub gains: &'a [f64],
    /// What these come from, summed over ranks: a row for each slot where slots are needed.
    pub energies: &'a Energies,
}

impl<'a> Agreed<'a> {
    /// Where nothing was needed.
    pub fn new(agreed_step: &'a AgreedStep, slots: &'a [Slot]) -> Self {
        const NONE: &Energies = &Energies::new();
        Agreed { agreed_step, slots, norm2: 0.0, moments: Moments::default(), gains: &[], energies: NONE }
    }
}

/// The first moments of values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation, of the values themselves (not of a larger population).
    pub deviation: f64,
}

impl Moments {
    /// Of `count` values with this sum and sum of squares.
    pub fn of(count: f64, sum: f64, norm2: f64) -> Self {
        if count == 0.0 {
            return Moments::default();
        }
        let mean = sum / count;
        Moments { mean, deviation: (norm2 / count - mean * mean).max(0.0).sqrt() }
    }
}

/// What to send now.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<'a> {
    /// Dense where every factor is 1.
    pub levels: Levels<'a>,
    /// In words, when it differs from the last one.
    pub reason: Option<String>,
}

impl Decision<'_> {
    /// One factor for the whole vector.
    pub fn all(factor: CompressionFactor, reason: Option<String>) -> Self {
        Decision { levels: Levels::All(factor), reason }
    }

    /// The factor of the whole vector, where it was decided as one.
    pub fn factor(&self) -> Option<CompressionFactor> {
        match self.levels {
            Levels::All(factor) => Some(factor),
            Levels::Own | Levels::PerSlot(_) => None,
        }
    }
}

/// Agreed observations in, compression ratios out.
///
/// The order of calls in a step: [`observe`](Controller::observe), [`needs`](Controller::needs), [`decide`](Controller::decide). Where
/// numbers are agreed [late](crate::wrapper::Probing), `needs` is asked again after `decide`, and what it then returns is measured; if
/// it returns the same after the next `observe`, that is what `decide` is given. What it returns depends on saved state alone: of
/// ranks whose exchange failed, some had decided already, and all must agree on what was measured.
/// When the exchange fails, the caller restores the state of before the first of them through [`Stateful`].
pub trait Controller: Stateful + Send {
    /// Whether it may decide for each slot, or needs gains of each: then the reducer must compress each slot by itself.
    fn per_slot(&self) -> bool {
        false
    }

    /// What the step header agreed on, with the seconds and bytes of the exchange before where there was one.
    fn observe(&mut self, _facts: &AgreedStep) {}

    /// What must be measured of this step's vector.
    fn needs(&self) -> Needs<'_> {
        Needs::default()
    }

    /// What to send now.
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_>;

    /// Seconds that it predicts for compressing and exchanging a dense vector here and now, where it has a model of costs.
    fn dense_seconds(&self) -> Option<f64> {
        None
    }

    /// Whether, at the step that was just decided, what waits in memories is given up: it is old, and would do harm where it is sent at
    /// a lower ratio.
    fn gives_up_memory(&self) -> bool {
        false
    }

    /// A controller around this one sends `levels` instead of what was just decided, never more.
    fn overruled(&mut self, _levels: Levels<'_>) {}

    /// What it does now, in words, for people: made when it is asked for, and never decided from. `None` where there is nothing to
    /// add to what it decided.
    fn describe(&self) -> Option<String> {
        None
    }
}

/// The words of a controller and of the one inside it.
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
    fn gives_up_memory(&self) -> bool {
        (**self).gives_up_memory()
    }
    fn overruled(&mut self, levels: Levels<'_>) {
        (**self).overruled(levels);
    }
    fn describe(&self) -> Option<String> {
        (**self).describe()
    }
}
