//! Compressors as short texts: `topk:0.01`, `topk:20x:q8`, `qsgd:4`, `sign`, `f16`, `dense`.

use std::fmt;
use std::str::FromStr;

use crate::CompressionFactor;
use crate::compress::*;
use crate::error::ConfigError;

macro_rules! compressors {
    ($($name:ident),* $(,)?) => {
        /// What a message is. Written as text, in TOML too.
        ///
        /// | text | meaning |
        /// |---|---|
        /// | `dense` | every value in f32 |
        /// | `f16`, `bf16` | every value in 16 bits |
        /// | `topk:0.01`, `topk:100x` | the largest 1 %; `:f16` or `:q8` at the end sets how kept values travel |
        /// | `threshold-topk:0.01` | about the largest 1 %, faster; `:0.02` at the end sets the share sampled |
        /// | `redsync:0.01` | the largest 1 % to 2 %, by bisection of a threshold |
        /// | `sidco:0.01` | the largest 1 % or so, by a fitted threshold |
        /// | `hard-threshold:0.001` | every magnitude of at least 0.001 |
        /// | `randk:0.01` | a random 1 %; `:scaled` makes it unbiased |
        /// | `biased-random:0.1` | each value with probability 0.1 |
        /// | `adaptive-random` | one value, drawn by magnitude |
        /// | `qsgd:4` | 4 bits a value; `:512` the bucket, then `:max` or `:l2` the norm |
        /// | `sign` | one bit a value and one magnitude; `:512` the bucket |
        ///
        /// ```
        /// use briquette_core::config::CompressorConfig;
        /// let spec: CompressorConfig = "topk:20x:q8".parse()?;
        /// assert_eq!(spec.to_string(), "topk:20x:q8");
        /// let error = "topq:1".parse::<CompressorConfig>().unwrap_err().to_string();
        /// assert!(error.contains("valid are: dense; f16, bf16; topk"), "{error}");
        /// # Ok::<(), briquette_core::error::ConfigError>(())
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum CompressorConfig {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),*
        }

        impl CompressorConfig {
            /// One of each, for the laws.
            pub(super) fn all() -> Vec<CompressorConfig> {
                vec![$(CompressorConfig::$name($name::representative())),*]
            }

            /// The compressor.
            pub fn build(&self) -> Box<dyn Compressor> {
                match *self { $(CompressorConfig::$name(compressor) => Box::new(compressor)),* }
            }

            /// The compressor with its knob.
            ///
            /// # Errors
            /// [`ConfigError::Conflict`] when it has none.
            pub fn build_tunable(&self) -> Result<Box<dyn TunableCompressor>, ConfigError> {
                let tunable = match *self { $(CompressorConfig::$name(compressor) => compressor.tunable()),* };
                tunable.ok_or_else(|| ConfigError::Conflict(format!(
                    "a controller turns the compression factor, but compressor {self} has none; use topk or qsgd"
                )))
            }

            /// Whether what it loses must be fed back.
            pub fn needs_feedback(&self) -> bool {
                match self { $(CompressorConfig::$name(compressor) => compressor.needs_feedback()),* }
            }

            /// Whether feeding back what it loses would make residuals grow without bound.
            pub fn refuses_feedback(&self) -> bool {
                match self { $(CompressorConfig::$name(compressor) => compressor.refuses_feedback()),* }
            }

            fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<CompressorConfig>, ConfigError> {
                $(if let Some(compressor) = $name::parse(name, knobs)? {
                    return Ok(Some(CompressorConfig::$name(compressor)));
                })*
                Ok(None)
            }

            const SYNTAX: &'static [&'static str] = &[$($name::SYNTAX),*];
        }

        impl fmt::Display for CompressorConfig {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(CompressorConfig::$name(compressor) => compressor.fmt(f)),* }
            }
        }
    };
}

// Every compressor that settings know; a new one is one more name.
compressors! {
    Dense,
    Half,
    TopK,
    ThresholdTopK,
    Redsync,
    Sidco,
    HardThreshold,
    RandomK,
    BiasedRandom,
    AdaptiveRandom,
    Qsgd,
    ScaledSign,
}

impl CompressorConfig {
    /// Top-k with 8-bit values.
    pub fn top_k_q8(factor: CompressionFactor) -> Self {
        CompressorConfig::TopK(TopK::factor(factor).with_values(ValueKind::Q8))
    }
}

impl FromStr for CompressorConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let mut knobs = Knobs(parts);
        let Some(config) = CompressorConfig::parse(name, &mut knobs)? else {
            let valid = CompressorConfig::SYNTAX.join("; ");
            return Err(ConfigError::Unknown { what: "compressor", got: text.to_owned(), valid });
        };
        match knobs.text() {
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
        for text in [
            "dense",
            "f16",
            "bf16",
            "topk:100x",
            "topk:7x:f16",
            "topk:10x:q8",
            "qsgd:4:512:l2",
            "qsgd:8:64:max",
            "sign",
            "sign:64",
            "threshold-topk:100x",
            "threshold-topk:7x:0.02",
            "redsync:20x",
            "sidco:20x",
            "hard-threshold:0.001",
            "randk:10x",
            "randk:10x:scaled",
            "biased-random:8x",
            "adaptive-random",
        ] {
            assert_eq!(text.parse::<CompressorConfig>().unwrap().to_string(), text);
        }
        assert_eq!("topk:0.01".parse::<CompressorConfig>().unwrap().to_string(), "topk:100x");
    }

    #[test]
    fn impossible_texts_say_what_is_possible() {
        for (text, says) in [
            ("topk:0", "at most 1"),
            ("topk:1.5", "at most 1"),
            ("topk:half", "a share such as 0.01"),
            ("topk:0.5x", "at least 1"),
            ("topk:0.1:q9", "f32, f16, q8"),
            ("qsgd:1", "2 to 8"),
            ("qsgd:4:512:l3", "max, l2"),
            ("zip", "valid are"),
            ("sign:0", "bucket"),
            ("threshold-topk:2", "at most 1"),
            ("threshold-topk:0.1:0", "sample"),
            ("redsync:0", "at most 1"),
            ("sidco:x", "number"),
            ("hard-threshold", "threshold"),
            ("hard-threshold:-1", "above 0"),
            ("randk:0.1:twice", "unscaled, scaled"),
            ("biased-random:0", "at most 1"),
            ("adaptive-random:1", "one part too many"),
            ("f16:1", "one part too many"),
        ] {
            let error = text.parse::<CompressorConfig>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
