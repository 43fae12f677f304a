//! Its settings, and when which fragment is exchanged.

use super::StreamingDiLoCo;
use crate::Layout;
use crate::config::{Described, Exchange, StrategyConfig, StrategySettings};
use crate::error::ConfigError;
use crate::sync::diloco::USUAL;
use crate::sync::in_background::CHANNEL;
use crate::sync::rounds::{check_period, in_rounds, period_of};
use crate::sync::{DiLoCoConfig, SyncStrategy, outer};

/// Settings of [`StreamingDiLoCo`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamingDiLoCoConfig {
    /// Steps from one exchange of a fragment to its next; absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// How many fragments the model is in, at most the period and the number of slots.
    pub fragments: u64,
    /// Steps that an exchange takes, at most a fragment's share of the period.
    pub overlap: u64,
    /// How much of its own parameters a rank keeps when a fragment arrives, in [0, 1]; absent, 0.5, and without overlap 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixing: Option<f32>,
    /// The outer learning rate, above 0.
    pub rate: f32,
    /// The outer momentum, in [0, 1).
    pub momentum: f32,
}

impl Default for StreamingDiLoCoConfig {
    fn default() -> Self {
        let DiLoCoConfig { period, rate, momentum } = DiLoCoConfig::default();
        StreamingDiLoCoConfig { period, fragments: 4, overlap: 0, mixing: None, rate, momentum }
    }
}

impl StreamingDiLoCoConfig {
    /// Steps of a period; where none is named the usual one, or the least that fragments and overlap need.
    pub(super) fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL.max(self.least()))
    }

    /// Steps in which each fragment has one, and time to travel.
    fn least(&self) -> u64 {
        self.fragments.saturating_mul(self.overlap.max(1)).max(self.overlap.saturating_add(1))
    }

    /// The fragment that is due at `step`.
    pub(super) fn due(&self, step: u64) -> Option<usize> {
        let (period, fragments) = (self.steps(), self.fragments);
        let (since, share, rest) = ((step + 1) % period, period / fragments, period % fragments);
        // ⌊p·H/P⌋, of no product as large.
        (0..fragments).find(|p| p * share + p * rest / fragments == since).map(|p| p as usize)
    }

    /// The fragment whose mean arrives at `step`.
    pub(super) fn arrives(&self, step: u64) -> Option<usize> {
        step.checked_sub(self.overlap).and_then(|sent| self.due(sent))
    }

    /// What becomes of a fragment's anchor.
    pub(super) fn outer(&self) -> DiLoCoConfig {
        DiLoCoConfig { period: self.period, rate: self.rate, momentum: self.momentum }
    }

    pub(super) fn mixing(&self) -> f32 {
        self.mixing.unwrap_or(if self.overlap == 0 { 0.0 } else { 0.5 })
    }

    pub(super) fn is_diloco(&self) -> bool {
        self.fragments == 1 && self.overlap == 0 && self.mixing() == 0.0
    }
}

impl Described for StreamingDiLoCoConfig {
    const NAME: &'static str = "streaming-diloco";
    const SETTINGS: &'static str = "PERIOD[,fragments=4,overlap=0,mixing=0.5,rate=0.7,momentum=0.9]";
    const HELP: &'static str = "DiLoCo in fragments, each exchanged every PERIOD steps (100), while ranks go on where \
                                overlap is above 0";

    fn check(&self) -> Result<(), ConfigError> {
        let Self { fragments, overlap, rate, momentum, .. } = *self;
        check_period("period of streaming-diloco", self.period)?;
        let period = self.steps();
        let (what, valid) = ("fragments of streaming-diloco", "at least 1 and at most the period");
        ConfigError::unless((1..=period).contains(&fragments), what, valid, fragments)?;
        let (what, valid) = ("overlap of streaming-diloco", "at most period/fragments, and below the period");
        ConfigError::unless(overlap <= period / fragments && overlap < period, what, valid, overlap)?;
        let mixing = self.mixing();
        ConfigError::unless((0.0..=1.0).contains(&mixing), "mixing of streaming-diloco", "in [0, 1]", mixing)?;
        ConfigError::unless(rate.is_finite() && rate > 0.0, "rate of streaming-diloco", "above 0", rate)?;
        ConfigError::unless((0.0..1.0).contains(&momentum), "momentum of streaming-diloco", "in [0, 1)", momentum)
    }

    /// With two fragments, and as DiLoCo.
    fn representatives() -> Vec<Self> {
        let waits = StreamingDiLoCoConfig { period: Some(4), fragments: 2, ..Self::default() };
        let whole = StreamingDiLoCoConfig { period: Some(1), fragments: 1, ..Self::default() };
        vec![waits, StreamingDiLoCoConfig { overlap: 1, ..waits }, whole]
    }
}

impl StrategySettings for StreamingDiLoCoConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let used = ["reducer", "aggregator", "feedback", "bucket_values", "rules", "dense_below", "threads"];
        exchange.refuse_all_but(&used, "strategy streaming-diloco exchanges a fragment at a time")?;
        // What is wrong for the whole model is said of the whole model.
        outer::build_reducer::<Self>(exchange, layout, world)?;
        let streaming = StreamingDiLoCo::new(*self, layout, |fragment| {
            let mut exchange = exchange.clone();
            exchange.rules.retain(|rule| fragment.slots().iter().any(|slot| rule.slots.matches(slot.path())));
            exchange.build_reducer(fragment, world)
        })?;
        Ok(Box::new(streaming))
    }

    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        exchange.fewest_ranks()
    }

    fn channels(&self) -> usize {
        if self.overlap == 0 { 0 } else { CHANNEL }
    }

    fn exchanges(&self) -> Vec<Exchange> {
        outer::exchanges()
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        let period = period_of(USUAL, steps).max(self.least());
        in_rounds(self.period, (USUAL.max(self.least()), period), steps, |period| {
            StreamingDiLoCoConfig { period: Some(period), ..*self }.into()
        })
    }
}
