//! Vector to message. One file per compressor.
//!
//! A [`Compressor`] turns a vector into a [`Message`] in reused storage. It never communicates, and draws randomness
//! from the key alone, so that a run replays exactly. What it lost is found by decoding the message: nothing here
//! knows about residuals ([`ErrorFeedback`](crate::layer::ErrorFeedback) does).
//!
//! | compressor | class | wire factor | needs error feedback |
//! |---|---|---|---|
//! | [`Dense`] | identity | 1 | no |
//! | [`Half`] | contractive, δ = 1 − 2⁻²² (f16), 1 − 2⁻¹⁶ (bf16) | 2 | no |
//! | [`TopK`] | contractive, δ = k/d (slightly less with short values) | d/k · 32/(value bits + ≈ index entropy) | yes |
//! | [`Coded`] | of both parts | the sparsifier's | as the sparsifier |
//! | [`ThresholdTopK`] | contractive, δ = 0.7·k/d | as `TopK`, ±30 % | yes |
//! | [`Redsync`] | contractive, δ = n/d for the n sent | as `TopK` for k to 2k, fewer for heavy tails | yes |
//! | [`Sidco`] | contractive, δ = n/d for the n sent | as `TopK`, ±20 % | yes |
//! | [`HardThreshold`] | contractive, δ = n/d for the n sent | the vector's | yes |
//! | [`RandomK`] | contractive in the mean, δ = k/d; scaled: unbiased, ω = d/k − 1 | as `TopK` | yes; scaled: no |
//! | [`BiasedRandom`] | contractive in the mean, δ = q | as `TopK` for k ≈ q·d | yes |
//! | [`AdaptiveRandom`] | contractive in the mean, δ = ‖x‖₃³/(‖x‖₁‖x‖₂²) ≥ 1/d | ≈ d/6 | yes |
//! | [`MinMax`] | contractive, δ = 1 − n/(2·255²), n the block | 4 | no |
//! | [`Natural`] | unbiased, ω = 1/8 | 3.6 | no |
//! | [`Qsgd`] | unbiased, ω by level count and norm | 32/bits | no |
//! | [`ExponentialDithering`] | unbiased, ω by base, level count and norm | 32/bits | no |
//! | [`Rounding`] | nearest: contractive, δ = 4b/(b+1)²; random: unbiased, ω = (b+1/b+2)/4 − 1 | 4 | nearest |
//! | [`TernGrad`] | unbiased for the clipped vector | 16 | no |
//! | [`OneBit`] | contractive, δ = Σ n±·m±²/‖x‖₂² | 32 | yes |
//! | [`ScaledSign`] | contractive, δ = ‖x‖₁²/(d‖x‖₂²) | 32 | yes |
//! | [`PlainSign`] | biased, of no class | 32 | nothing helps |

pub mod adaptive_random;
pub mod biased_random;
mod buckets;
pub mod coded;
pub mod dense;
mod dither;
pub mod exponential_dithering;
pub mod half;
pub mod hard_threshold;
pub mod min_max;
pub mod natural;
pub mod one_bit;
pub mod plain_sign;
pub mod qsgd;
pub mod random_k;
pub mod redsync;
pub mod rounding;
pub mod scaled_sign;
pub mod sidco;
pub mod tern_grad;
#[cfg(test)]
mod testkit;
mod threshold;
pub mod threshold_top_k;
pub mod top_k;

pub use adaptive_random::AdaptiveRandom;
pub use biased_random::BiasedRandom;
pub use coded::Coded;
pub use dense::Dense;
pub use dither::Norm;
pub use exponential_dithering::ExponentialDithering;
pub use half::Half;
pub use hard_threshold::HardThreshold;
pub use min_max::MinMax;
pub use natural::Natural;
pub use one_bit::OneBit;
pub use plain_sign::PlainSign;
pub use qsgd::Qsgd;
pub use random_k::RandomK;
pub use redsync::Redsync;
pub use rounding::Rounding;
pub use scaled_sign::ScaledSign;
pub use sidco::Sidco;
pub use tern_grad::TernGrad;
pub use threshold_top_k::ThresholdTopK;
pub use top_k::TopK;

use crate::error::ConfigError;
pub use crate::message::{HalfKind, ValueKind};
use crate::{CompressionFactor, Key, Message};

/// The class a compressor declares; law 7 holds it to the constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Class {
    /// `‖x − C(x)‖² ≤ (1 − delta)·‖x‖²`, for every draw.
    Contractive {
        /// In (0, 1]; 1 is the identity.
        delta: f64,
    },
    /// `E‖x − C(x)‖² ≤ (1 − delta)·‖x‖²`, over draws: a single draw may lose everything.
    MeanContractive {
        /// In (0, 1]; 1 is the identity.
        delta: f64,
    },
    /// `E C(x) = x` and `E‖x − C(x)‖² ≤ omega·‖x‖²`.
    Unbiased {
        /// At least 0; 0 is the identity.
        omega: f64,
    },
    /// `E‖x − C(x)‖² ≤ omega·‖x‖²`, without any promise about the mean.
    Biased {
        /// At least 0; above 1 where the error may exceed the vector.
        omega: f64,
    },
}

impl Class {
    /// The bound of `E‖x − C(x)‖²/‖x‖²`.
    pub fn error(self) -> f64 {
        match self {
            Class::Contractive { delta } | Class::MeanContractive { delta } => 1.0 - delta,
            Class::Unbiased { omega } | Class::Biased { omega } => omega,
        }
    }
}

