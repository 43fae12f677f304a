//! DiLoCo: many local Adam steps, then one outer Nesterov step on the averaged parameter change.
//!
//! **Why, and when not.** For ranks connected by slow links. Ranks exchange once per period: with the default of 100 steps, 100
//! times fewer bytes than at every step. Long periods make a plain mean less accurate; the outer momentum recovers most of that.
//! If the network can carry more, a shorter period or gradients at every step lose less.
//!
//! **Method.** All ranks start a period of `H` steps at `x₀`. Their mean change is an *outer gradient* (pseudo-gradient),
//! which PyTorch's SGD with Nesterov momentum applies:
//!
//! ```text
//! D = mean over ranks of x₀ − x_i        b ← μ·b + D        x₀ ← x₀ − ρ·(D + μ·b)
//! ```
//!
//! The inner optimizer (Adam, in the paper) is unchanged: its moments stay rank-local.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `ρ = 1`, `μ = 0` | Local SGD |
//! | `H = 1`, plain SGD, `ρ = 1`, `μ = 0` | minibatch SGD |
//!
//! **On the wire.** The reducer's messages for `d` values, every `H` steps. For low-bit outer gradients, use a compressor with
//! error feedback.
//!
//! **Properties.** Replicas are equal at the end of a period; ranks may step with different learning rates.
//!
//! **State.** `x₀` and the momentum `b`, replicated.
//!
//! **Knobs.** `period` `H`, steps, by default 100 (the paper: 500), or less if the run is known to have fewer than 20 periods;
//! `rate` `ρ` above 0, default 0.7; `momentum` `μ` in [0, 1), default 0.9. With `adapt`, the period [follows the link](super::pace), up to
//! `period` steps (32, or less in a short run), and `auto` chooses the ratio of each exchange if no reducer is named, with an effective
//! delay of at most `0.2/(1 − μ)` exchanges.
//!
//! **Deviations.** None in the method. The caller sets the learning rate of the inner optimizer. The paper warms it up before
//! the first period, and starts from a model that one rank has trained for a while.
//!
//! **Reference.** A. Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023 (arXiv 2311.08105),
//! algorithm 1.
//!
//! ```
//! use briquette_core::sync::{diloco::DiLoCo, outer::{OuterRule, OuterStep}};
//! let (diloco, at) = (DiLoCo::default(), OuterStep { rate: 0.0, world: 8 });
//! // The first outer gradient counts 0.7 · 1.9 times.
//! let (anchor, momentum) = diloco.advance(1.0, 0.1, 0.0, &at);
//! assert!((anchor - (1.0 - 0.7 * 0.19)).abs() < 1e-6 && momentum == 0.1);
//! ```

use super::outer::{self, Outer, OuterRule, OuterStep};
use super::pace::{in_adaptive_rounds, usual_or_longest};
use crate::Layout;
use crate::error::ConfigError;
use crate::seam::SyncStrategy;
use crate::settings::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};

/// Settings of DiLoCo; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "diloco",
    help = "PERIOD local steps (100, fewer in a short run; adapt=true: 1 to 32 by the link), then Nesterov's on the mean change",
    representatives("diloco:3", "diloco:1,rate=1,momentum=0", "diloco:2,adapt=true")
)]
pub struct DiLoCo {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// The outer learning rate, above 0.
    #[setting(default = 0.7, range = "(0, inf)")]
    pub rate: f32,
    /// The outer momentum, in [0, 1).
    #[setting(default = 0.9, range = "[0, 1)")]
    pub momentum: f32,
    /// Set if the period follows the link, up to `period`.
    pub adapt: bool,
}

/// The default period, used for runs of at least 2 000 steps.
const USUAL: u64 = 100;

impl DiLoCo {
    /// Returns the steps of a period.
    fn steps(&self) -> u64 {
        self.period.unwrap_or(usual_or_longest(self.adapt, USUAL))
    }
}

impl StrategySettings for DiLoCo {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { sends: Sends::Progress, ..StrategyTraits::default() }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Outer::new(*self, exchange.build_reducer(layout, world)?, None)?))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn exchanges(&self) -> Vec<Exchange> {
        outer::exchanges()
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        let with = |period| DiLoCo { period: Some(period), ..*self }.into();
        in_adaptive_rounds(self.adapt, (self.period, USUAL), steps, with)
    }

    fn reads_seconds(&self) -> bool {
        self.adapt
    }

    /// Returns 0.2 of the exchanges over which the outer momentum extends, in thousandths.
    fn longest_delay(&self) -> Option<f64> {
        self.adapt.then(|| (200.0 / (1.0 - f64::from(self.momentum))).round() / 1000.0)
    }
}

impl OuterRule for DiLoCo {
    fn period(&self) -> u64 {
        self.steps()
    }

    fn adapts(&self) -> bool {
        self.adapt
    }

