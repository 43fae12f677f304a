//! Text form of compressors: `topk:0.01`, `topk:20x:q8`, `qsgd:4`, `sign`, `f16`, `dense`.

use std::fmt;
use std::str::FromStr;

use crate::compress::*;
use crate::error::ConfigError;
use crate::text::serde_as_text;
use crate::{CompressionFactor, Key, Message};

macro_rules! compressors {
    ($($name:ident),* $(,)?) => {
        /// A compressor of any kind. It forwards to the one that it contains.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[non_exhaustive]
        pub enum CompressorKind {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),*
        }

        impl CompressorKind {
            /// Returns the representative of each compressor, for the laws.
            fn all() -> Vec<CompressorKind> {
                vec![$(CompressorKind::$name($name::representative())),*]
            }

            fn get(&self) -> &dyn Compressor {
                match self { $(CompressorKind::$name(compressor) => compressor),* }
            }

            fn get_mut(&mut self) -> &mut dyn Compressor {
                match self { $(CompressorKind::$name(compressor) => compressor),* }
            }

            fn needs_feedback(&self) -> bool {
                match self { $(CompressorKind::$name(compressor) => compressor.needs_feedback()),* }
            }

            fn is_exact(&self) -> bool {
                match self { $(CompressorKind::$name(compressor) => compressor.is_exact()),* }
            }

            fn searches(&self) -> bool {
                match self { $(CompressorKind::$name(_) => $name::SEARCHES),* }
            }

            fn loses_magnitude(&self) -> bool {
                match self { $(CompressorKind::$name(_) => $name::LOSES_SIZE),* }
            }

            /// Returns whether the compressor chooses coordinates.
            pub fn is_sparse(&self) -> bool {
                match self { $(CompressorKind::$name(_) => $name::SPARSE),* }
            }

            fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<CompressorKind>, ConfigError> {
                $(if let Some(compressor) = $name::parse(name, knobs)? {
                    return Ok(Some(CompressorKind::$name(compressor)));
                })*
                Ok(None)
            }

            /// Returns the syntax and a description of each compressor.
            pub fn help() -> Vec<(String, &'static str)> {
                vec![$(($name::SYNTAX.to_owned(), $name::HELP)),*]
            }
        }

        impl fmt::Display for CompressorKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(CompressorKind::$name(compressor) => compressor.fmt(f)),* }
            }
        }

        $(impl From<$name> for CompressorConfig {
            fn from(compressor: $name) -> Self {
                CompressorConfig { compressor: CompressorKind::$name(compressor), values: None }
            }
        })*
    };
}

// All compressors with a text form. A new compressor adds one name.
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
    MinMax,
    Natural,
    Qsgd,
    ExponentialDithering,
    Rounding,
    TernGrad,
    OneBit,
    ScaledSign,
    PlainSign,
}

impl Compressor for CompressorKind {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        self.get_mut().compress_into(x, key, out);
    }
    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        self.get().error_bound(x)
    }
    fn nominal(&self) -> CompressionFactor {
        self.get().nominal()
    }
    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        self.get_mut().refine_into(x, coarse, key, out);
    }
    fn selects(&self) -> bool {
        self.get().selects()
    }
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        self.get_mut().knob()
    }
}

/// Settings of a compressor. Written as text, also in TOML: the name of a [compressor](crate::compress), a colon, and its settings by
/// position or as `key=value`. After a sparsifier and a `+`, another compressor encodes the values that the sparsifier keeps.
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
/// let spec: CompressorConfig = "topk:20x+dither:2:7".parse()?;
/// assert_eq!(spec.to_string(), "topk:20x+dither:2:7:512:max");
/// let error = "topq:1".parse::<CompressorConfig>().unwrap_err().to_string();
/// assert!(error.contains("valid are: dense; f16, bf16; topk"), "{error}");
/// let error = "topk:0.1,value=q8".parse::<CompressorConfig>().unwrap_err().to_string();
/// assert!(error.contains("field `value`: unknown, expected one of `factor`, `values`"), "{error}");
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CompressorConfig {
    compressor: CompressorKind,
    values: Option<CompressorKind>,
}

impl CompressorConfig {
    /// Top-k with 8-bit values.
    pub fn top_k_q8(factor: CompressionFactor) -> Self {
        TopK::factor(factor).with_values(ValueKind::Q8).into()
    }

    /// Returns the compressor. It is the sparsifier if another one encodes the values.
    pub fn compressor(&self) -> CompressorKind {
        self.compressor
    }

    /// Returns the compressor that encodes the kept values, if there is one.
    pub fn values(&self) -> Option<CompressorKind> {
        self.values
    }

    /// Returns the representative of each compressor, for the laws, and every sparsifier with encoded values.
    pub(super) fn all() -> Vec<CompressorConfig> {
        let kinds = CompressorKind::all();
        let alone = kinds.iter().map(|&compressor| CompressorConfig { compressor, values: None });
        let sparse = kinds.iter().filter(|kind| kind.is_sparse());
        let coded = sparse.flat_map(|sparsifier| {
            let values = ["natural", "minmax:20", "dither:2:7:64:l2"].map(|v| format!("{sparsifier}+{v}").parse());
            values.into_iter().map(|config| config.expect("a sparsifier's representative has f32 values"))
        });
        alone.chain(coded).collect()
    }

