//! Nominal compression ratio: dense size over compressed size. Controllers decide in this unit. Only this module
//! converts it to the unit of a knob: values kept, or bits per value.

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::error::ConfigError;

/// A nominal compression ratio, dense size over compressed size: `d/k` for sparsifiers, `32/bits` for quantizers. At
/// least 1; 1 is dense.
///
/// ```
/// use briquette_core::CompressionFactor;
/// let ten: CompressionFactor = "10x".parse()?;
/// assert_eq!(ten.get(), 10.0);
/// assert!(CompressionFactor::new(0.5).is_err());
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, serde::Serialize)]
pub struct CompressionFactor(f64);

impl CompressionFactor {
    /// No compression.
    pub const DENSE: CompressionFactor = CompressionFactor(1.0);

    /// Creates a factor from a finite number of at least 1.
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn new(factor: f64) -> Result<Self, ConfigError> {
        if factor.is_finite() && factor >= 1.0 {
            Ok(CompressionFactor(factor))
        } else {
            Err(ConfigError::range("compression factor", "a finite number of at least 1", factor))
        }
    }

    /// Creates a factor from a constant, for defaults.
    ///
    /// # Panics
    /// If `factor` is not a finite number of at least 1.
    pub(crate) fn constant(factor: f64) -> Self {
        CompressionFactor::new(factor).expect("a constant of at least 1")
    }

    /// Returns `1/share`; errors name the share `what`.
    ///
    /// # Errors
    /// [`ConfigError::Range`] for a share outside (0, 1].
    pub(crate) fn of_share(what: &'static str, share: f64) -> Result<Self, ConfigError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(ConfigError::range(what, "above 0 and at most 1", share));
        }
        CompressionFactor::new(1.0 / share)
    }

    /// Returns `32/bits`: the factor for a number of bits per value, 1 to 32. [`bits`](Self::bits) is its inverse.
    ///
    /// ```
    /// use briquette_core::CompressionFactor;
    /// assert_eq!(CompressionFactor::of_bits(5).get(), 6.4);
    /// assert_eq!(CompressionFactor::of_bits(5).bits(2..=8), 5);
    /// assert_eq!(CompressionFactor::new(100.0)?.bits(2..=8), 2);
    /// # Ok::<(), briquette_core::error::ConfigError>(())
    /// ```
    pub fn of_bits(bits: u8) -> Self {
        CompressionFactor(32.0 / f64::from(bits.clamp(1, 32)))
    }

    /// Returns the bits per value of a quantizer: `32/factor` rounded, within `range`.
    pub fn bits(self, range: std::ops::RangeInclusive<u8>) -> u8 {
        (32.0 / self.0).round().clamp(f64::from(*range.start()), f64::from(*range.end())) as u8
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns whether the factor is 1.
    pub fn is_dense(self) -> bool {
        self.0 == 1.0
    }

    /// Returns the number of values, of `len`, that a sparsifier keeps: `len / factor` rounded, at least 1.
    pub fn keep(self, len: usize) -> usize {
        ((len as f64 / self.0).round() as usize).clamp(1.min(len), len)
    }
}

/// Deserializes from a number, or from a text such as `10x`.
impl<'de> Deserialize<'de> for CompressionFactor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrText;

        impl Visitor<'_> for NumberOrText {
            type Value = CompressionFactor;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number such as 10, or a text such as `10x`")
            }
            fn visit_f64<E: Error>(self, factor: f64) -> Result<CompressionFactor, E> {
                CompressionFactor::new(factor).map_err(E::custom)
            }
            fn visit_i64<E: Error>(self, factor: i64) -> Result<CompressionFactor, E> {
                self.visit_f64(factor as f64)
            }
            fn visit_u64<E: Error>(self, factor: u64) -> Result<CompressionFactor, E> {
                self.visit_f64(factor as f64)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<CompressionFactor, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(NumberOrText)
    }
}

impl TryFrom<f64> for CompressionFactor {
    type Error = ConfigError;
    fn try_from(factor: f64) -> Result<Self, ConfigError> {
        CompressionFactor::new(factor)
    }
}

impl From<CompressionFactor> for f64 {
    fn from(factor: CompressionFactor) -> f64 {
        factor.0
    }
}

impl std::str::FromStr for CompressionFactor {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let number = text.strip_suffix('x').unwrap_or(text);
        let factor =
            number.parse().map_err(|_| ConfigError::range("compression factor", "a number such as 10 or 10x", text))?;
        CompressionFactor::new(factor)
    }
}

impl std::fmt::Display for CompressionFactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x", self.0)
    }
}
