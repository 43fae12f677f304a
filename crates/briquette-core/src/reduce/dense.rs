//! Dense all-reduce: the exact mean without compression.
//!
//! **Why.** The baseline that every compressor must beat, and the fallback of a controller on a fast network.
//!
//! **On the wire.** A ring moves `2·(W−1)/W · 4d` bytes out of and into every rank. Up to
//! [`SMALL_ALL_REDUCE`](crate::comm::SMALL_ALL_REDUCE) values, an all-gather moves `(W−1)·4d`.
//!
//! **Properties.** Exact to the rounding of `W` additions. `sent` is the input, so the residual of an error-feedback wrapper is exactly 0.
//!
//! ```
//! use briquette_core::comm::{Session, Local};
//! use briquette_core::{Key, Layout};
//! use briquette_core::reduce::{dense::Dense, AgreedStep, Reducer, Round};
//! let mut comm = Local::world(1).remove(0);
//! let (layout, mut average) = (Layout::flat(2), [0.0; 2]);
//! Dense.reduce(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &[1.0, -2.0], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [1.0, -2.0]);
//! # Ok::<(), briquette_core::error::ReduceError>(())
//! ```

use crate::error::{ConfigError, ReduceError};
use crate::math::{SentStatistics, copy_finite, scale};
use crate::report::Report;
use crate::seam::{ErrorBound, Exchanged, Reducer, Round, Selection, SentInput, check_average};
use crate::settings::{Described, Exchange, ReducerSettings, ReducerTraits};
use crate::state::Stateful;
use crate::{CompressionRatio, Layout, Session};

/// The exact mean; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "dense", help = "an exact all-reduce")]
pub struct Dense;

impl Stateful for Dense {}

impl Reducer for Dense {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { slots, input, average, sent, .. } = round;
        let weight = 1.0 / comm.world() as f32;
        let is_own_finite = copy_finite(input, average);
        let exchanged = Exchanged::count(comm, Selection::All, |comm| Ok(comm.all_reduce_sum(average)?))?;
        let is_finite = if weight == 1.0 { is_own_finite } else { scale(average, weight) };
        if !is_finite {
            check_average(average, slots)?;
        }
        if let Some(sent) = sent {
            sent.copy_from_slice(input);
        }
        Ok(exchanged)
    }

    fn can_subtract_sent(&self) -> bool {
        true
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        for ((slot, kept), energy) in input.slots.iter().zip(&mut *input.kept).zip(input.energies) {
            let vector = &mut input.vector[slot.range()];
            let values = vector.iter().filter(|v| **v != 0.0).count();
            *kept = SentStatistics { energy: *energy, values };
            vector.fill(0.0);
        }
        true
    }

    fn report(&self, report: &mut Report) {
        report.ratio = Some(CompressionRatio::DENSE);
        report.gain.get_or_insert(1.0);
    }
}

impl ReducerSettings for Dense {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(Dense))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { is_dense: true, is_exact: true, ..ReducerTraits::default() }
    }

    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        Some(ErrorBound::Unbiased { omega: 0.0 })
    }
}
