//! DES-LOC: local steps of Adam, after which parameters and each of Adam's moments are averaged with periods of their own.
//!
//! **Why, and when not.** Local Adam that averages parameters and both moments together (`local-sgd:H,momenta=average`) sends `3d` values per period. According to the
//! paper, moments change slowly, the second one most slowly, so that longer periods are enough for them: with the defaults, `1.5d` values. Moments that are
//! never averaged (`local-sgd:H`) cost nothing: compare first. Elastic worlds refuse averages of moments.
//!
//! **Method.** At the end of every period of `H` steps, ranks continue from the mean of their parameters. Every `F`-th time, first moments
//! are averaged as well, and every `S`-th time second moments:
//!
//! | paper | here |
//! |---|---|
//! | `K_x` | `period` `H` |
//! | `K_u = 3·K_x` | `first` `F` = 3 |
//! | `K_v = 6·K_x` | `second` `S` = 6 |
//!
//! | setting | equivalent to |
//! |---|---|
//! | `F` and `S` 1 | `local-sgd:H,momenta=average` |
//!
//! **On the wire.** Every `H` steps, the reducer's messages for the change of `d` parameters; with the moments, a dense all-reduce of `d` values each.
//! Bytes of a period, dense: `1 + 1/F + 1/S` times those of Local SGD.
//!
//! **Properties.** Replicas are equal at the end of a period; moments only after their average. Ranks may step with different learning rates.
//!
//! **State.** `x₀`, the parameters at the end of the last period, replicated.
//!
//! **Knobs.** `period` `H`, steps, default 32, or less if the run is known to have fewer than 20 periods; `first` `F` and `second` `S`, periods, at least 1, by
//! default 3 and 6. An optimizer without second moments has only first ones.
//!
//! **Deviations.** The paper allows any three periods; here those of the moments are multiples of that of the parameters. Its clipping and its probabilistic
//! variant are not included.
//!
//! **Reference.** A. Iacob et al., *DES-LOC: Desynced Low Communication Adaptive Optimizers for Training Foundation Models*, ICLR 2026 (arXiv 2505.22549).
//!
//! ```
//! use briquette_core::sync::{Momenta, outer::OuterRule};
//! use briquette_zoo::sync::des_loc::DesLoc;
//! let des_loc = DesLoc { period: Some(10), ..DesLoc::default() };
//! let averaged = [9, 19, 29, 39, 59].map(|step| des_loc.momenta(step));
//! assert_eq!(averaged, [Momenta::Keep, Momenta::Keep, Momenta::AverageFirst, Momenta::Keep, Momenta::Average]);
//! ```

use briquette_core::Layout;
use briquette_core::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::{
    Momenta, SyncStrategy,
    outer::{self, Outer, OuterRule, OuterStep},
    rounds::{in_rounds, period_of},
};

/// Settings of DES-LOC; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "des-loc",
    help = "parameters, averaged after every PERIOD steps (32, fewer in a short run); Adam's moments after every 3 and 6 periods",
    representatives("des-loc:2,first=1,second=2")
)]
pub struct DesLoc {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// Periods between averages of first moments.
    #[setting(default = 3, range = "[1, inf)")]
    pub first: u64,
    /// Periods between averages of second moments.
    #[setting(default = 6, range = "[1, inf)")]
    pub second: u64,
}

/// The default period.
const USUAL: u64 = 32;

impl StrategySettings for DesLoc {
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
        Some(self.period())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        in_rounds(self.period, (USUAL, period_of(USUAL, steps)), steps, |period| {
            DesLoc { period: Some(period), ..*self }.into()
        })
    }
}

impl OuterRule for DesLoc {
    const HAS_MOMENTUM: bool = false;

    fn period(&self) -> u64 {
        self.period.unwrap_or(USUAL)
    }

    fn momenta(&self, step: u64) -> Momenta {
        let ended = (step + 1) / OuterRule::period(self);
        match (ended.is_multiple_of(self.first), ended.is_multiple_of(self.second)) {
            (true, true) => Momenta::Average,
            (true, false) => Momenta::AverageFirst,
            (false, true) => Momenta::AverageSecond,
            (false, false) => Momenta::Keep,
        }
    }

    fn averages_momenta(&self) -> bool {
        true
    }

    fn advance(&self, anchor: f32, difference: f32, _: f32, _: &OuterStep) -> (f32, f32) {
        (anchor - difference, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::laws::train::{Sgd, noisy, train};
    use briquette_core::reduce::dense::Dense;
    use briquette_core::sync::periodic::Periodic;

    #[test]
    fn parameters_are_those_of_local_sgd() {
        let sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };
        let ours = DesLoc { period: Some(4), ..DesLoc::default() };
        let ours = train(4, || Outer::new(ours, Dense, None).unwrap(), &[3.0; 10], (sgd, &noisy));
        let local = train(4, || Periodic::new(4).unwrap(), &[3.0; 10], (sgd, &noisy));
        assert!(ours.iter().flatten().zip(local.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    /// Claim: half of the values of Local Adam.
    #[test]
    fn moments_are_sent_half_as_often() {
        let des_loc = DesLoc { period: Some(10), ..DesLoc::default() };
        let values = |momenta| match momenta {
            Momenta::Average => 3,
            Momenta::AverageFirst | Momenta::AverageSecond => 2,
            _ => 1,
        };
        let sent: u64 = (1..=60).map(|period| values(des_loc.momenta(10 * period - 1))).sum();
        assert_eq!((sent, 3 * 60), (90, 180));
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for (settings, words) in [
            (DesLoc { period: Some(0), ..DesLoc::default() }, "period of des-loc must be at least 1"),
            (DesLoc { first: 0, ..DesLoc::default() }, "first of des-loc must be at least 1"),
            (DesLoc { second: 0, ..DesLoc::default() }, "second of des-loc must be at least 1"),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
