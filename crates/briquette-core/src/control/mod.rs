//! How much to compress, decided from what all ranks agree on.
//!
//! A [`Controller`] sees only agreed numbers ([`Agreed`], [`Outcome`]), so every rank's copy decides alike. It never
//! communicates: [`Adaptive`](crate::layer::Adaptive) measures, agrees, and asks.

pub mod constant;
pub mod gravac;
pub mod no_controller;
pub mod schedule;

pub use constant::{Constant, ConstantConfig};
pub use gravac::{GraVac, GraVacConfig, Policy};
pub use no_controller::NoController;
pub use schedule::{Schedule, ScheduleConfig};

use crate::reduce::Facts;
use crate::state::Stateful;
use crate::{CompressionFactor, Traffic};

/// What is known before an exchange, equal on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreed<'a> {
    /// Step, loss, compute time, samples.
    pub facts: &'a Facts,
    /// `Σ_ranks ‖x‖²` of the vectors to be sent; 0 when no probe was asked for.
    pub norm2: f64,
    /// The gain of each factor in [`Controller::probes`], over all ranks, in that order.
    pub gains: &'a [f64],
}

/// What came of an exchange, equal on all ranks; told before the next decision.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// The step it belongs to.
    pub step: u64,
    /// The factor that was sent.
    pub factor: f64,
    /// Samples behind the step, all ranks together.
    pub samples: u64,
    /// The slowest rank's compute seconds.
    pub compute_seconds: f64,
    /// Seconds in probing, encoding and decoding, the mean over ranks.
    pub compress_seconds: f64,
    /// Seconds in communication, the mean over ranks.
    pub exchange_seconds: f64,
    /// Bytes, all ranks together.
    pub traffic: Traffic,
}

/// What to send now.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// 1 means dense.
    pub factor: CompressionFactor,
    /// In words, when it differs from the last one.
    pub reason: Option<String>,
}

/// Agreed observations in, compression factor out.
///
/// The order of calls in a step: [`observe`](Controller::observe) with what came of the step before (when there was one
/// and probes are asked for), then [`probes`](Controller::probes), then [`decide`](Controller::decide). When the
/// exchange fails, the caller restores the state of before the first of them through [`Stateful`].
pub trait Controller: Stateful + Send {
    /// Factors whose gain it wants measured on this step's vector, smallest first; empty when it needs none, and
    /// then nothing is measured, agreed or observed.
    fn probes(&self) -> &[CompressionFactor];

    /// What to send now.
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision;

    /// What came of the last exchange.
    fn observe(&mut self, _outcome: &Outcome) {}
}

impl<C: Controller + ?Sized> Controller for Box<C> {
    fn probes(&self) -> &[CompressionFactor] {
        (**self).probes()
    }
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision {
        (**self).decide(agreed)
    }
    fn observe(&mut self, outcome: &Outcome) {
        (**self).observe(outcome);
    }
}
