//! Controller: chooses the compression ratio from measurements that all ranks agree on.

use super::{AgreedStep, Energies, Ratios};
use crate::state::Stateful;
use crate::{CompressionRatio, Slot};

/// Measurements of a step's vector `x` that a controller needs; by default none. Energies are squared norms: `‖x‖²` is the energy
/// of the vector, and a *gain* is the share of this energy that remains after compression. Ranks agree on measurements with the
/// next step's header, or in an all-reduce before the exchange, with one `f64` per number ([`Probing`](crate::settings::Probing)).
/// The contents of the step header ([`AgreedStep`]: losses, samples, and the seconds and bytes of the previous exchange) are
/// always agreed on, at no additional cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Needs<'a> {
    /// The ratios whose gain is needed, from the smallest to the largest. Each costs a compression. The message of the chosen ratio
    /// is the message sent.
    pub gains: &'a [CompressionRatio],
    /// Set if energies are needed for each slot, instead of for the whole vector. With `gains`, this needs a reducer that
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
    /// `Σ_ranks ‖x‖²`; 0 if the controller needs no measurement.
    pub norm2: f64,
    /// Mean and standard deviation of the values of all ranks' vectors; zero unless needed.
    pub moments: Moments,
    /// The gain of each ratio in [`Needs::gains`], over all ranks, in that order.
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
    /// Standard deviation, with divisor `count` (the population's, not the sample estimate).
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

/// A controller's decision: the compression ratios of this step.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<'a> {
    /// The ratios. The exchange is dense if every ratio is 1.
    pub ratios: Ratios<'a>,
    /// Reason for the decision, as text, if it differs from the last decision.
    pub reason: Option<String>,
}

impl Decision<'_> {
    /// Creates a decision with one ratio for the whole vector.
    pub fn all(ratio: CompressionRatio, reason: Option<String>) -> Self {
        Decision { ratios: Ratios::All(ratio), reason }
    }

    /// Returns the ratio of the whole vector, if there is one ratio.
    pub fn ratio(&self) -> Option<CompressionRatio> {
        match self.ratios {
            Ratios::All(ratio) => Some(ratio),
            Ratios::Own | Ratios::PerSlot(_) => None,
        }
    }
}

/// Chooses compression ratios from agreed observations.
///
/// Calls in a step, in order: [`observe`](Controller::observe), [`needs`](Controller::needs), [`decide`](Controller::decide).
///
/// With [late probing](crate::settings::Probing), `needs` is called again after `decide`, and its result is measured on this step's
/// vector. The measurements are passed to the next `decide`, provided that `needs` still returns the same after the next `observe`.
///
/// The result of `needs` must depend only on saved state. After a failed exchange some ranks have already decided, and all ranks must
/// still agree on the quantities to measure. When the exchange fails, the caller restores the state before the first call through
/// [`Stateful`].
pub trait Controller: Stateful + Send {
    /// Returns whether the controller may decide for each slot, or needs the gains of each slot. The reducer must then compress each slot
    /// separately.
    fn per_slot(&self) -> bool {
        false
    }

    /// Receives the numbers that the step header agreed on, including the seconds and bytes of the previous exchange, if
    /// any.
    fn observe(&mut self, _facts: &AgreedStep) {}

    /// Returns the measurements of this step's vector that the controller needs.
    fn needs(&self) -> Needs<'_> {
        Needs::default()
    }

    /// Decides the compression ratios of this step.
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_>;

    /// Returns the predicted time, in seconds, of exchanging a dense vector now. `None` without a cost model.
    fn dense_seconds(&self) -> Option<f64> {
        None
    }

    /// Returns whether the step that was just decided discards the residual. A stale residual harms training when a lower ratio sends it.
    fn discards_residual(&self) -> bool {
        false
    }

    /// Receives `ratios`, which an outer controller sends instead of this controller's last decision. The outer controller
    /// may lower a ratio to limit it, or raise it because its own costs or its budget require that.
    fn overruled(&mut self, _ratios: Ratios<'_>) {}

    /// Describes the current state, for people. The text is computed on request, and no decision depends on it. Returns `None` if the
    /// state adds nothing to the decision.
    fn describe(&self) -> Option<String> {
        None
    }
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
    fn overruled(&mut self, ratios: Ratios<'_>) {
        (**self).overruled(ratios);
    }
    fn describe(&self) -> Option<String> {
        (**self).describe()
    }
}
