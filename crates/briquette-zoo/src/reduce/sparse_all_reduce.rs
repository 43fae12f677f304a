//! Sparse all-reduce (Ok-Topk): sums sparse messages in transit, so that bytes per rank do not grow with the world.
//!
//! **Why, and when not.** [`Gather`](briquette_core::reduce::gather::Gather) brings every rank's `k` values to every rank: `W − 1` messages. Here
//! each rank owns a range of the vector, sums the entries that the other ranks selected there, and keeps the largest sums. Only those are sent to
//! all: about two messages, whatever the world size. This has two costs. An entry that was selected but is not among the `k` largest of the sum stays
//! in the residual, and there are three consecutive exchanges instead of one. For few ranks (see the crossover below), gather.
//!
//! **Method.** With ranges `[bᵣ, bᵣ₊₁)`, one per rank:
//!
//! | paper | here |
//! |---|---|
//! | local top-k by a threshold | [`TopK`], exact: `local` |
//! | balanced split of the index space, reused for some steps | `bounds`, from quantiles of every rank's selected indices |
//! | split and reduce | every rank sends each owner its entries; the owner averages them in rank order |
//! | global top-k by a threshold, balance and allgatherv | the owner keeps the `⌈k/W⌉` largest of its range; all-gather |
//! | residual: entries not in the intersection | `sent` is the rank's own value where both selections have it, else 0 |
//!
//! *Splits.* Rank `r` sends its selected indices at positions `n·(j + (r+½)/W)/q`, `j < q`: together about `P = min(4096, ⌈k/8⌉)` indices
//! (at least one per rank), staggered so that they do not repeat each other. In the sorted pool, every `1/W` of them ends a range. Equal
//! splits would leave most of the work, and of the quota, to the owners of the layers with the large gradients.
//!
//! **On the wire.** Let `m(n)` be the bytes of a sparse message of `n` f32 values without its 17 bytes of header,
//! `⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4n`. A rank sends `4(W−1)⌈P/W⌉ + Σ_{c≠rank}(17 + m(n_c)) + (W−1)(17 + m(⌈k/W⌉))`: about
//! `2·(W−1)/W·m(k) + 4P + 34W`. An owner whose mean is not finite sends the index of that value, 4 bytes, instead of the last message: the
//! same [`ReduceError::Overflow`] on every rank.
//!
//! **Crossover.** Counted from index sets (8 192 of 524 288 values, hot regions, half of each selection shared by all; the tests print this
//! table). Columns: payload bytes that a rank sends, the quantiles contained in them, headers, the bytes received by the busiest owner
//! relative to the mean, and the bytes that a gather sends.
//!
//! | ranks | payload | quantiles | headers | busiest | `Gather` |
//! |---|---|---|---|---|---|
//! | 2 | 41 952 | 2 048 | 34 | 1.03 | 40 546 |
//! | 3 | 55 771 | 2 736 | 68 | 1.04 | 81 092 |
//! | 4 | 62 765 | 3 072 | 102 | 1.05 | 121 638 |
//! | 16 | 78 075 | 3 840 | 510 | 1.08 | 608 190 |
//! | 64 | 81 972 | 4 032 | 2 142 | 1.29 | 2 554 398 |
//! | 256 | 82 892 | 4 080 | 8 670 | 2.17 | 10 339 230 |
//! | 1024 | 80 796 | 4 092 | 34 782 | 5.50 | 41 478 558 |
//!
//! In bytes it is ahead from three ranks on. Its three exchanges cost two latencies `α` more than a gather, so at `B` bits a second it is
//! faster if `(W−1)(1 − 2/W)·8m(k)/B > 2α`: at 1 Gbit/s and 50 µs from 3 ranks on with messages of 40 kB, from 6 on with 4 kB. Beyond some
//! hundred ranks a range holds few quantiles, and load imbalance slows the busiest owner. At equal `k` a gather also delivers up to `W·k`
//! coordinates, and this about `k`.
//!
//! **Properties.** Every value sent is the rank's own, so conservation holds to the bit. No constant bounds a single rank's loss (its
//! selection may lose in every range): needs error feedback. Under error feedback no coordinate waits forever, because a growing residual
//! is selected eventually. `W = 1` is top-k.
//!
//! **Knobs.** The ratio `d/k`. Below `k = W` every rank still keeps one value.
//!
//! **Deviations.** Exact selections instead of estimated thresholds. Splits from this step's indices instead of reused ones, so there is no
//! state. One quota per range instead of a global threshold, so results need no balancing before they are sent. Pieces go directly to their
//! owners.
//!
//! **Reference.** S. Li, T. Hoefler, *Near-Optimal Sparse Allreduce for Distributed Deep Learning*, PPoPP 2022
//! (arXiv 2201.07598), algorithms 1 and 2 (Ok-Topk).
//!
//! ```
//! use briquette_core::{Session, CompressionRatio, Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round};
//! use briquette_zoo::reduce::sparse_all_reduce::SparseAllReduce;
//! let half = CompressionRatio::new(2.0)?;
//! let averages = Local::run(2, |mut comm| {
//!     let input = [[4.0, 1.0, 0.0, 3.0], [0.0, 2.0, 5.0, 1.0]][comm.rank()];
//!     let (layout, mut average) = (Layout::flat(4), [0.0; 4]);
//!     SparseAllReduce::new(half).reduce(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None }, &mut comm)?;
//!     Ok::<_, ReduceError>(average)
//! });
//! // Selected: (4, ., ., 3) and (., 2, 5, .); halves: 4 beats 2, and 5 beats 3.
//! assert_eq!(averages, [Ok([2.0, 0.0, 2.5, 0.0]), Ok([2.0, 0.0, 2.5, 0.0])]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod count;

