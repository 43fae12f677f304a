//! AdaQS: adds bits per value as the ratio of the gradient's mean to its standard deviation falls.
//!
//! **Why.** A few bits per value suffice for early gradients. Later the values scatter about zero, and coarse levels keep the loss
//! above its attainable value. The ratio of mean to standard deviation distinguishes the two phases. It needs only two numbers, on
//! which ranks agree occasionally. **Why not.** It adapts to the gradient, not to the network, and never returns to fewer bits.
//!
//! **Method.** Every `every` steps the ranks agree on the mean and the mean square of the values that they are about to send.
//! These are averaged over steps, without bias towards zero: `mₜ = (1 − β)mₜ₋₁ + β·E[g]`, `vₜ = (1 − β)vₜ₋₁ + β·E[g²]`, each
//! divided by `1 − (1 − β)ᵗ`. Their ratio is `r = |m|/√(v − m²)`. When `r` falls below `fall` times its highest value since
//! the last change of the bits, one bit is added, up to `max`. This turns `s` levels, `s = 2^(bits−1) − 1`, into `2s + 1`.
//!
//! The paper calls `r` the MSDR. A number of bits is the [ratio](CompressionRatio::of_bits) `32/bits`, which
//! [`Qsgd`](briquette_core::compress::qsgd::Qsgd) converts back to bits.
//!
//! **On the wire.** Every `every` steps an all-reduce of two f64.
//!
//! **Knobs.** `bits` at the start and `max`, 1 to 32 (a quantizer takes 2 to 8): default 2 and 8. `fall`, above 0 and below 1,
//! default 0.5; larger raises earlier. `every`, steps between two measurements, at least 1, default 10. `smoothing`, above 0 and at
//! most 1, default 0.1.
//!
//! **Invalid measurements.** Moments that are not finite, or whose squares are not, are ignored. A deviation of zero changes
//! nothing.
//!
//! **Deviations.** The paper's text was not available. Its abstract and citing papers state that bits increase over time by the MSDR,
//! which is estimated from moments. This project chose the threshold (a share of the highest ratio since the last change), one bit at
//! a time, and occasional measurements. Mean and deviation are over the values of the whole vector and of all ranks (not of each
//! layer, nor of each value over steps).
//!
//! **Reference.** J. Guo, W. Liu, W. Wang, J. Han, R. Li, Y. Lu, S. Hu, *Accelerating Distributed Deep Learning by Adaptive
//! Gradient Quantization*, ICASSP 2020, pp. 1603–1607.
//!
//! ```
//! use briquette_zoo::control::adaqs::Adaqs;
//! use briquette_core::control::{Agreed, Controller, Moments};
//! let settings = Adaqs { every: 1, smoothing: 1.0, ..Adaqs::default() };
//! let (mut controller, agreed_step) = (settings.controller()?, Default::default());
//! let mut bits = |mean, deviation| {
//!     let mut agreed = Agreed::new(&agreed_step, &[]);
//!     agreed.moments = Moments { mean, deviation };
//!     controller.decide(&agreed).ratio().map(|ratio| ratio.bits(2..=8))
//! };
//! // Ratios 0.8, 0.5 and 0.3: the last is below half of the first.
//! assert_eq!([bits(0.8, 1.0), bits(0.5, 1.0), bits(-0.6, 2.0)], [Some(2), Some(2), Some(3)]);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::config::{ControllerSettings, Described, Feedback};
use briquette_core::control::{Agreed, Controller, Decision, Moments, Needs};
use briquette_core::error::{ConfigError, StateError};
use briquette_core::reduce::AgreedStep;
use briquette_core::state::State;
use briquette_core::{CompressionRatio, stateful};

/// Settings of AdaQS; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "adaqs",
    help = "more bits per value as the gradient's mean falls relative to its deviation",
    representatives("adaqs:2,fall=0.9,every=2,smoothing=0.5"),
    combinations(
        "controller=adaqs:every=2,fall=0.9,smoothing=0.5 reducer=gather:qsgd:4:64:l2 feedback=none dense_below=0 bucket_values=32"
    )
)]
pub struct Adaqs {
    /// Initial bits per value.
    #[setting(default = 2, range = "[1, 32]")]
    pub bits: u8,
    /// Maximum bits per value.
    #[setting(default = 8, range = "[bits, 32]")]
    pub max: u8,
    /// Share of its highest value below which the ratio of mean to deviation adds one bit.
    #[setting(default = 0.5, range = "(0, 1)")]
    pub fall: f64,
    /// Number of steps from one measurement to the next.
    #[setting(default = 10, range = "[1, inf)")]
    pub every: u64,
    /// Weight of the newest moments in their averages.
    #[setting(default = 0.1, range = "(0, 1]")]
    pub smoothing: f64,
}

impl ControllerSettings for Adaqs {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.controller()?)))
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [self.max, self.bits].map(CompressionRatio::of_bits)
    }
}

