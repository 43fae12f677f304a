//! SparseLoCo: many local steps, then an outer step on sparse changes in few bits, with a residual that fades.
//!
//! **Why, and when not.** For ranks over the internet and large models: with the defaults, a message is 215 times smaller than the parameters, and there
//! is one in 30 steps. In place of DiLoCo's outer momentum, the residual carries unsent changes; it decays, because late changes are stale. If the
//! link carries more, `diloco` over a milder compressor loses less per exchange.
//!
//! **Method.** All ranks start a period of `H` steps at `x₀`. With `C` the chunk-wise top-k with binned values:
//!
//! ```text
//! every rank:  pᵢ = β·eᵢ + (x₀ − xᵢ)        eᵢ ← pᵢ − C(pᵢ)
//! all ranks:   x₀ ← x₀ − ρ·mean over ranks of C(pᵢ)
//! ```
//!
//! | setting | equivalent to |
//! |---|---|
//! | `ratio` 1 | Local SGD, with values in few bits |
//! | any | `diloco:H,rate=ρ,momentum=0` over `gather:chunk-topk:RATIO+bins:BITS` with feedback `error:β` |
//!
//! **On the wire.** Every `H` steps, to each other rank, a message of about `d/c · (log₂ c + 1.4 + b)` bits: 215 times less than `4d` bytes at
//! `c = 64`, `b = 2`.
//!
//! **Properties.** Replicas are equal at the end of a period; ranks may step with different learning rates.
//!
//! **State.** `x₀`, replicated, and each rank's residual.
//!
//! **Knobs.** `period` `H`, steps, by default 30, or less if the run is known to have fewer than 20 periods; `ratio` `c` at least 1, default 64;
//! `bits` `b` 1 to 4, default 2; `decay` β in (0, 1], default 0.95; `rate` `ρ` above 0, default 1. For other compressors, feedbacks or rules, use
//! `diloco`.
//!
//! **Deviations.** Those of [`ChunkTopK`] (consecutive values instead of tiles) and
//! [`Bins`].
//!
//! **Reference.** A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, *Communication Efficient LLM Pre-training with SparseLoCo*, 2025 (arXiv 2508.15706).
//! Defaults are those of a public run of a 72 B model.
//!
//! ```
//! use briquette_core::sync::outer::{OuterRule, OuterStep};
//! use briquette_zoo::sync::sparse_loco::SparseLoCo;
//! let at = OuterStep { rate: 0.0, world: 4 };
//! assert_eq!(SparseLoCo::default().advance(1.0, 0.25, 0.0, &at), (0.75, 0.0));
//! let exchange = SparseLoCo::default().exchange()?;
//! assert_eq!(exchange.reducer.to_string(), "gather:chunk-topk:64x+bins:2");
//! assert_eq!(exchange.feedback.to_string(), "error:0.95");
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::Layout;
use briquette_core::config::{
    CompressorConfig, Described, Exchange, ReducerConfig, Sends, StrategyConfig, StrategySettings, StrategyTraits,
};
use briquette_core::error::ConfigError;
use briquette_core::sync::{
    SyncStrategy,
    outer::{Outer, OuterRule, OuterStep},
    rounds::{in_rounds, period_of},
};
use briquette_core::wrapper::error_feedback::ErrorFeedbackConfig;

use crate::compress::{bins::Bins, chunk_top_k::ChunkTopK};

/// Settings of SparseLoCo; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "sparse-loco",
    help = "PERIOD local steps (30, fewer in a short run), then the largest changes of every chunk in few bits",
    representatives("sparse-loco:3,ratio=8")
)]
pub struct SparseLoCo {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// One value in this many is sent.
    #[setting(default = 64.0, range = "[1, inf)")]
    pub ratio: f64,
    /// Bits of a value.
    #[setting(default = 2, range = "[1, 4]")]
    pub bits: u8,
    /// Factor of the residual at each exchange.
    #[setting(default = 0.95, range = "(0, 1]")]
    pub decay: f32,
    /// The outer learning rate.
    #[setting(default = 1.0, range = "(0, inf)")]
    pub rate: f32,
}

/// The default period.
const USUAL: u64 = 30;

