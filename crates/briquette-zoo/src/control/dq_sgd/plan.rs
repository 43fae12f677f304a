//! Constants of the rules, as logarithms to base 2, so that products over hundreds of steps neither overflow nor underflow.

/// Returns the bits of `2^level` levels besides zero: `log₂(s + 1) + 1`.
pub(super) fn bits_of(level: f64) -> f64 {
    // Above this, adding 1 has no effect, and 2^level may be infinite.
    if level > 60.0 { level + 1.0 } else { level.exp2().ln_1p() / std::f64::consts::LN_2 + 1.0 }
}

/// Returns the levels of this many bits, as a logarithm; the inverse of [`bits_of`].
#[cfg(test)]
pub(super) fn level_of(bits: f64) -> f64 {
    ((bits - 1.0).exp2() - 1.0).log2()
}

/// Number of bits by which a trend may change each of the remaining steps.
const ROOM: f64 = 0.125;

/// Budget: a mean number of bits over a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Bits per step.
    pub(super) mean: f64,
    pub(super) steps: Option<u64>,
    /// `log₂(α)/2`, at most 0.
    pub(super) decay: f64,
}

impl Budget {
    /// Returns `log₂ α^((N−n)/2)`.
    pub(super) fn exponent(&self, step: u64) -> f64 {
        self.decay * self.steps.map_or(0, |steps| steps.saturating_sub(step)) as f64
    }

    /// Returns the number of remaining steps from `step` on, including it, and the bits available to each, if the earlier steps spent
    /// `mean` bits each.
    pub(super) fn remaining(&self, step: u64, mean: f64) -> (u64, f64) {
        let known = self.steps.and_then(|steps| steps.checked_sub(step)).filter(|remaining| *remaining > 0);
        let remaining = known.unwrap_or((step / 8).max(100));
        (remaining, self.mean + (self.mean - mean) * step as f64 / remaining as f64)
    }

    /// Returns the expected deviation of future norms from the present level, as a logarithm, if the norms so far have this
    /// `direction`. It is a whole bit, since fractions are rounded away. It is 0 once the bits moved between steps leave the remaining
    /// steps too far from the mean.
    pub(super) fn lean(&self, step: u64, mean: f64, direction: f64) -> f64 {
        let Some(steps) = self.steps.filter(|steps| step < *steps) else { return 0.0 };
        let begins = self.decay == 0.0 && step < steps / 100;
        let direction = if begins { -1.0 } else { direction };
        let saved = self.remaining(step, mean).1 - self.mean;
        if direction * saved < ROOM { direction } else { 0.0 }
    }

    /// Returns the constant at norm 1 with which the steps from `step` on spend their bits.
    pub(super) fn constant(&self, step: u64, mean: f64, (min, max): (f64, f64)) -> f64 {
        let (remaining, mean) = self.remaining(step, mean);
        // Without contraction all steps are equal. Otherwise each step is evaluated, or the middle of each of 32 parts.
        let parts = if self.decay == 0.0 { 1 } else { remaining.min(32) };
        let middle = |part: u64| (part as f64 + 0.5) / parts as f64 * remaining as f64 - 0.5;
        let first = self.exponent(step);
        let exponents: Vec<f64> =
            (0..parts).map(|part| (first - self.decay * middle(part)).min(0.0).max(first)).collect();
        let spent = |constant: f64| -> f64 {
            let bits = exponents.iter().map(|exponent| bits_of(constant + exponent).clamp(min, max));
            bits.sum::<f64>() / parts as f64
        };
        let (mut low, mut high) = (-64.0, 64.0 - first);
        for _ in 0..48 {
            let middle = low + (high - low) / 2.0;
            if spent(middle) < mean { low = middle } else { high = middle }
        }
        high
    }
}

/// Dual: a bound on the loss added by quantization.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dual {
    /// `log₂ √(N·L·η²/(12·error·ranks))`.
    pub(super) constant: f64,
    pub(super) steps: u64,
    /// `log₂(α)/2`, at most 0.
    pub(super) decay: f64,
    pub(super) bucket: u64,
}

impl Dual {
    /// Returns the levels that a step needs at norm 1 of a vector of `len` values, as a logarithm.
    pub(super) fn level(&self, step: u64, len: usize) -> f64 {
        let left = self.steps.saturating_sub(step).saturating_sub(1);
        self.constant + self.decay * left as f64 + ((len as u64).clamp(1, self.bucket) as f64).log2() / 2.0
    }
}
