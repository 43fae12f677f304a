//! Cumulative sum of how far a loss lies above the lowest level that it reached.
//!
//! A line follows a loss that rises steadily, and so does the average miss of the lines before: neither has a memory of where
//! the loss was. This sum has one, and no end. Its noise comes from points *below* their line alone, which a rise does not widen.

use super::trend::{Line, Reading, median};
use crate::error::StateError;
use crate::state::State;

/// Share of [`Reading::noises`] by which a point may lie above the lowest level without adding to the sum.
const ALLOWED: f64 = 0.6;
/// The sum that is an alarm, in the same unit. A point adds at most 1, less what is allowed: no alarm comes from less than six points.
const MOST: f64 = 2.0;
/// The standard deviation of normal noise over its mean absolute deviation, and how fast that is averaged.
const ABSOLUTE: f64 = 1.2533;
const SMOOTHING: f64 = 0.1;

/// The sum; see the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rise {
    /// The lowest median of a line's points, and the noise of that line. Lines of the first 4 points count, too.
    lowest: Option<(f64, f64)>,
    /// Points above it, each by its share of [`Reading::noises`] less [`ALLOWED`]; never below 0.
    sum: f64,
    /// Average distance of the points below their line from it, and the number of these points.
    spread: f64,
    below: f64,
}

impl Rise {
    /// From here on another lowest level; the noise stays known.
    pub(super) fn restart(&mut self) {
        (self.lowest, self.sum) = (None, 0.0);
    }

    /// A new point after `points`, through which `line` goes. Where the sum of a whole trend is too large: the lowest level and its noise.
    pub(super) fn push(&mut self, point: f64, (points, line): (&[f64], Line), reading: Reading) -> Option<(f64, f64)> {
        let miss = line.next() - point;
        if miss > 0.0 && miss.is_finite() {
            self.below += 1.0;
            // One point far away is no wider spread.
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

    pub(super) fn save(&self, name: &str, state: &mut State) {
        let lowest = self.lowest.map_or(vec![], |(level, noise)| vec![level, noise]);
        state.put(&format!("{name}/rise"), [vec![self.sum, self.spread, self.below], lowest].concat());
    }

    /// A state without it is of a version that had none: the sum begins at 0.
    pub(super) fn load(name: &str, state: &State) -> Result<Rise, StateError> {
        let name = format!("{name}/rise");
        match if state.contains(&name) { state.f64s(&name)? } else { &[0.0; 3] } {
            &[sum, spread, below] => Ok(Rise { lowest: None, sum, spread, below }),
            &[sum, spread, below, level, noise] => Ok(Rise { lowest: Some((level, noise)), sum, spread, below }),
            other => Err(StateError::mismatch(&name, "3 or 5 numbers", other.len())),
        }
    }
}