pub use count::{HEADER, RankBytes, count};

use std::ops::Range;

use briquette_core::compress::{Compressor, ErrorBound, top_k::TopK};
use briquette_core::config::{Described, Exchange, ReducerSettings, ReducerTraits};
use briquette_core::error::{AggregateError, CommError, ConfigError, ReduceError, WireError};
use briquette_core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette_core::report::Report;
use briquette_core::state::Stateful;
use briquette_core::{CompressionRatio, Frame, Key, Layout, Message, Session, Slot};

/// Maximum number of indices from which splits are taken, over all ranks.
const POOL: usize = 4096;

/// Bytes of an owner's frame if its mean is not finite: the index of that value, a `u32`. A regular message is longer.
const OVERFLOW: usize = 4;

/// A sparse all-reduce; see the [module](self).
#[derive(Debug)]
pub struct SparseAllReduce {
    ratio: CompressionRatio,
    /// This rank's selection.
    local: Message,
    /// The message being sent or read.
    piece: Message,
    /// The entries of this rank's range that it keeps.
    result: Message,
    pool: Vec<u32>,
    /// Range `r` is `bounds[r]..bounds[r + 1]`.
    bounds: Vec<usize>,
    chosen: Vec<u32>,
    bytes: Vec<u8>,
    frames: Vec<Frame>,
}

