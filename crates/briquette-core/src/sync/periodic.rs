//! Local SGD: every rank trains alone, and parameters are averaged every `H` steps.
//!
//! **Why, and when not.** Bytes fall by `H` and every optimizer works unchanged; ranks drift apart in between, the more
//! the larger the learning rate and the less alike their data.
//!
//! **Method.** After steps `H−1, 2H−1, …` (counted from 0) parameters become their mean over ranks. The inner optimizer's
//! own state (momentum) stays with its rank. `H = 1` with plain SGD is synchronous SGD: exactly on dyadic inputs with a
//! power-of-two world, otherwise to rounding.
//!
//! **On the wire.** A dense all-reduce of the parameters every `H` steps.
//!
//! **Reference.** S. U. Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019 (arXiv 1805.09767),
//! algorithm 1.
//!
//! ```
//! use briquette_core::sync::{Due, Periodic, SyncStrategy};
//! let strategy = Periodic::new(4)?;
//! let due: Vec<u64> = (0..9).filter(|&s| strategy.due(s) == Due::Parameters).collect();
//! assert_eq!(due, [3, 7]);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use super::every_step::reduce_in_place;
use super::{Context, Due, SyncStrategy};
use crate::error::{ConfigError, SyncError};
use crate::layer::Metered;
use crate::reduce::{Dense, Reducer};
use crate::report::Report;
use crate::state::Stateful;
use crate::{Session, Traffic};

/// Parameters, every `H` steps; see the [module](self).
#[derive(Debug)]
pub struct Periodic {
    every: u64,
    reducer: Metered<Dense>,
    average: Vec<f32>,
}

impl Periodic {
    /// Averages after every `every` steps.
    ///
    /// # Errors
    /// [`ConfigError`] when `every` is 0.
    pub fn new(every: u64) -> Result<Self, ConfigError> {
        if every == 0 {
            return Err(ConfigError::range("steps between averages", "at least 1", every));
        }
        Ok(Periodic { every, reducer: Metered::seconds_only(Dense), average: Vec::new() })
    }
}

/// Nothing to save: the rhythm follows from the step.
impl Stateful for Periodic {}

impl SyncStrategy for Periodic {
    fn due(&self, step: u64) -> Due {
        if (step + 1).is_multiple_of(self.every) { Due::Parameters } else { Due::Nothing }
    }

    fn sync(&mut self, local: &mut [f32], cx: &Context<'_>, comm: &mut Session) -> Result<Traffic, SyncError> {
        reduce_in_place(&mut self.reducer, &mut self.average, local, cx, comm)
    }

    fn report(&self, report: &mut Report) {
        self.reducer.report(report);
    }
}