impl SparseLoCo {
    fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL)
    }

    /// Returns the exchange of the changes.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn exchange(&self) -> Result<Exchange, ConfigError> {
        self.check()?;
        let chunks = ChunkTopK::new(1.0 / self.ratio, 4096)?.into();
        let compressor = CompressorConfig::coded(chunks, Bins::new(self.bits)?.into())?;
        let feedback = ErrorFeedbackConfig { decay: Some(self.decay) }.into();
        Ok(Exchange { reducer: ReducerConfig::gather(compressor), feedback, ..Exchange::default() })
    }
}

impl StrategySettings for SparseLoCo {
    fn traits(&self) -> StrategyTraits {
        let why = "has a compressor and a feedback of its own";
        StrategyTraits { uses: Some((&["threads"], why)), sends: Sends::Progress }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let own = Exchange { threads: exchange.threads, ..self.exchange()? };
        Ok(Box::new(Outer::new(*self, own.build_reducer(layout, world)?, None)?))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        in_rounds(self.period, (USUAL, period_of(USUAL, steps)), steps, |period| {
            SparseLoCo { period: Some(period), ..*self }.into()
        })
    }
}

impl OuterRule for SparseLoCo {
    const HAS_MOMENTUM: bool = false;

    fn period(&self) -> u64 {
        self.steps()
    }

    fn advance(&self, anchor: f32, difference: f32, _: f32, _: &OuterStep) -> (f32, f32) {
        // A rate of 1 gives the mean itself.
        ((anchor - difference) + (1.0 - self.rate) * difference, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::config::Config;
    use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};

    const START: [f32; 64] = [3.0; 64];

    fn run(text: &str, sgd: Sgd) -> Vec<Vec<f32>> {
        crate::install();
        let config: Config = text.parse().unwrap();
        train(4, || config.build(&Layout::flat(START.len()), 4).unwrap(), &START, (sgd, &noisy))
    }

    #[test]
    fn it_is_diloco_over_its_parts() {
        let sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };
        let parts = "strategy=diloco:4,rate=0.5,momentum=0 reducer=gather:chunk-topk:8x+bins:3 feedback=error:0.75";
        assert_eq!(run("strategy=sparse-loco:4,ratio=8,bits=3,decay=0.75,rate=0.5", sgd), run(parts, sgd));
    }

    /// In f64, with the compressor's messages: two ranks, one value of 2 per period in one bit per value. The smaller change waits, and fades to half.
    #[test]
    fn two_periods_by_hand() {
        crate::install();
        let config: Config = "strategy=sparse-loco:1,ratio=2,bits=1,decay=0.5".parse().unwrap();
        let slope = |_: usize, _: u64, _: &[f32]| vec![4.0, 3.0];
        let after = |steps| {
            let sgd = Sgd { rate: 1.0, momentum: 0.0, steps };
            train(2, || config.build(&Layout::flat(2), 2).unwrap(), &[100.0, 100.0], (sgd, &slope))[0].clone()
        };
        // 4 is sent and 3 waits; then 4 against 3 + 1.5.
        assert_eq!([after(1), after(2)], [vec![96.0, 100.0], vec![96.0, 95.5]]);
    }

    /// Claim: at one value in 16 and 2 bits, the loss is close to that of averages of all values.
    #[test]
    fn its_loss_is_close_to_that_of_dense_averages() {
        let sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 800 };
        let end = |text: &str| loss(&mean(&run(text, sgd)));
        let (dense, sparse) = (end("strategy=local-sgd:10"), end("strategy=sparse-loco:10,ratio=16"));
        assert!(sparse < 2.0 * dense && sparse < 0.1 * loss(&mean(&[START.to_vec()])), "{sparse} against {dense}");
    }

    #[test]
    fn parts_of_its_own_are_refused() {
        crate::install();
        let config: Config = "strategy=sparse-loco reducer=gather:topk:8x feedback=error".parse().unwrap();
        let error = config.build(&Layout::flat(8), 2).map(drop).unwrap_err().to_string();
        assert!(error.contains("sparse-loco") && error.contains("leave reducer out"), "{error}");
        let error = SparseLoCo { decay: 0.0, ..SparseLoCo::default() }.exchange().unwrap_err().to_string();
        assert!(error.contains("decay of sparse-loco must be in (0, 1]"), "{error}");
    }
}
