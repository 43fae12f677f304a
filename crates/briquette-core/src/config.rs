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

mod representatives;
mod spec;

pub use representatives::representatives;
pub use spec::{CompressorConfig, CompressorKind};

use serde::{Deserialize, Serialize};

use crate::aggregate::Mean;
use crate::compress::Compressor;
use crate::control::{Constant, Controller, GraVacConfig, Schedule};
use crate::error::ConfigError;
use crate::layer::{Adaptive, Bucketed, ErrorFeedback, Metered, Momentum, MomentumCorrection};
use crate::reduce::{Dense, Gather, Grain, PowerSgd, Reducer, SharedRandomK, Stateless, StatelessProbing};
use crate::sync::{EveryStep, Periodic, SyncStrategy};
use crate::{CompressionFactor, Layout};

/// When ranks exchange, and what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "strategy", rename_all = "kebab-case")]
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
    /// What becomes of what was not sent.
    pub feedback: Feedback,
    /// Who decides the compression factor.
    pub controller: ControllerConfig,
    /// Values a bucket holds at least; one bucket when absent.
    pub bucket_values: Option<usize>,
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
}

/// What becomes of what was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feedback {
    /// It is lost.
    #[default]
    None,
    /// It is added to the next vector.
    Error,
    /// Deep Gradient Compression's momentum correction; the inner optimizer is then plain SGD.
    Momentum(Momentum),
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
            bucket_values: None,
        })
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
        }
    }
}

impl Exchange {
    fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(EveryStep::new(self.build_reducer(layout, world)?)))
    }

    /// The reducer alone, without a rhythm.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    pub fn build_reducer(&self, layout: &Layout, world: usize) -> Result<Box<dyn Reducer>, ConfigError> {
        if let ReducerConfig::Gather { compressor, .. } = &self.reducer
            && compressor.refuses_feedback()
            && self.feedback != Feedback::None
        {
            return Err(ConfigError::Conflict(format!(
                "compressor {compressor} is not contractive: use it with feedback none, or unscaled with feedback"
            )));
        }
        let reducer = match self.controller.build(world)? {
            None => self.fixed(layout)?,
            Some(controller) => self.adaptive(layout, controller)?,
        };
        // Dense sends everything: there is no gain to measure.
        let metered = match self.reducer {
            ReducerConfig::Dense => Metered::seconds_only(reducer),
            _ => Metered::new(reducer),
        };
        Ok(match self.feedback {
            Feedback::None => Box::new(metered),
            Feedback::Error => Box::new(ErrorFeedback::new(metered)),
            Feedback::Momentum(settings) => Box::new(MomentumCorrection::new(metered, settings)?),
        })
    }

    fn bucketed<R: Stateless>(
        &self,
        layout: &Layout,
        make: impl FnMut(usize) -> R,
    ) -> Result<Bucketed<R>, ConfigError> {
        match self.bucket_values {
            Some(0) => Err(ConfigError::range("values a bucket holds", "at least 1", 0)),
            values => Ok(Bucketed::new(layout, values.unwrap_or(usize::MAX), make)),
        }
    }

    /// Without a controller.
    fn fixed(&self, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        let part: fn(&Self) -> Result<Box<dyn Stateless>, ConfigError> = match &self.reducer {
            ReducerConfig::PowerSgd { .. } if self.bucket_values.is_some() => {
                return Err(ConfigError::Conflict(
                    "power-sgd exchanges all matrices at once: leave bucket values away".into(),
                ));
            }
            ReducerConfig::PowerSgd { rank } => return Ok(Box::new(PowerSgd::new(*rank)?)),
            ReducerConfig::Dense => |_| Ok(Box::new(Dense)),
            ReducerConfig::SharedRandomK { .. } => |config| Ok(Box::new(config.random_k()?)),
            ReducerConfig::Gather { .. } => |config| match &config.reducer {
                ReducerConfig::Gather { compressor, per_slot } => Ok(Box::new(gather(compressor.build(), *per_slot))),
                other => Err(ConfigError::Conflict(format!("{} is not a gather", other.name()))),
            },
        };
        part(self)?;
        let mut failed = None;
        let bucketed = self.bucketed(layout, |_| {
            part(self).unwrap_or_else(|error| {
                failed = Some(error);
                Box::new(Dense)
            })
        })?;
        failed.map_or(Ok(Box::new(bucketed)), Err)
    }

    /// Under a controller: the reducer needs a knob.
    fn adaptive(&self, layout: &Layout, controller: Box<dyn Controller>) -> Result<Box<dyn Reducer>, ConfigError> {
        let mut parts = Vec::new();
        let count = self.bucketed(layout, |_| Dense)?.ranges().count();
        for _ in 0..count {
            let part: Box<dyn StatelessProbing> = match &self.reducer {
                ReducerConfig::Gather { compressor, per_slot } => {
                    Box::new(gather(compressor.build_tunable()?, *per_slot))
                }
                ReducerConfig::SharedRandomK { .. } => Box::new(self.random_k()?),
                other => {
                    return Err(ConfigError::Conflict(format!(
                        "a controller turns the compression factor, but reducer {} has none; use gather with topk or \
                         qsgd, or shared-random-k, or controller none",
                        other.name()
                    )));
                }
            };
            parts.push(part);
        }
        let mut parts = parts.into_iter();
        let bucketed = self.bucketed(layout, |_| parts.next().expect("as many parts as buckets"))?;
        Ok(Box::new(Adaptive::new(bucketed, controller)))
    }

    fn random_k(&self) -> Result<SharedRandomK, ConfigError> {
        match self.reducer {
            ReducerConfig::SharedRandomK { factor, scaled: false } => Ok(SharedRandomK::new(factor)),
            ReducerConfig::SharedRandomK { factor, scaled: true } if self.feedback == Feedback::None => {
                Ok(SharedRandomK::scaled(factor))
            }
            _ => Err(ConfigError::Conflict(
                "scaled shared-random-k is not contractive: use it with feedback none, or unscaled with feedback"
                    .into(),
            )),
        }
    }
}

fn gather<C: Compressor>(compressor: C, per_slot: bool) -> Gather<C, Mean> {
    let gather = Gather::new(compressor, Mean);
    if per_slot { gather.grain(Grain::PerSlot) } else { gather }
}

impl ControllerConfig {
    fn build(&self, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(match self {
            ControllerConfig::None => return Ok(None),
            ControllerConfig::Constant(fixed) => Box::new(Constant(fixed.factor)),
            ControllerConfig::Schedule(WarmUp { from, to, steps }) => Box::new(Schedule::warm_up(*from, *to, *steps)?),
            ControllerConfig::Gravac(settings) => Box::new(settings.build(world)?),
        }))
    }
}
