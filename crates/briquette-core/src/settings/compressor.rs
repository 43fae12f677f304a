//! Settings of a compressor with the compressor of its values: `topk:0.01`, `topk:20x:q8`, `topk:20x+natural`.

use std::fmt;
use std::str::FromStr;

use super::{CompressorKind, CompressorSettings, Described};
use crate::error::ConfigError;
use crate::seam::Compressor;
use crate::{Key, Message, serde_as_text};

/// Settings of a compressor, written as text, also in TOML: the name of a [compressor](crate::compress), a colon, and its settings by
/// position or as `key=value`. A sparsifier may be followed by a `+` and another compressor, which encodes the values that the
/// sparsifier keeps.
///
/// | text | meaning |
/// |---|---|
/// | `topk:0.01`, `topk:100x` | the largest 1 % |
/// | `topk:0.01,values=q8`, `topk:0.01:q8` | the same with 8 bits a value |
/// | `qsgd:4,norm=l2`, `qsgd:4:512:l2` | 4 bits a value, scaled by the Euclidean norm of buckets of 512 |
/// | `topk:0.01+natural` | the kept values in 9 bits |
///
/// [`CompressorKind::help`] lists all compressors.
///
/// ```
/// use briquette_core::config::CompressorConfig;
/// let spec: CompressorConfig = "topk:20x+qsgd:4:512".parse()?;
/// assert_eq!(spec.to_string(), "topk:20x+qsgd:4");
/// let error = "topq:1".parse::<CompressorConfig>().unwrap_err().to_string();
/// assert!(error.contains("valid are: dense, f16, bf16, topk"), "{error}");
/// let error = "topk:0.1,value=q8".parse::<CompressorConfig>().unwrap_err().to_string();
/// assert!(error.contains("unknown field `value`, expected `ratio` or `values`"), "{error}");
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CompressorConfig {
    compressor: CompressorKind,
    values: Option<CompressorKind>,
}

impl CompressorConfig {
    /// Creates the settings of a sparsifier whose kept values another compressor encodes.
    ///
    /// # Errors
    /// [`ConfigError`] if the first is no sparsifier with values in f32, or if the second is one.
    pub fn coded(sparsifier: CompressorKind, values: CompressorKind) -> Result<Self, ConfigError> {
        let conflict = |why: &str| Err(ConfigError::text("compressor", format!("{sparsifier}+{values}"), why));
        match sparsifier.is_sparse() {
            false => conflict("what stands before the + must be a sparsifier"),
            true if values.is_sparse() => conflict("what stands behind the + must keep all values"),
            true if !has_plain_values(&sparsifier) => {
                conflict("its values are written twice; omit the value type before the +")
            }
            true => Ok(CompressorConfig { compressor: sparsifier, values: Some(values) }),
        }
    }

    /// Returns the compressor. It is the sparsifier if another one encodes the values.
    pub fn compressor(&self) -> &CompressorKind {
        &self.compressor
    }

    /// Returns the compressor that encodes the kept values, if there is one.
    pub fn values(&self) -> Option<&CompressorKind> {
        self.values.as_ref()
    }

    /// Returns the representatives of each compressor, for the laws, and every sparsifier with encoded values.
    pub(crate) fn all() -> Vec<CompressorConfig> {
        let kinds = CompressorKind::all();
        let coded = kinds.iter().filter(|kind| kind.is_sparse()).flat_map(|sparsifier| {
            let values = ["natural", "qsgd:6:64:l2"].map(|v| format!("{sparsifier}+{v}").parse());
            values.into_iter().map(|config| config.expect("a sparsifier's representative has f32 values"))
        });
        kinds.iter().cloned().map(Self::from).chain(coded).collect()
    }

    /// Returns the compressors to compare: each with its default settings, and top-k with encoded values.
    pub fn defaults() -> Vec<CompressorConfig> {
        let mut alone = CompressorKind::all();
        alone.dedup_by_key(|kind| kind.name());
        // A few have a setting without a default. Those use the representative of the laws.
        let alone = alone.into_iter().map(|kind| kind.name().parse().unwrap_or(kind).into());
        alone.chain("topk+natural".parse()).collect()
    }

    /// Returns whether a controller can set its ratio.
    pub(crate) fn has_knob(&self) -> bool {
        has_knob(&self.compressor)
    }

    /// Returns the names of the compressors with a knob.
    pub(crate) fn tunable() -> Vec<&'static str> {
        let mut names: Vec<_> = CompressorKind::all().iter().filter(|kind| has_knob(kind)).map(|k| k.name()).collect();
        names.dedup();
        names
    }

    /// Returns whether its error must be fed back.
    pub fn needs_feedback(&self) -> bool {
        self.compressor.get().traits().needs_feedback
    }

    /// Returns whether the values that it sends are exact copies of the vector's values.
    pub fn is_exact(&self) -> bool {
        self.values.is_none() && self.compressor.get().traits().is_exact
    }

    /// Returns whether decoded values have magnitude 1, independent of the vector's magnitude.
    pub fn loses_magnitude(&self) -> bool {
        self.values.as_ref().unwrap_or(&self.compressor).get().traits().loses_magnitude
    }

    /// Returns whether it searches for the largest values. On long vectors the search starts with a sample.
    pub fn searches(&self) -> bool {
        self.compressor.get().traits().searches
    }
}