/// Vector to message, into reused storage.
pub trait Compressor: Send {
    /// Compresses `x`. Random bits come from `key` alone; two calls with equal arguments give equal messages.
    /// `x` is finite (the agreed step header refuses anything else); any length below 2³², zero included, is valid.
    ///
    /// # Panics
    /// When `x` has 2³² values (16 GiB) or more: exchange such vectors in buckets.
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message);

    /// The class this compressor has on vectors like `x` (its constant may depend on the length or on `x`).
    fn class(&self, x: &[f32]) -> Class;

    /// Dense size over compressed size, nominal: `d/k` for sparsifiers, `32/bits` for quantizers. 1 where only the
    /// vector decides it.
    fn nominal(&self) -> CompressionFactor;

    /// Compresses further what `coarse` already is a compression of, where that is cheaper than starting from `x`
    /// and gives the same message. The default starts from `x`.
    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        let _ = coarse;
        self.compress_into(x, key, out);
    }

    /// Whether a message holds a chosen subset of the coordinates (a sparsifier) or all of them.
    fn selects(&self) -> bool {
        false
    }
}

/// How a compressor is written in settings; with it and one line in [`config`](crate::config) it has laws, flags and TOML.
pub trait Spec: Compressor + Copy + std::fmt::Display + 'static {
    /// What may be written, for help and errors: `qsgd[:BITS[:BUCKET[:l2|max]]]`.
    const SYNTAX: &'static str;

    /// Whether what it loses must be fed back.
    const NEEDS_FEEDBACK: bool;

    /// Whether its messages are sparse, so that another compressor may write their values (`topk:0.01+natural`).
    const SPARSE: bool;

    /// Whether it looks for the largest values, which on long vectors begins with a sample: the laws try it on long ones.
    const SEARCHES: bool;

    /// The compressor that `name` and its knobs say; `None` when the name is another's.
    ///
    /// # Errors
    /// [`ConfigError`] for a knob outside its range.
    fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError>;

    /// The value that the laws are tried on.
    fn representative() -> Self;

    /// Whether what this very value loses must be fed back, where its knobs decide that.
    fn needs_feedback(&self) -> bool {
        Self::NEEDS_FEEDBACK
    }

    /// Whether the values that it sends are the vector's own bits.
    fn is_exact(&self) -> bool;

    /// The knob, when controllers can turn one.
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        None
    }
}

/// The parts of a compressor's text after its name.
#[derive(Debug)]
pub struct Knobs<'a>(pub(crate) std::str::Split<'a, char>);

impl<'a> Knobs<'a> {
    /// The next part as it is.
    pub fn text(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    /// The next part as a number; `default` when the text ends before it.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names `what`.
    pub fn number<T: std::str::FromStr>(&mut self, what: &'static str, default: T) -> Result<T, ConfigError> {
        match self.0.next() {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| ConfigError::range(what, "a number", text)),
        }
    }

    /// The next part as a share such as `0.01` or a factor such as `100x`; `default` is a share.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names `what`.
    pub fn share(&mut self, what: &'static str, default: f64) -> Result<CompressionFactor, ConfigError> {
        match self.0.next() {
            None => CompressionFactor::of_share(what, default),
            Some(text) if text.ends_with('x') => text.parse(),
            Some(text) => {
                let wrong = |_| ConfigError::range(what, "a share such as 0.01 or a factor such as 100x", text);
                CompressionFactor::of_share(what, text.parse().map_err(wrong)?)
            }
        }
    }

    /// The next part as one of some words; the first when the text ends before it.
    ///
    /// # Errors
    /// [`ConfigError::Unknown`] lists the words.
    pub fn word<T: Copy>(&mut self, what: &'static str, words: &[(&str, T)]) -> Result<T, ConfigError> {
        let Some(text) = self.0.next() else { return Ok(words[0].1) };
        words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| ConfigError::Unknown {
            what,
            got: text.to_owned(),
            valid: words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Has a knob that controllers may turn.
pub trait Tunable {
    /// Sets the nominal compression factor from the next call on, to the nearest value the knob has.
    fn tune(&mut self, factor: CompressionFactor);
}

/// A compressor with a knob, as one object.
pub trait TunableCompressor: Compressor + Tunable {}
impl<T: Compressor + Tunable + ?Sized> TunableCompressor for T {}

impl<C: Compressor + ?Sized> Compressor for Box<C> {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        (**self).compress_into(x, key, out);
    }
    fn class(&self, x: &[f32]) -> Class {
        (**self).class(x)
    }
    fn nominal(&self) -> CompressionFactor {
        (**self).nominal()
    }
    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        (**self).refine_into(x, coarse, key, out);
    }
    fn selects(&self) -> bool {
        (**self).selects()
    }
}

impl<T: Tunable + ?Sized> Tunable for Box<T> {
    fn tune(&mut self, factor: CompressionFactor) {
        (**self).tune(factor);
    }
}

/// # Errors
/// [`ConfigError::Range`] for what is no bucket size on the wire.
fn bucket_size(bucket: usize) -> Result<u32, ConfigError> {
    let range = "between 1 and 2^32 - 1 values";
    let size = u32::try_from(bucket).ok().filter(|&b| b > 0);
    size.ok_or_else(|| ConfigError::range("bucket of a compressor", range, bucket))
}
