//! Compression noise in the shape of the loss: DCGD+ and, with a memory, DIANA+.
//!
//! **Why, and when not.** A compressor errs alike in all coordinates. Where the loss curves steeply in some and hardly in others, the steep ones
//! bound the learning rate, and noise in them costs most. Here each rank compresses its gradient divided by `√L`, coordinate by coordinate, and
//! receivers multiply by it again: in units of the loss the noise is the same everywhere. Gains are those of ill-conditioned problems. For
//! networks the diagonal is an estimate, and the paper makes no claim.
//!
//! **Method.** `Lᵢ` is rank `i`'s smoothness, a diagonal; or one for all ranks.
//!
//! | paper | here |
//! |---|---|
//! | `Δᵢ = Cᵢ(Lᵢ^{†½}(gᵢ − hᵢ))` | the message of `(x − h)/w`, with `w = √Lᵢ` |
//! | `g = mean(hᵢ + Lᵢ^{½}Δᵢ)`, `hᵢ ← hᵢ + αLᵢ^{½}Δᵢ` | decoded, times `wᵢ`; `memory`, and the mean of all ranks' |
//! | DCGD+: no `hᵢ` | `alpha=0` |
//! | sampling by importance: coordinate `j` with `pⱼ = Lⱼ/(Lⱼ + ρ)`, sent as `xⱼ/pⱼ` | `importance`: one in so many values in the mean, instead of a compressor |
//!
//! `Lᵢ` is [given](SmoothConfig::given) in code, or estimated: for `warm_up` steps gradients are exchanged dense, and the steepest
//! `|gⱼ(t) − gⱼ(t−1)|/(γ|aⱼ(t−1)|)` counts, as plain SGD has moved by `γ` times the average `a`. What is below the largest by more than
//! `condition` counts as that far below it.
//!
//! **On the wire.** As [`Gather`](super::Gather): a length (4 bytes) and a [message](crate::Message) to each other rank. With `per_rank`, once,
//! after the warm-up, `4d` bytes of weights to each.
//!
//! **Properties.** Linear in `sent` (law 2), unbiased where the compressor is; `sent` is `h + w·message`. `α` is at most `1/(1+ω)`. With `L` the
//! same in all coordinates it is DIANA, or the gather of the compressor, to rounding.
//!
//! **State.** `w`: one vector on every rank, or with `per_rank` one of every rank's; `hᵢ` and the mean of all. During the warm-up instead: the
//! estimate, the gradient before, and how far the step went. In a world of another size ranks have the means.
//!
//! **Deviations.** Diagonals only. The paper's blocks are the bucket of [`Qsgd`](crate::compress::Qsgd), and its steps `hⱼ ∝ 1/√Lⱼ` behind
//! `L^{−½}` are one step for the gradient itself. The estimate is this project's; it takes plain SGD.
//!
//! **Reference.** B. Wang, M. Safaryan, P. Richtárik, *Theoretically Better and Numerically Faster Distributed Optimization with
//! Smoothness-Aware Quantization Techniques*, NeurIPS 2022 (arXiv 2106.03524), algorithms 1 and 2; importance sampling: M. Safaryan,
//! F. Hanzely, P. Richtárik, *Smoothness Matrices Beat Smoothness Constants: Better Communication Compression Techniques for Distributed
//! Optimization*, NeurIPS 2021 (arXiv 2102.07245).
//!
//! ```
//! use briquette_core::{Key, Layout, comm::Local, reduce::{AgreedStep, Reducer, Round, SmoothConfig}};
//! let (layout, mut comm) = (Layout::flat(2), Local::world(1).remove(0));
//! let settings = SmoothConfig { compressor: "sign".parse()?, alpha: Some(0.0), ..SmoothConfig::default() };
//! let mut reducer = settings.given(&[vec![16.0, 1.0]])?;
//! let mut average = [0.0; 2];
//! reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &[8.0, -2.0], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [8.0, -2.0]); // (8, −2) divided by (4, 1) is (2, −2), which signs and a scale hold
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod importance;

pub use config::SmoothConfig;

use std::fmt;

use importance::Importance;

use super::incoming::Incoming;
use super::{Dense, Exchanged, Reducer, Round, Selection, check_average};
use crate::compress::Compressor;
use crate::error::{AggregateError, ReduceError, StateError};
use crate::report::Report;
use crate::state::{OnResize, Place, Staged, State, Stateful};
use crate::wrapper::check_finite;
use crate::{Message, Session};

/// What makes messages of scaled vectors.
enum Sends {
    Compressor(Box<dyn Compressor>),
    Importance(Importance),
}

/// Compresses in the norm of the loss; see the [module](self).
pub struct SmoothnessAware {
    settings: SmoothConfig,
    alpha: f32,
    sends: Sends,
    /// `w` of all ranks one after another, or one for all; empty until it is known.
    weights: Staged<Vec<f32>>,
    /// `hᵢ`, and the mean of all ranks'.
    memory: Staged<Vec<f32>>,
    mean_memory: Staged<Vec<f32>>,
    warm_up: WarmUp,
    incoming: Incoming,
    mine: Vec<Message>,
    decoded: Vec<Vec<Message>>,
    scaled: Vec<f32>,
    bytes: Vec<u8>,
}