    /// Returns the compressors to compare: each with its default settings, bf16, and top-k with encoded values.
    pub fn defaults() -> Vec<CompressorConfig> {
        // A few have a setting without a default. Those use the representative of the laws.
        let alone = CompressorKind::all().into_iter().map(|kind| {
            let compressor = name_of(&kind).parse().unwrap_or(kind);
            CompressorConfig { compressor, values: None }
        });
        let more = ["bf16", "topk+minmax", "topk+natural", "topk+dither"].map(|text| text.parse::<CompressorConfig>());
        alone.chain(more.into_iter().flatten()).collect()
    }

    /// Builds the compressor.
    pub fn build(&self) -> Box<dyn Compressor> {
        match self.values {
            None => Box::new(self.compressor),
            Some(values) => Box::new(Coded::new(self.compressor, values)),
        }
    }

    /// Returns whether a controller can set its ratio.
    pub(crate) fn has_knob(&self) -> bool {
        let mut kind = self.compressor;
        kind.knob().is_some()
    }

    /// Returns the names of the compressors with a knob.
    pub(crate) fn tunable() -> Vec<String> {
        let with = CompressorKind::all().into_iter().filter_map(|mut kind| kind.knob().is_some().then_some(kind));
        with.map(|kind| name_of(&kind)).collect()
    }

    /// Returns whether its error must be fed back.
    pub fn needs_feedback(&self) -> bool {
        self.compressor.needs_feedback()
    }

    /// Returns whether the values that it sends are exact copies of the vector's values.
    pub fn is_exact(&self) -> bool {
        self.values.is_none() && self.compressor.is_exact()
    }

    /// Returns whether decoded values have magnitude 1, independent of the vector's magnitude.
    pub fn loses_magnitude(&self) -> bool {
        self.values.unwrap_or(self.compressor).loses_magnitude()
    }

    /// Returns whether it searches for the largest values. On long vectors the search starts with a sample.
    pub fn searches(&self) -> bool {
        self.compressor.searches()
    }
}

fn name_of(kind: &CompressorKind) -> String {
    kind.to_string().split(':').next().unwrap_or_default().to_owned()
}

impl fmt::Display for CompressorConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values {
            None => self.compressor.fmt(f),
            Some(values) => write!(f, "{}+{values}", self.compressor),
        }
    }
}

impl FromStr for CompressorKind {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let within = |error: ConfigError| ConfigError::text("compressor", text, error);
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut knobs = Knobs::new(settings).map_err(within)?;
        let Some(kind) = CompressorKind::parse(name, &mut knobs)? else {
            let valid = CompressorKind::help().into_iter().map(|(syntax, _)| syntax).collect::<Vec<_>>().join("; ");
            return Err(ConfigError::Unknown { what: "compressor", got: text.to_owned(), valid });
        };
        knobs.finish().map_err(within)?;
        Ok(kind)
    }
}

impl FromStr for CompressorConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let Some((sparsifier, values)) = text.split_once('+') else {
            return Ok(CompressorConfig { compressor: text.parse()?, values: None });
        };
        let (compressor, values): (CompressorKind, CompressorKind) = (sparsifier.parse()?, values.parse()?);
        let conflict = |why: &str| Err(ConfigError::text("compressor", text, why));
        match compressor {
            CompressorKind::TopK(top_k) if top_k.values() != ValueKind::F32 => {
                conflict("its values are written twice; omit the type of topk")
            }
            _ if !compressor.is_sparse() => conflict("what stands before the + must be a sparsifier"),
            _ if values.is_sparse() => conflict("what stands behind the + must keep all values"),
            _ => Ok(CompressorConfig { compressor, values: Some(values) }),
        }
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
            "qsgd:8:64:max",
            "sign",
            "sign:64",
            "qsgd:s5:512:l2:elias",
            "dither:3:15:64:l1",
            "round:2:random",
            "terngrad:none",
            "topk:100x+minmax:64",
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
        for (keyed, placed) in [
            ("topk:7x,values=f16", "topk:7x:f16"),
            ("topk:values=q8,factor=0.1", "topk:10x:q8"),
            ("qsgd:4,norm=l2", "qsgd:4:512:l2"),
            ("qsgd:4:64,coding=elias", "qsgd:4:64:max:elias"),
            ("qsgd:bits=s5,bucket=512,norm=l2", "qsgd:s5:512:l2"),
            ("dither:3,levels=15,bucket=64,norm=l1", "dither:3:15:64:l1"),
            ("round:2,mode=random", "round:2:random"),
            ("terngrad:clip=none", "terngrad:none"),
            ("threshold-topk:7x,sample=0.02", "threshold-topk:7x:0.02"),
            ("hard-threshold:threshold=0.001", "hard-threshold:0.001"),
            ("randk:10x,scaled=true", "randk:10x:scaled"),
            ("minmax:block=20", "minmax:20"),
            ("sign:bucket=64", "sign:64"),
            ("topk:100x,values=f32+minmax:block=64", "topk:100x+minmax:64"),
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
            ("sign+natural", "must be a sparsifier"),
            ("topk+topk", "must keep all values"),
            ("topk:0.1:q8+natural", "written twice"),
            ("qsgd:s0", "1 to 127"),
            ("terngrad:much", "a number or none"),
            ("topk:0.1,value=q8", "field `value`: unknown, expected one of `factor`, `values`"),
            ("topk:0.1:q8,values=q8", "`values`: it is given twice"),
            ("topk:values=q8,values=f16", "`values`: it is given twice"),
            ("topk:0.1,q8", "`q8` is not KEY=VALUE"),
            ("natural:kind=9", "`kind`: the compressor has no settings"),
            ("topk:(0.1", "parenthesis"),
        ] {
            let error = text.parse::<CompressorConfig>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
