//! Ternary all-reduce: TernGrad with one scale for all ranks, so that the ternary codes are summed in transit.
//!
//! **Why, and when not.** Gathered, [`TernGrad`] costs 2 bits per value from every *other* rank: the bytes grow with the world. With one
//! scale per layer the codes are integers in one unit, and their sum is exact in `log₂(2W + 1)` bits. From three ranks on that is less than
//! gathering; with two it is more. It is noisier than gathering, because every rank rounds to the largest rank's scale.
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | clip to `±2.5σ` of the layer | each rank, each slot, as [`TernGrad`] |
//! | `s = max over ranks of max|gᵢ|` (scaler sharing) | an all-gather of one scale per slot |
//! | `P(b = 1) = |gᵢ|/s`, send `sign(gᵢ)·b` | packed in 2 bits to the rank that owns the range |
//! | sum in `log₂(2W + 1)` bits | owners sum integers, and an all-gather returns the sums |
//!
//! *Random bits.* `key.rank(rank).bucket(slot)`, block by block, as [`Qsgd`](briquette_core::compress::qsgd::Qsgd) draws them.
//!
//! **On the wire.** Per rank: 4 bytes per slot to each other rank, then `2·d·(W−1)/W` bits out and in for the codes, and `b·d/W` bits to
//! each other rank for the sums, `b = ⌈log₂(2W + 1)⌉` (16 bits from 128 ranks on).
//!
//! **Properties.** Unbiased for the clipped vectors. Without clipping unbiased, with the exact variance `Σᵢ (s‖xᵢ‖₁ − ‖xᵢ‖²)/W²`. The
//! average has `2W + 1` possible values per slot. Sums are integers, so the order of ranks does not matter.
//!
//! **State.** None.
//!
//! **Knobs.** `clip`, in standard deviations (default 2.5, the paper's); infinite for none.
//!
//! **Deviations.** Ranks own ranges of the vector instead of a parameter server. `σ` is taken around zero.
//!
//! **Reference.** W. Wen, C. Xu, F. Yan, C. Wu, Y. Wang, Y. Chen, H. Li, *TernGrad: Ternary Gradients to Reduce
//! Communication in Distributed Deep Learning*, NIPS 2017 (arXiv 1705.07878), § 3.2 (parameter localization and scaler
//! sharing).
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::compress::tern_grad::TernGrad;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round};
//! use briquette_zoo::reduce::ternary_all_reduce::TernaryAllReduce;
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::new([("w", vec![3]), ("b", vec![1])]);
//! let mut average = [0.0; 4];
//! // Whole shares of the scale, 4 in `w` and 2 in `b`: nothing is random.
//! TernaryAllReduce::new(TernGrad::unclipped()).reduce(Round { key: Key::new(0), slots: layout.slots(),
//!     agreed_step: &AgreedStep::default(), input: &[4.0, 0.0, -4.0, 2.0], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [4.0, 0.0, -4.0, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use briquette_core::bits::{pack, packed_len, unpack};
use briquette_core::compress::{ErrorBound, tern_grad::TernGrad};
use briquette_core::config::{Described, Exchange, ReducerSettings, ReducerTraits};
use briquette_core::error::{AggregateError, CommError, ConfigError, ReduceError, WireError};
use briquette_core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette_core::report::Report;
use briquette_core::state::Stateful;
use briquette_core::{CompressionRatio, Frame, Layout, Session};

/// Sums of ternary codes; see the [module](self).
#[derive(Debug)]
pub struct TernaryAllReduce {
    tern_grad: TernGrad,
    /// The shared scale of each slot, and this rank's scale.
    scales: Vec<(f32, f32)>,
    /// This rank's codes: 0, 1 for plus the scale, 3 for minus the scale.
    codes: Vec<u8>,
    /// The codes received from another rank, unpacked.
    theirs: Vec<u8>,
    /// Sums of this rank's range, from `-W` to `W`.
    sums: Vec<i32>,
    bytes: Vec<u8>,
    frames: Vec<Frame>,
}

/// Returns the number that a code stands for.
fn ternary(code: u8) -> i32 {
    match code {
        1 => 1,
        3 => -1,
        _ => 0,
    }
}

/// Returns the range that a rank owns.
fn owned(rank: usize, world: usize, len: usize) -> Range<usize> {
    let start = |rank: usize| (rank as u128 * len as u128 / world as u128) as usize;
    start(rank)..start(rank + 1)
}

