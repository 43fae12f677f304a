//! Flag values that are small texts: `power-sgd:4`, `fixed:50ms`, `gravac:epsilon=0.4,min=10x`, `*.bias=dense`.

mod exchange;

pub use exchange::{FeedbackSpec, ReducerSpec, RulesSpec};

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use briquette::core::CompressionFactor;
use briquette::core::config::ControllerConfig;
use briquette::core::control::{GraVacConfig, ScheduleConfig};
use serde::{Deserialize, Serialize};

/// on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Toggle {
    /// on
    On,
    /// off
    Off,
}

/// Most seconds that a step is said to take: a clock that runs on for billions of steps stays exact enough.
const LONGEST_STEP: f64 = 1e6;

/// What counts as computing time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ClockSpec {
    /// What it took.
    Wall,
    /// So many seconds a step.
    Fixed(f64),
}

impl FromStr for ClockSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        if text == "wall" {
            return Ok(ClockSpec::Wall);
        }
        let wrong = || format!("unknown clock `{text}`; valid are: wall, fixed:50ms, fixed:0.2s");
        let time = text.strip_prefix("fixed:").with_context(wrong)?;
        let (number, unit) = match (time.strip_suffix("ms"), time.strip_suffix('s')) {
            (Some(number), _) => (number, 1e-3),
            (None, Some(number)) => (number, 1.0),
            (None, None) => bail!(wrong()),
        };
        let seconds = number.parse::<f64>().with_context(wrong)? * unit;
        if !(0.0..=LONGEST_STEP).contains(&seconds) {
            bail!("clock `{text}`: a step takes from 0 s to {LONGEST_STEP} s");
        }
        Ok(ClockSpec::Fixed(seconds))
    }
}

impl fmt::Display for ClockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockSpec::Wall => f.write_str("wall"),
            ClockSpec::Fixed(seconds) => {
                // A text that is read as the same bits: a resumed run has the clock of the run that it continues.
                let times = [seconds * 1e3, (seconds * 1e3).round()];
                match times.into_iter().find(|time| time * 1e-3 == *seconds) {
                    Some(time) => write!(f, "fixed:{time}ms"),
                    None => write!(f, "fixed:{seconds}s"),
                }
            }
        }
    }
}

/// Who chooses the factor. The text is kept as given and read by [`config`](ControllerSpec::config).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ControllerSpec {
    /// The compressor's own factor.
    Constant,
    /// Geometric warm-up to the compressor's factor; options as `key=value`.
    Schedule(String),
    /// GraVAC; options as `key=value`.
    Gravac(String),
}

impl FromStr for ControllerSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let spec = match name {
            "constant" if options.is_empty() => ControllerSpec::Constant,
            "schedule" => ControllerSpec::Schedule(options.into()),
            "gravac" => ControllerSpec::Gravac(options.into()),
            _ => bail!(
                "unknown controller `{text}`; valid are: constant, schedule[:from=4x,epochs=1], gravac[:KEY=VALUE,...]"
            ),
        };
        // Options are checked here, so that a typing error is found before any data is read.
        let any = CompressionFactor::new(1e6)?;
        // One text with all causes: the command line shows no others.
        spec.config(Some(any), 1).map_err(|error| anyhow!("{error:#}"))?;
        Ok(spec)
    }
}

impl fmt::Display for ControllerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, options) = match self {
            ControllerSpec::Constant => ("constant", ""),
            ControllerSpec::Schedule(options) => ("schedule", options.as_str()),
            ControllerSpec::Gravac(options) => ("gravac", options.as_str()),
        };
        if options.is_empty() { f.write_str(name) } else { write!(f, "{name}:{options}") }
    }
}

impl ControllerSpec {
    /// The controller, for the factor that reducer or compressor were set to (where it is one of a sparsifier) and the
    /// length of an epoch.
    ///
    /// # Errors
    /// Names the option and what is valid.
    pub fn config(&self, full: Option<CompressionFactor>, steps_per_epoch: u64) -> Result<ControllerConfig> {
        Ok(match self {
            ControllerSpec::Constant => ControllerConfig::None,
            ControllerSpec::Gravac(options) => gravac(options)?.into(),
            ControllerSpec::Schedule(options) => {
                let (mut from, mut epochs) = (CompressionFactor::new(4.0)?, 1.0);
                for (key, value) in pairs(options)? {
                    match key {
                        "from" => from = value.parse()?,
                        "epochs" => epochs = count_of_epochs(value)?,
                        _ => bail!("unknown schedule option `{key}`; valid are: from, epochs"),
                    }
                }
                let Some(to) = full else {
                    bail!("a schedule warms a sparsifier up: use --compressor topk:… or --reducer shared-random-k");
                };
                let steps = (epochs * steps_per_epoch as f64).round() as u64;
                ScheduleConfig { from: if from < to { from } else { to }, to, steps }.into()
            }
        })
    }
}

