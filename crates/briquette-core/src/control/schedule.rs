//! Schedules: one ratio, warm-ups and staircases that are fixed before the run.
//!
//! **Why.** Gradients of the first steps are large, change fast and suffer most from compression. Every rank can follow a schedule
//! without measurements. **Why not.** A schedule knows neither the network nor the model: the length of the warm-up is a guess,
//! whereas `gravac` of `briquette-zoo` measures. One ratio at every step is the baseline of every controller. It is suitable if network and
//! model are known and do not change.
//!
//! **Method.** The ratio is a pure function of the optimizer step `t`. [`Schedule::warm_up`]: `from·(to/from)^(t/n)`
//! for `t < n`, then `to`. [`Schedule::staged`]: the same in `m` equal stages, `from·(to/from)^(⌊m·t/n⌋/m)`.
//! [`Schedule::steps`]: the ratio of the last stage that has begun. [`Schedule::constant`]: one stage, so the same ratio at every step.
//!
//! | paper | here |
//! |---|---|
//! | sparsity `s` | ratio `1/(1 − s)` |
//! | warm-up epochs | `stages`; `steps_per_epoch` of [`Schedule::dgc`] |
//!
//! *DGC's warm-up* needs no separate controller. The sparsities of the paper, 75, 93.75, 98.4375, 99.6 and 99.9 %, are 4x to 1024x in
//! four stages, the last two rounded: `schedule:4x,to=1024x,steps=N,stages=4` with `N` the steps of four epochs. The authors' program
//! uses `r^((e+1)/(m+1))` in epoch `e` of `m` for a ratio `r`. It starts at `r^(1/(m+1))`: 3.981x for 1000x in four epochs.
//!
//! **Knobs.** Ratios at least 1 (1 is dense). Without `to` the ratio is constant: `schedule:8x`. Steps are optimizer steps, at least
//! 1. `stages` is at least 1 and at most `steps`; without it, the ratio changes at every step. From 4x to the target over the first epoch worked for small networks on CIFAR-10.
//!
//! **Deviations from the paper.** The paper changes the sparsity per epoch; a ramp per step avoids its jumps. [`Schedule::dgc`] takes
//! the sparsity 99.6 % as written, 250x, not as the 256x of the geometric series. Clipping and momentum correction are in
//! [`MomentumCorrection`](crate::wrapper::momentum_correction::MomentumCorrection). A schedule reads no measurements.
//!
//! **Reference.** Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, *Deep Gradient Compression: Reducing the
//! Communication Bandwidth for Distributed Training*, ICLR 2018, <https://arxiv.org/abs/1712.01887>, §3.3.
//!
//! ```
//! use briquette_core::CompressionRatio;
//! use briquette_core::control::schedule::Schedule;
//! let (from, to) = (CompressionRatio::new(4.0)?, CompressionRatio::new(100.0)?);
//! let schedule = Schedule::warm_up(from, to, 80)?;
//! assert_eq!(schedule.ratio(0).get(), 4.0);
//! assert!((schedule.ratio(40).get() - 20.0).abs() < 1e-12); // 4·25^(1/2)
//! assert_eq!(schedule.ratio(80).get(), 100.0);
//! assert_eq!(Schedule::constant(to).ratio(0), to);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

#[cfg(test)]
mod tests;

use crate::error::ConfigError;
use crate::seam::{Agreed, Controller, Decision};
use crate::settings::{ControllerSettings, Described, Feedback};
use crate::{CompressionRatio, stateful};

/// Ratios over steps; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    shape: Shape,
    /// The stage of the last reported reason.
    reported: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    WarmUp {
        from: CompressionRatio,
        to: CompressionRatio,
        steps: u64,
        /// Number of stages; a ramp if absent.
        stages: Option<u64>,
    },
    /// Pairs of first step and ratio. First steps increase strictly, and the first of them is 0.
    Stages(Vec<(u64, CompressionRatio)>),
}

impl Schedule {
    /// The same ratio at every step.
    pub fn constant(ratio: CompressionRatio) -> Self {
        Schedule { shape: Shape::Stages(vec![(0, ratio)]), reported: None }
    }

