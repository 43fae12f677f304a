//! Moving averages over steps.

/// Moving average: the mean of the first `1/smoothing` samples, then an exponential average with weight `smoothing`. The first sample
/// never weighs more than a later one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Average {
    pub(super) value: f64,
    pub(super) samples: u64,
}

impl Average {
    pub(super) fn of(value: f64) -> Self {
        Average { value, samples: 1 }
    }

    pub(super) fn add(&mut self, value: f64, smoothing: f64) {
        self.samples += 1;
        let weight = smoothing.max(1.0 / self.samples as f64);
        self.value = weight * value + (1.0 - weight) * self.value;
    }

    fn is_settled(&self, smoothing: f64) -> bool {
        self.samples as f64 * smoothing >= 1.0
    }
}

/// The gain of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gain {
    average: Average,
    /// The gain to be compared with `epsilon`: the average. Until the average has settled, the newest gain if that is smaller.
    pub(super) counts: f64,
}

impl Gain {
    /// Adds a gain. NaN counts as 0, since it would otherwise stay in the average.
    pub(super) fn add(before: Option<Gain>, gain: f64, smoothing: f64) -> Self {
        let newest = if gain.is_nan() { 0.0 } else { gain.clamp(0.0, 1.0) };
        let mut average = before.map_or(Average { value: 0.0, samples: 0 }, |before| before.average);
        average.add(newest, smoothing);
        let counts = if average.is_settled(smoothing) { average.value } else { average.value.min(newest) };
        Gain { average, counts }
    }

    pub(super) fn to_numbers(self) -> Vec<f64> {
        vec![self.average.value, self.average.samples as f64, self.counts]
    }

    pub(super) fn from_numbers([value, samples, counts]: [f64; 3]) -> Self {
        Gain { average: Average { value, samples: samples as u64 }, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_is_the_mean_until_it_has_settled() {
        let mut average = Average::of(1.0);
        // Weights 1/2, 1/3, then 0.3: 1/4 would be less.
        for (sample, value) in [(0.0, 0.5), (0.5, 0.5), (1.0, 0.65)] {
            average.add(sample, 0.3);
            assert!((average.value - value).abs() < 1e-12, "{average:?}");
        }
        // A weight of 1 discards all earlier samples.
        average.add(0.25, 1.0);
        assert_eq!(average.value, 0.25);
    }

    #[test]
    fn the_newest_gain_counts_where_it_is_smaller_until_the_average_has_settled() {
        let mut gain = None;
        // Means .8, .6, .7, then with weight .3: .61.
        for (sample, counts) in [(0.8, 0.8), (0.4, 0.4), (0.9, 0.7), (0.4, 0.61), (f64::NAN, 0.427), (7.0, 0.5989)] {
            gain = Some(Gain::add(gain, sample, 0.3));
            assert!((gain.unwrap().counts - counts).abs() < 1e-12, "{gain:?}");
            assert_eq!(gain.map(|gain| Gain::from_numbers(gain.to_numbers().try_into().unwrap())), gain);
        }
    }
}
