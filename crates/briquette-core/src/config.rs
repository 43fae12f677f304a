//! Settings as values: in code, in TOML, and on a command line.
//!
//! [`Config`] mirrors the algorithms as serde enums and builds them; every impossible setting is an error at
//! [`build`](Config::build), before any rank talks. [`representatives`] lists one value per algorithm behind exhaustive
//! matches, and the laws iterate over it: an algorithm without laws does not compile.
//!
//! ```
//! use briquette_core::{Layout, config::Config};
//! let config: Config = toml::from_str(r#"
//!     strategy = "every-step"
//!     feedback = "error"
//!     reducer = { kind = "gather", compressor = "topk:0.01:q8" }
//!     controller = { kind = "gravac", epsilon = 0.4 }
//! "#)?;
//! config.build(&Layout::flat(1000), 4)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod build;
mod class;
mod family;
mod representatives;
mod rules;
mod spec;

pub use family::{AggregatorConfig, Described};
pub use representatives::representatives;
pub use rules::{Rule, SlotPattern};
pub use spec::{CompressorConfig, CompressorKind};

use serde::{Deserialize, Serialize};

use crate::compress::TernGrad;
use crate::control::{Adaqs, Constant, Controller, GraVacConfig, LGreco, Schedule};
use crate::error::ConfigError;
use crate::layer::Momentum;
use crate::reduce::Sketch;
use crate::sync::{Periodic, SyncStrategy};
use crate::{CompressionFactor, Layout};

/// When ranks exchange, and what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "strategy", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant)] // there is one a run
pub enum Config {
    /// Gradients, every step.
    EveryStep(Exchange),
    /// Local SGD: parameters, every so many steps, dense.
    Periodic(Rhythm),
}

/// Settings of [`Config::Periodic`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rhythm {
    /// Steps between averages, at least 1.
    pub every: u64,
}

/// What travels at an exchange.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exchange {
    /// How vectors are combined.
    pub reducer: ReducerConfig,
    /// How gather makes one vector of the ranks' contributions.
    #[serde(skip_serializing_if = "AggregatorConfig::is_mean")]
    pub aggregator: AggregatorConfig,
    /// What becomes of what was not sent.
    pub feedback: Feedback,
    /// Who decides the compression factor.
    pub controller: ControllerConfig,
    /// Values a bucket holds at least; one bucket when absent.
    pub bucket_values: Option<usize>,
    /// Exchange a bucket while the one before is decoded and the one after encoded, on a second thread: the same bits. Needs
    /// `bucket_values`. Ranks may differ in it, but should not: should a sum overflow, they stop at different calls.
    pub overlap: bool,
    /// Slots that are exchanged another way: the first rule that matches decides.
    pub rules: Vec<Rule>,
    /// Slots of fewer values, which no rule names, are exchanged dense. By default 1024 where every slot has a message of
    /// its own, since a message costs some 25 bytes however few values it holds, and 0 elsewhere.
    pub dense_below: Option<usize>,
    /// Threads a rank encodes and decodes with, the same bits with any number; its own alone when absent. Needs the cargo
    /// feature `rayon`.
    pub threads: Option<usize>,
}

/// How vectors are combined.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReducerConfig {
    /// An exact all-reduce.
    #[default]
    Dense,
    /// All-gather of compressed messages.
    Gather {
        /// What a message is.
        compressor: CompressorConfig,
        /// One message a slot instead of one a vector.
        #[serde(default)]
        per_slot: bool,
    },
    /// All-reduce of coordinates all ranks know.
    SharedRandomK {
        /// `d/k`.
        factor: CompressionFactor,
        /// Scale by `d/k` (unbiased, without feedback).
        #[serde(default)]
        scaled: bool,
    },
    /// Low-rank all-reduce.
    PowerSgd {
        /// Columns kept of each matrix.
        rank: usize,
    },
    /// Several rounds of another reducer, each on what the rounds before left.
    MultiStep {
        /// How many, at least 1.
        rounds: usize,
        /// What a round is.
        inner: Box<ReducerConfig>,
    },
    /// Top-k summed on the way: bytes that do not grow with the world.
    SparseAllReduce {
        /// `d/k`.
        factor: CompressionFactor,
    },
    /// The largest coordinates of the sum, found by a sketch.
    SketchedSgd(Sketch),
    /// TernGrad with one scale for all ranks, summed on the way.
    TernaryAllReduce {
        /// Where to clip, in standard deviations; `inf` for nowhere.
        #[serde(default = "TernGrad::default_clip")]
        clip: f32,
    },
}

