//! Compressor: encodes a vector into a message.

use crate::message::{Coding, HalfKind, ValueKind};
use crate::{CompressionRatio, Key, Message};

/// Error bound that a compressor declares. A [law](crate#the-laws) checks the declared constant.
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

    /// Returns the bound of the expected error, relative to `‖x‖²`, if the class of the compressor permits errors above
    /// `‖x‖²`.
    pub fn amplification(self) -> Option<f64> {
        match self {
            ErrorBound::Unbiased { omega } | ErrorBound::Biased { omega } => Some(omega),
            ErrorBound::Contractive { .. } | ErrorBound::MeanContractive { .. } => None,
        }
    }

    /// Returns whether nothing is lost.
    pub fn is_identity(self) -> bool {
        matches!(self, ErrorBound::Unbiased { .. } | ErrorBound::Contractive { .. }) && self.error() == 0.0
    }

    /// Returns the bound with the weaker guarantee.
    pub fn worse(self, other: ErrorBound) -> ErrorBound {
        use ErrorBound::{Biased, Contractive, MeanContractive, Unbiased};
        match (self, other) {
            (Unbiased { omega: a }, Unbiased { omega: b }) => Unbiased { omega: a.max(b) },
            (Contractive { delta: a }, Contractive { delta: b }) => Contractive { delta: a.min(b) },
            (
                Contractive { delta: a } | MeanContractive { delta: a },
                Contractive { delta: b } | MeanContractive { delta: b },
            ) => MeanContractive { delta: a.min(b) },
            (identity, other) | (other, identity) if identity.is_identity() => other,
            // A compressor belongs to one class. If classes are mixed, only the size of the error is certain.
            _ => Biased { omega: self.error().max(other.error()) },
        }
    }

    /// Returns a compressor's weakest bound on two vectors of `len` values, for constants that depend on the vector: all values equal,
    /// and one large value among small ones. The latter is near the worst case for compressors that scale by the largest value.
    pub fn of(compressor: &(impl Compressor + ?Sized), len: usize) -> Option<ErrorBound> {
        let small = 1.0 / (len.max(1) as f32).sqrt();
        let bounds = [1.0, small].into_iter().map(|rest| {
            let mut x = vec![rest; len];
            x.iter_mut().take(1).for_each(|first| *first = 1.0);
            compressor.error_bound(&x)
        });
        bounds.reduce(ErrorBound::worse)
    }

    /// Returns the bound of `rounds` rounds, each of which compresses what the previous rounds left out.
    pub fn of_rounds(self, rounds: usize) -> ErrorBound {
        let power = |error: f64| error.powf(rounds as f64);
        match self {
            ErrorBound::Contractive { delta } => ErrorBound::Contractive { delta: 1.0 - power(1.0 - delta) },
            ErrorBound::MeanContractive { delta } => ErrorBound::MeanContractive { delta: 1.0 - power(1.0 - delta) },
            ErrorBound::Biased { omega } => ErrorBound::Biased { omega: power(omega) },
            ErrorBound::Unbiased { omega } => {
                let left = power(omega / (1.0 + omega));
                ErrorBound::Unbiased { omega: left / (1.0 - left) }
            }
        }
    }
}

