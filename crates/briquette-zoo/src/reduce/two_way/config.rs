//! Settings of the two-way exchange.

use super::TwoWay;
use crate::reduce::{
    downlink::{Downlink, Memory},
    link::{LinkEncoder, class},
};
use briquette_core::Layout;
use briquette_core::compress::ErrorBound;
use briquette_core::config::{CompressorConfig, Described, DownlinkResidual, Exchange, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict};
use briquette_core::reduce::{Reducer, incoming::Incoming};

/// Settings of [`TwoWay`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "two-way",
    help = "both directions compressed, ranks serve shares (sign): DoubleSqueeze, NEOLITHIC; majority vote (plain-sign), at a hundredth of SGD's rate",
    representatives(
        "two-way:sign",
        "two-way:topk:4x,down=topk:4x,rounds=2,server=1",
        "two-way:plain-sign,down=plain-sign",
        "two-way:qsgd:4:64:l2,down=qsgd:4:64:l2,rounds=2",
    ),
    combinations(
        "reducer=two-way:per_slot=true feedback=error controller=none dense_below=0",
        "reducer=two-way:per_slot=true feedback=error controller=none dense_below=0 bucket_values=32",
        "reducer=two-way:sign,down=dense aggregator=median feedback=error controller=none",
    )
)]
pub struct TwoWayConfig {
    /// Compressor of the uplink.
    #[setting(default = "sign")]
    pub up: CompressorConfig,
    /// Compressor of the downlink.
    #[setting(default = "sign")]
    pub down: CompressorConfig,
    /// Messages per vector, each of the remainder of the previous ones; at least 1.
    #[setting(default = 1, range = "[1, 1000]")]
    pub rounds: usize,
    /// Set if servers add their residual to the next mean; by default if their compressor is contractive.
    #[setting(syntax = "true")]
    pub server_memory: Option<bool>,
    /// Sends one message per slot instead of one per share.
    pub per_slot: bool,
    /// The rank that serves the whole vector; by default every rank serves an equal share. The bits are the same.
    #[setting(syntax = "RANK")]
    pub server: Option<usize>,
}

impl TwoWayConfig {
    fn down_class(&self, len: usize) -> Option<ErrorBound> {
        class(&self.down, self.rounds, len)
    }

    fn keeps_state(&self, len: usize) -> bool {
        let contracts = |class| matches!(class, ErrorBound::Contractive { .. } | ErrorBound::MeanContractive { .. });
        self.server_memory.unwrap_or_else(|| self.down_class(len).is_some_and(contracts))
    }
}

impl ReducerSettings for TwoWayConfig {
    fn check_within(&self, Exchange { feedback, aggregator, .. }: &Exchange) -> Result<(), Conflict> {
        let (right, why, instead) = if feedback.get().requirement().sends_differences() {
            (
                format!("feedback {feedback}"),
                "the feedback needs the mean of the sent messages, and two-way compresses that mean again".to_owned(),
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
        self.check()?;
        let len = layout.len();
        let (up, down) =
            (LinkEncoder::new(&self.up, self.rounds, len)?, LinkEncoder::new(&self.down, self.rounds, len)?);
        let keeps_state = self.keeps_state(len);
        if let Some(error) = self.down_class(len).map(ErrorBound::error).filter(|error| keeps_state && *error >= 1.0) {
            let why = format!(
                "the compressor is not contractive: its error may be {error:.2} times the energy of its input, and from 1 on the servers' \
                 residuals grow without bound"
            );
            let down = format!("compressor {}", self.down);
            return Err(ConfigError::conflict("server_memory of two-way", down, why, "use server_memory=false"));
        }
        let memory = if keeps_state { Memory::Error } else { Memory::Nothing };
        Ok(Box::new(TwoWay {
            settings: self.clone(),
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

    fn min_ranks(&self) -> usize {
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
        class(&self.up, self.rounds, len)
    }

    fn downlink(&self, len: usize) -> Option<ErrorBound> {
        // A scaled sign loses nothing of a single value.
        let loses = self.down_class(64).is_some_and(|class| class.error() > 0.0);
        self.down_class(len).filter(|_| loses)
    }

    fn downlink_residual(&self, len: usize) -> Option<DownlinkResidual> {
        let error = self.downlink(len)?.error().sqrt();
        self.keeps_state(len).then_some(DownlinkResidual { contraction: error, loss: error, in_rate: false })
    }
}