impl SparseAllReduce {
    /// Creates a reducer that keeps one value in `ratio`, of every rank and of the average.
    pub fn new(ratio: CompressionRatio) -> Self {
        SparseAllReduce {
            ratio,
            local: Message::default(),
            piece: Message::default(),
            result: Message::default(),
            pool: Vec::new(),
            bounds: Vec::new(),
            chosen: Vec::new(),
            bytes: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Computes `bounds`, equal on every rank.
    fn agree_on_splits(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        let (rank, world, len) = (comm.rank(), comm.world(), self.local.len());
        let k = self.ratio.keep(len);
        self.pool.clear();
        points(selected(&self.local).0, k, (rank, world), &mut self.pool);
        self.bytes.clear();
        self.bytes.extend(self.pool.iter().flat_map(|point| point.to_le_bytes()));
        comm.all_gather(&self.bytes, &mut self.frames)?;
        for (from, frame) in self.frames.iter().enumerate().filter(|(from, _)| *from != rank) {
            read_points(frame, point_count(k, k, world), len, &mut self.pool)
                .map_err(|source| AggregateError::Message { rank: from, source })?;
        }
        split(&mut self.pool, len, world, &mut self.bounds);
        Ok(())
    }

    /// Sends every owner its piece; afterwards `frames` holds the pieces of this rank's range.
    fn scatter(&mut self, comm: &mut Session) -> Result<(), CommError> {
        let (rank, world) = (comm.rank(), comm.world());
        let outer = std::mem::replace(&mut comm.scope().operation, "reduce_scatter");
        for frame in self.frames.drain(..) {
            comm.pool().put(frame);
        }
        self.frames.resize_with(world, Frame::new);
        for to in (0..world).filter(|to| *to != rank) {
            cut(&self.local, self.bounds[to]..self.bounds[to + 1], &mut self.piece);
            let mut frame = comm.pool().take_for(self.piece.encoded_len());
            self.piece.encode_into(&mut frame);
            self.frames[to] = frame;
        }
        comm.all_to_all(&mut self.frames)?;
        comm.scope().operation = outer;
        Ok(())
    }

    /// Averages this rank's range, with `own` as scratch, and writes the result for the other ranks: the largest entries, or the index of a
    /// mean that is not finite.
    fn combine(&mut self, rank: usize, own: &mut [f32]) -> Result<(), AggregateError> {
        let world = self.frames.len();
        own.fill(0.0);
        for from in 0..world {
            if from == rank {
                cut(&self.local, self.bounds[rank]..self.bounds[rank + 1], &mut self.piece);
            } else {
                read(&self.frames, from, &mut self.piece)?;
            }
            let weight = 1.0 / world as f32;
            self.piece.add_to(weight, own).map_err(|source| AggregateError::Message { rank: from, source })?;
        }
        self.bytes.clear();
        match own.iter().position(|v| !v.is_finite()) {
            None => {
                keep_largest(own, self.ratio.keep(self.local.len()).div_ceil(world), &mut self.result);
                self.result.encode_into(&mut self.bytes);
            }
            Some(place) => self.bytes.extend(((self.bounds[rank] + place) as u32).to_le_bytes()),
        }
        Ok(())
    }

    /// Returns the same error on every rank if an owner's mean is not finite.
    fn check_overflow(&self, rank: usize, slots: &[Slot]) -> Result<(), ReduceError> {
        let sent = |from: usize| if from == rank { &self.bytes } else { &self.frames[from] };
        for from in 0..self.frames.len() {
            let Ok(place) = <[u8; OVERFLOW]>::try_from(sent(from).as_slice()) else { continue };
            let place = u32::from_le_bytes(place) as usize;
            let slot = slots.iter().find(|slot| slot.range().contains(&place));
            return Err(match slot.filter(|_| (self.bounds[from]..self.bounds[from + 1]).contains(&place)) {
                Some(slot) => ReduceError::Overflow { slot: slot.path().to_owned() },
                None => {
                    let source = WireError::Field { what: "place of a mean", value: place as u64 };
                    AggregateError::Message { rank: from, source }.into()
                }
            });
        }
        Ok(())
    }

    /// Writes every owner's result to its range; afterwards `chosen` holds the coordinates of the average.
    fn collect(&mut self, rank: usize, average: &mut [f32]) -> Result<(), AggregateError> {
        average.fill(0.0);
        self.chosen.clear();
        for from in 0..self.frames.len() {
            if from != rank {
                read(&self.frames, from, &mut self.piece)?;
            }
            let message = if from == rank { &self.result } else { &self.piece };
            let wrong = |source| AggregateError::Message { rank: from, source };
            let range = self.bounds[from]..self.bounds[from + 1];
            let start = range.start as u32;
            message.add_to(1.0, &mut average[range]).map_err(wrong)?;
            let kept = message.sparse_indices();
            let kept = kept.ok_or(wrong(WireError::Field { what: "kept values of a sparse sum", value: 0 }))?;
            self.chosen.extend(kept.iter().map(|index| start + index));
        }
        Ok(())
    }

    /// Writes this rank's own values where both selections have them.
    fn write_sent(&self, sent: &mut [f32]) {
        sent.fill(0.0);
        let (indices, values) = selected(&self.local);
        let mut chosen = self.chosen.iter().peekable();
        for (index, value) in indices.iter().zip(values) {
            while chosen.next_if(|&c| c < index).is_some() {}
            if chosen.peek() == Some(&index) {
                sent[*index as usize] = *value;
            }
        }
    }
}

impl Stateful for SparseAllReduce {}

impl Reducer for SparseAllReduce {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, input, average, sent, .. } = round;
        let rank = comm.rank();
        TopK::ratio(self.ratio).compress_into(input, key, &mut self.local);
        let exchanged = Exchanged::count(comm, Selection::Some, |comm| {
            self.agree_on_splits(comm)?;
            self.scatter(comm)?;
            self.combine(rank, &mut average[self.bounds[rank]..self.bounds[rank + 1]])?;
            Ok(comm.all_gather(&self.bytes, &mut self.frames)?)
        })?;
        self.check_overflow(rank, slots)?;
        self.collect(rank, average)?;
        check_average(average, slots)?;
        if let Some(sent) = sent {
            self.write_sent(sent);
        }
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        report.ratio = Some(self.ratio);
    }
}

