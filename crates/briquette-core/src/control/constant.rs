//! Constant controller: the same compression factor at every step.
//!
//! **Why.** It is the baseline of every controller, and suitable if the network and the model are known: a constant factor, once
//! found, needs no probes and no extra all-reduce. **Why not.** Early steps tolerate less compression than late ones
//! ([`Schedule`](super::Schedule)), and changes of the network go unnoticed ([`GraVac`](super::GraVac)).
//!
//! **Method.** `decide` returns the factor. Nothing is measured, and no state is kept.
//!
//! **Knobs.** The factor, dense size over compressed size, at least 1 (1 is dense). No default.
//!
//! ```
//! use briquette_core::CompressionFactor;
//! use briquette_core::control::{Agreed, Constant, Controller};
//! let (ten, agreed_step) = (CompressionFactor::new(10.0)?, Default::default());
//! assert_eq!(Constant(ten).decide(&Agreed::new(&agreed_step, &[])).factor(), Some(ten));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use super::{Agreed, Controller, Decision};
use crate::CompressionFactor;
use crate::config::{ControllerSettings, Described, Feedback};
use crate::error::ConfigError;
use crate::state::Stateful;

/// The same factor at every step; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constant(
    /// The factor of every step.
    pub CompressionFactor,
);

impl Stateful for Constant {}

impl Controller for Constant {
    fn decide(&mut self, _agreed: &Agreed<'_>) -> Decision<'_> {
        Decision::all(self.0, None)
    }
}

/// Settings of [`Constant`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConstantConfig {
    /// The factor of every step.
    pub factor: CompressionFactor,
}

impl Default for ConstantConfig {
    fn default() -> Self {
        ConstantConfig { factor: CompressionFactor::constant(10.0) }
    }
}

impl Described for ConstantConfig {
    const NAME: &'static str = "constant";
    const SETTINGS: &'static str = "FACTORx";
    const HELP: &'static str = "one ratio, always (10x)";
}

impl ControllerSettings for ConstantConfig {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(Constant(self.factor))))
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        [self.factor; 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Needs;
    use crate::reduce::AgreedStep;

    #[test]
    fn constant_never_moves_and_needs_nothing() {
        let mut boxed: Box<dyn Controller> = Box::new(Constant(CompressionFactor::new(32.0).unwrap()));
        for step in 0..5 {
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            boxed.observe(&agreed_step);
            assert_eq!(boxed.needs(), Needs::default());
            let decision = boxed.decide(&Agreed::new(&agreed_step, &[]));
            assert_eq!(decision, Decision::all(CompressionFactor::new(32.0).unwrap(), None));
        }
    }
}
