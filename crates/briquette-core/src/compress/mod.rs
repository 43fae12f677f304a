//! Compressors: encode a vector into a message. One file per compressor.
//!
//! A [`Compressor`] encodes a vector into a [`Message`] in reused storage. It never communicates, and draws randomness from the key alone,
//! so that a run replays exactly. Its error is found by decoding the message. Residuals are not handled here, but in
//! [`ErrorFeedback`](crate::wrapper::ErrorFeedback).
//!
//! | compressor | error bound | wire factor | needs error feedback |
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
//! | [`PlainSign`] | biased, without an error bound | 32 | not applicable |

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
pub use plain_sign::{PlainSign, Zero};
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

/// Error bound that a compressor declares; law 7 checks the constant.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ErrorBound {
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

impl ErrorBound {
    /// Returns the bound of `E‖x − C(x)‖²/‖x‖²`.
    pub fn error(self) -> f64 {
        match self {
            ErrorBound::Contractive { delta } | ErrorBound::MeanContractive { delta } => 1.0 - delta,
            ErrorBound::Unbiased { omega } | ErrorBound::Biased { omega } => omega,
        }
    }
}

/// Encodes a vector into a message, in reused storage.
pub trait Compressor: Send {
    /// Compresses `x`. Random bits come from `key` alone; two calls with equal arguments give equal messages. `x` is finite (the agreed
    /// step header refuses anything else). Any length below 2³² is valid, including zero.
    ///
    /// # Panics
    /// If `x` has 2³² values (16 GiB) or more: exchange such vectors in buckets.
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message);

    /// Returns this compressor's error bound on vectors like `x` (its constant may depend on the length or on `x`).
    fn error_bound(&self, x: &[f32]) -> ErrorBound;

    /// Returns the nominal compression ratio: `d/k` for sparsifiers, `32/bits` for quantizers. 1 if the size depends on the vector alone.
    fn nominal(&self) -> CompressionFactor;

    /// Compresses `x` by refining `coarse`, if that is cheaper than starting from `x` and gives the same message, or one with the same
    /// distribution (random-k). `coarse` was made by this compressor from `x` with this key, at another factor. The default starts from
    /// `x`.
    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        let _ = coarse;
        self.compress_into(x, key, out);
    }

    /// Returns whether a message holds a selected subset of the coordinates (a sparsifier) or all of them.
    fn selects(&self) -> bool {
        false
    }

    /// Returns the compressor's knob, if it has one that a [controller](crate::control::Controller) may adjust.
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        None
    }
}

/// Text form of a compressor in settings. With an implementation and one line in [`config`](crate::config), a compressor has laws, flags
/// and TOML.
pub trait Spec: Compressor + Copy + std::fmt::Display + 'static {
    /// Syntax, for help and errors: `topk[:FRACTION|FACTORx[,values=f32|f16|q8]]`.
    const SYNTAX: &'static str;

    /// One-line description.
    const HELP: &'static str;

    /// Set if it needs error feedback.
    const NEEDS_FEEDBACK: bool;

    /// Set if its messages are sparse, so that another compressor may encode their values (`topk:0.01+natural`).
    const SPARSE: bool;

    /// Set if it searches for the largest values, which starts with a sample on long vectors: the laws test it on long ones.
    const SEARCHES: bool;

    /// Set if decoded values have magnitude 1, whatever the vector's magnitude.
    const LOSES_SIZE: bool = false;

    /// Returns the compressor for `name` and its knobs; `None` if the name is another compressor's.
    ///
    /// # Errors
    /// [`ConfigError`] for a knob outside its range.
    fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError>;

    /// Returns the value on which the laws are tested.
    fn representative() -> Self;

    /// Returns whether this value needs error feedback, if that depends on its knobs.
    fn needs_feedback(&self) -> bool {
        Self::NEEDS_FEEDBACK
    }

    /// Returns whether the values that it sends are the vector's own bits.
    fn is_exact(&self) -> bool;
}

/// Settings in a compressor's text, `first:second,key=value`; each is read in order, by its key.
#[derive(Debug)]
pub struct Knobs<'a> {
    places: std::vec::IntoIter<&'a str>,
    keyed: Vec<(String, &'a str)>,
    asked: Vec<&'static str>,
}

