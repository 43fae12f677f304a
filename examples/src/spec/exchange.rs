//! What is exchanged and how: `--reducer`, `--feedback`, `--rules`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use briquette::core::CompressionFactor;
use briquette::core::config::{CompressorConfig, Feedback, ReducerConfig, Rule};
use briquette::core::layer::DianaConfig;
use briquette::core::reduce::{
    GatherConfig, MultiStepConfig, PowerSgdConfig, SharedRandomKConfig, Sketch, SparseAllReduceConfig,
    TernaryAllReduceConfig,
};
use serde::{Deserialize, Serialize};

/// How gradients are combined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ReducerSpec {
    /// All-gather of compressed messages.
    Gather,
    /// Exact all-reduce.
    Dense,
    /// Low rank.
    PowerSgd(usize),
    /// Shared coordinates.
    SharedRandomK(CompressionFactor),
    /// Top-k summed on the way.
    SparseAllReduce(CompressionFactor),
    /// The largest coordinates of the sum, by a sketch.
    SketchedSgd(CompressionFactor),
    /// TernGrad summed on the way, clipped at so many standard deviations.
    TernaryAllReduce(f32),
    /// Several gathers, each of what those before left.
    MultiStep(usize),
}

impl ReducerSpec {
    /// Whether it sends what a compressor makes.
    pub fn compresses(self) -> bool {
        matches!(self, ReducerSpec::Gather | ReducerSpec::MultiStep(_))
    }

    /// Whether a controller can turn its factor.
    pub fn is_tunable(self) -> bool {
        matches!(self, ReducerSpec::Gather | ReducerSpec::SharedRandomK(_))
    }

    /// With the compressor that gather and multi-step want, one message a slot or one in all.
    ///
    /// # Errors
    /// When there is none.
    pub fn config(self, compressor: Option<CompressorConfig>, per_slot: bool) -> Result<ReducerConfig> {
        let gather = || {
            let compressor = compressor.with_context(|| format!("--reducer {self} needs a --compressor"))?;
            Ok::<_, anyhow::Error>(GatherConfig { compressor, per_slot }.into())
        };
        Ok(match self {
            ReducerSpec::Gather => gather()?,
            ReducerSpec::Dense => ReducerConfig::Dense,
            ReducerSpec::PowerSgd(rank) => PowerSgdConfig { rank }.into(),
            ReducerSpec::SharedRandomK(factor) => SharedRandomKConfig { factor, scaled: false }.into(),
            ReducerSpec::SparseAllReduce(factor) => SparseAllReduceConfig { factor }.into(),
            ReducerSpec::SketchedSgd(factor) => Sketch { factor, ..Sketch::default() }.into(),
            ReducerSpec::TernaryAllReduce(clip) => TernaryAllReduceConfig { clip }.into(),
            ReducerSpec::MultiStep(rounds) => MultiStepConfig { rounds, inner: Box::new(gather()?) }.into(),
        })
    }
}

/// What may follow `--reducer`.
const REDUCERS: &str = "gather, dense, power-sgd[:RANK], shared-random-k[:FACTORx], sparse-all-reduce[:FACTORx], \
                        sketched-sgd[:FACTORx], ternary-all-reduce[:CLIP], multi-step[:ROUNDS]";

impl FromStr for ReducerSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let (name, knob) = text.split_once(':').map_or((text, None), |(name, knob)| (name, Some(knob)));
        let factor = |default| knob.unwrap_or(default).parse::<CompressionFactor>();
        let count = |default: &str, what: &str| {
            let text = knob.unwrap_or(default);
            let count = text.parse().ok().filter(|count| *count > 0_usize);
            count.with_context(|| format!("{name}:{what} is a whole number of at least 1, got `{text}`"))
        };
        Ok(match name {
            "gather" if knob.is_none() => ReducerSpec::Gather,
            "dense" if knob.is_none() => ReducerSpec::Dense,
            "power-sgd" => ReducerSpec::PowerSgd(count("2", "RANK")?),
            "shared-random-k" => ReducerSpec::SharedRandomK(factor("10x")?),
            "sparse-all-reduce" => ReducerSpec::SparseAllReduce(factor("100x")?),
            "sketched-sgd" => ReducerSpec::SketchedSgd(factor("100x")?),
            "ternary-all-reduce" => {
                let clip = knob.unwrap_or("2.5");
                let wrong = || format!("{name}:CLIP is a number of standard deviations, or inf, got `{clip}`");
                ReducerSpec::TernaryAllReduce(clip.parse().with_context(wrong)?)
            }
            "multi-step" => ReducerSpec::MultiStep(count("2", "ROUNDS")?),
            _ => bail!("unknown reducer `{text}`; valid are: {REDUCERS}"),
        })
    }
}

