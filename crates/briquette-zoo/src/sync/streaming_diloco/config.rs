//! Settings and exchange schedule of the fragments.

use super::StreamingDiLoCo;
use briquette_core::Layout;
use briquette_core::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::{
    SyncStrategy,
    diloco::DiLoCo,
    in_background::CHANNEL,
    outer,
    rounds::{in_rounds, period_of},
};

/// The default period.
const USUAL: u64 = 100;

/// Settings of [`StreamingDiLoCo`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "streaming-diloco",
    help = "DiLoCo in fragments, each exchanged every PERIOD steps (100), while ranks go on where overlap is above 0",
    representatives(
        "streaming-diloco:4,fragments=2",
        "streaming-diloco:4,fragments=2,overlap=1",
        "streaming-diloco:1,fragments=1",
    ),
    check = Self::check_fragments
)]
pub struct StreamingDiLoCoConfig {
    /// Steps between exchanges of a fragment. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// Number of fragments of the model, at most the period and the number of slots.
    #[setting(default = 4)]
    pub fragments: u64,
    /// Steps that an exchange overlaps, at most a fragment's share of the period.
    pub overlap: u64,
    /// Share of its own parameters that a rank keeps when a fragment arrives, in [0, 1]. If absent, 0.5, or 0 without overlap.
    #[setting(range = "[0, 1]")]
    pub mixing: Option<f32>,
    /// The outer learning rate, above 0.
    #[setting(default = 0.7, range = "(0, inf)")]
    pub rate: f32,
    /// The outer momentum, in [0, 1).
    #[setting(default = 0.9, range = "[0, 1)")]
    pub momentum: f32,
}

impl StreamingDiLoCoConfig {
    /// Returns the steps of a period. If none is set, the default, or the minimum that fragments and overlap need.
    pub(super) fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL.max(self.least()))
    }

    /// Returns the minimum period in which each fragment has a step, and time for its exchange.
    fn least(&self) -> u64 {
        self.fragments.saturating_mul(self.overlap.max(1)).max(self.overlap.saturating_add(1))
    }

    /// Returns the fragment that is due at `step`.
    pub(super) fn due(&self, step: u64) -> Option<usize> {
        let (period, fragments) = (self.steps(), self.fragments);
        let (since, share, rest) = ((step + 1) % period, period / fragments, period % fragments);
        // ⌊p·H/P⌋, computed without the large product.
        (0..fragments).find(|p| p * share + p * rest / fragments == since).map(|p| p as usize)
    }

    /// Returns the fragment whose mean arrives at `step`.
    pub(super) fn arrives(&self, step: u64) -> Option<usize> {
        step.checked_sub(self.overlap).and_then(|sent| self.due(sent))
    }

    /// Returns the outer step's settings for a fragment's anchor.
    pub(super) fn outer(&self) -> DiLoCo {
        DiLoCo { period: self.period, rate: self.rate, momentum: self.momentum, adapt: false }
    }

    pub(super) fn mixing(&self) -> f32 {
        self.mixing.unwrap_or(if self.overlap == 0 { 0.0 } else { 0.5 })
    }

    pub(super) fn is_diloco(&self) -> bool {
        self.fragments == 1 && self.overlap == 0 && self.mixing() == 0.0
    }

    fn check_fragments(&self) -> Result<(), ConfigError> {
        let (Self { fragments, overlap, .. }, period) = (*self, self.steps());
        let (what, valid) = ("fragments of streaming-diloco", "at least 1 and at most the period");
        ConfigError::unless((1..=period).contains(&fragments), what, valid, fragments)?;
        let (what, valid) = ("overlap of streaming-diloco", "at most period/fragments, and below the period");
        ConfigError::unless(overlap <= period / fragments && overlap < period, what, valid, overlap)
    }
}

impl StrategySettings for StreamingDiLoCoConfig {
    fn traits(&self) -> StrategyTraits {
        let uses: &[&str] = &["reducer", "aggregator", "feedback", "bucket_values", "rules", "dense_below", "threads"];
        StrategyTraits { uses: Some((uses, "exchanges a fragment at a time")), sends: Sends::Progress }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        // Errors that concern the whole model are reported for the whole model.
        exchange.build_reducer(layout, world)?;
        let streaming = StreamingDiLoCo::new(*self, layout, |fragment| {
            let mut exchange = exchange.clone();
            exchange.rules.retain(|rule| fragment.slots().iter().any(|slot| rule.slots.matches(slot.path())));
            exchange.build_reducer(fragment, world)
        })?;
        Ok(Box::new(streaming))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
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

    fn fewest_slots(&self) -> usize {
        self.fragments as usize
    }
}