    /// Geometric ramp from `from` to `to` over the first `steps` steps, then `to`.
    ///
    /// # Errors
    /// [`ConfigError`] when `steps` is 0 or `from` is above `to`.
    pub fn warm_up(from: CompressionRatio, to: CompressionRatio, steps: u64) -> Result<Self, ConfigError> {
        if steps == 0 {
            return Err(ConfigError::range("warm-up steps", "at least 1; for one ratio leave `to` out", steps));
        }
        if from > to {
            let (from, to) = (format!("from={from}"), format!("to={to}"));
            return Err(ConfigError::conflict(from, to, "a warm-up goes up", "lower from, or raise to"));
        }
        Ok(Schedule { shape: Shape::WarmUp { from, to, steps, stages: None }, reported: None })
    }

    /// Geometric staircase from `from` to `to` over the first `steps` steps in `stages` stages of equal length, then `to`. Each
    /// stage's ratio is the previous one times the same number.
    ///
    /// # Errors
    /// The errors of [`warm_up`](Self::warm_up), and an error when `stages` is 0 or above `steps`.
    pub fn staged(from: CompressionRatio, to: CompressionRatio, steps: u64, stages: u64) -> Result<Self, ConfigError> {
        let schedule = Schedule::warm_up(from, to, steps)?;
        ConfigError::unless((1..=steps).contains(&stages), "stages of a warm-up", "1 to its steps", stages)?;
        Ok(Schedule { shape: Shape::WarmUp { from, to, steps, stages: Some(stages) }, ..schedule })
    }

    /// Staircase from pairs of first step and ratio, with the first pair at step 0.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no stage, the first does not begin at step 0, or the steps do not increase.
    pub fn steps(stages: Vec<(u64, CompressionRatio)>) -> Result<Self, ConfigError> {
        match stages.first() {
            None => return Err(ConfigError::range("schedule", "at least one stage", 0)),
            Some((0, _)) => {}
            Some((first, _)) => return Err(ConfigError::range("first step of a schedule", "0", first)),
        }
        if let Some(pair) = stages.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            let (before, after) = (pair[0].0, pair[1].0);
            let (before, after) = (format!("a stage at step {before}"), format!("a next stage at step {after}"));
            return Err(ConfigError::conflict(
                before,
                after,
                "stages must begin one after the other",
                "sort them by step",
            ));
        }
        Ok(Schedule { shape: Shape::Stages(stages), reported: None })
    }

    /// The paper's warm-up: 4x, 16x, 64x, 250x for one epoch each, then 1000x.
    ///
    /// # Errors
    /// [`ConfigError::Range`] when `steps_per_epoch` is 0.
    pub fn dgc(steps_per_epoch: u64) -> Result<Self, ConfigError> {
        if steps_per_epoch == 0 {
            return Err(ConfigError::range("steps per epoch", "at least 1", steps_per_epoch));
        }
        // Sparsities 75, 93.75, 98.4375, 99.6, 99.9 %.
        let stages = [4.0, 16.0, 64.0, 250.0, 1000.0].into_iter().zip(0..);
        let stages: Result<_, ConfigError> = stages
            .map(|(ratio, epoch): (f64, u64)| {
                Ok((epoch.saturating_mul(steps_per_epoch), CompressionRatio::new(ratio)?))
            })
            .collect();
        Schedule::steps(stages?)
    }

    /// Returns the ratio at `step`.
    pub fn ratio(&self, step: u64) -> CompressionRatio {
        match &self.shape {
            Shape::WarmUp { to, steps, .. } if step >= *steps => *to,
            Shape::WarmUp { from, to, steps, stages } => {
                let part = match stages {
                    Some(stages) => self.stage(step) as f64 / *stages as f64,
                    None => step as f64 / *steps as f64,
                };
                let ratio = from.get() * (to.get() / from.get()).powf(part);
                // Rounding may leave the range by one ulp, for example below 1.
                CompressionRatio::new(ratio.clamp(from.get(), to.get())).unwrap_or(*to)
            }
            Shape::Stages(stages) => stages[self.stage(step) as usize].1,
        }
    }

    /// Returns the stage of a step, counted from 0.
    fn stage(&self, step: u64) -> u64 {
        match &self.shape {
            Shape::WarmUp { steps, stages, .. } => {
                let (step, stages) = (u128::from(step.min(*steps)), u128::from(stages.unwrap_or(1)));
                // At most `stages`.
                (step * stages / u128::from(*steps)) as u64
            }
            // The first stage begins at 0, so at least one has begun.
            Shape::Stages(stages) => stages.partition_point(|(first, _)| *first <= step) as u64 - 1,
        }
    }

    /// Returns whether there is only one stage, so that no change is reported.
    fn is_constant(&self) -> bool {
        matches!(&self.shape, Shape::Stages(stages) if stages.len() == 1)
    }

    fn reason(&self, stage: u64, step: u64) -> String {
        match &self.shape {
            Shape::WarmUp { stages: Some(stages), .. } if stage < *stages => {
                format!("stage {} of {stages} of the warm-up: sending {:.4}x", stage + 1, self.ratio(step).get())
            }
            Shape::WarmUp { from, to, steps, .. } if stage == 0 => {
                format!("warming up from {from} to {to} over {steps} steps")
            }
            Shape::WarmUp { to, .. } => format!("warm-up over: sending {to}"),
            Shape::Stages(stages) => {
                format!("stage {} of {} of the schedule: sending {}", stage + 1, stages.len(), self.ratio(step))
            }
        }
    }
}

