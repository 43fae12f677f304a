//! Learning rate schedules, composed of Burn's own.
//!
//! **Why, and when not.** Step sizes that decrease exponentially, or along half a cosine, adapt to the noise of gradients
//! without measuring it. Under the Polyak-Łojasiewicz condition the same setting converges linearly without noise, and with
//! `Õ(1/T)` with noise. They require the number of steps in advance. The decay between two plateaus belongs to iterate
//! averaging: iterates are averaged on the second plateau, whose rate must still be large.
//!
//! **Method.** Steps `t` are counted from 0.
//!
//! | source | here |
//! |---|---|
//! | `η_t = η₀·γ^t`, `γ = (β/T)^(1/T)` | [`ExponentialStepsConfig`]: Burn's exponential schedule with that `γ` |
//! | `η_t = (η₀/2)·(1 + cos(π·t/T))` | Burn's [`CosineAnnealingLrSchedulerConfig`]`::new(η₀, T)` as it is |
//! | `η₀` up to `T/2`, linearly to `η₀·ratio` at `0.9·T`, then constant | [`PlateauDecayConfig`]: Burn's sequence of constant, linear, constant |
//!
//! **Deviations.** The paper counts steps from 1. Its last rates, `η₀·β/T` and 0, therefore belong to the step after the last of
//! the `T` steps here. Burn's schedules support rates up to 1.
//!
//! **Reference.** X. Li, Z. Zhuang, F. Orabona, *A Second Look at Exponential and Cosine Step Sizes: Simplicity, Adaptivity, and
//! Performance*, ICML 2021 (arXiv 2002.05273); D. Granziol, X. Wan, S. Albanie, S. Roberts, *Iterate Averaging in the
//! Quest for Best Test Error* (arXiv 2003.01247), the code of its experiments.
//!
//! ```
//! use briquette::optim::ExponentialStepsConfig;
//! let mut schedule = ExponentialStepsConfig::new(0.5, 4).init().unwrap();
//! let rates: Vec<f64> = (0..5).map(|_| schedule.step().base()).collect();
//! assert!((rates[0] - 0.5).abs() < 1e-12 && (rates[4] - 0.5 / 4.0).abs() < 1e-12); // η₀, and η₀·β/T with β = 1
//! ```
//!
//! [`CosineAnnealingLrSchedulerConfig`]: burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig

use burn::config::Config;
use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;

/// Exponential step sizes for a known number of steps; see the [module](self).
#[derive(Config, Debug)]
pub struct ExponentialStepsConfig {
    /// `η₀`, in (0, 1].
    initial_lr: f64,
    /// `T`, at least 1.
    steps: usize,
    /// The rate decreases to this share of `η₀/T`; in (0, T].
    #[config(default = 1.0)]
    beta: f64,
}

impl ExponentialStepsConfig {
    /// Builds Burn's scheduler.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn init(&self) -> Result<ModuleLrScheduler, String> {
        let (beta, steps) = (self.beta, self.steps as f64);
        if self.steps == 0 {
            return Err("steps of ExponentialSteps must be at least 1, got 0".into());
        }
        if !(beta > 0.0 && beta <= steps) {
            return Err(format!("beta of ExponentialSteps must be in (0, {steps}], got {beta}"));
        }
        check_rate("initial_lr of ExponentialSteps", self.initial_lr)?;
        ExponentialLrSchedulerConfig::new(self.initial_lr, (beta / steps).powf(1.0 / steps)).init()
    }
}

/// Constant, linear and again constant rates; see the [module](self).
#[derive(Config, Debug)]
pub struct PlateauDecayConfig {
    /// Rate of the first plateau, in (0, 1].
    initial_lr: f64,
    /// Number of steps of the whole run.
    steps: usize,
    /// The second plateau's rate over the first's, in (0, 1].
    #[config(default = 0.5)]
    ratio: f64,
    /// The share of steps after which the rate decreases, in (0, 1).
    #[config(default = 0.5)]
    from: f64,
    /// The share of steps after which it is constant again, above `from` and below 1.
    #[config(default = 0.9)]
    to: f64,
}

