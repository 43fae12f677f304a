//! BMUF: blockwise model-update filtering, a momentum on the mean change of each block of local steps.
//!
//! **Why, and when not.** If many ranks average rarely, the mean of their models moves by less than one rank alone would: the
//! more ranks, the less each rank's block counts. A momentum of `1 − 1/W` compensates. Unlike [`SlowMo`](crate::sync::slow_mo::SlowMo) it does
//! not read the learning rate, so ranks may step with different rates. With few ranks, Local SGD is as good.
//!
//! **Method.** All ranks start a block of `τ` steps at `W_g`. With the mean `W̄` over ranks at its end:
//!
//! ```text
//! Δ ← η·Δ + ζ·(W̄ − W_g)        W ← W + Δ        W_g ← W, or W + η·Δ with Nesterov's momentum
//! ```
//!
//! | setting | equivalent to |
//! |---|---|
//! | `η = 0`, `ζ = 1` | Local SGD |
//! | constant learning rate `γ`, `ζ = 1` | SlowMo with `α = 1`, `β = η`: `Δ = −γ·u` |
//!
//! **On the wire.** The reducer's messages for `d` values, every `τ` steps.
//!
//! **Properties.** Replicas are equal at the end of a block.
//!
//! **State.** `W_g` and `Δ`, the same on every rank.
//!
//! **Knobs.** `period` `τ`, steps, by default 12, or less if the run is known to have fewer than 20 blocks; `eta` in [0, 1), by
//! default `1 − 1/W`, as in the paper; `zeta` above 0, default 1; `nesterov`, default off.
//!
//! **Deviations.** With Nesterov momentum the model to evaluate is `W_g`, where training continues, not `W`. The paper's blocks
//! are blocks of data, with a sweep each; here they are blocks of steps.
//!
//! **Reference.** K. Chen, Q. Huo, *Scalable Training of Deep Learning Machines by Incremental Block Training with Intra-block Parallel
//! Optimization and Blockwise Model-Update Filtering*, ICASSP 2016, section 3 (read from later descriptions of it).
//!
//! ```
//! use briquette_zoo::sync::bmuf::Bmuf;
//! use briquette_core::sync::outer::{OuterRule, OuterStep};
//! let bmuf = Bmuf { eta: Some(0.5), ..Bmuf::default() };
//! let at = OuterStep { rate: 0.0, world: 4 };
//! // A block in which ranks came from 1 to 0.5 on average, after one of the same length.
//! assert_eq!(bmuf.advance(1.0, 0.5, -0.5, &at), (0.25, -0.75));
//! let bmuf = Bmuf { nesterov: true, ..bmuf };
//! assert_eq!(bmuf.advance(1.0, 0.5, -0.5, &at), (0.125, -0.75)); // W was 1.25, is 0.5, and looks ahead by −0.375
//! ```

use briquette_core::Layout;
use briquette_core::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::{
    SyncStrategy,
    outer::{self, Outer, OuterRule, OuterStep},
    rounds::{in_rounds, period_of},
};

/// Settings of BMUF; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "bmuf",
    help = "Local SGD with a momentum of 1 - 1/ranks on what each PERIOD steps have come to (12)",
    representatives("bmuf:3", "bmuf:1,eta=0.5,zeta=0.5,nesterov=true")
)]
pub struct Bmuf {
    /// Steps of a block. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// The block momentum, in [0, 1). If absent, `1 − 1/W`.
    #[setting(range = "[0, 1)")]
    pub eta: Option<f32>,
    /// The block learning rate, above 0.
    #[setting(default = 1.0, range = "(0, inf)")]
    pub zeta: f32,
    /// Set if a block starts at the Nesterov look-ahead.
    pub nesterov: bool,
}

/// The default block length.
const USUAL: u64 = 12;

impl Bmuf {
    /// Returns the steps of a period.
    fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL)
    }
}

impl StrategySettings for Bmuf {
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
        in_rounds(self.period, (USUAL, period_of(USUAL, steps)), steps, |period| {
            Bmuf { period: Some(period), ..*self }.into()
        })
    }
}

impl OuterRule for Bmuf {
    fn period(&self) -> u64 {
        self.steps()
    }

    fn advance(&self, anchor: f32, difference: f32, momentum: f32, at: &OuterStep) -> (f32, f32) {
        let eta = self.eta.unwrap_or(1.0 - 1.0 / at.world as f32);
        let next = eta * momentum - self.zeta * difference;
        let ahead = if self.nesterov { eta * (next - momentum) } else { 0.0 };
        (anchor + next + ahead, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::slow_mo::SlowMoConfig;
    use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
    use briquette_core::reduce::dense::Dense;
    use briquette_core::sync::periodic::LocalSgd;

    const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

    fn run<S: OuterRule + Clone + Sync>(rule: &S, world: usize, sgd: Sgd) -> Vec<Vec<f32>> {
        train(world, || Outer::new(rule.clone(), Dense, None).unwrap(), &[3.0; 10], (sgd, &noisy))
    }

    fn assert_close(a: &[Vec<f32>], b: &[Vec<f32>]) {
        assert!(a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} {b:?}");
    }

    #[test]
    fn without_momentum_it_is_local_sgd() {
        let bmuf = Bmuf { period: Some(4), eta: Some(0.0), ..Bmuf::default() };
        let local = LocalSgd { period: Some(4), ..LocalSgd::default() };
        assert_close(&run(&bmuf, 3, SGD), &run(&local, 3, SGD));
        // And with one rank, whose default momentum is 1 − 1/1.
        assert_close(&run(&Bmuf::default(), 1, SGD), &run(&local, 1, SGD));
    }

    #[test]
    fn at_a_constant_rate_it_is_slowmo() {
        let bmuf = Bmuf { period: Some(4), eta: Some(0.6), ..Bmuf::default() };
        let slow_mo = SlowMoConfig { period: Some(4), reset: false, ..SlowMoConfig::default() };
        assert_close(&run(&bmuf, 3, SGD), &run(&slow_mo, 3, SGD));
    }

    /// η = ½, slope 1 at rate 1, from 10. Δ = −1: W = 9, and training continues at 9 − ½. Δ = −½ − 1: W = 7½, at 7½ − ¾. Δ = −¾
    /// − 1: W = 5¾, at 5¾ − ⅞.
    #[test]
    fn three_blocks_with_nesterovs_momentum_by_hand() {
        let bmuf = Bmuf { period: Some(1), eta: Some(0.5), nesterov: true, ..Bmuf::default() };
        let after = |steps| {
            let (sgd, slope) = (Sgd { rate: 1.0, momentum: 0.0, steps }, |_: usize, _: u64, _: &[f32]| vec![1.0]);
            train(1, || Outer::new(bmuf, Dense, None).unwrap(), &[10.0], (sgd, &slope))[0][0]
        };
        assert_eq!([1, 2, 3].map(after), [8.5, 6.75, 4.875]);
    }

    /// Claim: with many ranks and rare averages, the momentum of `1 − 1/W` reaches a lower loss in the same steps.
    #[test]
    fn it_makes_up_for_averaging() {
        let sgd = Sgd { steps: 240, ..SGD };
        let end = |eta| loss(&mean(&run(&Bmuf { eta, ..Bmuf::default() }, 4, sgd)));
        let (local, bmuf) = (end(Some(0.0)), end(None));
        assert!(bmuf < 0.5 * local, "{bmuf} against {local}");
    }
}
