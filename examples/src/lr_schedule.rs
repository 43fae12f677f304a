//! The learning rate of each step.

use serde::{Deserialize, Serialize};

/// Learning rate over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LrSchedule {
    /// The same throughout.
    Constant,
    /// Down to 0 along half a cosine.
    Cosine,
    /// From 1/25 up over 30 % of the steps, down to 1/250 000, both along half a cosine.
    OneCycle,
}

impl std::fmt::Display for LrSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LrSchedule::Constant => "constant",
            LrSchedule::Cosine => "cosine",
            LrSchedule::OneCycle => "one-cycle",
        })
    }
}

impl LrSchedule {
    /// The learning rate of `step` of `total`.
    pub fn at(self, peak: f64, step: u64, total: u64) -> f64 {
        let ease = |from: f64, to: f64, part: f64| to + (from - to) * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
        let (step, last) = (step as f64, total.saturating_sub(1).max(1) as f64);
        match self {
            LrSchedule::Constant => peak,
            LrSchedule::Cosine => ease(peak, 0.0, step / total.max(1) as f64),
            LrSchedule::OneCycle => {
                let top = (0.3 * total as f64 - 1.0).max(1.0);
                let start = peak / 25.0;
                if step <= top {
                    ease(start, peak, step / top)
                } else {
                    ease(peak, start / 1e4, (step - top) / (last - top).max(1.0))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cycle_starts_low_peaks_and_ends_near_zero() {
        let at = |step| LrSchedule::OneCycle.at(0.2, step, 390);
        assert!((at(0) - 0.008).abs() < 1e-12);
        assert!((at(116) - 0.2).abs() < 1e-12); // 0.3 · 390 − 1
        assert!((at(389) - 0.2 / 25.0 / 1e4).abs() < 1e-12);
    }
}
