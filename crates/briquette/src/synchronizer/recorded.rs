//! Values that the training loop records before an exchange, and stop requests.

use briquette_core::sync::{Agrees, Header, Plan, StopFlags};

use super::Synchronizer;
use crate::error::Error;
use crate::summary::RunSummary;

/// Loss and samples recorded since the last exchange. Under gradient accumulation there are several records.
#[derive(Debug, Default)]
pub(super) struct WeightedMean {
    pub(super) sum: f64,
    pub(super) weight: f64,
    pub(super) samples: Option<u64>,
}

impl Synchronizer {
    /// Records this rank's loss, for controllers. Call it before the step. Several calls (gradient accumulation) are averaged,
    /// and ranks are weighted by their samples.
    pub fn record_loss(&mut self, loss: f64) {
        self.loss.sum += loss;
        self.loss.weight += 1.0;
    }

    /// Records a validation loss measured since the last step, for controllers. Ranks agree, in the next step's header, on
    /// the mean over the ranks that recorded one. A value that is not finite is ignored.
    pub fn record_validation_loss(&mut self, loss: f64) {
        self.validation_loss = Some(loss);
    }

    /// Records the number of samples in this rank's gradient, which is the rank's weight. Several calls before one step add up. A
    /// rank whose data has ended records 0 and still steps. Local SGD, DiLoCo, SlowMo and BMUF weigh a rank by its samples in all steps since
    /// the last exchange. Without a call, all ranks have equal weights. If a rank records more
    /// than [`MOST_SAMPLES`](briquette_core::sync::header::MOST_SAMPLES), the step fails on every rank.
    pub fn record_samples(&mut self, samples: usize) {
        let sum = self.loss.samples.get_or_insert(0);
        *sum = sum.saturating_add(samples as u64);
    }

    /// Records the learning rate, by which the inner optimizer multiplies the average. It is valid until the next call, and must
    /// be the same on every rank. Only [error feedback inside the learning
    /// rate](briquette_core::wrapper::error_feedback::ErrorInside) needs it.
    /// [`DistributedOptimizer::step`](crate::DistributedOptimizer::step) records its own.
    pub fn record_learning_rate(&mut self, learning_rate: f64) {
        (self.learning_rate, self.rate_step) = (Some(learning_rate), Some(self.step()));
    }

    /// Returns the step header with the values recorded since the last one, and clears them.
    pub(super) fn header(&mut self, bad_slot: Option<u32>, plan: Plan) -> Header {
        let mut loss = std::mem::take(&mut self.loss);
        if plan.parameters && !plan.gradients {
            loss.samples = loss.samples.map(|samples| samples.saturating_add(self.shares.local_samples));
        }
        let validation_loss = if plan.agrees == Agrees::World { self.validation_loss.take() } else { None };
        Header { bad_slot, digest: self.digest.take(), ..self.header_of(&loss, validation_loss) }
    }

    /// The step header with these losses.
    pub(super) fn header_of(&self, loss: &WeightedMean, validation_loss: Option<f64>) -> Header {
        Header {
            step: self.step(),
            session: self.comm.share_number() as u8,
            stop: self.stop_request.with(self.elastic.asks()),
            samples: loss.samples.unwrap_or(1),
            samples_recorded: loss.samples.is_some(),
            loss: (loss.weight > 0.0).then(|| loss.sum / loss.weight),
            validation_loss,
            learning_rate: self.learning_rate,
            compute_seconds: self.start.compute_seconds,
            previous: self.driver.previous().copied(),
            ..Header::default()
        }
    }

    /// Checks the recorded values at a step without a header; an error stops the other ranks.
    pub(super) fn check_recorded(&mut self) -> Result<(), Error> {
        let (learning_rate, samples) = (self.learning_rate, self.loss.samples.unwrap_or_default());
        let header = Header { learning_rate, samples, ..Header::default() };
        let checked = header.check_numbers(self.rank(), self.step());
        checked.inspect_err(|error| self.comm.abort(&error.to_string())).map_err(Error::from)
    }

    /// Requests that every rank stops. All ranks receive the request in the same step; see [`stopped`](Self::stopped).
    pub fn request_stop(&mut self, flags: StopFlags) {
        self.stop_request = self.stop_request.with(flags);
    }

    /// Returns a summary of this rank's steps since joining or resuming: formats sent, the time saved, and the feedback. It
    /// displays as one line.
    pub fn summary(&self) -> RunSummary {
        self.tally.summary(self.config.label(), self.feedback.clone())
    }

    /// The stop requests of all ranks, as agreed in the last step.
    pub fn stopped(&self) -> StopFlags {
        self.agreed_stop
    }
}
