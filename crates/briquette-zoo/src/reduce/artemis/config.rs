//! Settings of Artemis.

use super::Artemis;
use crate::reduce::{
    downlink::{Downlink, Memory},
    link::LinkEncoder,
};
use briquette_core::compress::ErrorBound;
use briquette_core::config::{CompressorConfig, Described, Exchange, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict};
use briquette_core::reduce::Reducer;
use briquette_core::state::Staged;
use briquette_core::{Layout, Message};

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
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "artemis",
    help = "both directions compressed (qsgd:4, down qsgd:4:64:l2), with memories; ranks take part by chance",
    representatives(
        "artemis:qsgd:4:64:l2,participation=0.5",
        "artemis:qsgd:4:64:l2,down=dense,participation=0.5,variant=pp1,server=1",
    ),
    combinations(
        "reducer=artemis:qsgd:4:64:l2,participation=0.5 feedback=none controller=none bucket_values=32",
        "reducer=artemis:qsgd:4:64:l2,participation=0.5,variant=pp1,server=1,down=dense feedback=none controller=none bucket_values=32",
    )
)]
pub struct ArtemisConfig {
    /// Compressor of the uplink; must be unbiased.
    #[setting(default = "qsgd:4")]
    pub up: CompressorConfig,
    /// Compressor of the downlink; must be unbiased. Buckets are small, because its noise stays in the model.
    #[setting(default = "qsgd:4:64:l2")]
    pub down: CompressorConfig,
    /// Step size of a memory towards the contribution, in (0, 1/(1+ω)] of the uplink compressor; half of the maximum by default. 0 disables
    /// memories.
    #[setting(range = "[0, 1]")]
    pub alpha: Option<f32>,
    /// Probability that a rank takes part in an exchange, in (0, 1].
    #[setting(default = 1.0, range = "[0.001, 1]")]
    pub participation: f64,
    /// Memories kept by a server.
    #[setting(syntax = "pp1")]
    pub variant: Variant,
    /// The rank that serves the whole vector; by default every rank serves an equal share.
    #[setting(syntax = "RANK")]
    pub server: Option<usize>,
}

impl ArtemisConfig {
    /// Builds the reducer with this memory on the downlink; `name` is the owner of the settings, for errors.
    pub(in crate::reduce) fn with(
        &self,
        (memory, per_rank): (Memory, bool),
        name: &str,
        layout: &Layout,
    ) -> Result<Box<dyn Reducer>, ConfigError> {
        let most = 1.0 / (1.0 + ArtemisConfig::omega(name, "up", &self.up, layout.len())?);
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
            down: Downlink::new(LinkEncoder::new(&self.down, 1, layout.len())?, memory).per_rank(per_rank),
            settings: self.clone(),
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
    pub(crate) fn omega(
        name: &str,
        which: &str,
        compressor: &CompressorConfig,
        len: usize,
    ) -> Result<f64, ConfigError> {
        let built = compressor.build();
        match ErrorBound::of(&built, len) {
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
        match exchange.feedback.get().requirement().keeps_state() {
            false => Ok(()),
            true => Err(Conflict::new(
                "reducer artemis",
                format!("feedback {}", exchange.feedback),
                "it keeps state of its own, and ranks do not receive the mean of the sent messages",
                "use feedback none",
            )),
        }
    }

    fn build(&self, _: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        ArtemisConfig::omega(Self::NAME, "down", &self.down, layout.len())?;
        self.with((Memory::Nothing, false), Self::NAME, layout)
    }

    fn min_ranks(&self) -> usize {
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
        ErrorBound::of(&compressor, len)
    }
}
