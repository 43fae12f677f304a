//! Serialization of all floats in JSON: finite numbers as numbers, others as `"NaN"`, `"inf"` and `"-inf"`. Plain serde
//! writes `null` for these, and cannot read it again.
//!
//! For `#[serde(with = "float")]`. Fields that may be absent use [`option`], where `null` means `None`. Elsewhere
//! `null` is an error.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

/// Writes a number.
pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        value if value.is_finite() => serializer.serialize_f64(*value),
        // "NaN", "inf", "-inf".
        value => serializer.collect_str(value),
    }
}

/// Reads a number.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(Number)?.ok_or_else(|| D::Error::custom("null is not a number"))
}

/// Serialization of fields that may be absent.
pub(crate) mod option {
    use super::{Deserializer, Number, Serializer};

    /// Writes a number or `null`.
    pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a number or `null`.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        deserializer.deserialize_any(Number)
    }
}

/// Visitor that returns `None` for `null`.
struct Number;

impl Visitor<'_> for Number {
    type Value = Option<f64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"NaN\", \"inf\" or \"-inf\"")
    }
    fn visit_f64<E>(self, value: f64) -> Result<Option<f64>, E> {
        Ok(Some(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Option<f64>, E> {
        Ok(Some(value as f64))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Option<f64>, E> {
        Ok(Some(value as f64))
    }
    fn visit_unit<E>(self) -> Result<Option<f64>, E> {
        Ok(None)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Option<f64>, E> {
        match text {
            "NaN" => Ok(Some(f64::NAN)),
            "inf" => Ok(Some(f64::INFINITY)),
            "-inf" => Ok(Some(f64::NEG_INFINITY)),
            other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "super")]
        value: f64,
        #[serde(with = "super::option")]
        option: Option<f64>,
    }

    fn again(value: f64, option: Option<f64>) -> Record {
        serde_json::from_str(&serde_json::to_string(&Record { value, option }).unwrap()).unwrap()
    }

    #[track_caller]
    fn survives(value: f64) {
        let Record { value: read, option } = again(value, Some(value));
        for read in [read, option.unwrap()] {
            assert!(
                read.to_bits() == value.to_bits() || (read.is_nan() && value.is_nan()),
                "{value:?} came as {read:?}"
            );
        }
    }

    #[test]
    fn every_class_of_bits_survives() {
        for sign in [0, 1 << 63] {
            // Zeros and denormals, the smallest and largest exponents, infinities and NaNs of all payloads among them.
            for exponent in 0..=0x7ff_u64 {
                let any = (exponent + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12;
                for mantissa in [0, 1, 1 << 51, (1 << 52) - 1, any] {
                    survives(f64::from_bits(sign | exponent << 52 | mantissa));
                }
            }
        }
        assert!(again(0.0, None).option.is_none());
    }

    #[test]
    fn whole_numbers_are_read_and_null_is_no_number() {
        let read = |text: &str| serde_json::from_str::<Record>(text);
        assert!(read(r#"{"value": 1, "option": null}"#).unwrap().option.is_none());
        let error = read(r#"{"value": null, "option": null}"#).unwrap_err().to_string();
        assert!(error.contains("null is not a number"), "{error}");
        let whole = read(r#"{"value": -3, "option": 18446744073709551615}"#).unwrap();
        assert_eq!((whole.value, whole.option), (-3.0, Some(18_446_744_073_709_551_615.0)));
        let error = read(r#"{"value": "many", "option": 1}"#).unwrap_err().to_string();
        assert!(error.contains("many") && error.contains("-inf"), "{error}");
    }
}
