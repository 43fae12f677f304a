//! Flag values with a syntax: `power-sgd:4`, `fixed:50ms`, `gravac:epsilon=0.4,min=10x`, `*.bias=dense`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use briquette::core::CompressionRatio;
use briquette::core::config::{ControllerConfig, ReducerConfig, Rule};
use briquette::core::control::schedule::ScheduleConfig;
use briquette::sim::Paces;
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

impl Toggle {
    /// Returns whether it is on.
    pub fn is_on(self) -> bool {
        self == Toggle::On
    }
}

/// Computation that an exchange overlaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OverlapSpec {
    /// Nothing
    Off,
    /// The backward pass: each bucket goes as soon as its gradients are computed
    Backward,
}

/// Source of the compute time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ClockSpec {
    /// Measured time.
    Wall,
    /// Given seconds for each rank and step.
    Fixed(Paces),
    /// Seconds from a file: a line for each step, with the seconds of each rank, separated by commas.
    Trace(PathBuf),
}

impl ClockSpec {
    /// Returns the compute times, if they are not measured.
    ///
    /// # Errors
    /// A file that cannot be read, or contains anything but seconds: the error names it, with the line.
    pub fn paces(&self) -> Result<Option<Paces>> {
        let path = match self {
            ClockSpec::Wall => return Ok(None),
            ClockSpec::Fixed(paces) => return Ok(Some(paces.clone())),
            ClockSpec::Trace(path) => path,
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("--clock trace: cannot read {}", path.display()))?;
        let line = |(number, line): (usize, &str)| {
            let seconds = line.split(',').map(|seconds| seconds.trim().parse::<f64>());
            let wrong =
                || format!("--clock trace: line {} of {} is not seconds of ranks: {line}", number + 1, path.display());
            seconds.collect::<Result<Vec<_>, _>>().with_context(wrong)
        };
        let rows = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(line);
        let paces = rows.collect::<Result<_>>().and_then(|rows| Ok(Paces::trace(rows)?));
        paces.map(Some).with_context(|| format!("--clock trace:{}", path.display()))
    }
}

impl FromStr for ClockSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        const FORMS: &str = "wall, fixed:50ms, fixed:0.2s, fixed:500ms,50ms (rank 0 slower than the others), \
                             fixed:50ms;lognormal=0.3;slow=0.03x10, trace:FILE (seconds of each rank, a line for each step)";
        match text.split_once(':') {
            None if text == "wall" => Ok(ClockSpec::Wall),
            Some(("fixed", paces)) => {
                paces.parse().map(ClockSpec::Fixed).map_err(|error| anyhow!("clock `{text}`: {error}"))
            }
            Some(("trace", path)) if !path.is_empty() => Ok(ClockSpec::Trace(path.into())),
            _ => bail!("unknown clock `{text}`; valid are: {FORMS}"),
        }
    }
}

impl fmt::Display for ClockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockSpec::Wall => f.write_str("wall"),
            ClockSpec::Fixed(paces) => write!(f, "fixed:{paces}"),
            ClockSpec::Trace(path) => write!(f, "trace:{}", path.display()),
        }
    }
}

/// Controller of the ratio: one of core, or a warm-up over epochs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub enum ControllerSpec {
    /// Controller in core's syntax.
    Core(ControllerConfig),
    /// Warm-up to the configured ratio.
    WarmUp(WarmUp),
}

impl FromStr for ControllerSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let first = options.split(',').next().unwrap_or("");
        // Core's schedules begin with a ratio, or have a number of steps.
        let is_core = (!first.is_empty() && !first.contains('=')) || options.contains("steps=");
        Ok(match name {
            "schedule" if !is_core => ControllerSpec::WarmUp(WarmUp::read(options)?),
            _ => ControllerSpec::Core(text.parse()?),
        })
    }
}

/// A geometric warm-up over epochs, to the ratio to which reducer or compressor are set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(into = "String")]
pub struct WarmUp {
    from: CompressionRatio,
    epochs: f64,
}

impl WarmUp {
    fn read(options: &str) -> Result<Self> {
        let mut warm_up = WarmUp { from: CompressionRatio::new(4.0)?, epochs: 1.0 };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').with_context(|| format!("`{option}` is not KEY=VALUE"))?;
            match key {
                "from" => warm_up.from = value.parse()?,
                "epochs" => warm_up.epochs = count_of_epochs(value)?,
                _ => bail!(
                    "unknown schedule option `{key}`; valid are: from, epochs; or RATIO[,to=RATIO,steps=N,stages=N]"
                ),
            }
        }
        Ok(warm_up)
    }

    /// Returns the controller for epochs of this many steps.
    pub fn controller(self, to: CompressionRatio, steps_per_epoch: u64) -> ControllerConfig {
        let steps = (self.epochs * steps_per_epoch as f64).round() as u64;
        let from = if self.from < to { self.from } else { to };
        ScheduleConfig { from, to: Some(to), steps: Some(steps), stages: None }.into()
    }
}

impl From<WarmUp> for String {
    fn from(WarmUp { from, epochs }: WarmUp) -> String {
        format!("schedule:from={from},epochs={epochs}")
    }
}

fn count_of_epochs(text: &str) -> Result<f64> {
    let epochs = text.parse().ok().filter(|epochs: &f64| epochs.is_finite() && *epochs >= 0.0);
    epochs.with_context(|| format!("schedule option epochs must be a number of at least 0, got `{text}`"))
}

