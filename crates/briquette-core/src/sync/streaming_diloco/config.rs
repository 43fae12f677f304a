//! Settings of streaming DiLoCo.

use crate::Layout;
use crate::config::Described;
use crate::error::ConfigError;
use crate::sync::DiLoCoConfig;

/// Settings of [`StreamingDiLoCo`](super::StreamingDiLoCo).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamingDiLoCoConfig {
    /// Steps of a fragment's period.
    pub period: u64,
    /// Parts of the model.
    pub fragments: usize,
    /// Steps that an exchange travels for, below the period.
    pub overlap: u64,
    /// How much of a rank's own stays when an average lands, in [0, 1); 0 if absent, and 0.5 with an overlap.
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
    /// Whether a fragment, counted from 0, is exchanged after a step.
    pub fn is_due(&self, fragment: usize, step: u64) -> bool {
        let after = fragment as u64 * self.period / self.fragments as u64;
        (step + 1 + self.period - after).is_multiple_of(self.period)
    }

    pub(super) fn mixing(&self) -> f32 {
        self.mixing.unwrap_or(if self.overlap > 0 { 0.5 } else { 0.0 })
    }

    /// The outer step of each fragment.
    pub(super) fn outer(&self) -> DiLoCoConfig {
        DiLoCoConfig { period: self.period, rate: self.rate, momentum: self.momentum }
    }

    /// That there are as many tensors as fragments.
    pub(super) fn check_for(&self, layout: &Layout) -> Result<(), ConfigError> {
        self.check()?;
        let (fragments, tensors) = (self.fragments, layout.slots().len());
        if fragments > tensors.max(1) {
            return Err(ConfigError::Conflict(format!(
                "{fragments} fragments of streaming-diloco are more than the model's {tensors} tensors: set fragments to {} or less",
                tensors.max(1)
            )));
        }
        Ok(())
    }
}

impl Described for StreamingDiLoCoConfig {
    const NAME: &'static str = "streaming-diloco";
    const SETTINGS: &'static str = "PERIOD[,fragments=4,overlap=0,mixing=0.5,rate=0.7,momentum=0.9]";
    const HELP: &'static str = "DiLoCo in fragments, one after another, averages landing OVERLAP steps later";

    fn check(&self) -> Result<(), ConfigError> {
        let Self { period, fragments, overlap, .. } = *self;
        self.outer().check().map_err(|_| {
            let Self { rate, momentum, .. } = *self;
            ConfigError::Conflict(format!(
                "streaming-diloco needs a period of at least 1, a rate above 0 and a momentum in [0, 1), got {period}, {rate} and \
                 {momentum}"
            ))
        })?;
        let fits = fragments > 0 && fragments as u64 <= period;
        ConfigError::unless(fits, "fragments of streaming-diloco", "at least 1 and at most its period", fragments)?;
        ConfigError::unless(overlap < period, "overlap of streaming-diloco", "below its period", overlap)?;
        let mixing = self.mixing();
        ConfigError::unless((0.0..1.0).contains(&mixing), "mixing of streaming-diloco", "in [0, 1)", mixing)
    }

    fn representatives() -> Vec<Self> {
        let in_turns = StreamingDiLoCoConfig { period: 4, fragments: 2, ..Self::default() };
        vec![in_turns, StreamingDiLoCoConfig { overlap: 3, ..in_turns }]
    }
}