fn has_knob(kind: &CompressorKind) -> bool {
    kind.get().build().knob().is_some()
}

/// Returns whether the values of the compressor's messages can be encoded: they are in f32.
fn has_plain_values(kind: &CompressorKind) -> bool {
    let mut message = Message::default();
    kind.get().build().compress_into(&[1.0], Key::new(0), &mut message);
    message.sparse_f32().is_some()
}

impl From<CompressorKind> for CompressorConfig {
    fn from(compressor: CompressorKind) -> Self {
        CompressorConfig { compressor, values: None }
    }
}

impl<S: Described + CompressorSettings> From<S> for CompressorConfig {
    fn from(settings: S) -> Self {
        CompressorKind::from(settings).into()
    }
}

impl fmt::Display for CompressorConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.values {
            None => self.compressor.fmt(f),
            Some(values) => write!(f, "{}+{values}", self.compressor),
        }
    }
}

impl FromStr for CompressorConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let Some((sparsifier, values)) = text.split_once('+') else {
            return Ok(text.parse::<CompressorKind>()?.into());
        };
        CompressorConfig::coded(sparsifier.parse()?, values.parse()?)
    }
}

serde_as_text!(CompressorConfig);

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
            "qsgd:8:64",
            "qsgd:4:512:max:elias",
            "plain-sign",
            "plain-sign:random",
            "terngrad:2.5",
            "sign",
            "sign:64",
            "qsgd:s5:512:l2:elias",
            "terngrad:none",
            "topk:100x+sign:64",
            "threshold-topk:100x",
            "threshold-topk:7x:0.02",
            "hard-threshold:0.001",
            "randk:10x",
            "randk:10x:scaled",
        ] {
            assert_eq!(text.parse::<CompressorConfig>().unwrap().to_string(), text);
        }
        for (keyed, placed) in [
            ("topk:7x,values=f16", "topk:7x:f16"),
            ("topk:values=q8,ratio=0.1", "topk:10x:q8"),
            ("qsgd:4,norm=l2", "qsgd:4:512:l2"),
            ("qsgd:4:64,coding=elias", "qsgd:4:64:max:elias"),
            ("qsgd:bits=s5,bucket=512,norm=l2", "qsgd:s5:512:l2"),
            ("terngrad:clip=none", "terngrad:none"),
            ("threshold-topk:7x,sample=0.02", "threshold-topk:7x:0.02"),
            ("hard-threshold:threshold=0.001", "hard-threshold:0.001"),
            ("randk:10x,scaled=true", "randk:10x:scaled"),
            ("randk:10x:unscaled", "randk:10x"),
            ("qsgd:4:512:max", "qsgd:4"),
            ("qsgd:bucket=64", "qsgd:4:64"),
            ("qsgd:s7:512:l2:fixed", "qsgd:4:512:l2"),
            ("sign:bucket=64", "sign:64"),
            ("topk:100x,values=f32+sign:bucket=64", "topk:100x+sign:64"),
        ] {
            assert_eq!(keyed.parse::<CompressorConfig>().unwrap().to_string(), placed, "{keyed}");
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
            ("topk:0.1:q9", "`values`: unknown variant `q9`, expected one of `f32`, `f16`, `q8`"),
            ("qsgd:1", "2 to 8"),
            ("qsgd:4:512:l3", "`l1`, `l2`, `max`"),
            ("zip", "valid are"),
            ("sign:0", "bucket"),
            ("threshold-topk:2", "at most 1"),
            ("threshold-topk:0.1:0", "sample"),
            ("randk:x", "`ratio`: compression ratio must be a number such as 10 or 10x, got x"),
            ("hard-threshold", "threshold"),
            ("hard-threshold:-1", "above 0"),
            ("randk:0.1:twice", "`unscaled`"),
            ("f16:1", "it has no settings, got `1`"),
            ("topk:0.1:q8:q8", "`q8:q8`"),
            ("sign+natural", "must be a sparsifier"),
            ("topk+topk", "must keep all values"),
            ("topk:0.1:q8+natural", "written twice"),
            ("qsgd:s0", "1 to 127"),
            ("terngrad:much", "`clip`: `much` is not a number or none"),
            ("topk:0.1,value=q8", "unknown field `value`, expected `ratio` or `values`"),
            ("topk:0.1:q8,values=q8", "`values` is given twice"),
            ("topk:values=q8,values=f16", "`values` is given twice"),
            ("topk:0.1,q8", "`q8` is not KEY=VALUE"),
            ("natural:kind=9", "it has no settings, got `9`"),
            ("topk:(0.1", "parenthesis"),
        ] {
            let error = text.parse::<CompressorConfig>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