impl Adaqs {
    /// Creates the controller.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting outside its range.
    pub fn controller(&self) -> Result<impl Controller + use<>, ConfigError> {
        self.check()?;
        Ok(Raiser { settings: *self, is_due: true, next: 0, bits: self.bits, highest: 0.0, averages: [0.0; 3] })
    }
}

struct Raiser {
    settings: Adaqs,
    /// Set if this step is due for a measurement. A measurement may come later than planned, since exchanges need not take place at
    /// every step. After the decision it applies to the next step, so that the inputs of that step are measured. It is saved, since
    /// ranks must agree on it after a failed exchange.
    is_due: bool,
    next: u64,
    bits: u8,
    /// The highest ratio since the bits were raised.
    highest: f64,
    /// Averages of the means, of the mean squares, and of 1, all with initial value zero.
    averages: [f64; 3],
}

impl Raiser {
    /// Checks that the settings allow the saved bits.
    fn fits(&self, state: &State) -> Result<(), StateError> {
        let (bits, Adaqs { bits: min, max, .. }) = (state.u64("bits")?, self.settings);
        let fits = (u64::from(min)..=u64::from(max)).contains(&bits);
        if fits { Ok(()) } else { Err(StateError::mismatch("bits", "between bits and max of adaqs", bits)) }
    }

    /// Returns the ratio of mean to deviation after adding these moments; `None` if the deviation is zero or the moments are not finite.
    fn ratio(&mut self, Moments { mean, deviation }: Moments) -> Option<f64> {
        let news = [mean, mean * mean + deviation * deviation, 1.0];
        if !news[1].is_finite() {
            return None;
        }
        self.averages.iter_mut().zip(news).for_each(|(old, new)| *old += self.settings.smoothing * (new - *old));
        let (mean, square) = (self.averages[0] / self.averages[2], self.averages[1] / self.averages[2]);
        let ratio = mean.abs() / (square - mean * mean).sqrt();
        ratio.is_finite().then_some(ratio)
    }
}

stateful! {
    impl Stateful for Raiser {
        bits: value("bits"),
        next: value("next"),
        is_due: value("is_due"),
        [highest, averages]: numbers("ratios"),
    }
    check: Self::fits;
}

impl Controller for Raiser {
    fn observe(&mut self, agreed_step: &AgreedStep) {
        self.is_due = agreed_step.step >= self.next;
        if self.is_due {
            self.next = (agreed_step.step / self.settings.every + 1).saturating_mul(self.settings.every);
        }
    }

