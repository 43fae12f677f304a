//! A controller of your own.

use briquette::core::CompressionFactor;
use briquette::core::control::{Agreed, Controller, Decision};

/// Doubles the compression ratio, up to a limit, while the mean loss of a window is below that of the previous window,
/// and halves it otherwise. Every rank sees the same losses, so all ranks make the same decision.
#[derive(Debug, Clone)]
pub struct WhileItHelps {
    window: u64,
    limit: f64,
    ratio: f64,
    sum: f64,
    count: u64,
    before: f64,
}

impl WhileItHelps {
    /// Creates a controller with windows of `window` steps and a ratio from 1 to `limit`.
    pub fn new(window: u64, limit: f64) -> Self {
        WhileItHelps { window, limit, ratio: 1.0, sum: 0.0, count: 0, before: f64::INFINITY }
    }
}

// The state that a resumed run needs to make the same decisions as an uninterrupted one.
briquette::core::stateful! {
    impl Stateful for WhileItHelps {
        ratio: value("ratio"),
        sum: value("sum"),
        count: value("count"),
        before: value("before"),
    }
}

impl Controller for WhileItHelps {
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        self.sum += agreed.agreed_step.loss.unwrap_or(0.0);
        self.count += 1;
        let mut reason = None;
        if self.count == self.window {
            let mean = self.sum / self.count as f64;
            let next = if mean < self.before { 2.0 * self.ratio } else { self.ratio / 2.0 };
            self.ratio = next.clamp(1.0, self.limit);
            reason = Some(format!("mean loss {mean:.4} after {:.4}: ratio {}", self.before, self.ratio));
            (self.before, self.sum, self.count) = (mean, 0.0, 0);
        }
        Decision::all(CompressionFactor::new(self.ratio).expect("at least 1"), reason)
    }
}