impl PlateauDecayConfig {
    /// Builds Burn's scheduler.
    ///
    /// # Errors
    /// If a setting is out of its range, or there are too few steps for three parts.
    pub fn init(&self) -> Result<ModuleLrScheduler, String> {
        let Self { initial_lr, steps, ratio, from, to } = *self;
        check_rate("initial_lr of PlateauDecay", initial_lr)?;
        check_rate("ratio of PlateauDecay", ratio)?;
        if !(0.0 < from && from < to && to < 1.0) {
            return Err(format!("from and to of PlateauDecay must be 0 < from < to < 1, got {from} and {to}"));
        }
        let [from, to] = [from, to].map(|share| (share * steps as f64).round() as usize);
        if from == 0 || from == to || to == steps {
            return Err(format!("steps of PlateauDecay must be enough for its three parts, got {steps}"));
        }
        let last = initial_lr * ratio;
        let linear = LinearLrSchedulerConfig::new(initial_lr, last, to - from);
        let parts: Vec<LrSchedulerConfig> = vec![initial_lr.into(), linear.into(), last.into()];
        SequentialLrSchedulerConfig::new(parts, vec![from, to]).init()
    }
}

fn check_rate(setting: &str, value: f64) -> Result<(), String> {
    if value > 0.0 && value <= 1.0 { Ok(()) } else { Err(format!("{setting} must be in (0, 1], got {value}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;

    fn rates(mut schedule: ModuleLrScheduler, steps: usize) -> Vec<f64> {
        (0..steps).map(|_| schedule.step().base()).collect()
    }

    #[test]
    fn exponential_steps_are_those_of_the_paper_and_end_at_beta_over_t() {
        let (rate, steps, beta) = (0.25, 1000, 10.0);
        let got = rates(ExponentialStepsConfig::new(rate, steps).with_beta(beta).init().unwrap(), steps + 1);
        let gamma = (beta / 1000.0_f64).powf(1e-3);
        for (t, got) in got.iter().enumerate() {
            let expected = rate * gamma.powi(t as i32);
            assert!((got - expected).abs() < 1e-12 * expected, "step {t}: {got}, expected {expected}");
        }
        assert!((got[steps] - rate * beta / 1000.0).abs() < 1e-15);
    }

    #[test]
    fn burns_cosine_is_that_of_the_paper_and_ends_at_0() {
        let got = rates(CosineAnnealingLrSchedulerConfig::new(0.25, 200).init().unwrap(), 201);
        for (t, got) in got.iter().enumerate() {
            let expected = 0.125 * (1.0 + (std::f64::consts::PI * t as f64 / 200.0).cos());
            assert!((got - expected).abs() < 1e-15, "step {t}: {got}, expected {expected}");
        }
        assert_eq!((got[0], got[200]), (0.25, 0.0));
    }

    #[test]
    fn a_plateau_a_slope_and_a_plateau() {
        let got = rates(PlateauDecayConfig::new(0.5, 20).with_ratio(0.2).init().unwrap(), 22);
        let expected = |t: usize| match t {
            0..10 => 0.5,
            10..18 => 0.5 - 0.4 * (t - 10) as f64 / 8.0,
            _ => 0.1,
        };
        got.iter().enumerate().for_each(|(t, got)| assert!((got - expected(t)).abs() < 1e-15, "step {t}: {got}"));
    }

    #[test]
    fn a_schedule_goes_on_where_it_was_saved() {
        let new = || PlateauDecayConfig::new(0.5, 20).init().unwrap();
        for steps in 0..20 {
            let mut whole = new();
            (0..steps).for_each(|_| drop(whole.step()));
            assert_eq!(rates(new().load_record(whole.to_record()), 5), rates(whole, 5), "after {steps}");
        }
    }

    #[test]
    fn impossible_settings_are_named() {
        let said = [
            ExponentialStepsConfig::new(0.1, 0).init().err(),
            ExponentialStepsConfig::new(0.1, 10).with_beta(11.0).init().err(),
            ExponentialStepsConfig::new(2.0, 10).init().err(),
            PlateauDecayConfig::new(0.1, 20).with_to(0.4).init().err(),
            PlateauDecayConfig::new(0.1, 2).init().err(),
            PlateauDecayConfig::new(0.1, 20).with_ratio(0.0).init().err(),
        ];
        let expected = [
            "steps of ExponentialSteps must be at least 1, got 0",
            "beta of ExponentialSteps must be in (0, 10], got 11",
            "initial_lr of ExponentialSteps must be in (0, 1], got 2",
            "from and to of PlateauDecay must be 0 < from < to < 1, got 0.5 and 0.4",
            "steps of PlateauDecay must be enough for its three parts, got 2",
            "ratio of PlateauDecay must be in (0, 1], got 0",
        ];
        assert_eq!(said.map(Option::unwrap), expected);
    }
}
