//! Scaling policies: the candidate compression ratios.

use std::fmt;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use briquette_core::error::ConfigError;
use briquette_core::{CompressionRatio, serde_as_text};

/// Growth of candidates from the safe ratio to the largest; as text, `exponential` or `geometric:GROWTH`.
///
/// ```
/// use briquette_core::CompressionRatio;
/// use briquette_zoo::control::gravac::Policy;
/// let (min, max) = (CompressionRatio::new(10.0)?, CompressionRatio::new(1000.0)?);
/// let ratios: Vec<f64> = Policy::Exponential.candidates(min, max)?.iter().map(|ratio| ratio.get()).collect();
/// assert_eq!(ratios, [20.0, 40.0, 160.0, 1000.0]);
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(into = "String")]
#[non_exhaustive]
pub enum Policy {
    /// `min·2¹, min·2², min·2⁴, min·2⁸, …`: few windows, large jumps.
    Exponential,
    /// `min·r, min·r², min·r³, …`.
    Geometric {
        /// `r`, at least 1.01; the paper's is 2.
        growth: f64,
    },
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Exponential => f.write_str("exponential"),
            Policy::Geometric { growth } => write!(f, "geometric:{growth}"),
        }
    }
}

impl FromStr for Policy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let growth = |growth: &str| {
            let wrong = |_| ConfigError::range("growth of the geometric policy", "a number of at least 1.01", growth);
            growth.parse().map_err(wrong)
        };
        match text.split_once(':') {
            None if text == "exponential" => Ok(Policy::Exponential),
            None if text == "geometric" => Ok(Policy::Geometric { growth: 2.0 }),
            Some(("geometric", number)) => Ok(Policy::Geometric { growth: growth(number)? }),
            _ => {
                let (got, valid) = (text.to_owned(), "exponential, geometric[:GROWTH]".to_owned());
                Err(ConfigError::Unknown { what: "policy", got, valid })
            }
        }
    }
}

serde_as_text!(Policy);

/// Reads a policy from its text, or from the table `{ geometric = { growth = 2.0 } }`.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        enum Table {
            Geometric { growth: f64 },
        }

        struct TextOrTable;

        impl<'de> Visitor<'de> for TextOrTable {
            type Value = Policy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the text of a policy")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Policy, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
                let Table::Geometric { growth } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Policy::Geometric { growth })
            }
        }

        deserializer.deserialize_any(TextOrTable)
    }
}

impl Policy {
    /// Returns the candidates: strictly increasing, above `min` (unless `min` is `max`), the last one `max`.
    ///
    /// # Errors
    /// [`ConfigError`] when the growth is below 1.01 or `min` above `max`.
    pub fn candidates(
        &self,
        min: CompressionRatio,
        max: CompressionRatio,
    ) -> Result<Vec<CompressionRatio>, ConfigError> {
        if let Policy::Geometric { growth } = *self
            && !(growth.is_finite() && growth >= 1.01)
        {
            return Err(ConfigError::range(
                "growth of the geometric policy",
                "a finite number of at least 1.01",
                growth,
            ));
        }
        if min > max {
            let why = "the largest ratio is below the safe one";
            return Err(ConfigError::conflict(
                format!("max={max}"),
                format!("min={min}"),
                why,
                "raise max, or lower min",
            ));
        }
        let mut candidates = Vec::new();
        let mut step = self.first_step();
        let mut ratio = min.get() * step;
        while ratio < max.get() {
            candidates.push(CompressionRatio::new(ratio)?);
            (ratio, step) = self.advance(min.get(), ratio, step);
        }
        candidates.push(max);
        Ok(candidates)
    }

    fn first_step(&self) -> f64 {
        match *self {
            Policy::Exponential => 2.0,
            Policy::Geometric { growth } => growth,
        }
    }

    /// Returns the ratio after `ratio`, which was reached by `step`, and the step to it.
    fn advance(&self, min: f64, ratio: f64, step: f64) -> (f64, f64) {
        match self {
            Policy::Exponential => (min * (step * step), step * step),
            Policy::Geometric { .. } => (ratio * step, step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(policy: Policy, min: f64, max: f64) -> Vec<f64> {
        let ratio = |v| CompressionRatio::new(v).unwrap();
        policy.candidates(ratio(min), ratio(max)).unwrap().iter().map(|ratio| ratio.get()).collect()
    }

    #[test]
    fn candidates_are_the_papers() {
        let two = Policy::Geometric { growth: 2.0 };
        assert_eq!(candidates(Policy::Exponential, 10.0, 1000.0), [20.0, 40.0, 160.0, 1000.0]);
        assert_eq!(candidates(two, 10.0, 2000.0), [20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2000.0]);
        let ten = [3.0, 6.0, 12.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0, 1000.0];
        assert_eq!(candidates(two, 1.5, 1000.0), ten);
    }

    #[test]
    fn the_last_candidate_is_the_largest_and_comes_once() {
        assert_eq!(candidates(Policy::Geometric { growth: 2.0 }, 10.0, 40.0), [20.0, 40.0]);
        assert_eq!(candidates(Policy::Exponential, 10.0, 10.0), [10.0]);
        assert_eq!(candidates(Policy::Exponential, 10.0, 11.0), [11.0]);
        assert_eq!(candidates(Policy::Exponential, 10.0, 1e308).last(), Some(&1e308)); // 2^1024 overflows to infinity
    }

    #[test]
    fn impossible_policies_are_refused() {
        let ratio = |v| CompressionRatio::new(v).unwrap();
        for growth in [1.0, 0.5, f64::NAN, f64::INFINITY] {
            assert!(Policy::Geometric { growth }.candidates(ratio(10.0), ratio(20.0)).is_err(), "{growth}");
        }
        assert!(Policy::Exponential.candidates(ratio(20.0), ratio(10.0)).is_err());
    }
}
