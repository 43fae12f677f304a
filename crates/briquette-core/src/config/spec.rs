//! Compressors as short texts: `topk:0.01`, `topk:20x:q8`, `qsgd:4`, `sign`, `f16`, `dense`.

use std::fmt;
use std::str::FromStr;

use crate::CompressionFactor;
use crate::compress::{HalfKind, Norm, ValueKind};
use crate::error::ConfigError;

/// What a message is. Written as text, in TOML too.
///
/// | text | meaning |
/// |---|---|
/// | `dense` | every value in f32 |
/// | `f16`, `bf16` | every value in 16 bits |
/// | `topk:0.01`, `topk:100x` | the largest 1 %; `:f16` or `:q8` at the end sets how kept values travel |
/// | `qsgd:4` | 4 bits a value; `:512` the bucket, then `:l2` or `:max` the norm |
/// | `sign` | one bit a value and one magnitude |
///
/// ```
/// use briquette_core::config::CompressorConfig;
/// let spec: CompressorConfig = "topk:20x:q8".parse()?;
/// assert_eq!(spec.to_string(), "topk:20x:q8");
/// let error = "topq:1".parse::<CompressorConfig>().unwrap_err().to_string();
/// assert!(error.contains("valid are: dense, f16, bf16, topk"));
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CompressorConfig {
    /// Every value in f32.
    Dense,
    /// Every value in 16 bits.
    Half {
        /// Which 16 bits.
        kind: HalfKind,
    },
    /// The largest values.
    TopK {
        /// `d/k`.
        factor: CompressionFactor,
        /// How kept values travel.
        values: ValueKind,
    },
    /// Stochastic quantization.
    Qsgd {
        /// Bits a value, sign included.
        bits: u8,
        /// Values that share a scale.
        bucket: usize,
        /// What the scale is.
        norm: Norm,
    },
    /// One bit a value.
    ScaledSign,
}

impl CompressorConfig {
    /// Top-k with 8-bit values.
    pub fn top_k_q8(factor: CompressionFactor) -> Self {
        CompressorConfig::TopK { factor, values: ValueKind::Q8 }
    }
}

impl fmt::Display for CompressorConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompressorConfig::Dense => f.write_str("dense"),
            CompressorConfig::Half { kind: HalfKind::F16 } => f.write_str("f16"),
            CompressorConfig::Half { kind: HalfKind::Bf16 } => f.write_str("bf16"),
            CompressorConfig::TopK { factor, values } => {
                write!(f, "topk:{factor}")?;
                match values {
                    ValueKind::F32 => Ok(()),
                    ValueKind::F16 => f.write_str(":f16"),
                    ValueKind::Q8 => f.write_str(":q8"),
                }
            }
            CompressorConfig::Qsgd { bits, bucket, norm } => {
                let norm = if *norm == Norm::L2 { "l2" } else { "max" };
                write!(f, "qsgd:{bits}:{bucket}:{norm}")
            }
            CompressorConfig::ScaledSign => f.write_str("sign"),
        }
    }
}

fn unknown(what: &'static str, got: &str, valid: &str) -> ConfigError {
    ConfigError::Unknown { what, got: got.to_owned(), valid: valid.to_owned() }
}

fn number<T: FromStr>(what: &'static str, text: &str) -> Result<T, ConfigError> {
    text.parse().map_err(|_| ConfigError::range(what, "a number", text))
}

/// `0.01` is the fraction kept, `100x` the factor.
fn kept(text: &str) -> Result<CompressionFactor, ConfigError> {
    if text.ends_with('x') {
        return text.parse();
    }
    let fraction: f64 = number("top-k fraction", text)?;
    if fraction > 0.0 && fraction <= 1.0 {
        CompressionFactor::new(1.0 / fraction)
    } else {
        Err(ConfigError::range("top-k fraction", "in (0, 1], or a factor such as 100x", text))
    }
}

impl FromStr for CompressorConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let mut part = || parts.next();
        let config = match name {
            "dense" => CompressorConfig::Dense,
            "f16" => CompressorConfig::Half { kind: HalfKind::F16 },
            "bf16" => CompressorConfig::Half { kind: HalfKind::Bf16 },
            "topk" => CompressorConfig::TopK {
                factor: kept(part().unwrap_or("0.01"))?,
                values: match part() {
                    None | Some("f32") => ValueKind::F32,
                    Some("f16") => ValueKind::F16,
                    Some("q8") => ValueKind::Q8,
                    Some(other) => return Err(unknown("value type", other, "f32, f16, q8")),
                },
            },
            "qsgd" => CompressorConfig::Qsgd {
                bits: number("QSGD bits", part().unwrap_or("4"))?,
                bucket: number("QSGD bucket", part().unwrap_or("512"))?,
                norm: match part() {
                    None | Some("l2") => Norm::L2,
                    Some("max") => Norm::Max,
                    Some(other) => return Err(unknown("norm", other, "l2, max")),
                },
            },
            "sign" => CompressorConfig::ScaledSign,
            other => {
                let valid = "dense, f16, bf16, topk[:FRACTION|FACTORx[:f32|f16|q8]], qsgd[:BITS[:BUCKET[:l2|max]]], sign";
                return Err(unknown("compressor", other, valid));
            }
        };
        match part() {
            None => Ok(config),
            Some(extra) => Err(ConfigError::Conflict(format!("compressor `{text}`: `{extra}` is one part too many"))),
        }
    }
}

impl TryFrom<String> for CompressorConfig {
    type Error = ConfigError;
    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

impl From<CompressorConfig> for String {
    fn from(config: CompressorConfig) -> String {
        config.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["dense", "f16", "bf16", "topk:100x", "topk:7x:f16", "topk:10x:q8", "qsgd:4:512:l2", "qsgd:8:64:max", "sign"] {
            assert_eq!(text.parse::<CompressorConfig>().unwrap().to_string(), text);
        }
        assert_eq!("topk:0.01".parse::<CompressorConfig>().unwrap().to_string(), "topk:100x");
    }

    #[test]
    fn impossible_texts_say_what_is_possible() {
        for (text, says) in [
            ("topk:0", "in (0, 1]"),
            ("topk:1.5", "in (0, 1]"),
            ("topk:0.5x", "at least 1"),
            ("topk:0.1:q9", "f32, f16, q8"),
            ("qsgd:4:512:l3", "l2, max"),
            ("zip", "valid are"),
            ("sign:1", "one part too many"),
        ] {
            let error = text.parse::<CompressorConfig>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
