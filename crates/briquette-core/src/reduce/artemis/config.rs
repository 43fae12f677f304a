//! Settings of Artemis.

use super::Artemis;
use crate::Layout;
use crate::Message;
use crate::compress::{Dense, ErrorBound, Norm, Qsgd, Spec};
use crate::config::{CompressorConfig, Described, Exchange, ReducerSettings, ReducerTraits, probes, worse};
use crate::error::{ConfigError, Conflict};
use crate::reduce::Reducer;
use crate::reduce::downlink::{Downlink, Memory};
use crate::reduce::link::LinkEncoder;
use crate::state::Staged;

/// Memories kept by a server, and so the contribution of an absent rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Variant {
    /// One memory per rank: an absent rank contributes nothing.
    Pp1,
    /// The mean of the memories: an absent rank contributes its memory.
    #[default]
    Pp2,
}

/// Settings of [`Artemis`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArtemisConfig {
    /// Compressor of the uplink; must be unbiased.
    pub up: CompressorConfig,
    /// Compressor of the downlink; must be unbiased.
    pub down: CompressorConfig,
    /// Step size of a memory towards the contribution, in (0, 1/(1+ω)] of the uplink compressor; half of the maximum by default. 0 disables
    /// memories.
    pub alpha: Option<f32>,
    /// Probability that a rank takes part in an exchange, in (0, 1].
    pub participation: f64,
    /// Memories kept by a server.
    pub variant: Variant,
    /// The rank that serves the whole vector; by default every rank serves an equal share.
    pub server: Option<usize>,
}

impl Default for ArtemisConfig {
    fn default() -> Self {
        let (up, down) = ArtemisConfig::both_ways();
        ArtemisConfig { up, down, alpha: None, participation: 1.0, variant: Variant::default(), server: None }
    }
}

impl Described for ArtemisConfig {
    const NAME: &'static str = "artemis";
    const SETTINGS: &'static str = "UP[,down=COMPRESSOR,participation=P,variant=pp1,server=RANK,alpha=A]";
    const HELP: &'static str =
        "both directions compressed (qsgd:4, down qsgd:4:64:l2), with memories; ranks take part by chance";

    fn check(&self) -> Result<(), ConfigError> {
        if !(0.001..=1.0).contains(&self.participation) {
            return Err(ConfigError::range(
                "participation of artemis",
                "at least 0.001 and at most 1",
                self.participation,
            ));
        }
        match self.alpha {
            Some(alpha) if !(0.0..=1.0).contains(&alpha) => {
                Err(ConfigError::range("alpha of artemis", "at least 0 and at most 1", alpha))
            }
            _ => Ok(()),
        }
    }

    fn representatives() -> Vec<Self> {
        let up = Qsgd::representative().into();
        let half = ArtemisConfig { up, participation: 0.5, ..ArtemisConfig::default() };
        let down = Dense::representative().into();
        vec![half, ArtemisConfig { variant: Variant::Pp1, server: Some(1), down, ..half }]
    }
}

impl ArtemisConfig {
    /// Default compressors of the uplink and the downlink: 4 bits a value. Servers scale smaller buckets, whose noise stays in the model.
    pub(in crate::reduce) fn both_ways() -> (CompressorConfig, CompressorConfig) {
        let both = Qsgd::new(4, Qsgd::DEFAULT_BUCKET, Norm::Max).and_then(|up| Ok((up, Qsgd::new(4, 64, Norm::L2)?)));
        let (up, down) = both.expect("both are in their ranges");
        (up.into(), down.into())
    }

    /// Builds the reducer with this memory on the downlink; `name` is the owner of the settings, for errors.
    pub(in crate::reduce) fn with(
        &self,
        (memory, per_rank): (Memory, bool),
        name: &str,
        layout: &Layout,
    ) -> Result<Box<dyn Reducer>, ConfigError> {
        let most = 1.0 / (1.0 + ArtemisConfig::omega(name, "up", self.up, layout.len())?);
        let alpha = self.alpha.unwrap_or((0.5 * most) as f32);
        if f64::from(alpha) > most * (1.0 + 1e-6) {
            return Err(ConfigError::conflict(
                format!("alpha {alpha} of {name}"),
                format!("compressor {}", self.up),
                format!("it must be at most {most:.4}, which is 1/(1+ω)"),
                "lower it, or omit it for half of that",
            ));
        }
        Ok(Box::new(Artemis {
            up: self.up.build(),
            down: Downlink::new(LinkEncoder::new(self.down, 1, layout.len())?, memory).per_rank(per_rank),
            settings: *self,
            alpha,
            memory: Staged::default(),
            served: Staged::default(),
            mine: 0..0,
            message: Message::default(),
            scratch: Vec::new(),
            bytes: Vec::new(),
            parts: Vec::new(),
        }))
    }

    /// Returns the variance of a compressor on `len` values; it must be unbiased.
    pub(in crate::reduce) fn omega(
        name: &str,
        which: &str,
        compressor: CompressorConfig,
        len: usize,
    ) -> Result<f64, ConfigError> {
        let built = compressor.build();
        match probes(len).map(|x| built.error_bound(&x)).reduce(worse) {
            Some(ErrorBound::Unbiased { omega }) => Ok(omega),
            // The identity is in both classes.
            Some(ErrorBound::Contractive { delta: 1.0 }) | None => Ok(0.0),
            _ => Err(ConfigError::conflict(
                format!("reducer {name}"),
                format!("{which}={compressor}"),
                "it needs unbiased compressors",
                "use qsgd, natural, randk:…:scaled or dense",
            )),
        }
    }
}

impl ReducerSettings for ArtemisConfig {
    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        match exchange.feedback.get().requirement().remembers() {
            false => Ok(()),
            true => Err(Conflict::new(
                "reducer artemis",
                format!("feedback {}", exchange.feedback),
                "it has memories of its own, and what ranks receive is not the mean of what was sent",
                "use feedback none",
            )),
        }
    }

    fn build(&self, _: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        ArtemisConfig::omega(Self::NAME, "down", self.down, layout.len())?;
        self.with((Memory::Nothing, false), Self::NAME, layout)
    }

    fn fewest_ranks(&self) -> usize {
        self.server.map_or(1, |server| server.saturating_add(1))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits::default()
    }

    /// A rank's vector alone has no bound: the message holds the difference to its memory.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    fn downlink(&self, len: usize) -> Option<ErrorBound> {
        let compressor = self.down.build();
        probes(len).map(|x| compressor.error_bound(&x)).reduce(worse)
    }
}
