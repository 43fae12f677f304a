//! Scaling policies: the candidate compression factors.

use std::fmt;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::CompressionFactor;
use crate::error::ConfigError;
use crate::text::serde_as_text;

/// Growth of candidates from the safe factor to the largest; as text, `exponential` or `geometric:RATIO`.
///
/// ```
/// use briquette_core::CompressionFactor;
/// use briquette_core::control::Policy;
/// let (min, max) = (CompressionFactor::new(10.0)?, CompressionFactor::new(1000.0)?);
/// let factors: Vec<f64> = Policy::Exponential.candidates(min, max)?.iter().map(|f| f.get()).collect();
/// assert_eq!(factors, [20.0, 40.0, 160.0, 1000.0]);
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
        ratio: f64,
    },
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Exponential => f.write_str("exponential"),
            Policy::Geometric { ratio } => write!(f, "geometric:{ratio}"),
        }
    }
}

impl FromStr for Policy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let ratio = |ratio: &str| {
            let wrong = |_| ConfigError::range("ratio of the geometric policy", "a number of at least 1.01", ratio);
            ratio.parse().map_err(wrong)
        };
        match text.split_once(':') {
            None if text == "exponential" => Ok(Policy::Exponential),
            None if text == "geometric" => Ok(Policy::Geometric { ratio: 2.0 }),
            Some(("geometric", number)) => Ok(Policy::Geometric { ratio: ratio(number)? }),
            _ => {
                let (got, valid) = (text.to_owned(), "exponential, geometric[:RATIO]".to_owned());
                Err(ConfigError::Unknown { what: "policy", got, valid })
            }
        }
    }
}

serde_as_text!(Policy);

/// Reads a policy from its text, or from the table `{ geometric = { ratio = 2.0 } }`.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        enum Table {
            Geometric { ratio: f64 },
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
                let Table::Geometric { ratio } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Policy::Geometric { ratio })
            }
        }

        deserializer.deserialize_any(TextOrTable)
    }
}

impl Policy {
    /// Returns the candidates: strictly increasing, above `min` (unless `min` is `max`), the last one `max`.
    ///
    /// # Errors
    /// [`ConfigError`] when the ratio is below 1.01 or `min` above `max`.
    pub fn candidates(
        &self,
        min: CompressionFactor,
        max: CompressionFactor,
    ) -> Result<Vec<CompressionFactor>, ConfigError> {
        if let Policy::Geometric { ratio } = *self
            && !(ratio.is_finite() && ratio >= 1.01)
        {
            return Err(ConfigError::range("ratio of the geometric policy", "a finite number of at least 1.01", ratio));
        }
        if min > max {
            let why = "the largest factor is below the safe one";
            return Err(ConfigError::conflict(
                format!("max={max}"),
                format!("min={min}"),
                why,
                "raise max, or lower min",
            ));
        }
        let mut candidates = Vec::new();
        let mut step = self.first_step();
        let mut factor = min.get() * step;
        while factor < max.get() {
            candidates.push(CompressionFactor::new(factor)?);
            (factor, step) = self.advance(min.get(), factor, step);
        }
        candidates.push(max);
        Ok(candidates)
    }

    fn first_step(&self) -> f64 {
        match *self {
            Policy::Exponential => 2.0,
            Policy::Geometric { ratio } => ratio,
        }
    }

    /// Returns the factor after `factor`, which was reached by `step`, and the step to it.
    fn advance(&self, min: f64, factor: f64, step: f64) -> (f64, f64) {
        match self {
            Policy::Exponential => (min * (step * step), step * step),
            Policy::Geometric { .. } => (factor * step, step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(policy: Policy, min: f64, max: f64) -> Vec<f64> {
        let factor = |v| CompressionFactor::new(v).unwrap();
        policy.candidates(factor(min), factor(max)).unwrap().iter().map(|f| f.get()).collect()
    }

    #[test]
    fn candidates_are_the_papers() {
        let two = Policy::Geometric { ratio: 2.0 };
        assert_eq!(candidates(Policy::Exponential, 10.0, 1000.0), [20.0, 40.0, 160.0, 1000.0]);
        assert_eq!(candidates(two, 10.0, 2000.0), [20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2000.0]);
        let ten = [3.0, 6.0, 12.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0, 1000.0];
        assert_eq!(candidates(two, 1.5, 1000.0), ten);
    }

    #[test]
    fn the_last_candidate_is_the_largest_and_comes_once() {
        assert_eq!(candidates(Policy::Geometric { ratio: 2.0 }, 10.0, 40.0), [20.0, 40.0]);
        assert_eq!(candidates(Policy::Exponential, 10.0, 10.0), [10.0]);
        assert_eq!(candidates(Policy::Exponential, 10.0, 11.0), [11.0]);
        assert_eq!(candidates(Policy::Exponential, 10.0, 1e308).last(), Some(&1e308)); // 2^1024 overflows to infinity
    }

    #[test]
    fn impossible_policies_are_refused() {
        let factor = |v| CompressionFactor::new(v).unwrap();
        for ratio in [1.0, 0.5, f64::NAN, f64::INFINITY] {
            assert!(Policy::Geometric { ratio }.candidates(factor(10.0), factor(20.0)).is_err(), "{ratio}");
        }
        assert!(Policy::Exponential.candidates(factor(20.0), factor(10.0)).is_err());
    }
}
