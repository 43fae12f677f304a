//! Burn metrics of the exchanges.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::TensorReadError;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Adaptor, LossInput, LossMetric, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes,
    NumericEntry, SerializedEntry,
};

/// Statistics of one step, stored under the number of its last batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Reading {
    pub(super) iteration: usize,
    pub(super) ratio: Option<f64>,
    pub(super) gain: Option<f64>,
    pub(super) relative_error: Option<f64>,
    pub(super) delay: Option<f64>,
    /// Bytes that a dense ring all-reduce would have sent.
    pub(super) dense: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// Capacity of the queue of readings. Burn's metrics run in a separate thread, a few batches behind training.
const KEPT: usize = 16;

/// Metrics of one rank's exchanges, from [`DataParallel::metrics`](super::DataParallel::metrics); for `metric_train_numeric`.
#[derive(Debug, Clone, Default)]
pub struct ExchangeMetrics {
    readings: Arc<Mutex<VecDeque<Reading>>>,
}

impl ExchangeMetrics {
    /// The nominal compression ratio in force, if the configuration sets one; 1 when dense.
    pub fn ratio(&self) -> ExchangeMetric {
        self.metric("Compression Ratio", Unit::Ratio, |r| r.ratio.map(|ratio| (ratio, 1)))
    }

    /// The share of this rank's vector (including its residual) that was sent, if the configuration measures it.
    pub fn gain(&self) -> ExchangeMetric {
        self.metric("Gain", Unit::Ratio, |r| r.gain.map(|gain| (gain, 1)))
    }

    /// `‖x − sent‖ / ‖x‖` of this rank's vector (including its residual), if the configuration measures it.
    pub fn relative_error(&self) -> ExchangeMetric {
        self.metric("Relative Error", Unit::Lost, |r| r.relative_error.map(|error| (error, 1)))
    }

    /// The staleness of this rank's residual, in steps of the gradient (see
    /// [`ResidualEnergy::delay`](briquette_core::report::ResidualEnergy::delay)), if there is a residual.
    pub fn delay(&self) -> ExchangeMetric {
        self.metric("Delay", Unit::Of("steps"), |r| r.delay.map(|delay| (delay, 1)))
    }

    /// The measured compression ratio: dense bytes over bytes sent, including step headers and the message about the end of
    /// data. Over an epoch, the ratio of the sums.
    pub fn wire_ratio(&self) -> ExchangeMetric {
        // The mean of ratios, weighted by their denominators, is the ratio of sums.
        self.metric("Wire Ratio", Unit::Ratio, |r| {
            Some(if r.sent == 0 { (1.0, 1) } else { (r.dense as f64 / r.sent as f64, r.sent as usize) })
        })
    }

    /// Bytes sent by this rank since the previous step, including all overhead.
    pub fn sent(&self) -> ExchangeMetric {
        self.metric("Bytes Sent", Unit::Of("B"), |r| Some((r.sent as f64, 1)))
    }

    /// Bytes received by this rank since the previous step, including all overhead.
    pub fn received(&self) -> ExchangeMetric {
        self.metric("Bytes Received", Unit::Of("B"), |r| Some((r.received as f64, 1)))
    }

    fn metric(&self, name: &str, unit: Unit, value: Value) -> ExchangeMetric {
        let name = Arc::new(name.to_owned());
        ExchangeMetric {
            source: self.clone(),
            name,
            unit,
            value,
            state: NumericMetricState::new(),
            seen: Seen::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Reading>> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears the readings of the previous epoch, because batch numbers start again.
    pub(super) fn start_epoch(&self) {
        self.lock().clear();
    }

    pub(super) fn push(&self, reading: Reading) {
        let mut readings = self.lock();
        if readings.len() == KEPT {
            readings.pop_front();
        }
        readings.push_back(reading);
    }

    fn of(&self, iteration: usize) -> Option<Reading> {
        self.lock().iter().rev().find(|r| r.iteration == iteration).copied()
    }
}

/// A value and its weight in the epoch's mean.
type Value = fn(&Reading) -> Option<(f64, usize)>;

/// Kind of a metric, which determines whether higher or lower is better.
#[derive(Debug, Clone, Copy)]
enum Unit {
    /// A share or a ratio; higher is better.
    Ratio,
    /// A share that is lost; lower is better.
    Lost,
    /// A cost, with its unit.
    Of(&'static str),
}

impl Unit {
    fn name(self) -> Option<&'static str> {
        match self {
            Unit::Ratio | Unit::Lost => None,
            Unit::Of(unit) => Some(unit),
        }
    }
}

/// One of the [`ExchangeMetrics`]. It has no value for batches without an exchange, or without this statistic.
#[derive(Clone)]
pub struct ExchangeMetric {
    source: ExchangeMetrics,
    name: MetricName,
    unit: Unit,
    value: Value,
    state: NumericMetricState,
    seen: Seen,
}

/// Values to display: of this batch, and of this epoch.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    batch: bool,
    epoch: bool,
}

impl std::fmt::Debug for ExchangeMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExchangeMetric").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ExchangeMetric {
    fn format(&self) -> FormatOptions {
        let format = FormatOptions::new(self.name.clone()).precision(2);
        match self.unit.name() {
            Some(unit) => format.unit(unit),
            None => format,
        }
    }
}

