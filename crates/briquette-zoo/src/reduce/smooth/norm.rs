//! All-gather of vectors that are divided by weights before sending and multiplied by them on receipt. Weights are per rank or shared.

use super::importance::Importance;
use briquette_core::aggregate::Aggregator;
use briquette_core::compress::{Compressor, ErrorBound};
use briquette_core::error::{AggregateError, ReduceError};
use briquette_core::reduce::{Exchanged, Reducer, Round, gather::Gather};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::wrapper::check_finite;
use briquette_core::{CompressionRatio, Key, Message, Session, stateful};

/// Encoder of scaled vectors.
pub(super) enum Sends {
    Compressor(Box<dyn Compressor>),
    Importance(Importance),
}

impl Compressor for Sends {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        match self {
            Sends::Compressor(compressor) => compressor.compress_into(x, key, out),
            Sends::Importance(importance) => importance.compress_into(x, key, out),
        }
    }
    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        match self {
            Sends::Compressor(compressor) => compressor.error_bound(x),
            Sends::Importance(importance) => importance.error_bound(x),
        }
    }
    fn nominal(&self) -> CompressionRatio {
        match self {
            Sends::Compressor(compressor) => compressor.nominal(),
            Sends::Importance(importance) => importance.nominal(),
        }
    }
}

/// Returns a rank's weights. `weights` holds those of all ranks in order, or one vector for all.
fn of_rank(weights: &[f32], rank: usize, len: usize) -> &[f32] {
    if weights.len() == len { weights } else { &weights[rank * len..][..len] }
}

/// The mean of the ranks' messages, each multiplied by its rank's weights.
#[derive(Debug, Default)]
pub(super) struct Weighed {
    weights: Vec<f32>,
    one: Vec<f32>,
}

impl Aggregator for Weighed {
    fn combine(&mut self, _: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        self.one.resize(out.len(), 0.0);
        out.fill(0.0);
        let share = 1.0 / parts.len() as f32;
        for (rank, part) in parts.iter().enumerate() {
            part.decode_into(&mut self.one).map_err(|source| AggregateError::Message { rank, source })?;
            let weights = of_rank(&self.weights, rank, out.len());
            out.iter_mut().zip(&self.one).zip(weights).for_each(|((sum, x), w)| *sum += share * (w * x));
        }
        Ok(())
    }

    fn is_mean(&self) -> bool {
        true
    }
}

/// The gather and its weights, which must be known before an exchange.
pub(super) struct Norm {
    gather: Gather<Sends, Weighed>,
    weights: Staged<Vec<f32>>,
    scaled: Vec<f32>,
}

impl Norm {
    /// Creates a gather with these weights; empty if they are not known yet.
    pub(super) fn new(sends: Sends, weights: Vec<f32>) -> Self {
        Norm { gather: Gather::new(sends, Weighed::default()), weights: Staged::new(weights), scaled: Vec::new() }
    }

    pub(super) fn knows_weights(&self) -> bool {
        !self.weights.now().is_empty()
    }

    /// Stages this rank's weights for all ranks, or with `per_rank` gathers every rank's weights.
    pub(super) fn stage_weights(
        &mut self,
        weights: Vec<f32>,
        per_rank: bool,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let all = self.weights.next_mut();
        all.clear();
        if per_rank {
            let (rank, mut frames) = (comm.rank(), Vec::new());
            let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
            comm.all_gather(&bytes, &mut frames)?;
            for (from, frame) in frames.iter().enumerate() {
                let frame: &[u8] = if from == rank { &bytes } else { frame };
                let read = frame.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                if frame.len() != bytes.len() || !read.clone().all(|w| w.is_finite() && w > 0.0) {
                    return Err(ReduceError::Length { expected: bytes.len(), got: frame.len() });
                }
                all.extend(read);
            }
        } else {
            all.extend(weights);
        }
        self.weights.stage();
        Ok(())
    }

    /// Passes the weights to the compressor and the aggregator. After a change of the world size, all ranks use the mean of the previous
    /// weights.
    fn fit(&mut self, len: usize, rank: usize, world: usize) -> Result<(), ReduceError> {
        let weights = self.weights.now();
        let count = weights.len() / len.max(1);
        if len == 0 || weights.len() != count * len {
            return Err(ReduceError::Length { expected: len, got: weights.len() });
        }
        if count != 1 && count != world {
            let mean = |i: usize| weights.iter().skip(i).step_by(len).sum::<f32>() / count as f32;
            self.weights.set((0..len).map(mean).collect());
        }
        let (sends, weighed) = self.gather.parts();
        if weighed.weights != *self.weights.now() {
            weighed.weights.clone_from(self.weights.now());
            if let Sends::Importance(importance) = sends {
                importance.find_chances(of_rank(&weighed.weights, rank, len));
            }
        }
        Ok(())
    }
}

stateful! {
    impl Stateful for Norm {
        weights: vector("weights").of_any_length(),
        gather: flatten(),
    }
}

impl Reducer for Norm {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (rank, len) = (comm.rank(), round.input.len());
        self.fit(len, rank, comm.world())?;
        let Round { key, slots, agreed_step, input, average, mut sent } = round;
        let weights = of_rank(self.weights.now(), rank, len);
        self.scaled.clear();
        self.scaled.extend(input.iter().zip(weights).map(|(x, w)| x / w));
        check_finite(&self.scaled, slots, rank)?;
        let inner =
            Round { key, slots, agreed_step, input: &self.scaled, average: &mut *average, sent: sent.as_deref_mut() };
        let exchanged = self.gather.reduce(inner, comm)?;
        if let Some(sent) = sent {
            sent.iter_mut().zip(weights).for_each(|(sent, w)| *sent *= w);
            check_finite(sent, slots, rank)?;
        }
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        if self.knows_weights() {
            self.gather.report(report);
        }
    }
}
