//! What the training loop tells before an exchange, and what it learns of the others' wishes.

use briquette_core::sync::StopFlags;

use super::Synchronizer;

impl Synchronizer {
    /// Tells controllers this rank's loss. Call it before the step; several calls (gradient accumulation) are averaged,
    /// and ranks are weighted by their samples.
    pub fn record_loss(&mut self, loss: f64) {
        self.loss.sum += loss;
        self.loss.weight += 1.0;
    }

    /// How many samples are behind this rank's gradient; calls before one step add up. Ranks are weighted by it: a rank
    /// whose data ran out records 0 and still steps. Without a call, all ranks weigh the same.
    pub fn record_samples(&mut self, samples: usize) {
        *self.loss.samples.get_or_insert(0) += samples as u64;
    }

    /// Tells what the inner optimizer multiplies the average by, until told otherwise; every rank must tell the same. What
    /// needs to know is [error feedback inside the learning rate](briquette_core::config::Feedback::ErrorInside).
    /// [`DistributedOptimizer::step`](crate::DistributedOptimizer::step) tells its own.
    pub fn record_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = Some(learning_rate);
    }

    /// Asks every rank to stop; all learn of it in the same step, see [`stopped`](Self::stopped).
    pub fn request_stop(&mut self, flags: StopFlags) {
        self.wish = self.wish.with(flags);
    }

    /// What any rank asked for, as agreed in the last step.
    pub fn stopped(&self) -> StopFlags {
        self.agreed_stop
    }
}
