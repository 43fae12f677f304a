//! Learning-rate schedules.

use serde::{Deserialize, Serialize};

/// Learning rate over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LrSchedule {
    /// The same throughout.
    Constant,
    /// Down to 0 along half a cosine.
    Cosine,
    /// By the same factor at every step, to the peak over the number of steps.
    Exponential,
    /// From 1/25 up over 30 % of the steps, down to 1/250 000, both along half a cosine.
    OneCycle,
}

impl std::fmt::Display for LrSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LrSchedule::Constant => "constant",
            LrSchedule::Cosine => "cosine",
            LrSchedule::Exponential => "exponential",
            LrSchedule::OneCycle => "one-cycle",
        })
    }
}

impl LrSchedule {
    /// Returns the learning rate of `step` of `total`.
    pub fn at(self, peak: f64, step: u64, total: u64) -> f64 {
        let ease = |from: f64, to: f64, part: f64| to + (from - to) * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
        let (step, last) = (step as f64, total.saturating_sub(1).max(1) as f64);
        match self {
            LrSchedule::Constant => peak,
            LrSchedule::Cosine => ease(peak, 0.0, step / total.max(1) as f64),
            LrSchedule::Exponential => {
                let total = total.max(1) as f64;
                peak * total.powf(-step / total)
            }
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
    use briquette::optim::ExponentialStepsConfig;

    #[test]
    fn one_cycle_starts_low_peaks_and_ends_near_zero() {
        let at = |step| LrSchedule::OneCycle.at(0.2, step, 390);
        assert!((at(0) - 0.008).abs() < 1e-12);
        assert!((at(116) - 0.2).abs() < 1e-12); // 0.3 · 390 − 1
        assert!((at(389) - 0.2 / 25.0 / 1e4).abs() < 1e-12);
    }

    /// Expects `0.5·(1/4)^(t/4)`: 0.5, 0.5/√2, 0.25, 0.25/√2.
    #[test]
    fn exponential_steps_are_those_of_the_library_and_fall_to_the_peak_over_the_steps() {
        let at = |step| LrSchedule::Exponential.at(0.5, step, 4);
        assert!((at(0) - 0.5).abs() < 1e-15 && (at(1) - 0.125_f64.sqrt()).abs() < 1e-15);
        assert!((at(2) - 0.25).abs() < 1e-15 && (at(4) - 0.125).abs() < 1e-15);
        let mut library = ExponentialStepsConfig::new(0.2, 390).init().unwrap();
        for step in 0..390 {
            let (ours, theirs) = (LrSchedule::Exponential.at(0.2, step, 390), library.step().base());
            assert!((ours - theirs).abs() < 1e-12 * theirs, "step {step}: {ours}, expected {theirs}");
        }
    }

    #[test]
    fn a_run_of_one_step_takes_the_peak_under_every_schedule_that_only_falls() {
        for schedule in [LrSchedule::Constant, LrSchedule::Cosine, LrSchedule::Exponential] {
            assert_eq!(schedule.at(0.2, 0, 1), 0.2, "{schedule}");
        }
    }
}
