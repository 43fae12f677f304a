//! Level and trend of the norms so far, from which the norms of the remaining steps are expected.

use briquette_core::error::StateError;
use briquette_core::state::{State, Value, fields::Saved};

/// The level of the logarithms of the norms, and their direction: falling or rising.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Trend {
    count: f64,
    /// Moving mean, in which the last norm has a weight of two fifths.
    level: f64,
    /// Means of `ln(number of the norm)` and of the levels, and the sums of squares and of products of their deviations.
    mean: [f64; 2],
    squares: [f64; 2],
    products: f64,
}

/// Weight of the last level in the moving mean.
const GAIN: f64 = 0.4;
/// Number of standard errors that a slope must exceed, if there are many norms.
const CLEAR: f64 = 3.0;
/// Variance added as if two norms had deviated by a fifth of a bit: three norms that lie on a line by chance are no trend.
const NOISE: f64 = 2.0 * 0.2 * 0.2;

impl Trend {
    /// Adds the logarithm of a norm. Equal ones leave a slope of exactly 0.
    pub(super) fn add(&mut self, level: f64) {
        self.count += 1.0;
        self.level += (level - self.level) * GAIN.max(1.0 / self.count);
        let at = [self.count.ln(), level];
        let before = [0, 1].map(|i| at[i] - self.mean[i]);
        self.mean = [0, 1].map(|i| self.mean[i] + before[i] / self.count);
        let after = [0, 1].map(|i| at[i] - self.mean[i]);
        self.squares = [0, 1].map(|i| self.squares[i] + before[i] * after[i]);
        self.products += before[0] * after[1];
    }

    pub(super) fn level(&self) -> f64 {
        self.level
    }

    /// Returns -1 if norms clearly fall with the logarithm of time, 1 if they clearly rise, else 0.
    pub(super) fn direction(&self) -> f64 {
        let degrees = self.count - 2.0;
        if degrees < 1.0 {
            return 0.0;
        }
        // The regression's sum of squares, and its remainder.
        let explained = self.products * self.products / self.squares[0];
        let left = (self.squares[1] - explained).max(0.0) + NOISE;
        let is_clear = explained > CLEAR * CLEAR * (1.0 + 8.0 / degrees) * left / self.count;
        if is_clear { self.products.signum() } else { 0.0 }
    }
}

impl Saved for Trend {
    fn saved(&self) -> Option<Value> {
        let Trend { count, level, mean, squares, products } = *self;
        Some(vec![count, level, mean[0], mean[1], squares[0], squares[1], products].into())
    }

    fn load(name: &str, state: &State) -> Result<Self, StateError> {
        match state.f64s(name)? {
            &[count, level, time, mean, times, levels, products] => {
                Ok(Trend { count, level, mean: [time, mean], squares: [times, levels], products })
            }
            saved => Err(StateError::mismatch(name, "7 numbers", saved)),
        }
    }
}