/// What the estimate is made of.
#[derive(Debug, Default)]
struct WarmUp {
    steepest: Staged<Vec<f32>>,
    before: Staged<Vec<f32>>,
    moved: Staged<Vec<f32>>,
}

impl fmt::Debug for SmoothnessAware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmoothnessAware").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl WarmUp {
    /// One step: the gradient now, of a rank or of all, and the average that is stepped with.
    fn observe(&mut self, gradient: &[f32], average: &[f32], rate: f32) -> Result<(), ReduceError> {
        let is_first = self.before.now().is_empty();
        [&mut self.steepest, &mut self.before, &mut self.moved].into_iter().try_for_each(|m| m.fit(gradient.len()))?;
        let (steepest, next) = self.steepest.both();
        next.copy_from_slice(steepest);
        let (before, moved) = (self.before.now(), self.moved.now());
        for (i, next) in next.iter_mut().enumerate().filter(|_| !is_first) {
            let curvature = ((gradient[i] - before[i]) / moved[i]).abs();
            if curvature.is_finite() {
                *next = next.max(curvature);
            }
        }
        self.before.next_mut().copy_from_slice(gradient);
        self.moved.next_mut().iter_mut().zip(average).for_each(|(moved, average)| *moved = rate * average);
        self.each(Staged::stage);
        Ok(())
    }

    fn each(&mut self, act: impl Fn(&mut Staged<Vec<f32>>)) {
        [&mut self.steepest, &mut self.before, &mut self.moved].into_iter().for_each(act);
    }

    /// `√L`, from what is staged.
    fn weights(&self, condition: f64) -> Vec<f32> {
        let steepest = self.steepest.latest();
        let largest = steepest.iter().copied().fold(0.0, f32::max);
        let least = (f64::from(largest) / condition) as f32;
        let weight = |l: &f32| if largest > 0.0 { l.max(least).max(f32::MIN_POSITIVE).sqrt() } else { 1.0 };
        steepest.iter().map(weight).collect()
    }
}

impl SmoothnessAware {
    /// A dense exchange that the estimate learns from; the last one ends in weights.
    fn warm_up(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let rate = round.agreed_step.rate()?;
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let before = comm.traffic();
        Dense.reduce(Round { key, slots, agreed_step, input, average: &mut *average, sent }, comm)?;
        self.warm_up.observe(if self.settings.per_rank { input } else { average }, average, rate)?;
        if agreed_step.step + 1 >= self.settings.warm_up {
            let weights = self.warm_up.weights(self.settings.condition);
            let all = self.weights.next_mut();
            all.clear();
            if self.settings.per_rank {
                let rank = comm.rank();
                let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
                comm.all_gather(&bytes, &mut self.incoming.frames)?;
                for (from, frame) in self.incoming.frames.iter().enumerate() {
                    let frame: &[u8] = if from == rank { &bytes } else { frame };
                    let read = frame.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                    let valid = frame.len() == bytes.len() && read.clone().all(|w| w.is_finite() && w > 0.0);
                    if !valid {
                        return Err(ReduceError::Length { expected: bytes.len(), got: frame.len() });
                    }
                    all.extend(read);
                }
            } else {
                all.extend(weights);
            }
            self.weights.stage();
        }
        Ok(Exchanged { traffic: comm.traffic() - before, selection: Selection::All })
    }

    /// A rank's weights.
    fn weights_of(weights: &[f32], rank: usize, len: usize) -> &[f32] {
        if weights.len() == len { weights } else { &weights[rank * len..][..len] }
    }

    /// In a world of another size: the mean of the weights that there were, for all.
    fn fit_weights(&mut self, len: usize, world: usize) -> Result<(), ReduceError> {
        let weights = self.weights.now();
        let count = weights.len() / len.max(1);
        if weights.len() == len || weights.len() == world * len {
            return Ok(());
        }
        if len == 0 || weights.len() != count * len {
            return Err(ReduceError::Length { expected: len, got: weights.len() });
        }
        let mean = |i: usize| weights.iter().skip(i).step_by(len).sum::<f32>() / count as f32;
        self.weights.set((0..len).map(mean).collect());
        Ok(())
    }

    /// Makes this rank's message of what its memory lacks.
    fn compress(&mut self, round: &Round<'_>, rank: usize) -> Result<(), ReduceError> {
        let (len, memory) = (round.input.len(), self.memory.both().0);
        let weights = Self::weights_of(self.weights.now(), rank, len);
        self.scaled.clear();
        self.scaled.extend(round.input.iter().zip(memory).zip(weights).map(|((x, h), w)| (x - h) / w));
        check_finite(&self.scaled, round.slots, rank)?;
        self.mine.resize_with(1, Message::default);
        let key = round.key.rank(rank);
        match &mut self.sends {
            Sends::Compressor(compressor) => compressor.compress_into(&self.scaled, key.bucket(0), &mut self.mine[0]),
            Sends::Importance(importance) => {
                importance.sample(&mut self.scaled, weights, key);
                check_finite(&self.scaled, round.slots, rank)?;
                let drawn = (0..).zip(self.scaled.iter().copied()).filter(|(_, x)| *x != 0.0);
                let written = self.mine[0].write_sparse(len, drawn);
                written.map_err(|source| AggregateError::Message { rank, source })?;
            }
        }
        self.bytes.clear();
        let framed = self.mine[0].append_frame(&mut self.bytes);
        Ok(framed.map_err(|source| AggregateError::Message { rank, source })?)
    }

