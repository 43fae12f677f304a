//! DeMo: each rank sends the largest frequency components of its momentum, and all ranks step by the sign of their average.
//!
//! **Why, and when not.** Each rank has its own momentum and sends the largest components of it at every step. The other components stay in the
//! momentum and accumulate. There is no further optimizer state. With the defaults a message is 27 times smaller than the gradient, with
//! `bits=2` about 120 times. Every value whose block has a coefficient moves by the learning rate at every step, so the rate must be tuned, and must
//! decay to reach a small loss. Where neighboring values are independent, the transform gains no energy (see
//! [`dct`](crate::reduce::dct)): compare with `block=0`, where only the selected values move. For fewer messages than one at each step, take `sparse-loco`.
//!
//! **Method.** With `D` the DCT of blocks, and `C` the selection of each block's largest coefficients, each rank computes the first line, then
//! all ranks together the second:
//!
//! ```text
//! δᵢ ← β·δᵢ + gᵢ        qᵢ = C(D·δᵢ)        δᵢ ← δᵢ − Dᵀ·qᵢ
//! x ← x − γ·sign(Dᵀ·mean over ranks of qᵢ)
//! ```
//!
//! | paper | here |
//! |---|---|
//! | chunk `s` 64 (tiles of 64×64) | `block` 64, consecutive values of a slot |
//! | top-k `k` of a tile | `ratio`: one in `s²/k` |
//! | momentum decay `β` 0.999 | `decay` β |
//!
//! | setting | equivalent to |
//! |---|---|
//! | any | the signs of `every-step` over `dct:BLOCK,inner=(gather:chunk-topk:RATIO:BLOCK)` with feedback `error:β` |
//! | `ratio` 1, one rank | signSGD, up to the rounding of the transform |
//!
//! *Random bits.* None.
//!
//! **On the wire.** At every step, to each other rank, a message of about `d/c · (log₂ c + 1.4 + v)` bits, where `v` is `bits`, or 32 if that is absent.
//!
//! **Properties.** Replicas are equal. A value whose average is exactly 0 does not move, such as a value of a block without a coefficient.
//!
//! **State.** Each rank's δ, the residual of the error feedback.
//!
//! **Knobs.** `ratio` `c` at least 1, default 32; `block` 0 (no transform, chunks of 4096) or 2 to 256 and at least `c`, default 64; `decay` β in
//! (0, 1], default 0.999; `bits` of a coefficient, 1 to 4, default 32-bit floats. The learning rate of the optimizer, plain SGD, is γ:
//! try a hundredth of the rate for averaged gradients.
//!
//! **Deviations.** Blocks are consecutive values instead of tiles. Coefficients are selected from chunks of the vector that ignore slots: after a
//! slot whose length is no multiple of `block`, a chunk has coefficients of two blocks. Here the momentum holds gradients; in the paper, it holds
//! gradients times their learning rate. Both give the same steps while the rate is constant. The optimizer applies weight decay.
//!
//! **Reference.** B. Peng, J. Quesnelle, D. P. Kingma, *DeMo: Decoupled Momentum Optimization*, 2024 (arXiv 2411.19870), algorithm 1.
//!
//! ```
//! use briquette_zoo::sync::demo::DeMoConfig;
//! briquette_zoo::install();
//! let exchange = DeMoConfig::default().exchange()?;
//! assert_eq!(exchange.reducer.to_string(), "dct:64,inner=gather:chunk-topk:32x:64");
//! assert_eq!(exchange.feedback.to_string(), "error:0.999");
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use std::ops::Range;

use briquette_core::config::{CompressorConfig, Described, Exchange, ReducerConfig, StrategySettings, StrategyTraits};
use briquette_core::error::{ConfigError, SyncError};
use briquette_core::reduce::Reducer;
use briquette_core::report::Report;
use briquette_core::sync::{Context, Plan, SyncStrategy, every_step::EveryStep};
use briquette_core::wrapper::error_feedback::ErrorFeedbackConfig;
use briquette_core::{Layout, Session, stateful};

use crate::compress::{bins::Bins, chunk_top_k::ChunkTopK};
use crate::reduce::dct::DctConfig;