impl fmt::Display for ReducerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReducerSpec::Gather => f.write_str("gather"),
            ReducerSpec::Dense => f.write_str("dense"),
            ReducerSpec::PowerSgd(rank) => write!(f, "power-sgd:{rank}"),
            ReducerSpec::SharedRandomK(factor) => write!(f, "shared-random-k:{factor}"),
            ReducerSpec::SparseAllReduce(factor) => write!(f, "sparse-all-reduce:{factor}"),
            ReducerSpec::SketchedSgd(factor) => write!(f, "sketched-sgd:{factor}"),
            ReducerSpec::TernaryAllReduce(clip) => write!(f, "ternary-all-reduce:{clip}"),
            ReducerSpec::MultiStep(rounds) => write!(f, "multi-step:{rounds}"),
        }
    }
}

/// What becomes of what was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FeedbackSpec {
    /// Fed back.
    Error,
    /// Fed back with the learning rate of its own step.
    ErrorInside,
    /// Differences to a memory, for unbiased compressors.
    Diana(Option<f32>),
    /// Differences to what was sent, for contractive compressors.
    Ef21,
    /// Lost.
    None,
}

impl From<FeedbackSpec> for Feedback {
    fn from(spec: FeedbackSpec) -> Feedback {
        match spec {
            FeedbackSpec::Error => Feedback::Error,
            FeedbackSpec::ErrorInside => Feedback::ErrorInside,
            FeedbackSpec::Diana(alpha) => DianaConfig { alpha }.into(),
            FeedbackSpec::Ef21 => Feedback::Ef21,
            FeedbackSpec::None => Feedback::None,
        }
    }
}

impl FromStr for FeedbackSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        Ok(match (text, text.strip_prefix("diana:")) {
            ("error", _) => FeedbackSpec::Error,
            ("error-inside", _) => FeedbackSpec::ErrorInside,
            ("ef21", _) => FeedbackSpec::Ef21,
            ("none", _) => FeedbackSpec::None,
            ("diana", _) => FeedbackSpec::Diana(None),
            (_, Some(alpha)) => {
                let wrong = || format!("diana:ALPHA is a number, got `{alpha}`");
                FeedbackSpec::Diana(Some(alpha.parse().with_context(wrong)?))
            }
            _ => bail!("unknown feedback `{text}`; valid are: error, error-inside, diana[:ALPHA], ef21, none"),
        })
    }
}

impl fmt::Display for FeedbackSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeedbackSpec::Error => f.write_str("error"),
            FeedbackSpec::ErrorInside => f.write_str("error-inside"),
            FeedbackSpec::Diana(None) => f.write_str("diana"),
            FeedbackSpec::Diana(Some(alpha)) => write!(f, "diana:{alpha}"),
            FeedbackSpec::Ef21 => f.write_str("ef21"),
            FeedbackSpec::None => f.write_str("none"),
        }
    }
}

/// Layers that another compressor takes: `*.norm.*=dense,*head.weight=qsgd:8`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RulesSpec(Vec<(Rule, CompressorConfig)>);

impl RulesSpec {
    /// Whether what some rule's compressor loses must be fed back.
    pub fn needs_feedback(&self) -> bool {
        self.0.iter().any(|(_, compressor)| compressor.needs_feedback())
    }

    /// The rules, in the order given.
    pub fn rules(&self) -> Vec<Rule> {
        self.0.iter().map(|(rule, _)| rule.clone()).collect()
    }
}

impl FromStr for RulesSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let rule = |part: &str| {
            let (slots, compressor) =
                part.split_once('=').with_context(|| format!("rule `{part}` is not PATTERN=COMPRESSOR"))?;
            let compressor = compressor.parse()?;
            Ok((Rule::compressor(slots, compressor)?, compressor))
        };
        text.split(',').map(rule).collect::<Result<_>>().map(RulesSpec)
    }
}

impl fmt::Display for RulesSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.0.iter().map(|(rule, compressor)| format!("{}={compressor}", rule.slots));
        f.write_str(&rules.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in [
            "gather",
            "dense",
            "power-sgd:4",
            "shared-random-k:20x",
            "sparse-all-reduce:50x",
            "sketched-sgd:100x",
            "ternary-all-reduce:inf",
            "multi-step:3",
        ] {
            assert_eq!(text.parse::<ReducerSpec>().unwrap().to_string(), text);
        }
        for text in ["error", "error-inside", "diana", "diana:0.25", "ef21", "none"] {
            assert_eq!(text.parse::<FeedbackSpec>().unwrap().to_string(), text);
        }
        let text = "*.bias=dense,fc.*=topk:10x+natural";
        assert_eq!(text.parse::<RulesSpec>().unwrap().to_string(), text);
    }

    #[test]
    fn unknown_values_list_the_valid_ones() {
        let wrong = |e: anyhow::Error| format!("{e:#}");
        assert!(wrong("ring".parse::<ReducerSpec>().unwrap_err()).contains("gather, dense"));
        assert!(wrong("multi-step:0".parse::<ReducerSpec>().unwrap_err()).contains("at least 1"));
        assert!(wrong("memory".parse::<FeedbackSpec>().unwrap_err()).contains("ef21"));
        assert!(wrong("fc".parse::<RulesSpec>().unwrap_err()).contains("PATTERN=COMPRESSOR"));
        assert!(wrong("fc=zip".parse::<RulesSpec>().unwrap_err()).contains("valid are"));
    }
}