/// Encoding that a device may have a kernel for, with the settings of its compressor.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Encoding {
    /// The [largest](crate::compress::top_k) values.
    TopK {
        /// The share of values.
        ratio: CompressionRatio,
        /// The form of the values.
        values: ValueKind,
    },
    /// The largest values of every chunk.
    ChunkTopK {
        /// The share of values.
        ratio: CompressionRatio,
        /// Values of a chunk.
        chunk: usize,
    },
    /// Magnitudes of [at least](crate::compress::hard_threshold) a threshold.
    HardThreshold {
        /// The threshold.
        threshold: f32,
    },
    /// About as many of the largest values, [by sampling](crate::compress::threshold_top_k).
    ThresholdTopK {
        /// The share of values.
        ratio: CompressionRatio,
        /// The share of values that are sampled.
        sample: f64,
    },
    /// [Random coordinates](crate::compress::random_k).
    RandomK {
        /// The share of values.
        ratio: CompressionRatio,
        /// Set if values are scaled to be unbiased.
        scaled: bool,
    },
    /// [8 bits](crate::compress::min_max) between the ends of each block.
    MinMax {
        /// Values of a block.
        block: usize,
    },
    /// [16 bits](crate::compress::half).
    Half {
        /// The format.
        kind: HalfKind,
    },
    /// [Powers of two](crate::compress::natural).
    Natural,
    /// [Random levels](crate::compress::qsgd).
    Qsgd {
        /// Levels of each sign.
        levels: u8,
        /// Values that share a scale.
        bucket: usize,
        /// Set if the scale is the Euclidean norm, otherwise the largest magnitude.
        euclidean: bool,
        /// The code of the levels.
        coding: Coding,
    },
    /// [Three levels](crate::compress::tern_grad).
    TernGrad {
        /// Clip limit in standard deviations.
        clip: Option<f32>,
    },
    /// [Signs](crate::compress::scaled_sign) with a mean magnitude.
    ScaledSign {
        /// Values that share a magnitude; all if absent.
        bucket: Option<usize>,
    },
    /// [Signs](crate::compress::plain_sign) alone.
    PlainSign {
        /// Set if zeros get random signs.
        random_zeros: bool,
    },
}

/// Encodes a vector into a message, in reused storage.
pub trait Compressor: Send {
    /// Compresses `x` into `out`. Random bits come from `key` alone; two calls with equal arguments give equal messages. `x` is finite:
    /// the step header rejects other values before. Any length below 2³² is valid, including zero.
    ///
    /// # Panics
    /// If `x` has 2³² values (16 GiB) or more: exchange such vectors in buckets.
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message);

    /// Returns this compressor's error bound on vectors like `x` (its constant may depend on the length or on `x`).
    fn error_bound(&self, x: &[f32]) -> ErrorBound;

    /// Returns the nominal compression ratio: `d/k` for sparsifiers, `32/bits` for quantizers. 1 if the size depends on the vector alone.
    fn nominal(&self) -> CompressionRatio;

    /// Compresses `x` by refining `coarse`, if that is cheaper than starting from `x` and gives the same message, or one with the same
    /// distribution (random-k). `coarse` was made by this compressor from `x` with this key, at another ratio. The default starts from
    /// `x`.
    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        let _ = coarse;
        self.compress_into(x, key, out);
    }

    /// Returns whether a message holds a selected subset of the coordinates (a sparsifier) or all of them.
    fn selects(&self) -> bool {
        false
    }

    /// Returns the encoding for a [device](crate::seam::DeviceVector) that computes the same message, if there is one. If there is a
    /// [value code](Compressor::value_code), the encoding is that of the sparsifier, and the values of its message are then encoded. A wrapper around
    /// a compressor passes both on, or neither.
    fn encoding(&self) -> Option<Encoding> {
        None
    }

    /// Returns the compressor of the values that a sparsifier keeps, if they are [coded](crate::compress::coded).
    fn value_code(&mut self) -> Option<&mut dyn Compressor> {
        None
    }

    /// Returns the compressor's knob, if it has one that a [controller](crate::seam::Controller) may adjust.
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        None
    }
}

/// Adjustable setting of a compressor, such as the number of values kept or of bits. [`CompressionRatio`] converts to
/// these units.
pub trait Tunable {
    /// Sets the nominal compression ratio from the next call on, rounded to the nearest value that the knob has.
    fn tune(&mut self, ratio: CompressionRatio);
}

impl<C: Compressor + ?Sized> Compressor for Box<C> {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        (**self).compress_into(x, key, out);
    }
    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        (**self).error_bound(x)
    }
    fn nominal(&self) -> CompressionRatio {
        (**self).nominal()
    }
    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        (**self).refine_into(x, coarse, key, out);
    }
    fn selects(&self) -> bool {
        (**self).selects()
    }
    fn encoding(&self) -> Option<Encoding> {
        (**self).encoding()
    }
    fn value_code(&mut self) -> Option<&mut dyn Compressor> {
        (**self).value_code()
    }
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        (**self).knob()
    }
}