/// Steps by the sign of an average of gradients; see the [module](self).
#[derive(Debug)]
pub struct DeMo<R> {
    exchange: EveryStep<R>,
}

impl<R: Reducer> DeMo<R> {
    /// Creates the strategy; gradients are exchanged through `reducer`, whose result is the same on every rank.
    pub fn new(reducer: R) -> Self {
        DeMo { exchange: EveryStep::new(reducer) }
    }
}

stateful! {
    impl<R: Reducer> Stateful for DeMo<R> { exchange: flatten() }
}

impl<R: Reducer> SyncStrategy for DeMo<R> {
    fn plan(&self, step: u64) -> Plan {
        self.exchange.plan(step)
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        self.exchange.after_backward(gradient, cx, comm)?;
        gradient.iter_mut().for_each(|v| *v = sign(*v));
        Ok(())
    }

    fn hold(&mut self, absent: &[Range<usize>]) -> bool {
        self.exchange.hold(absent)
    }

    fn report(&self, report: &mut Report) {
        self.exchange.report(report);
    }
}

/// Returns −1, 0 or 1.
fn sign(v: f32) -> f32 {
    if v == 0.0 { 0.0 } else { v.signum() }
}

/// Settings of [`DeMo`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "demo",
    help = "the sign of the largest frequencies (one in RATIO, 32) of each rank's momentum",
    representatives("demo:8,block=16", "demo:8,block=0,decay=0.75,bits=2"),
    check = Self::check_block
)]
pub struct DeMoConfig {
    /// One coefficient in this many is sent.
    #[setting(default = 32.0, range = "[1, inf)")]
    pub ratio: f64,
    /// Values of a block of the transform; 0 for no transform.
    #[setting(default = 64)]
    pub block: usize,
    /// Factor of the momentum at each step.
    #[setting(default = 0.999, range = "(0, 1]")]
    pub decay: f32,
    /// Bits of a coefficient; 32 if absent.
    #[setting(range = "[1, 4]")]
    pub bits: Option<u8>,
}

impl DeMoConfig {
    fn check_block(&self) -> Result<(), ConfigError> {
        let is_valid = self.block == 0 || (2..=256).contains(&self.block);
        ConfigError::unless(is_valid, "block of demo", "0 or 2 to 256", self.block)?;
        let keeps_one = self.block == 0 || self.ratio <= self.block as f64;
        ConfigError::unless(keeps_one, "ratio of demo", "at most its block", self.ratio)
    }

    /// Returns the exchange of the gradients.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn exchange(&self) -> Result<Exchange, ConfigError> {
        self.check()?;
        let chunks = ChunkTopK::new(1.0 / self.ratio, if self.block == 0 { 4096 } else { self.block })?;
        let compressor = match self.bits {
            Some(bits) => CompressorConfig::coded(chunks.into(), Bins::new(bits)?.into())?,
            None => chunks.into(),
        };
        let gather = ReducerConfig::gather(compressor);
        let reducer = if self.block == 0 { gather } else { DctConfig { block: self.block, inner: gather }.into() };
        let feedback = ErrorFeedbackConfig { decay: Some(self.decay) }.into();
        Ok(Exchange { reducer, feedback, ..Exchange::default() })
    }
}

impl StrategySettings for DeMoConfig {
    fn traits(&self) -> StrategyTraits {
        let why = "has a compressor and a feedback of its own";
        StrategyTraits { uses: Some((&["threads"], why)), ..StrategyTraits::default() }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let own = Exchange { threads: exchange.threads, ..self.exchange()? };
        Ok(Box::new(DeMo::new(own.build_reducer(layout, world)?)))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    /// Returns true: the momentum may have values where no rank has a gradient.
    fn keeps_state(&self) -> bool {
        true
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    /// Returns true: a momentum of signs would be a second one.
    fn requires_plain_sgd(&self) -> bool {
        true
    }

    fn dense_reason(&self) -> Option<&'static str> {
        Some("has a compressor of its own")
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some("has a feedback of its own")
    }
}

#[cfg(test)]
mod tests;