stateful! {
    impl Stateful for Schedule { reported: value("told") }
}

impl Controller for Schedule {
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let step = agreed.agreed_step.step;
        let stage = self.stage(step);
        let reason = (self.reported != Some(stage) && !self.is_constant()).then(|| self.reason(stage, step));
        if reason.is_some() {
            self.reported = Some(stage);
        }
        Decision::all(self.ratio(step), reason)
    }
}

/// Settings of [`Schedule::constant`], [`Schedule::warm_up`] and [`Schedule::staged`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "schedule",
    help = "one ratio (4x), or with `to` a geometric warm-up to another (in 1000 steps)",
    representatives("schedule:2x,to=16x,steps=4", "schedule:16x"),
    check = Self::check_together
)]
pub struct ScheduleConfig {
    /// The ratio at step 0.
    #[setting(default = "4x")]
    pub from: CompressionRatio,
    /// The ratio from step `steps` on; if absent, the ratio stays at `from`.
    pub to: Option<CompressionRatio>,
    /// Number of steps in between, at least 1; 1000 if absent.
    pub steps: Option<u64>,
    /// Number of stages in between, at least 1 and at most `steps`; a ramp if absent.
    pub stages: Option<u64>,
}

/// The number of steps of a warm-up without `steps`.
const STEPS: u64 = 1000;

impl ScheduleConfig {
    /// The same ratio at every step.
    pub fn constant(ratio: CompressionRatio) -> Self {
        ScheduleConfig { from: ratio, ..ScheduleConfig::default() }
    }

    fn schedule(&self) -> Result<Schedule, ConfigError> {
        let ScheduleConfig { from, to, steps, stages } = *self;
        let Some(to) = to else {
            return match (steps, stages) {
                (None, None) => Ok(Schedule::constant(from)),
                _ => {
                    let (left, why) =
                        (format!("schedule:{from} without `to`"), "it keeps one ratio and would ignore them");
                    Err(ConfigError::conflict(left, "steps and stages", why, "set `to`, or leave them out"))
                }
            };
        };
        let steps = steps.unwrap_or(STEPS);
        stages.map_or_else(|| Schedule::warm_up(from, to, steps), |stages| Schedule::staged(from, to, steps, stages))
    }

    fn check_together(&self) -> Result<(), ConfigError> {
        self.schedule().map(drop)
    }
}

impl ControllerSettings for ScheduleConfig {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.schedule()?)))
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [self.from, self.to.unwrap_or(self.from)]
    }
}