    fn advance(&self, anchor: f32, difference: f32, momentum: f32, _: &OuterStep) -> (f32, f32) {
        let next = self.momentum * momentum + difference;
        // ρ = 1 and μ = 0 give the mean itself.
        ((anchor - difference) + (1.0 - self.rate) * difference - self.rate * self.momentum * next, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::train::{Sgd, loss, mean, noisy, train};
    use crate::reduce::dense::Dense;
    use crate::sync::{every_step::EveryStep, periodic::Periodic};

    const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

    fn run(diloco: DiLoCo, sgd: Sgd) -> Vec<Vec<f32>> {
        train(4, || Outer::new(diloco, Dense, None).unwrap(), &[3.0; 10], (sgd, &noisy))
    }

    #[test]
    fn of_rate_1_and_without_momentum_it_is_local_sgd_and_minibatch_sgd() {
        let close = |a: &[Vec<f32>], b: &[Vec<f32>]| {
            a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-5)
        };
        let plain = DiLoCo { period: Some(4), rate: 1.0, momentum: 0.0, ..DiLoCo::default() };
        let local = train(4, || Periodic::new(4).unwrap(), &[3.0; 10], (SGD, &noisy));
        assert!(close(&run(plain, SGD), &local));
        let minibatch = train(4, || EveryStep::new(Dense), &[3.0; 10], (SGD, &noisy));
        assert!(close(&run(DiLoCo { period: Some(1), ..plain }, SGD), &minibatch));
    }

    /// PyTorch's formula, step by step in f64.
    #[test]
    fn the_outer_step_is_pytorchs_nesterov() {
        let diloco = DiLoCo { period: Some(1), ..DiLoCo::default() };
        let (mut x, mut momentum) = (vec![3.0_f64; 10], vec![0.0_f64; 10]);
        for step in 0..SGD.steps {
            let here: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let gradients = (0..4).map(|rank| noisy(rank, step, &here)).collect::<Vec<_>>();
            for ((x, b), g) in x.iter_mut().zip(&mut momentum).zip(mean(&gradients)) {
                let outer = f64::from(SGD.rate) * g;
                *b = 0.9 * *b + outer;
                *x -= 0.7 * (outer + 0.9 * *b);
            }
        }
        assert!(run(diloco, SGD)[0].iter().zip(&x).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4));
    }

    #[test]
    fn auto_decides_where_the_period_adapts_and_no_ratio_is_named() {
        use crate::config::{Config, Parts};
        let controller = |text: &str| {
            let strategy: StrategyConfig = text.parse().unwrap();
            Config::from(Parts::default().with_strategy(strategy)).exchange.controller.to_string()
        };
        assert_eq!(controller("diloco:adapt=true"), "auto:50x,delay=2");
        assert_eq!(controller("diloco:adapt=true,momentum=0"), "auto:50x,delay=0.2");
        assert_eq!(controller("diloco"), "none");
    }

    /// Every step changes the parameters by 1, and exchanges take no time, so that the period falls from 4 to 1 step after two periods. The outer momentum
    /// is then as large as if all periods had been of one step: two changes of 1 with their momentum.
    #[test]
    fn the_outer_momentum_is_rescaled_with_the_period() {
        use crate::seam::LastExchange;
        use crate::{Key, Layout, comm::Local, seam::Context, state::Stateful};
        let adaptive = DiLoCo { period: Some(4), adapt: true, ..DiLoCo::default() };
        let (mut strategy, mut comm) = (Outer::new(adaptive, Dense, None).unwrap(), Local::world(1).remove(0));
        let (layout, mut x, mut momenta) = (Layout::flat(1), vec![0.0], Vec::new());
        strategy.begin(&x);
        for step in 0..9 {
            x[0] -= 1.0;
            let previous = (step > 3).then(LastExchange::default);
            let agreed = crate::seam::AgreedStep { step, compute_seconds: 1.0, previous, ..Default::default() };
            if strategy.plan(step).parameters {
                strategy.after_step(&mut x, &Context::new(Key::new(0), layout.slots(), &agreed), &mut comm).unwrap();
                strategy.commit();
                momenta.push(strategy.momentum()[0]);
            }
        }
        // 4; then (0.9 · 4 + 4) / 4; then 0.9 · 1.9 + 1.
        assert_eq!(momenta.len(), 3);
        assert!(
            momenta.iter().zip([4.0, 1.9, 2.71]).all(|(found, expected)| (found - expected).abs() < 1e-5),
            "{momenta:?}"
        );
    }

    /// Claim: over long periods the outer momentum reaches a lower loss than plain averages, in the same steps and bytes.
    #[test]
    fn the_outer_momentum_helps_long_periods() {
        let sgd = Sgd { steps: 800, ..SGD };
        let end =
            |rate, momentum| loss(&mean(&run(DiLoCo { period: Some(20), rate, momentum, ..DiLoCo::default() }, sgd)));
        let (local, diloco) = (end(1.0, 0.0), end(0.7, 0.9));
        assert!(diloco < 0.7 * local, "{diloco} against {local}");
    }
}
