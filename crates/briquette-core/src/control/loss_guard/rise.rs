//! Cumulative sum of the distances of a loss above the lowest level that it reached.
//!
//! If a loss rises steadily, the line follows it, and so does the average miss of earlier lines: neither keeps the earlier level of
//! the loss. This sum does, without a time limit. Its noise is computed only from points *below* their line, so a rise does not widen
//! it.

use super::trend::{Line, Reading, median};
use crate::error::StateError;
use crate::state::{State, Value, fields::Saved};

/// Share of [`Reading::noises`] by which a point may lie above the lowest level without adding to the sum.
const ALLOWED: f64 = 0.6;
/// The sum above which there is an alarm, in the same unit. A point adds at most 1, less the allowed share, so an alarm needs at least six points.
const MOST: f64 = 2.0;
/// Ratio of the standard deviation of normal noise to its mean absolute deviation, and the weight of its moving average.
const ABSOLUTE: f64 = 1.2533;
const SMOOTHING: f64 = 0.1;

/// The cumulative sum; see the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rise {
    /// The lowest median of a line's points, and the noise of that line. Lines of the first 4 points count as well.
    lowest: Option<(f64, f64)>,
    /// The sum over points of their distance above it, as a share of [`Reading::noises`], less [`ALLOWED`] each; never below 0.
    sum: f64,
    /// Average distance of the points below their line from it, and the number of these points.
    spread: f64,
    below: f64,
}

impl Rise {
    /// Restarts the lowest level and the sum. The noise is kept.
    pub(super) fn restart(&mut self) {
        (self.lowest, self.sum) = (None, 0.0);
    }

    /// Adds a new point after `points`, to which `line` is fitted. Returns the lowest level and its noise if the sum of a whole trend is too large.
    pub(super) fn push(&mut self, point: f64, (points, line): (&[f64], Line), reading: Reading) -> Option<(f64, f64)> {
        let miss = line.next() - point;
        if miss > 0.0 && miss.is_finite() {
            self.below += 1.0;
            // A single distant point must not widen the noise.
            let miss = miss.min(reading.noises * line.noise);
            self.spread += SMOOTHING.max(1.0 / self.below) * (ABSOLUTE * miss - self.spread);
        }
        let level = median(&mut points.to_vec());
        let (lowest, noise) = *match &mut self.lowest {
            Some(lowest) if lowest.0 <= level => lowest,
            other => other.insert((level, line.noise)),
        };
        let noise = noise.max(self.spread);
        let above = ((point - lowest) / (reading.noises * noise)).min(1.0) - ALLOWED;
        if points.len() == reading.points && !above.is_nan() {
            self.sum = (self.sum + above).max(0.0);
        }
        (self.sum > MOST).then_some((lowest, noise))
    }
}

impl Saved for Rise {
    fn saved(&self) -> Option<Value> {
        let lowest = self.lowest.map_or(vec![], |(level, noise)| vec![level, noise]);
        Some([vec![self.sum, self.spread, self.below], lowest].concat().into())
    }

    /// Loads the sum. A state without it is from a version that had none; the sum then starts at 0.
    fn load(name: &str, state: &State) -> Result<Self, StateError> {
        match if state.contains(name) { state.f64s(name)? } else { &[0.0; 3] } {
            &[sum, spread, below] => Ok(Rise { lowest: None, sum, spread, below }),
            &[sum, spread, below, level, noise] => Ok(Rise { lowest: Some((level, noise)), sum, spread, below }),
            other => Err(StateError::mismatch(name, "3 or 5 numbers", other)),
        }
    }
}