    /// Adds every rank's message, each in its own norm, to the mean memory; moves the memories.
    fn average(&mut self, round: Round<'_>, comm: &Session) -> Result<(), ReduceError> {
        let Round { slots, average, mut sent, .. } = round;
        let (rank, world, len) = (comm.rank(), comm.world(), average.len());
        self.decoded.resize_with(world, || vec![Message::default()]);
        self.incoming.begin(false, rank, &mut self.mine)?;
        self.incoming.next(rank, &mut self.decoded, (0, len))?;
        self.incoming.end(rank)?;
        average.fill(0.0);
        for from in 0..world {
            let message = if from == rank { &self.mine[0] } else { &self.decoded[from][0] };
            let decoded = message.decode_into(&mut self.scaled);
            decoded.map_err(|source| AggregateError::Message { rank: from, source })?;
            let weights = Self::weights_of(self.weights.now(), from, len);
            self.scaled.iter_mut().zip(weights).for_each(|(x, w)| *x *= w);
            average.iter_mut().zip(&self.scaled).for_each(|(sum, x)| *sum += x);
            if from == rank {
                let (memory, next) = self.memory.both();
                for (i, next) in next.iter_mut().enumerate() {
                    *next = memory[i] + self.alpha * self.scaled[i];
                    if let Some(sent) = &mut sent {
                        sent[i] = memory[i] + self.scaled[i];
                    }
                }
            }
        }
        let (mean_memory, next) = self.mean_memory.both();
        for (i, average) in average.iter_mut().enumerate() {
            let difference = *average / world as f32;
            next[i] = mean_memory[i] + self.alpha * difference;
            *average = mean_memory[i] + difference;
        }
        check_average(average, slots)?;
        check_finite(self.memory.next_mut(), slots, rank)
    }
}

impl Stateful for SmoothnessAware {
    fn save(&self, state: &mut State) {
        let spread = Place::PerRank(OnResize::Spread);
        let of_warm_up = if self.settings.per_rank { spread } else { Place::Replicated };
        state.put("weights", self.weights.now().clone());
        state.put_at(spread, "memory", self.memory.now().clone());
        state.put_at(spread, "mean_memory", self.mean_memory.now().clone());
        state.put_at(of_warm_up, "steepest", self.warm_up.steepest.now().clone());
        state.put_at(of_warm_up, "before", self.warm_up.before.now().clone());
        state.put("moved", self.warm_up.moved.now().clone());
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let read = |name: &str| state.f32s(name, None).map(<[f32]>::to_vec);
        let [weights, steepest, before, moved] = [read("weights")?, read("steepest")?, read("before")?, read("moved")?];
        let memory = state.memory("memory", self.memory.now())?;
        self.mean_memory.set(state.f32s("mean_memory", Some(memory.len()))?.to_vec());
        self.memory.set(memory);
        self.weights.set(weights);
        self.warm_up.steepest.set(steepest);
        self.warm_up.before.set(before);
        self.warm_up.moved.set(moved);
        Ok(())
    }

    fn commit(&mut self) {
        [&mut self.weights, &mut self.memory, &mut self.mean_memory].into_iter().for_each(Staged::commit);
        self.warm_up.each(Staged::commit);
        if !self.weights.now().is_empty() {
            self.warm_up = WarmUp::default();
        }
    }

    fn discard(&mut self) {
        [&mut self.weights, &mut self.memory, &mut self.mean_memory].into_iter().for_each(Staged::discard);
        self.warm_up.each(Staged::discard);
    }
}

impl Reducer for SmoothnessAware {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (rank, len) = (comm.rank(), round.input.len());
        if self.weights.now().is_empty() {
            return self.warm_up(round, comm);
        }
        self.fit_weights(len, comm.world())?;
        self.memory.fit(len)?;
        self.mean_memory.fit(len)?;
        self.scaled.resize(len, 0.0);
        self.compress(&round, rank)?;
        let exchanged =
            Exchanged::count(
                comm,
                Selection::All,
                |comm| Ok(comm.all_gather(&self.bytes, &mut self.incoming.frames)?),
            )?;
        self.average(round, comm)?;
        self.memory.stage();
        self.mean_memory.stage();
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        report.factor = Some(match &self.sends {
            _ if self.weights.now().is_empty() => crate::CompressionFactor::DENSE,
            Sends::Compressor(compressor) => compressor.nominal(),
            Sends::Importance(importance) => importance.factor,
        });
    }
}

#[cfg(test)]
mod tests;
