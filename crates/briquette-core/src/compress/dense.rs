//! Identity compressor: sends every value exactly.
//!
//! **Why, and when not.** The baseline inside a [`Gather`](crate::reduce::gather::Gather), and the input that robust aggregators need when nothing
//! is compressed. For a plain mean use [`reduce::Dense`](crate::reduce::dense::Dense): an all-reduce moves fewer bytes than an all-gather.
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
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, dense::Dense};
//! let mut message = Message::default();
//! Dense.compress_into(&[0.5, -3.0], Key::new(0), &mut message);
//! assert_eq!(message.encoded_len(), 20);
//! assert_eq!(message.error_energy(&[0.5, -3.0]), 0.0);
//! ```

use crate::seam::{Compressor, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// The identity; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "dense", help = "every value in f32")]
pub struct Dense;

impl Compressor for Dense {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::DENSE
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        out.dense(x.len()).empty().extend_from_slice(x);
    }

    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 1.0 }
    }
}

impl CompressorSettings for Dense {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { is_exact: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}