/// Layers with a different exchange: `*.norm.*=dense,*head.weight=qsgd:8`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct RulesSpec(Vec<Rule>);

impl RulesSpec {
    /// Returns the rules in the order given.
    pub fn rules(&self) -> Vec<Rule> {
        self.0.clone()
    }
}

impl FromStr for RulesSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let rule = |part: &str| {
            let (slots, how) =
                part.split_once('=').with_context(|| format!("rule `{part}` is not PATTERN=COMPRESSOR"))?;
            // The name of a compressor, or else of a reducer.
            let reducer = match how.parse() {
                Ok(compressor) => ReducerConfig::gather(compressor),
                Err(error) => how.parse().map_err(|_| error)?,
            };
            Ok(Rule { slots: slots.parse()?, reducer })
        };
        text.split(',').map(rule).collect::<Result<_>>().map(RulesSpec)
    }
}

/// Gradient to keep: `100`, `100:bf16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecordSpec {
    step: u64,
    bf16: bool,
}

impl RecordSpec {
    /// Returns the step of the gradient, counted from 0.
    pub fn step(self) -> u64 {
        self.step
    }

    /// Returns whether values are rounded to 16 bits.
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

macro_rules! read_from_text {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse().map_err(|e: anyhow::Error| format!("{e:#}"))
            }
        }
    )*};
}
read_from_text!(RulesSpec, RecordSpec, ClockSpec, ControllerSpec);

macro_rules! written_as_text {
    ($($type:ty),*) => {$(
        impl From<$type> for String {
            fn from(spec: $type) -> String {
                spec.to_string()
            }
        }
    )*};
}
written_as_text!(RecordSpec, ClockSpec);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_a_line_for_each_step_and_a_wrong_one_is_named() {
        let path = std::env::temp_dir().join(format!("briquette-trace-{}.csv", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            ClockSpec::Trace(path.clone()).paces()
        };
        let paces = read("0.5,0.25\n1\n").unwrap().unwrap();
        assert_eq!([paces.seconds(1, 0), paces.seconds(1, 1), paces.seconds(0, 2)], [0.25, 1.0, 0.5]);
        let error = format!("{:#}", read("0.5\nx,1\n").unwrap_err());
        assert!(error.contains("line 2") && error.contains("x,1"), "{error}");
        assert!(format!("{:#}", read("0.5\n-1").unwrap_err()).contains("from 0 s to 1000000 s"));
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", ClockSpec::Trace(path).paces().unwrap_err()).contains("cannot read"));
    }

    #[test]
    fn texts_round_trip() {
        for text in ["100", "7:bf16"] {
            assert_eq!(text.parse::<RecordSpec>().unwrap().to_string(), text);
        }
        for text in ["wall", "fixed:50ms", "fixed:51ms", "fixed:0ms", "fixed:500ms,50ms;slow=0.1x10", "trace:a/b.csv"] {
            assert_eq!(text.parse::<ClockSpec>().unwrap().to_string(), text);
        }
        let ControllerSpec::WarmUp(warm_up) = "schedule:from=2x,epochs=0.5".parse().unwrap() else { unreachable!() };
        assert_eq!(String::from(warm_up), "schedule:from=2x,epochs=0.5");
        let to = CompressionRatio::new(10.0).unwrap();
        assert_eq!(warm_up.controller(to, 80).to_string(), "schedule:2x,to=10x,steps=40");
    }

    #[test]
    fn unknown_values_list_the_valid_ones() {
        briquette::zoo::install();
        let wrong = |e: anyhow::Error| format!("{e:#}");
        assert!(wrong("50ms".parse::<ClockSpec>().unwrap_err()).contains("fixed:50ms"));
        assert!(wrong("7:f16".parse::<RecordSpec>().unwrap_err()).contains("STEP:bf16"));
        assert!(wrong("fc".parse::<RulesSpec>().unwrap_err()).contains("PATTERN=COMPRESSOR"));
        assert!(wrong("fc=zip".parse::<RulesSpec>().unwrap_err()).contains("valid are"));
        assert!(wrong("grovac".parse::<ControllerSpec>().unwrap_err()).contains("gravac"));
        assert!(wrong("gravac:epsilom=1".parse::<ControllerSpec>().unwrap_err()).contains("epsilon"));
    }

    #[test]
    fn a_controller_is_what_core_reads_but_for_warm_ups_over_epochs() {
        briquette::zoo::install();
        let core = |text: &str| match text.parse().unwrap() {
            ControllerSpec::Core(controller) => controller,
            ControllerSpec::WarmUp(_) => panic!("{text}"),
        };
        for text in ["gravac", "gravac:20x,epsilon=0.7", "schedule:8x", "schedule:4x,to=8x,steps=3", "none"] {
            assert_eq!(core(text), text.parse().unwrap(), "{text}");
        }
        let error = format!("{:#}", "constant".parse::<ControllerSpec>().unwrap_err());
        assert!(error.contains("`constant`") && error.contains("none, schedule"), "{error}");
    }

    #[test]
    fn a_rule_names_a_compressor_or_a_reducer() {
        briquette::zoo::install();
        let rules: RulesSpec = "*.bias=dense,fc.*=topk:10x+natural,conv.*=sparse-all-reduce:8x".parse().unwrap();
        let reducers: Vec<String> = rules.rules().iter().map(|rule| rule.reducer.to_string()).collect();
        assert_eq!(reducers, ["gather:dense", "gather:topk:10x+natural", "sparse-all-reduce:8x"]);
    }
}