impl Metric for ExchangeMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        let higher_is_better = matches!(self.unit, Unit::Ratio);
        NumericAttributes { unit: self.unit.name().map(str::to_owned), higher_is_better }.into()
    }

    fn update(&mut self, _item: &(), metadata: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        let reading = metadata.iteration.and_then(|iteration| self.source.of(iteration));
        let value = reading.as_ref().and_then(self.value);
        self.seen.batch = value.is_some();
        let Some((value, weight)) = value else { return Ok(SerializedEntry::not_available(self.unit.name())) };
        self.seen.epoch = true;
        self.state.update(value, weight);
        Ok(self.state.compute_update(self.format()))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        if !self.seen.epoch {
            return Ok(SerializedEntry::not_available(self.unit.name()));
        }
        Ok(self.state.compute_final(self.format()))
    }

    fn clear(&mut self) {
        self.state.reset();
        self.seen = Seen::default();
    }
}

impl Numeric for ExchangeMetric {
    fn value(&self) -> Option<NumericEntry> {
        self.seen.batch.then(|| self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.seen.epoch.then(|| self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}

/// The loss that Burn displays for this output. `LossInput` does not expose its tensor, so this uses Burn's loss metric.
pub(super) fn loss_of<O: Adaptor<LossInput>>(output: &O) -> Result<f64, TensorReadError> {
    let mut metric = LossMetric::new();
    let progress = burn::data::dataloader::Progress::new(0, 0, None);
    metric.update(&output.adapt(), &MetricMetadata { progress, iteration: None, lr: None })?;
    Ok(metric.value().map_or(f64::NAN, |entry| entry.current()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn higher_is_better(attributes: MetricAttributes) -> bool {
        matches!(attributes, MetricAttributes::Numeric(numeric) if numeric.higher_is_better)
    }

    #[test]
    fn a_metric_shows_the_reading_of_its_own_batch() {
        let metrics = ExchangeMetrics::default();
        for iteration in 1..=3 {
            let sent = 10 * iteration as u64;
            let delay = (iteration > 1).then_some(iteration as f64);
            metrics.push(Reading { iteration, sent, dense: 60, delay, ..Reading::default() });
        }
        let at = |iteration| MetricMetadata {
            progress: burn::data::dataloader::Progress::new(0, 0, None),
            iteration: Some(iteration),
            lr: None,
        };
        let (mut wire, mut ratio, mut delay) = (metrics.wire_ratio(), metrics.ratio(), metrics.delay());
        assert!(delay.update(&(), &at(1)).unwrap().is_not_available());
        delay.update(&(), &at(3)).unwrap();
        assert_eq!(delay.value().unwrap().current(), 3.0);
        let better =
            [wire.attributes(), delay.attributes(), metrics.relative_error().attributes()].map(higher_is_better);
        assert_eq!(better, [true, false, false]);
        wire.update(&(), &at(1)).unwrap();
        assert_eq!(wire.value().unwrap().current(), 6.0);
        wire.update(&(), &at(2)).unwrap();
        wire.update(&(), &at(3)).unwrap();
        assert_eq!(wire.value().unwrap().current(), 2.0);
        // 180 dense bytes over 60 sent.
        assert!((wire.final_value().current() - 3.0).abs() < 1e-12);
        assert!(wire.update(&(), &at(4)).unwrap().is_not_available() && wire.value().is_none());
        assert!(ratio.update(&(), &at(1)).unwrap().is_not_available() && ratio.running_value().is_none());
    }
}