/// What becomes of what was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Feedback {
    /// It is lost.
    #[default]
    None,
    /// It is added to the next vector.
    Error,
    /// The same with its memory inside the learning rate: what was not sent counts by the rate of its own step. For
    /// gradients whose learning rate changes.
    ErrorInside,
    /// Deep Gradient Compression's momentum correction; the inner optimizer is then plain SGD.
    Momentum(Momentum),
    /// DIANA: only the difference to a memory travels. For unbiased compressors.
    Diana {
        /// How far the memory moves towards what was sent, at most `1/(1+ω)` of the compressor, which is the default.
        alpha: Option<f32>,
    },
    /// EF21: only the difference to what was sent before travels. For contractive compressors.
    Ef21,
}

/// Who decides the compression factor.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ControllerConfig {
    /// The compressor's own setting, always.
    #[default]
    None,
    /// One factor, always.
    Constant(Fixed),
    /// Geometric warm-up from one factor to another.
    Schedule(WarmUp),
    /// GraVAC.
    Gravac(GraVacConfig),
    /// AdaQS.
    Adaqs(Adaqs),
    /// L-GreCo.
    LGreco(LGreco),
}

/// Settings of [`ControllerConfig::Constant`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// The factor.
    pub factor: CompressionFactor,
}

/// Settings of [`ControllerConfig::Schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    /// At step 0.
    pub from: CompressionFactor,
    /// From step `steps` on.
    pub to: CompressionFactor,
    /// Steps in between.
    pub steps: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config::dense()
    }
}

impl Config {
    /// The exact mean at every step.
    pub fn dense() -> Self {
        Config::EveryStep(Exchange::default())
    }

    /// The largest `fraction` of the values at every step, with error feedback.
    ///
    /// # Errors
    /// [`ConfigError`] when `fraction` is outside (0, 1].
    pub fn top_k(fraction: f64) -> Result<Self, ConfigError> {
        Ok(Config::EveryStep(Exchange {
            reducer: ReducerConfig::gather(format!("topk:{fraction}").parse()?),
            feedback: Feedback::Error,
            ..Exchange::default()
        }))
    }

    /// Top-k with 8-bit values under GraVAC, with error feedback: works under any inner optimizer.
    pub fn gravac(settings: GraVacConfig) -> Self {
        Config::EveryStep(Exchange {
            reducer: ReducerConfig::gather(CompressorConfig::top_k_q8(settings.min)),
            feedback: Feedback::Error,
            controller: ControllerConfig::Gravac(settings),
            ..Exchange::default()
        })
    }

    /// Whether an average may have values where no rank has a gradient: where what was not sent before is remembered.
    pub fn remembers(&self) -> bool {
        matches!(self, Config::EveryStep(exchange) if exchange.feedback != Feedback::None)
    }

    /// Whether a rank's vector counts by its samples. If not, every rank counts the same, whatever it states: see
    /// [`Aggregator::is_mean`](crate::aggregate::Aggregator::is_mean).
    pub fn weighs_samples(&self) -> bool {
        !matches!(self, Config::EveryStep(exchange) if !exchange.aggregator.get().is_mean())
    }

    /// The fewest ranks that it works with.
    pub fn fewest_ranks(&self) -> usize {
        match self {
            Config::EveryStep(exchange) => exchange.fewest_ranks(),
            Config::Periodic(_) => 1,
        }
    }

    /// Builds the strategy for a module and a world.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work, before any rank talks.
    pub fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        if world == 0 {
            return Err(ConfigError::range("ranks", "at least 1", world));
        }
        match self {
            Config::Periodic(rhythm) => Ok(Box::new(Periodic::new(rhythm.every)?)),
            Config::EveryStep(exchange) => exchange.build(layout, world),
        }
    }
}

impl ReducerConfig {
    /// One message for the whole vector.
    pub fn gather(compressor: CompressorConfig) -> Self {
        ReducerConfig::Gather { compressor, per_slot: false }
    }

    fn name(&self) -> &'static str {
        match self {
            ReducerConfig::Dense => "dense",
            ReducerConfig::Gather { .. } => "gather",
            ReducerConfig::SharedRandomK { .. } => "shared-random-k",
            ReducerConfig::PowerSgd { .. } => "power-sgd",
            ReducerConfig::MultiStep { .. } => "multi-step",
            ReducerConfig::SparseAllReduce { .. } => "sparse-all-reduce",
            ReducerConfig::SketchedSgd(_) => "sketched-sgd",
            ReducerConfig::TernaryAllReduce { .. } => "ternary-all-reduce",
        }
    }
}

impl ControllerConfig {
    fn build(&self, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(match self {
            ControllerConfig::None => return Ok(None),
            ControllerConfig::Constant(fixed) => Box::new(Constant(fixed.factor)),
            ControllerConfig::Schedule(WarmUp { from, to, steps }) => Box::new(Schedule::warm_up(*from, *to, *steps)?),
            ControllerConfig::Gravac(settings) => Box::new(settings.build(world)?),
            ControllerConfig::Adaqs(settings) => Box::new(settings.build(world)?),
            ControllerConfig::LGreco(settings) => Box::new(settings.build(world)?),
        }))
    }
}