impl<'a> Knobs<'a> {
    /// Parses the settings that follow the name.
    ///
    /// # Errors
    /// [`ConfigError::Text`] for a setting that is neither a value at its place nor `key=value`.
    pub(crate) fn new(settings: &'a str) -> Result<Self, ConfigError> {
        let mut entries = crate::text::entries(settings)?;
        let by_place = entries.first().filter(|(key, _)| key.is_none()).map(|(_, places)| *places);
        let places: Vec<&str> = by_place.into_iter().flat_map(|places| places.split(':')).collect();
        let keyed =
            entries.drain(places.len().min(1)..).map(|(key, value)| (key.unwrap_or_default().replace('-', "_"), value));
        Ok(Knobs { keyed: keyed.collect(), places: places.into_iter(), asked: Vec::new() })
    }

    /// Returns the setting with this key as text.
    ///
    /// # Errors
    /// [`ConfigError::Text`] if it is given twice.
    pub fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, ConfigError> {
        self.asked.push(key);
        let keyed = self.keyed.iter().position(|(given, _)| given == key).map(|place| self.keyed.remove(place).1);
        match (self.places.next(), keyed) {
            (Some(_), Some(_)) => Err(ConfigError::text("field", key, "it is given twice")),
            (place, keyed) => Ok(place.or(keyed)),
        }
    }

    /// Checks that every given setting was read.
    pub(crate) fn finish(mut self) -> Result<(), ConfigError> {
        let valid = self.asked.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        match (self.places.next(), self.keyed.first()) {
            (Some(extra), _) => Err(ConfigError::text("field", extra, "it is one part too many")),
            (None, Some((key, _))) => {
                let why = match &self.asked[..] {
                    [] => "the compressor has no settings".to_owned(),
                    asked if asked.contains(&key.as_str()) => "it is given twice".to_owned(),
                    _ => format!("unknown, expected one of {valid}"),
                };
                Err(ConfigError::text("field", key, why))
            }
            (None, None) => Ok(()),
        }
    }

    /// Returns the setting with this key as a number; `default` if it is absent.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names `what`.
    pub fn number<T: std::str::FromStr>(
        &mut self,
        key: &'static str,
        what: &'static str,
        default: T,
    ) -> Result<T, ConfigError> {
        match self.text(key)? {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| ConfigError::range(what, "a number", text)),
        }
    }

    /// Returns the setting with this key, written as a share such as `0.01` or a factor such as `100x`. `default` is a share.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names `what`.
    pub fn share(
        &mut self,
        key: &'static str,
        what: &'static str,
        default: f64,
    ) -> Result<CompressionFactor, ConfigError> {
        match self.text(key)? {
            None => CompressionFactor::of_share(what, default),
            Some(text) if text.ends_with('x') => text.parse(),
            Some(text) => {
                let wrong = |_| ConfigError::range(what, "a share such as 0.01 or a factor such as 100x", text);
                CompressionFactor::of_share(what, text.parse().map_err(wrong)?)
            }
        }
    }

    /// Returns the setting with this key as one of several words; the first word if it is absent.
    ///
    /// # Errors
    /// [`ConfigError::Unknown`] lists the words.
    pub fn word<T: Copy>(
        &mut self,
        key: &'static str,
        what: &'static str,
        words: &[(&str, T)],
    ) -> Result<T, ConfigError> {
        let Some(text) = self.text(key)? else { return Ok(words[0].1) };
        words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| ConfigError::Unknown {
            what,
            got: text.to_owned(),
            valid: words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Knob of a compressor, whatever its unit: [`CompressionFactor`] converts to values kept and to bits.
pub trait Tunable {
    /// Sets the nominal compression ratio from the next call on, rounded to the nearest value that the knob has.
    fn tune(&mut self, factor: CompressionFactor);
}

impl<C: Compressor + ?Sized> Compressor for Box<C> {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        (**self).compress_into(x, key, out);
    }
    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        (**self).error_bound(x)
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
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        (**self).knob()
    }
}

/// # Errors
/// [`ConfigError::Range`] for an invalid bucket size.
fn bucket_size(bucket: usize) -> Result<u32, ConfigError> {
    let range = "between 1 and 2^32 - 1 values";
    let size = u32::try_from(bucket).ok().filter(|&b| b > 0);
    size.ok_or_else(|| ConfigError::range("bucket of a compressor", range, bucket))
}