/// Returns the bits of a sum over `world` ranks.
fn bits_of_sum(world: usize) -> u8 {
    match (2 * world).ilog2() + 1 {
        bits @ ..=8 => bits as u8,
        _ => 16,
    }
}

fn wrong(rank: usize, what: &'static str, value: u64) -> ReduceError {
    AggregateError::Message { rank, source: WireError::Field { what, value } }.into()
}

fn check_len(rank: usize, frame: &[u8], expected: usize) -> Result<(), ReduceError> {
    if frame.len() == expected { Ok(()) } else { Err(wrong(rank, "bytes of ternary codes", frame.len() as u64)) }
}

impl TernaryAllReduce {
    /// Creates a reducer that clips as `tern_grad` does.
    pub fn new(tern_grad: TernGrad) -> Self {
        TernaryAllReduce {
            tern_grad,
            scales: Vec::new(),
            codes: Vec::new(),
            theirs: Vec::new(),
            sums: Vec::new(),
            bytes: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Fills `scales`, equal on every rank.
    fn share_scales(&mut self, round: &Round<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        self.scales.clear();
        let own = round.slots.iter().map(|slot| self.tern_grad.scale(&round.input[slot.range()]));
        self.scales.extend(own.map(|scale| (scale, scale)));
        self.bytes.clear();
        self.bytes.extend(self.scales.iter().flat_map(|(scale, _)| scale.to_le_bytes()));
        comm.all_gather(&self.bytes, &mut self.frames)?;
        for (from, frame) in self.frames.iter().enumerate().filter(|(from, _)| *from != comm.rank()) {
            check_len(from, frame, self.bytes.len())?;
            for ((scale, _), bytes) in self.scales.iter_mut().zip(frame.as_chunks().0) {
                let theirs = f32::from_le_bytes(*bytes);
                if !(theirs >= 0.0 && theirs.is_finite()) {
                    return Err(wrong(from, "scale of a slot", u64::from(theirs.to_bits())));
                }
                *scale = scale.max(theirs);
            }
        }
        Ok(())
    }

    fn quantize(&mut self, round: &Round<'_>, rank: usize) {
        self.codes.resize(round.input.len(), 0);
        for (index, (slot, &(scale, own))) in round.slots.iter().zip(&self.scales).enumerate() {
            let key = round.key.rank(rank).bucket(index);
            TernGrad::codes(&round.input[slot.range()], (own, scale), key, &mut self.codes[slot.range()]);
        }
    }

    /// Sends every owner the codes of its range, and sums the codes of this rank's range.
    fn reduce_scatter(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        let (rank, world, len) = (comm.rank(), comm.world(), self.codes.len());
        let mine = owned(rank, world, len);
        self.sums.clear();
        self.sums.extend(self.codes[mine.clone()].iter().map(|code| ternary(*code)));
        let outer = std::mem::replace(&mut comm.scope().operation, "reduce_scatter");
        for frame in self.frames.drain(..) {
            comm.pool().put(frame);
        }
        self.frames.resize_with(world, Frame::new);
        for to in (0..world).filter(|to| *to != rank) {
            let codes = &self.codes[owned(to, world, len)];
            let bytes = packed_len(codes.len(), 2);
            let mut frame = comm.pool().take_for(bytes);
            frame.resize(bytes, 0);
            pack(codes, 2, &mut frame);
            self.frames[to] = frame;
        }
        comm.all_to_all(&mut self.frames)?;
        for from in (0..world).filter(|from| *from != rank) {
            let frame = std::mem::take(&mut self.frames[from]);
            check_len(from, &frame, packed_len(mine.len(), 2))?;
            self.theirs.resize(mine.len(), 0);
            unpack(&frame, 2, 0, &mut self.theirs);
            self.sums.iter_mut().zip(&self.theirs).for_each(|(sum, code)| *sum += ternary(*code));
            comm.pool().put(frame);
        }
        comm.scope().operation = outer;
        Ok(())
    }

    /// Sends every rank the sums of every range.
    fn gather_sums(&mut self, comm: &mut Session) -> Result<(), CommError> {
        let (world, bits) = (comm.world() as i32, bits_of_sum(comm.world()));
        self.bytes.clear();
        let shifted = self.sums.iter().map(|sum| sum + world);
        if bits == 16 {
            self.bytes.extend(shifted.flat_map(|sum| (sum as u16).to_le_bytes()));
        } else {
            self.theirs.clear();
            self.theirs.extend(shifted.map(|sum| sum as u8));
            self.bytes.resize(packed_len(self.theirs.len(), bits), 0);
            pack(&self.theirs, bits, &mut self.bytes);
        }
        comm.all_gather(&self.bytes, &mut self.frames)
    }

    /// Writes the sum of every value into `average`, as a number.
    fn read_sums(&mut self, (rank, world): (usize, usize), average: &mut [f32]) -> Result<(), ReduceError> {
        let bits = bits_of_sum(world);
        for (from, frame) in self.frames.iter().enumerate() {
            // The transport leaves this rank's own frame empty.
            let frame = if from == rank { &self.bytes } else { frame };
            let range = owned(from, world, average.len());
            check_len(from, frame, packed_len(range.len(), bits))?;
            let part = &mut average[range];
            if bits == 16 {
                let sums = frame.as_chunks().0.iter().map(|bytes| f32::from(u16::from_le_bytes(*bytes)));
                part.iter_mut().zip(sums).for_each(|(value, sum)| *value = sum);
            } else {
                self.theirs.resize(part.len(), 0);
                unpack(frame, bits, 0, &mut self.theirs);
                part.iter_mut().zip(&self.theirs).for_each(|(value, sum)| *value = f32::from(*sum));
            }
            if let Some(sum) = part.iter().find(|sum| **sum > 2.0 * world as f32) {
                return Err(wrong(from, "sum of ternary codes", *sum as u64));
            }
            part.iter_mut().for_each(|value| *value -= world as f32);
        }
        Ok(())
    }
}

impl Stateful for TernaryAllReduce {}

impl Reducer for TernaryAllReduce {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (rank, world) = (comm.rank(), comm.world());
        let exchanged = Exchanged::count(comm, Selection::All, |comm| {
            self.share_scales(&round, comm)?;
            self.quantize(&round, rank);
            self.reduce_scatter(comm)?;
            Ok(self.gather_sums(comm)?)
        })?;
        self.read_sums((rank, world), round.average)?;
        for (slot, &(scale, _)) in round.slots.iter().zip(&self.scales) {
            // Rounded once: if all codes agree, the result is the scale.
            let share = |sum: f32| (f64::from(sum) * f64::from(scale) / world as f64) as f32;
            round.average[slot.range()].iter_mut().for_each(|value| *value = share(*value));
        }
        check_average(round.average, round.slots)?;
        if let Some(sent) = round.sent {
            for (slot, &(scale, _)) in round.slots.iter().zip(&self.scales) {
                let codes = &self.codes[slot.range()];
                sent[slot.range()].iter_mut().zip(codes).for_each(|(sent, code)| *sent = ternary(*code) as f32 * scale);
            }
        }
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        report.ratio = Some(CompressionRatio::of_bits(2));
    }
}

/// Settings of [`TernaryAllReduce`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "ternary-all-reduce",
    help = "TernGrad with one scale for all ranks, summed on the way; clipped at this many standard deviations, or at inf (2.5)",
    combinations(
        "reducer=ternary-all-reduce:inf feedback=none controller=none",
        "reducer=ternary-all-reduce:2.5 feedback=none controller=none bucket_values=32",
    )
)]
pub struct TernaryAllReduceConfig {
    /// Clipping limit in standard deviations; `inf` disables clipping.
    #[serde(deserialize_with = "clip")]
    #[setting(default = TernGrad::default_clip(), range = "(0, inf]")]
    pub clip: f32,
}

/// Reads a missing number as infinity, which JSON cannot represent.
fn clip<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let clip: Option<f32> = serde::Deserialize::deserialize(deserializer)?;
    Ok(clip.unwrap_or(f32::INFINITY))
}

impl TernaryAllReduceConfig {
    fn tern_grad(self) -> Result<TernGrad, ConfigError> {
        if self.clip == f32::INFINITY { Ok(TernGrad::unclipped()) } else { TernGrad::clipped(self.clip) }
    }
}

impl ReducerSettings for TernaryAllReduceConfig {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(TernaryAllReduce::new(self.tern_grad()?)))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits::default()
    }

    /// The scale may depend on another rank's values.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    /// At least the amplification of its quantizer with a rank-local scale.
    fn amplification(&self, len: usize) -> Option<f64> {
        ErrorBound::of(&TernGrad::new(), len).map(ErrorBound::error)
    }
}

#[cfg(test)]
mod tests;
