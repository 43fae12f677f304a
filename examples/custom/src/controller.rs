//! A controller of your own.

use briquette::core::CompressionRatio;
use briquette::core::config::{ControllerSettings, Described, Feedback};
use briquette::core::control::{Agreed, Controller, Decision};
use briquette::core::error::ConfigError;
use serde::{Deserialize, Serialize};

/// Doubles the compression ratio, up to a limit, while the mean loss of a window is below that of the previous window,
/// and halves it otherwise: `while-it-helps:10,limit=32x`. Every rank sees the same losses, so all ranks make the same
/// decision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "while-it-helps",
    help = "Doubles the ratio, up to a limit (32x), while the mean loss of WINDOW steps (10) falls",
    representatives("while-it-helps:2,limit=16x")
)]
pub struct WhileItHelps {
    /// Steps of a window.
    #[setting(default = 10, range = "[1, inf)")]
    pub window: u64,
    /// The largest ratio.
    #[setting(default = "32x")]
    pub limit: CompressionRatio,
}

impl ControllerSettings for WhileItHelps {
    fn build(&self, _: &Feedback, _: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(Running { settings: *self, ratio: 1.0, sum: 0.0, count: 0, before: f64::INFINITY })))
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [CompressionRatio::DENSE, self.limit]
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

// The state that a resumed run needs to make the same decisions as an uninterrupted one.
briquette::core::stateful! {
    impl Stateful for Running {
        ratio: value("ratio"),
        sum: value("sum"),
        count: value("count"),
        before: value("before"),
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
        Decision::all(CompressionRatio::new(self.ratio).expect("at least 1"), reason)
    }
}