/// Returns the number of indices that a rank with `n` of at most `k` selected indices adds to the pool.
fn point_count(n: usize, k: usize, world: usize) -> usize {
    let full = POOL.min(k.div_ceil(8)).div_ceil(world);
    (full * n).div_ceil(k.max(1))
}

/// Appends this rank's quantiles, staggered by rank.
fn points(indices: &[u32], k: usize, (rank, world): (usize, usize), out: &mut Vec<u32>) {
    let (n, count) = (indices.len(), point_count(indices.len(), k, world));
    // n·(j + (rank + ½)/world)/count, in integer arithmetic: the same on every machine.
    out.extend((0..count).map(|j| indices[n * (2 * (j * world + rank) + 1) / (2 * world * count)]));
}

fn read_points(frame: &[u8], most: usize, len: usize, out: &mut Vec<u32>) -> Result<(), WireError> {
    let (points, rest) = frame.as_chunks::<4>();
    if !rest.is_empty() || points.len() > most {
        return Err(WireError::Field { what: "size of a frame of quantiles", value: frame.len() as u64 });
    }
    for point in points.iter().map(|bytes| u32::from_le_bytes(*bytes)) {
        if point as usize >= len {
            return Err(WireError::Field { what: "quantile", value: u64::from(point) });
        }
        out.push(point);
    }
    Ok(())
}

/// Splits `0..len` into one range per rank, with about the same number of pooled points in each.
fn split(pool: &mut [u32], len: usize, world: usize, bounds: &mut Vec<usize>) {
    pool.sort_unstable();
    bounds.clear();
    bounds.push(0);
    bounds.extend((1..world).map(|c| match pool.len() {
        0 => c * len / world,
        points => pool[c * points / world] as usize,
    }));
    bounds.push(len);
}

/// Writes the part of a selection inside `range` as a separate message.
fn cut(selection: &Message, range: Range<usize>, out: &mut Message) {
    let (indices, values) = selected(selection);
    let place = |position: usize| indices.partition_point(|&index| (index as usize) < position);
    let (from, to) = (place(range.start), place(range.end));
    let (kept, kept_values) = out.start_sparse_f32(range.len());
    kept.extend(indices[from..to].iter().map(|index| index - range.start as u32));
    kept_values.extend_from_slice(&values[from..to]);
}

/// Writes the `quota` largest values of `x`, without zeros.
fn keep_largest(x: &[f32], quota: usize, out: &mut Message) {
    let ratio = CompressionRatio::new(x.len() as f64 / quota.max(1) as f64);
    TopK::ratio(ratio.unwrap_or(CompressionRatio::DENSE)).compress_into(x, Key::new(0), out);
}

/// Returns the indices and values of a selection that [`TopK`] made with f32 values.
fn selected(message: &Message) -> (&[u32], &[f32]) {
    message.sparse_f32().expect("selections are sparse, with f32 values")
}

fn read(frames: &[Frame], from: usize, out: &mut Message) -> Result<(), AggregateError> {
    out.decode_from(&frames[from]).map_err(|source| AggregateError::Message { rank: from, source })
}

/// Settings of [`SparseAllReduce`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "sparse-all-reduce",
    help = "top-k summed on the way, bytes that do not grow with the world (100x)",
    representatives("sparse-all-reduce:8x"),
    combinations(
        "reducer=sparse-all-reduce:4x feedback=none controller=none bucket_values=32",
        "reducer=sparse-all-reduce:4x feedback=error controller=none bucket_values=32",
        "reducer=sparse-all-reduce:4x feedback=momentum:clip=3 controller=none bucket_values=32",
    )
)]
pub struct SparseAllReduceConfig {
    /// `d/k`.
    #[setting(default = "100x")]
    pub ratio: CompressionRatio,
}

impl ReducerSettings for SparseAllReduceConfig {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(SparseAllReduce::new(self.ratio)))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { needs_feedback: true, is_exact: true, searches: true, ..ReducerTraits::default() }
    }

    /// The selection is made for the mean: it never lengthens a rank's error, and may leave all of it.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }
}

#[cfg(test)]
mod tests;
