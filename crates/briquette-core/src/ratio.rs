//! Nominal compression ratio: dense size over compressed size. Controllers decide in this unit. Only this module
//! converts it to the unit of a knob: values kept, or bits per value.

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::error::ConfigError;

/// A nominal compression ratio, dense size over compressed size: `d/k` for sparsifiers, `32/bits` for quantizers. At
/// least 1; 1 is dense.
///
/// ```
/// use briquette_core::CompressionRatio;
/// let ten: CompressionRatio = "10x".parse()?;
/// assert_eq!(ten.get(), 10.0);
/// assert!(CompressionRatio::new(0.5).is_err());
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, serde::Serialize)]
pub struct CompressionRatio(f64);

impl CompressionRatio {
    /// No compression.
    pub const DENSE: CompressionRatio = CompressionRatio(1.0);

    /// Creates a ratio from a finite number of at least 1.
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn new(ratio: f64) -> Result<Self, ConfigError> {
        if ratio.is_finite() && ratio >= 1.0 {
            Ok(CompressionRatio(ratio))
        } else {
            Err(ConfigError::range("compression ratio", "a finite number of at least 1", ratio))
        }
    }

    /// Creates a ratio from a constant, for defaults.
    ///
    /// # Panics
    /// If `ratio` is not a finite number of at least 1.
    pub fn constant(ratio: f64) -> Self {
        CompressionRatio::new(ratio).expect("a constant of at least 1")
    }

    /// Returns `1/share`; errors name the share `what`.
    ///
    /// # Errors
    /// [`ConfigError::Range`] for a share outside (0, 1].
    pub fn of_share(what: &'static str, share: f64) -> Result<Self, ConfigError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(ConfigError::range(what, "above 0 and at most 1", share));
        }
        CompressionRatio::new(1.0 / share)
    }

    /// Returns `32/bits`: the ratio for a number of bits per value, 1 to 32. [`bits`](Self::bits) is its inverse.
    ///
    /// ```
    /// use briquette_core::CompressionRatio;
    /// assert_eq!(CompressionRatio::of_bits(5).get(), 6.4);
    /// assert_eq!(CompressionRatio::of_bits(5).bits(2..=8), 5);
    /// assert_eq!(CompressionRatio::new(100.0)?.bits(2..=8), 2);
    /// # Ok::<(), briquette_core::error::ConfigError>(())
    /// ```
    pub fn of_bits(bits: u8) -> Self {
        CompressionRatio(32.0 / f64::from(bits.clamp(1, 32)))
    }

    /// Returns the bits per value of a quantizer: `32/ratio` rounded, within `range`.
    pub fn bits(self, range: std::ops::RangeInclusive<u8>) -> u8 {
        (32.0 / self.0).round().clamp(f64::from(*range.start()), f64::from(*range.end())) as u8
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns whether the ratio is 1.
    pub fn is_dense(self) -> bool {
        self.0 == 1.0
    }

    /// Returns the number of values, of `len`, that a sparsifier keeps: `len / ratio` rounded, at least 1.
    pub fn keep(self, len: usize) -> usize {
        ((len as f64 / self.0).round() as usize).clamp(1.min(len), len)
    }
}

/// Deserializes from a number, or from a text such as `10x`.
impl<'de> Deserialize<'de> for CompressionRatio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrText;

        impl Visitor<'_> for NumberOrText {
            type Value = CompressionRatio;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number such as 10, or a text such as `10x`")
            }
            fn visit_f64<E: Error>(self, ratio: f64) -> Result<CompressionRatio, E> {
                CompressionRatio::new(ratio).map_err(E::custom)
            }
            fn visit_i64<E: Error>(self, ratio: i64) -> Result<CompressionRatio, E> {
                self.visit_f64(ratio as f64)
            }
            fn visit_u64<E: Error>(self, ratio: u64) -> Result<CompressionRatio, E> {
                self.visit_f64(ratio as f64)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<CompressionRatio, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(NumberOrText)
    }
}

/// Serde of a ratio as a text that may also be a share: `100x`, `0.01`.
pub mod share {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{CompressionRatio, ConfigError};

    /// Writes `100x`.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(ratio: &CompressionRatio, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(ratio)
    }

    /// Reads a share or a ratio.
    ///
    /// # Errors
    /// A text that is neither, and a number out of range.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CompressionRatio, D::Error> {
        let text = String::deserialize(deserializer)?;
        let what = "share of the values";
        let wrong = |_| ConfigError::range(what, "a share such as 0.01 or a ratio such as 100x", &text);
        let ratio = match text.ends_with('x') {
            true => text.parse(),
            false => text.parse().map_err(wrong).and_then(|share| CompressionRatio::of_share(what, share)),
        };
        ratio.map_err(D::Error::custom)
    }
}

impl TryFrom<f64> for CompressionRatio {
    type Error = ConfigError;
    fn try_from(ratio: f64) -> Result<Self, ConfigError> {
        CompressionRatio::new(ratio)
    }
}

impl From<CompressionRatio> for f64 {
    fn from(ratio: CompressionRatio) -> f64 {
        ratio.0
    }
}

impl std::str::FromStr for CompressionRatio {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let number = text.strip_suffix('x').unwrap_or(text);
        let ratio =
            number.parse().map_err(|_| ConfigError::range("compression ratio", "a number such as 10 or 10x", text))?;
        CompressionRatio::new(ratio)
    }
}

impl std::fmt::Display for CompressionRatio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x", self.0)
    }
}