fn count_of_epochs(text: &str) -> Result<f64> {
    let epochs = text.parse().ok().filter(|epochs: &f64| epochs.is_finite() && *epochs >= 0.0);
    epochs.with_context(|| format!("schedule option epochs must be a number of at least 0, got `{text}`"))
}

fn pairs(options: &str) -> Result<Vec<(&str, &str)>> {
    options
        .split(',')
        .filter(|o| !o.is_empty())
        .map(|o| o.split_once('=').with_context(|| format!("`{o}` is not KEY=VALUE")))
        .collect()
}

/// GraVAC's settings by their own names, over the preset for small models: whatever its configuration has is an option.
fn gravac(options: &str) -> Result<GraVacConfig> {
    let mut table = toml::Table::try_from(GraVacConfig::small_model())?;
    for (key, value) in pairs(options)? {
        let bare = value.strip_suffix('x').unwrap_or(value);
        // A bare word is a text, anything else as TOML reads it.
        let value = match (bare.parse::<i64>(), bare.parse::<f64>()) {
            (Ok(whole), _) if value == bare => toml::Value::Integer(whole),
            (_, Ok(number)) => toml::Value::Float(number),
            _ if value == "true" || value == "false" => toml::Value::Boolean(value == "true"),
            _ => toml::Value::String(value.into()),
        };
        table.insert(key.into(), value);
    }
    table.try_into().context("in --controller gravac")
}

/// Which gradient to keep: `100`, `100:bf16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecordSpec {
    step: u64,
    bf16: bool,
}

impl RecordSpec {
    /// The step whose gradient it is, counted from 0.
    pub fn step(self) -> u64 {
        self.step
    }

    /// Whether values are rounded to 16 bits.
    pub fn is_bf16(self) -> bool {
        self.bf16
    }
}

impl FromStr for RecordSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let (step, bf16) = text.strip_suffix(":bf16").map_or((text, false), |step| (step, true));
        let step = step.parse().ok().with_context(|| format!("`{text}` is not STEP or STEP:bf16"))?;
        Ok(RecordSpec { step, bf16 })
    }
}

impl fmt::Display for RecordSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.step, if self.bf16 { ":bf16" } else { "" })
    }
}

macro_rules! text {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse().map_err(|e: anyhow::Error| format!("{e:#}"))
            }
        }
        impl From<$type> for String {
            fn from(spec: $type) -> String {
                spec.to_string()
            }
        }
    )*};
}
text!(ReducerSpec, FeedbackSpec, RulesSpec, RecordSpec, ClockSpec, ControllerSpec);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["100", "7:bf16"] {
            assert_eq!(text.parse::<RecordSpec>().unwrap().to_string(), text);
        }
        for text in ["wall", "fixed:50ms", "fixed:51ms", "fixed:0ms"] {
            assert_eq!(text.parse::<ClockSpec>().unwrap().to_string(), text);
        }
        for seconds in (0..5000).map(|i| f64::from(i).powi(2) * 1e-7) {
            let written = ClockSpec::Fixed(seconds).to_string();
            assert_eq!(written.parse::<ClockSpec>().unwrap(), ClockSpec::Fixed(seconds), "{written}");
        }
        for text in ["constant", "schedule:from=4x,epochs=1", "gravac:epsilon=0.4,min=10x,window=25"] {
            assert_eq!(text.parse::<ControllerSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn unknown_values_list_the_valid_ones() {
        let wrong = |e: anyhow::Error| format!("{e:#}");
        assert!(wrong("50ms".parse::<ClockSpec>().unwrap_err()).contains("fixed:50ms"));
        assert!(wrong("7:f16".parse::<RecordSpec>().unwrap_err()).contains("STEP:bf16"));
        assert!(wrong("grovac".parse::<ControllerSpec>().unwrap_err()).contains("gravac"));
        assert!(wrong("gravac:epsilom=1".parse::<ControllerSpec>().unwrap_err()).contains("epsilon"));
    }
}
