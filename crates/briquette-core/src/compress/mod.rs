//! Compressors: encode a vector into a message. One file per compressor.
//!
//! A [`Compressor`] encodes a vector into a [`Message`](crate::Message) in reused storage. It never communicates, and draws randomness from the key
//! alone, so that a run is reproducible. Its error is determined by decoding the message. Residuals are kept not here but in
//! [`ErrorFeedback`](crate::wrapper::error_feedback::ErrorFeedback).
//!
//! | compressor | error bound | wire ratio | needs error feedback |
//! |---|---|---|---|
//! | [`Dense`](dense::Dense) | identity | 1 | no |
//! | [`Half`](half::Half) | contractive, δ = 1 − 2⁻²² (f16), 1 − 2⁻¹⁶ (bf16) | 2 | no |
//! | [`TopK`](top_k::TopK) | contractive, δ = k/d (slightly less with short values) | d/k · 32/(value bits + ≈ index entropy) | yes |
//! | [`Coded`](coded::Coded) | of both parts | the sparsifier's | as the sparsifier |
//! | [`ThresholdTopK`](threshold_top_k::ThresholdTopK) | contractive, δ = 0.7·k/d | as `TopK`, ±30 % | yes |
//! | [`HardThreshold`](hard_threshold::HardThreshold) | contractive, δ = n/d for the n sent | the vector's | yes |
//! | [`RandomK`](random_k::RandomK) | contractive in the mean, δ = k/d; scaled: unbiased, ω = d/k − 1 | as `TopK` | yes; scaled: no |
//! | [`MinMax`](min_max::MinMax) | contractive, δ = 1 − n/(2·255²), n the block | 4 | no |
//! | [`Natural`](natural::Natural) | unbiased, ω = 1/8 | 3.6 | no |
//! | [`Qsgd`](qsgd::Qsgd) | unbiased, ω by level count and norm | 32/bits | no |
//! | [`TernGrad`](tern_grad::TernGrad) | unbiased for the clipped vector | 16 | no |
//! | [`ScaledSign`](scaled_sign::ScaledSign) | contractive, δ = ‖x‖₁²/(d‖x‖₂²) | 32 | yes |
//! | [`PlainSign`](plain_sign::PlainSign) | biased, without an error bound | 32 | not applicable |

pub mod buckets;
mod build;
pub mod coded;
pub mod dense;
mod dither;
pub mod half;
pub mod hard_threshold;
pub mod min_max;
pub mod natural;
pub mod plain_sign;
pub mod qsgd;
pub mod random_k;
pub mod scaled_sign;
pub mod tern_grad;
pub mod threshold;
pub mod threshold_top_k;
pub mod top_k;

pub use crate::message::{HalfKind, ValueKind};
pub use crate::seam::{Compressor, Encoding, ErrorBound, Tunable};
pub use dither::{Level, Norm, Quantizer, chance};

use crate::error::ConfigError;

/// Returns the size of a bucket as messages have it.
///
/// # Errors
/// [`ConfigError::Range`] for an invalid bucket size.
pub fn bucket_size(bucket: usize) -> Result<u32, ConfigError> {
    let range = "between 1 and 2^32 - 1 values";
    let size = u32::try_from(bucket).ok().filter(|&b| b > 0);
    size.ok_or_else(|| ConfigError::range("bucket of a compressor", range, bucket))
}
