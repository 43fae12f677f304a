//! MCM: compression of uplink and downlink, with an exact model on the servers.
//!
//! **Why, and when not.** If servers compress the mean gradient ([Artemis](crate::reduce::artemis)), the compression error enters the step and
//! stays in the model. Here a server keeps the model that exact means would have given. It sends a compressed *difference* between this model
//! and the ranks' memory of it. Only the ranks' model has an error, and the next message corrects it. The downlink noise is therefore of
//! second order in the learning rate, and the plateau of the loss is that of uplink compression alone. For plain SGD: under another optimizer
//! the servers' model is not the ranks'. Not for contractive compressors.
//!
//! **Method.** Let `γ` be the learning rate, `w` a server's model and `ŵ` the ranks' model:
//!
//! | paper | here |
//! |---|---|
//! | `ĝ = mean(hᵢ + Δ̂ᵢ)`, gradients at `ŵ` | as in [`Artemis`], of the ranks that take part |
//! | `w ← w − γĝ`, `Ω = C_dwn(w − H)` | `x = γĝ + kept` for `H − w`, compressed |
//! | `ŵ ← H + Ω` | the average that makes SGD take that step: `(Ω − (1 − α)Ω′)/γ`, `Ω′` the last message |
//! | `H ← H + α_dwn Ω` | `kept ← x − α_dwn Ω` |
//!
//! `α_dwn` is `1/(2(1 + ω_dwn))` unless set, as in the authors' code. At 0 the whole movement of the model is compressed, and with a
//! large `ω_dwn` it drifts. `α_up` is that of Artemis; at 0 the uplink is QSGD.
//!
//! `per_rank` selects Rand-MCM: a server draws a separate message for each rank and keeps an `H` for each. Replicas then differ and their
//! errors are independent. The mean of their gradients is therefore more accurate, and so is the mean of the replicas, which is the model
//! that is evaluated.
//!
//! With `participation` below 1, active ranks are drawn at random as in Artemis, and an absent rank contributes its memory, as under
//! Artemis' PP2. A shared message goes to all ranks, including those that sent nothing, so no rank falls behind. With `per_rank` an
//! absent rank receives nothing either: it keeps its model, and the servers keep their memory of it. When it returns, one message brings
//! it to the servers' model, however many steps it missed.
//!
//! **On the wire.** As Artemis: a message from each rank to each server, then a message from each server to all. With `per_rank` the same
//! number of bytes, in an all-to-all. An absent rank sends nothing; with `per_rank` each server sends it one byte.
//!
//! **Properties.** Unbiased: `E ŵ = w` given the past, and `Σ γ·average = Σ γ·mean of sent − (x − Ω)`, to rounding (law 2). With a lossless
//! downlink it is DIANA, to rounding.
//!
//! *Plateau.* On a quadratic with gradient noise, ten ranks, `γ = 0.005`, one level and a sign on the uplink, and 4, 2 and 1 levels on the
//! downlink, `‖w − w*‖²` reaches .99, 1.00 and 1.01 times the value with an exact downlink; Artemis reaches 1.2, 1.9 and 3.9 times. At ten
//! times the rate and one level it is 1.08 times, with `per_rank` 1.04 (`claims two-way` in `benches/`).
//!
//! *Absent ranks.* As above, with one level on the downlink and half of the ranks active per step, relative to exact means of as many
//! ranks: MCM 1.01 times, Artemis 3.15 times, and Rand-MCM, which also sends half of the downlink messages, 1.02 times.
//!
//! **State.** Artemis' state; on a server `H − w` of its range, with `per_rank` for every rank; and on every rank `Ω′`. After a change of
//! the world size, servers start from the ranks' model, and the ranks' memory of it remains. Rand-MCM's servers start from the mean of the
//! replicas.
//!
//! **Deviations.** The user's optimizer takes the step, not the server. An optimizer with momentum sees differences of messages as
//! gradients. The model that is evaluated and saved is `ŵ`, not `w`. At a learning rate of 0 the mean is compressed alone and the memory
//! stays.
//!
//! **Reference.** C. Philippenko, A. Dieuleveut, *Preserved central model for faster bidirectional compression in distributed settings*,
//! NeurIPS 2021 (arXiv 2102.12528), algorithm 1.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::config::Exchange;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round};
//! briquette_zoo::install();
//! let exchange = Exchange { reducer: "mcm:dense,down=qsgd:s1:512:l2,model_alpha=0.25".parse()?, ..Exchange::default() };
//! let layout = Layout::flat(2);
//! let mut reducer = exchange.build_reducer(&layout, 1)?;
//! let agreed_step = AgreedStep { learning_rate: Some(0.25), ..AgreedStep::default() };
//! let (mut average, mut moved) = ([0.0_f32; 2], [0.0_f32; 2]);
//! for step in 0..400 {
//!     reducer.exchange(Round { key: Key::new(step), slots: layout.slots(), agreed_step: &agreed_step,
//!         input: &[3.0, 4.0], average: &mut average, sent: None }, &mut Local::world(1).remove(0))?;
//!     if step == 0 {
//!         assert!(average.iter().all(|value| [0.0, 5.0].contains(value))); // one level of the norm
//!     }
//!     moved.iter_mut().zip(average).for_each(|(moved, average)| *moved += average / 400.0);
//! }
//! // What one message loses the next ones bring.
//! assert!((moved[0] - 3.0).abs() < 0.1 && (moved[1] - 4.0).abs() < 0.1, "{moved:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Artemis`]: crate::reduce::artemis::Artemis

