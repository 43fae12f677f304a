//! Settings of the two-way exchange.

use super::TwoWay;
use crate::Layout;
use crate::compress::{ErrorBound, PlainSign, Qsgd, ScaledSign, Spec};
use crate::config::{CompressorConfig, Described, DownlinkResidual, Exchange, ReducerSettings, ReducerTraits};
use crate::error::{ConfigError, Conflict};
use crate::reduce::Reducer;
use crate::reduce::downlink::{Downlink, Memory};
use crate::reduce::incoming::Incoming;
use crate::reduce::link::{LinkEncoder, class};

/// Settings of [`TwoWay`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TwoWayConfig {
    /// Compressor of the uplink.
    pub up: CompressorConfig,
    /// Compressor of the downlink.
    pub down: CompressorConfig,
    /// Messages per vector, each of the remainder of the previous ones; at least 1.
    pub rounds: usize,
    /// Set if servers add their residual to the next mean; by default if their compressor is contractive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_memory: Option<bool>,
    /// Sends one message per slot instead of one per share.
    pub per_slot: bool,
    /// The rank that serves the whole vector; by default every rank serves an equal share. The bits are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<usize>,
}

impl Default for TwoWayConfig {
    fn default() -> Self {
        let sign = CompressorConfig::from(ScaledSign::representative());
        TwoWayConfig { up: sign, down: sign, rounds: 1, server_memory: None, per_slot: false, server: None }
    }
}

impl Described for TwoWayConfig {
    const NAME: &'static str = "two-way";
    const SETTINGS: &'static str = "UP[,down=COMPRESSOR,rounds=R,server_memory=true,per_slot=true,server=RANK]";
    const HELP: &'static str = "both directions compressed, ranks serve shares (sign): DoubleSqueeze, NEOLITHIC; majority vote (plain-sign), at a hundredth of SGD's rate";

    fn representatives() -> Vec<Self> {
        let top_k = "topk:4x".parse().expect("a compressor's text");
        let (sign, qsgd) = (PlainSign::representative().into(), Qsgd::representative().into());
        vec![
            Self::default(),
            TwoWayConfig { up: top_k, down: top_k, rounds: 2, server: Some(1), ..Self::default() },
            TwoWayConfig { up: sign, down: sign, ..Self::default() },
            TwoWayConfig { up: qsgd, down: qsgd, rounds: 2, ..Self::default() },
        ]
    }
}

impl TwoWayConfig {
    fn down_class(&self, len: usize) -> Option<ErrorBound> {
        class(self.down, self.rounds, len)
    }

    fn remembers(&self, len: usize) -> bool {
        let contracts = |class| matches!(class, ErrorBound::Contractive { .. } | ErrorBound::MeanContractive { .. });
        self.server_memory.unwrap_or_else(|| self.down_class(len).is_some_and(contracts))
    }
}

impl ReducerSettings for TwoWayConfig {
    fn check_within(&self, Exchange { feedback, aggregator, .. }: &Exchange) -> Result<(), Conflict> {
        let (right, why, instead) = if feedback.get().requirement().sends_differences() {
            (
                format!("feedback {feedback}"),
                "the feedback needs the mean of what ranks sent, and two-way compresses it once more".to_owned(),
                "use feedback error or none, or reducer artemis",
            )
        } else if aggregator.get().rates() {
            (
                format!("aggregator {aggregator}"),
                "the aggregator rates whole contributions, and a server of two-way sees a share of each".to_owned(),
                "use reducer gather, or aggregator median or trimmed-mean",
            )
        } else if self.rounds > 1 && !aggregator.get().is_mean() {
            (
                format!("aggregator {aggregator}"),
                format!("the aggregator combines single messages, and two-way sends {} of each vector", self.rounds),
                "use rounds=1",
            )
        } else {
            return Ok(());
        };
        Err(Conflict::new("reducer two-way", right, why, instead))
    }

    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        let len = layout.len();
        let (up, down) = (LinkEncoder::new(self.up, self.rounds, len)?, LinkEncoder::new(self.down, self.rounds, len)?);
        let remembers = self.remembers(len);
        if let Some(error) = self.down_class(len).map(ErrorBound::error).filter(|error| remembers && *error >= 1.0) {
            let why = format!(
                "the compressor is not contractive: its error may be {error:.2} times the energy of what it compresses, and from 1 on \
                 what servers remember grows without bound"
            );
            let down = format!("compressor {}", self.down);
            return Err(ConfigError::conflict("server_memory of two-way", down, why, "use server_memory=false"));
        }
        let memory = if remembers { Memory::Error } else { Memory::Nothing };
        Ok(Box::new(TwoWay {
            settings: *self,
            aggregator: exchange.aggregator.get().build(),
            up,
            down: Downlink::new(down, memory),
            incoming: Incoming::default(),
            mine: Vec::new(),
            decoded: Vec::new(),
            mean: Vec::new(),
            bytes: Vec::new(),
            frames: Vec::new(),
            excluded: Vec::new(),
        }))
    }

    fn fewest_ranks(&self) -> usize {
        self.server.map_or(1, |server| server.saturating_add(1))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits {
            needs_feedback: self.up.needs_feedback(),
            loses_magnitude: self.up.loses_magnitude() || self.down.loses_magnitude(),
            is_per_slot: self.per_slot,
            aggregates: true,
            ..ReducerTraits::default()
        }
    }

    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        class(self.up, self.rounds, len)
    }

    fn downlink(&self, len: usize) -> Option<ErrorBound> {
        // A scaled sign loses nothing of a single value.
        let loses = self.down_class(64).is_some_and(|class| class.error() > 0.0);
        self.down_class(len).filter(|_| loses)
    }

    fn downlink_residual(&self, len: usize) -> Option<DownlinkResidual> {
        let error = self.downlink(len)?.error().sqrt();
        self.remembers(len).then_some(DownlinkResidual { contraction: error, loss: error, in_rate: false })
    }
}
