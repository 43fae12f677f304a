//! Identity compressor: sends every value exactly.
//!
//! **Why, and when not.** The baseline inside a [`Gather`](crate::reduce::Gather), and the input that robust aggregators need when nothing
//! is compressed. For a plain mean use [`reduce::Dense`](crate::reduce::Dense): an all-reduce moves fewer bytes than an all-gather.
//!
//! **Method.** `C(x) = x`.
//!
//! **On the wire.** `12 + 4d` bytes.
//!
//! **Properties.** Contractive with δ = 1 and unbiased with ω = 0; no error feedback needed.
//!
//! **Knobs.** None.
//!
//! ```
//! use briquette_core::{Key, Message, compress::{Compressor, Dense}};
//! let mut message = Message::default();
//! Dense.compress_into(&[0.5, -3.0], Key::new(0), &mut message);
//! assert_eq!(message.encoded_len(), 20);
//! assert_eq!(message.error_energy(&[0.5, -3.0]), 0.0);
//! ```

use super::{Compressor, ErrorBound, Knobs, Spec};
use crate::error::ConfigError;
use crate::{CompressionFactor, Key, Message};

/// The identity; see the [module](self).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Dense;

impl Compressor for Dense {
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::DENSE
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        out.dense(x.len()).empty().extend_from_slice(x);
    }

    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 1.0 }
    }
}

impl std::fmt::Display for Dense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dense")
    }
}

impl Spec for Dense {
    const SYNTAX: &'static str = "dense";
    const HELP: &'static str = "every value in f32";
    const NEEDS_FEEDBACK: bool = false;
    const SPARSE: bool = false;
    const SEARCHES: bool = false;

    fn parse(name: &str, _knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        Ok((name == "dense").then_some(Dense))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn representative() -> Self {
        Dense
    }
}