use super::artemis::ArtemisConfig;
use super::downlink::Memory;
use briquette_core::Layout;
use briquette_core::compress::ErrorBound;
use briquette_core::config::{CompressorConfig, Described, DownlinkResidual, Exchange, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict};
use briquette_core::reduce::Reducer;

/// Settings of MCM; see the [module](self).
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "mcm",
    help = "both directions compressed (qsgd:4, down qsgd:4:64:l2), servers keep the exact model; for plain SGD",
    representatives(
        "mcm:qsgd:4:64:l2",
        "mcm:qsgd:2:16:l2,down=qsgd:2:16:l2,server=1",
        "mcm:qsgd:4:64:l2,per-rank=true",
        "mcm:qsgd:4:64:l2,per-rank=true,participation=0.5",
    )
)]
pub struct Mcm {
    /// Compressor of the uplink; must be unbiased.
    #[setting(default = "qsgd:4")]
    pub up: CompressorConfig,
    /// Compressor of the downlink; must be unbiased. Buckets are small, because its noise stays in the model.
    #[setting(default = "qsgd:4:64:l2")]
    pub down: CompressorConfig,
    /// Step size of a rank's memory towards its contribution, in [0, 1/(1+ω)] of the uplink compressor; half of the maximum by default.
    #[setting(range = "[0, 1]")]
    pub alpha: Option<f32>,
    /// Step size of the ranks' memory of the model towards the servers' messages, in [0, 1/(1+ω)] of the downlink compressor; half of the
    /// maximum by default.
    #[setting(range = "[0, 1]")]
    pub model_alpha: Option<f32>,
    /// Set if servers send a separate message to every rank (Rand-MCM); each rank then has a separate memory.
    pub per_rank: bool,
    /// Probability that a rank takes part in an exchange, in (0, 1].
    #[setting(default = 1.0, range = "[0.001, 1]")]
    pub participation: f64,
    /// The rank that serves the whole vector; by default every rank serves an equal share.
    #[setting(syntax = "RANK")]
    pub server: Option<usize>,
}

impl Mcm {
    fn artemis(&self) -> ArtemisConfig {
        let Mcm { up, down, alpha, participation, server, .. } = self.clone();
        ArtemisConfig { up, down, alpha, participation, server, ..ArtemisConfig::default() }
    }

    /// Returns `ω` and `α` of the downlink.
    fn down(&self, len: usize) -> Result<(f64, f32), ConfigError> {
        let omega = ArtemisConfig::omega(Self::NAME, "down", &self.down, len)?;
        let most = 1.0 / (1.0 + omega);
        match self.model_alpha {
            None => Ok((omega, (0.5 * most) as f32)),
            Some(alpha) if f64::from(alpha) <= most * (1.0 + 1e-6) => Ok((omega, alpha)),
            Some(alpha) => Err(ConfigError::conflict(
                format!("model_alpha {alpha} of mcm"),
                format!("compressor {}", self.down),
                format!("it must be at most {most:.4}, which is 1/(1+ω)"),
                "lower it, or omit it for half of that",
            )),
        }
    }
}

impl ReducerSettings for Mcm {
    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        let feedback = &exchange.feedback;
        match feedback.get().requirement().keeps_state() || feedback.get().has_momentum() {
            false => Ok(()),
            true => Err(Conflict::new(
                "reducer mcm",
                format!("feedback {feedback}"),
                "it keeps state of its own and requires plain SGD",
                "use feedback none",
            )),
        }
    }

    fn build(&self, _: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        let (_, alpha) = self.down(layout.len())?;
        self.artemis().with((Memory::Model(alpha), self.per_rank), Self::NAME, layout)
    }

    fn min_ranks(&self) -> usize {
        self.artemis().min_ranks()
    }

    fn requires_plain_sgd(&self) -> bool {
        true
    }

    fn averages_equal(&self) -> bool {
        !self.per_rank
    }

    fn traits(&self) -> ReducerTraits {
        self.artemis().traits()
    }

    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    fn downlink(&self, len: usize) -> Option<ErrorBound> {
        self.artemis().downlink(len)
    }

    fn downlink_residual(&self, len: usize) -> Option<DownlinkResidual> {
        let (omega, alpha) = self.down(len).ok()?;
        if self.per_rank && self.participation < 1.0 {
            // An absent rank misses the whole movement of the model.
            return Some(DownlinkResidual { contraction: 1.0, loss: omega.sqrt().max(1.0), in_rate: true });
        }
        // E‖x − αΩ‖² is (1 − α)² + α²ω times ‖x‖², at most 1 − α.
        let contraction = (1.0 - f64::from(alpha)).sqrt();
        Some(DownlinkResidual { contraction, loss: omega.sqrt(), in_rate: true })
    }
}

#[cfg(test)]
mod tests;