    fn needs(&self) -> Needs<'_> {
        Needs { moments: self.is_due, ..Needs::default() }
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let ratio = if self.is_due { self.ratio(agreed.moments) } else { None };
        self.highest = ratio.unwrap_or(0.0).max(self.highest);
        let fallen = ratio.filter(|ratio| *ratio < self.settings.fall * self.highest && self.bits < self.settings.max);
        let reason = fallen.map(|ratio| {
            self.bits += 1;
            let (from, bits) = (std::mem::replace(&mut self.highest, ratio), self.bits);
            format!("mean-to-deviation ratio fell from {from:.2e} to {ratio:.2e}: {bits} bits a value")
        });
        // The inputs of the next step can be measured at this step.
        self.is_due = agreed.agreed_step.step.saturating_add(1) >= self.next;
        Decision::all(CompressionRatio::of_bits(self.bits), reason)
    }

    fn describe(&self) -> Option<String> {
        let Raiser { bits, next, highest, .. } = self;
        Some(format!("{bits} bits a value, next look at step {next}, highest mean-to-deviation ratio {highest:.2e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Key;
    use briquette_core::state::Stateful;
    use rand::Rng;

    fn step(controller: &mut impl Controller, step: u64, moments: Moments) -> (f64, Option<String>, bool) {
        let agreed_step = AgreedStep { step, ..AgreedStep::default() };
        controller.observe(&agreed_step);
        let measured = controller.needs().moments;
        let mut agreed = Agreed::new(&agreed_step, &[]);
        agreed.moments = if measured { moments } else { Moments::default() };
        let decision = controller.decide(&agreed);
        (32.0 / decision.ratio().unwrap().get(), decision.reason, measured)
    }

    /// Means 1, ¼, 0, 1 with deviation 1, averaged with weight ½, so that the newest of `t` has weight `2^(t−1)/(2^t − 1)`. By hand:
    ///
    /// | mean | averaged | squares averaged | ratio | highest before | bits |
    /// |---|---|---|---|---|---|
    /// | 1 | 1 | 2 | 1/√1 = 1 | 0 | 2 |
    /// | ¼ | (1 + 2/4)/3 = 1/2 | (2 + 2·17/16)/3 = 1.375 | .5/√1.125 = .471 | 1 | 3 |
    /// | 0 | (1.5 + 4·0)/7 = .214 | (4.125 + 4·1)/7 = 1.161 | .214/√1.115 = .203 | .471 | 4 |
    /// | 1 | (1.5 + 8·1)/15 = .633 | (8.125 + 8·2)/15 = 1.608 | .633/√1.207 = .576 | .203 | 4 |
    #[test]
    fn golden_bits_follow_the_averaged_ratio() {
        let mut controller = Adaqs { every: 2, smoothing: 0.5, ..Adaqs::default() }.controller().unwrap();
        let mean = |t: u64| [1.0, 0.25, 0.0, 1.0][t as usize / 2];
        let seen = (0..8).map(|t| step(&mut controller, t, Moments { mean: mean(t), deviation: 1.0 }));
        let (bits, (reasons, measured)): (Vec<_>, (Vec<_>, Vec<_>)) = seen.map(|s| (s.0, (s.1, s.2))).unzip();
        assert_eq!(bits, [2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0]);
        assert_eq!(measured, [true, false].repeat(4), "every other step");
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        let fell = |from, to, bits| format!("mean-to-deviation ratio fell from {from} to {to}: {bits} bits a value");
        assert_eq!(reasons, [fell("1.00e0", "4.71e-1", 3), fell("4.71e-1", "2.03e-1", 4)]);
    }

    /// The averages equal weighted sums over all measurements.
    #[test]
    fn bits_equal_those_of_a_twin_that_remembers_every_moment() {
        for (seed, smoothing, fall) in [(1, 0.3, 0.8), (2, 1.0, 0.5), (3, 0.1, 0.95)] {
            let mut controller = Adaqs { every: 1, smoothing, fall, ..Adaqs::default() }.controller().unwrap();
            let (mut all, mut highest, mut bits) = (Vec::new(), 0.0_f64, 2);
            let mut rng = Key::new(seed).block(0);
            for t in 0..100 {
                let (mean, deviation) = (rng.random::<f64>() - 0.5, 0.1 + rng.random::<f64>());
                all.push([1.0, mean, mean * mean + deviation * deviation]);
                let weigh = |age: usize| (1.0 - smoothing).powi((all.len() - 1 - age) as i32);
                let sum = |part: usize| all.iter().enumerate().map(|(age, x)| weigh(age) * x[part]).sum::<f64>();
                let (average, square) = (sum(1) / sum(0), sum(2) / sum(0));
                let ratio = average.abs() / (square - average * average).sqrt();
                highest = highest.max(ratio);
                if ratio < fall * highest && bits < 8 {
                    (bits, highest) = (bits + 1, ratio);
                }
                let decided = step(&mut controller, t, Moments { mean, deviation }).0;
                assert_eq!(decided, f64::from(bits), "seed {seed}, step {t}");
            }
            assert_eq!(bits, 8);
        }
    }

    #[test]
    fn values_that_do_not_scatter_decide_nothing() {
        let mut controller = Adaqs { every: 1, smoothing: 1.0, ..Adaqs::default() }.controller().unwrap();
        for (t, (mean, deviation)) in (0..).zip([(0.0, 0.0), (3.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.1, 0.0)]) {
            assert_eq!(step(&mut controller, t, Moments { mean, deviation }).0, 2.0);
        }
        assert_eq!(step(&mut controller, 9, Moments { mean: 0.1, deviation: 1.0 }).0, 3.0);
    }

    #[test]
    fn moments_that_are_not_finite_are_forgotten() {
        let make = || Adaqs { every: 1, smoothing: 0.5, ..Adaqs::default() }.controller().unwrap();
        let (mut with, mut without) = (make(), make());
        for (t, bad, mean, bits) in [(0, f64::NAN, 1.0, 2.0), (2, f64::INFINITY, 0.9, 2.0), (4, 1e200, 0.1, 3.0)] {
            drop(step(&mut with, t, Moments { mean: bad, deviation: 1.0 }));
            let decide = |controller| step(controller, t + 1, Moments { mean, deviation: 1.0 }).0;
            assert_eq!([&mut with, &mut without].map(decide), [bits; 2], "step {t}");
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        let base = Adaqs { every: 0, ..Adaqs::default() };
        let bits = [(0, 8), (9, 8), (2, 33)].map(|(bits, max)| Adaqs { bits, max, every: 1, ..base });
        let fall = [0.0, 1.0, f64::NAN].map(|fall| Adaqs { fall, every: 1, ..base });
        let smoothing = [0.0, 2.0].map(|smoothing| Adaqs { smoothing, every: 1, ..base });
        for wrong in [base].iter().chain(&bits).chain(&fall).chain(&smoothing) {
            assert!(wrong.controller().map(drop).unwrap_err().to_string().contains("adaqs"), "{wrong:?}");
        }
    }

    #[test]
    fn state_of_other_settings_is_refused() {
        let (mut state, mut other) = (State::default(), Adaqs { bits: 6, ..Adaqs::default() }.controller().unwrap());
        Adaqs::default().controller().unwrap().save(&mut state);
        assert!(other.load(&state).unwrap_err().to_string().contains("`bits` is 2"));
    }
}
