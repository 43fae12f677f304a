//! A controller of your own.

use briquette::core::CompressionFactor;
use briquette::core::config::{ControllerSettings, Described, Feedback};
use briquette::core::control::{Agreed, Controller, Decision};
use briquette::core::error::{ConfigError, StateError};
use briquette::core::state::{State, Stateful};
use serde::{Deserialize, Serialize};

/// Doubles the compression ratio, up to a limit, while the mean loss of a window is below that of the previous window,
/// and halves it otherwise: `while-it-helps:10,limit=32x`. Every rank sees the same losses, so all ranks make the same
/// decision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WhileItHelps {
    /// Steps of a window.
    pub window: u64,
    /// The largest ratio.
    pub limit: CompressionFactor,
}

impl Default for WhileItHelps {
    fn default() -> Self {
        WhileItHelps { window: 10, limit: ratio(32.0) }
    }
}

/// Gives the settings a text, a TOML form, and lines in `--help`.
impl Described for WhileItHelps {
    const NAME: &'static str = "while-it-helps";
    const SETTINGS: &'static str = "WINDOW[,limit=RATIO]";
    const HELP: &'static str = "Doubles the ratio, up to RATIO (32x), while the mean loss of WINDOW steps (10) falls";

    fn check(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.window > 0, "window of while-it-helps", "at least 1", self.window)
    }

    fn representatives() -> Vec<Self> {
        vec![WhileItHelps { window: 2, limit: ratio(16.0) }]
    }
}

impl ControllerSettings for WhileItHelps {
    fn build(&self, _: &Feedback, _: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(Running { settings: *self, ratio: 1.0, sum: 0.0, count: 0, before: f64::INFINITY })))
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        [CompressionFactor::DENSE, self.limit]
    }
}

#[derive(Debug)]
struct Running {
    settings: WhileItHelps,
    ratio: f64,
    sum: f64,
    count: u64,
    before: f64,
}

/// Saves the state that a resumed run needs to make the same decisions as an uninterrupted one.
impl Stateful for Running {
    fn save(&self, state: &mut State) {
        state.put("ratio", self.ratio);
        state.put("sum", self.sum);
        state.put("count", self.count);
        state.put("before", self.before);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        // All or nothing: an unreadable state must leave the controller unchanged.
        let [ratio, sum, before] = [state.f64("ratio")?, state.f64("sum")?, state.f64("before")?];
        (self.ratio, self.sum, self.count, self.before) = (ratio, sum, state.u64("count")?, before);
        Ok(())
    }
}

impl Controller for Running {
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        self.sum += agreed.agreed_step.loss.unwrap_or(0.0);
        self.count += 1;
        let mut reason = None;
        if self.count == self.settings.window {
            let mean = self.sum / self.count as f64;
            let next = if mean < self.before { 2.0 * self.ratio } else { self.ratio / 2.0 };
            self.ratio = next.clamp(1.0, self.settings.limit.get());
            reason = Some(format!("mean loss {mean:.4} after {:.4}: ratio {}", self.before, self.ratio));
            (self.before, self.sum, self.count) = (mean, 0.0, 0);
        }
        Decision::all(CompressionFactor::new(self.ratio).expect("at least 1"), reason)
    }
}

fn ratio(ratio: f64) -> CompressionFactor {
    CompressionFactor::new(ratio).expect("at least 1")
}
