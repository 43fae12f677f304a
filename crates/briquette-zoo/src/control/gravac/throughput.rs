//! Compression throughput per ratio: the paper's table `T`.

use super::average::Average;
use briquette_core::CompressionRatio;
use briquette_core::reduce::LastExchange;

/// Throughput of one ratio: samples per second times gain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    pub(super) ratio: CompressionRatio,
    average: Average,
    /// Number of window checks since the last update.
    age: u64,
}

impl Entry {
    pub(super) fn value(&self) -> f64 {
        self.average.value
    }
}

/// Table of the ratios that were sent recently, from the smallest ratio to the largest.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Throughput {
    entries: Vec<Entry>,
}

impl Throughput {
    /// Averages `value` into the entry of `ratio`. The first value initializes it.
    pub(super) fn record(&mut self, ratio: CompressionRatio, value: f64, smoothing: f64) {
        let index = self.entries.partition_point(|e| e.ratio < ratio);
        match self.entries.get_mut(index).filter(|e| e.ratio == ratio) {
            Some(entry) => {
                entry.average.add(value, smoothing);
                entry.age = 0;
            }
            None => self.entries.insert(index, Entry { ratio, average: Average::of(value), age: 0 }),
        }
    }

    pub(super) fn get(&self, ratio: CompressionRatio) -> Option<Entry> {
        self.entries.iter().find(|e| e.ratio == ratio).copied()
    }

    /// Returns the best entry and the second best. Of two equal entries, the one with the smaller ratio is better.
    pub(super) fn best_two(&self) -> Option<(Entry, Entry)> {
        let mut sorted = self.entries.clone();
        sorted.sort_by(|a, b| b.value().total_cmp(&a.value())); // stable
        Some((*sorted.first()?, *sorted.get(1)?))
    }

    /// Ends a window: drops entries that were not sent for `stale` windows.
    pub(super) fn drop_stale(&mut self, stale: u64) {
        self.entries.retain(|e| e.age < stale);
        self.entries.iter_mut().for_each(|e| e.age += 1);
    }

    /// Drops all entries except dense and this ratio.
    pub(super) fn keep_dense_and(&mut self, ratio: Option<CompressionRatio>) {
        self.entries.retain(|e| e.ratio.is_dense() || Some(e.ratio) == ratio);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the table as numbers: ratio, value, samples, age; ratio, value, samples, age; …
    pub(super) fn to_numbers(&self) -> Vec<f64> {
        let numbers = |e: &Entry| [e.ratio.get(), e.average.value, e.average.samples as f64, e.age as f64];
        self.entries.iter().flat_map(numbers).collect()
    }

    /// Returns `None` if [`to_numbers`](Self::to_numbers) cannot have written the numbers.
    pub(super) fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let (entries, []) = numbers.as_chunks::<4>() else { return None };
        let entry = |&[ratio, value, samples, age]: &[f64; 4]| {
            let ratio = CompressionRatio::new(ratio).ok()?;
            let average = Average { value, samples: samples as u64 };
            (samples >= 1.0 && age >= 0.0).then_some(Entry { ratio, average, age: age as u64 })
        };
        Some(Throughput { entries: entries.iter().map(entry).collect::<Option<_>>()? })
    }
}

/// Returns the samples per second of a step at `ratio`; `None` without a clock.
///
/// The time of a dense step excludes probing: without compression nothing would be probed (Alg. 1, line 25).
pub(super) fn samples_per_second(step: &LastExchange, ratio: CompressionRatio) -> Option<f64> {
    let compress = if ratio.is_dense() { 0.0 } else { step.compress_seconds };
    let seconds = step.compute_seconds + compress + step.exchange_seconds;
    let rate = step.samples as f64 / seconds;
    (seconds > 0.0 && rate > 0.0 && rate.is_finite()).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(value: f64) -> CompressionRatio {
        CompressionRatio::new(value).unwrap()
    }

    #[test]
    fn averages_order_and_forgets() {
        let mut table = Throughput::default();
        assert_eq!(table.best_two(), None);
        table.record(ratio(20.0), 100.0, 0.25);
        assert_eq!(table.best_two(), None);
        table.record(ratio(1.0), 90.0, 0.25);
        table.record(ratio(20.0), 80.0, 0.25); // (100 + 80)/2 = 90
        let (best, second) = table.best_two().unwrap();
        assert_eq!((best.ratio.get(), second.ratio.get()), (1.0, 20.0)); // equal: the smaller ratio first
        table.drop_stale(2);
        table.record(ratio(20.0), 90.0, 0.25);
        table.drop_stale(2); // dense has age 1: kept, now 2
        let value = |table: &Throughput, of| table.get(ratio(of)).map(|entry| entry.value());
        assert_eq!(value(&table, 1.0), Some(90.0));
        table.drop_stale(2);
        assert_eq!((value(&table, 1.0), value(&table, 20.0)), (None, Some(90.0)));
        assert_eq!(Throughput::from_numbers(&table.to_numbers()), Some(table));
        assert_eq!(Throughput::from_numbers(&[20.0, 1.0]), None);
        assert_eq!(Throughput::from_numbers(&[0.5, 1.0, 1.0, 0.0]), None);
    }

    #[test]
    fn without_a_clock_there_is_no_throughput() {
        let step = |seconds| LastExchange { samples: 128, exchange_seconds: seconds, ..LastExchange::default() };
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 5e-324] {
            assert_eq!(samples_per_second(&step(seconds), ratio(10.0)), None, "{seconds}");
        }
        assert_eq!(samples_per_second(&step(2.0), ratio(10.0)), Some(64.0));
        assert_eq!(samples_per_second(&LastExchange { samples: 0, ..step(2.0) }, ratio(10.0)), None);
    }

    #[test]
    fn a_dense_step_is_not_charged_for_probing() {
        let step = LastExchange {
            samples: 12,
            compute_seconds: 1.0,
            compress_seconds: 2.0,
            exchange_seconds: 3.0,
            ..LastExchange::default()
        };
        assert_eq!(samples_per_second(&step, ratio(10.0)), Some(2.0));
        assert_eq!(samples_per_second(&step, CompressionRatio::DENSE), Some(3.0));
    }
}
