//! Ring all-reduce with partial sums in 16, 8 or 4 bits, or exact in a lossless code.
//!
//! **Why, and when not.** Sends a half, a quarter or a seventh of the dense ring's bytes *at any world size*. In 16 and 8 bits the error is so small that
//! training needs no error feedback. In 4 bits, use error feedback or `stochastic`. `lossless` has the bits of [`Dense`]
//! in about a sixth fewer bytes. The same formats [gathered](crate::reduce::gather::Gather) move `W/2` times as many bytes. Each
//! rank adds a rounding error, so the error grows with the world. Sparse messages save far more on a slow network.
//!
//! **Method.** The vector is cut into one chunk per rank. Chunk `c` of `W` starts at rank `c` and is summed in the order `c, c+1, …`.
//! Let `d` be the sum that a rank received (0 at the first rank), `x` its own values and `Q` the rounding of the format:
//!
//! | step | here |
//! |---|---|
//! | every rank but the last: sum and forward | `s = d + x` in f32; sends `Q(s)` |
//! | the last rank | `Q(s)` is the result on *all* ranks, this one included: the same bits everywhere |
//! | `sent` | `Q(s) − d`: the change made by this rank |
//!
//! Each rank rounds each value once, and the ranks' changes add up to the final sum. The mean of `sent` therefore equals the average
//! exactly, and `x − sent = s − Q(s)` is the error of this rank's own rounding, which error feedback keeps as its exact residual.
//!
//! Vectors of up to [`SMALL_ALL_REDUCE`] values are not cut: each rank sends `Q(x)` to every rank, and all sum in f32, in rank
//! order; `sent` is `Q(x)`.
//!
//! | format | `Q` |
//! |---|---|
//! | `bf16` | to nearest, ties to even |
//! | `f16` | the same; a block of 256 values whose largest magnitude is not within 7.6e-6 and 65504 is scaled by a power of two |
//! | `int8` | blocks of 256 values: `127·s/max|s|` to nearest, or `stochastic`: up or down, unbiased; below 4e-37 to 0 |
//! | `int4` | groups of 32 values in steps of a seventh of their largest magnitude, which is rounded up to one of 255 shares of that of a block of 256 |
//!
//! `lossless` sums in the order of the dense all-reduce, which is the same for short vectors and chunks, and sends values in the code of kind 17 of
//! `docs/wire.md`. `sent` is `x`.
//!
//! *Random bits.* `key.purpose("ring").rank(rank)` at the value's index. A rank rounds each value once, so it uses each
//! index once.
//!
//! **On the wire.** In 16 bits, a ring of `d` values sends and receives `2·(W−1)/W·2d` bytes, exactly half of the dense ring's. In a
//! frame with any scaled block, each block adds one byte (the exponent, before the block's values). In 8 bits: `2·(W−1)/W·d·(1 + 4/256)`
//! bytes, plus at most 4 bytes a frame. In 4 bits: `2·(W−1)/W·d·140/256` bytes, 7.3 times less than the dense ring's. `lossless` sends at most one byte more than the dense ring for every 16 384 values, and about 27 bits a value for
//! gradients, 11 where sums have the bits of bfloat16. Short vectors take the same number of bytes per value for each other rank.
//!
//! **Properties.** At each hop the error of a value is at most `2⁻⁸|s|` (bf16), `2⁻¹¹|s|` (f16, for values of at least 6e-5, or in a scaled
//! block at least `2⁻²⁹` of the block's largest), or half a step: of `max|s|/127` of the block (int8, the largest value exact), of
//! `(max|s| of the group + max|s|/255 of the block)/7` (int4). The error
//! depends on other ranks' values, so there is no error bound for this rank's vector alone, and EF21 and DIANA are refused. `stochastic` is
//! unbiased. `lossless` is exact: unbiased with ω = 0, no error feedback.
//!
//! **State.** None. **Knobs.** `format`, default bf16. `stochastic` (int8 and int4), default off: its error has mean zero, and in int8 twice the energy.
//!
//! **Deviations.** PyTorch's hooks divide by `W` before they round. This keeps f16 from overflowing, and rounds more small values to
//! zero. They add in 16 bits if the collective does. Here sums are sent, and blocks beyond the range of f16 are scaled. A sum beyond the
//! range of `f32` is an [error](ReduceError::Overflow) on every rank. DynamiQ gives each group a width of its own and correlates the
//! rounding of different ranks; here all groups have 4 bits, and draws are independent.
//!
//! **Reference.** `bf16_compress_hook` and `fp16_compress_hook` of PyTorch's `torch.distributed.algorithms.ddp_comm_hooks`; Horovod's
//! `Compression.fp16`. *DynamiQ*, 2026 (arXiv 2602.08923), for hierarchical scales (read from its abstract). Rounding at every hop of a ring is usual in 16-bit collectives; the accounting of `sent` per rank is this crate's.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{AgreedStep, Reducer, ring::{Ring, Wire}, Round};
//! let mut comm = Local::world(1).remove(0);
//! let (layout, mut average) = (Layout::flat(2), [0.0; 2]);
//! Ring::new(Wire::Bf16).reduce(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &[1.0, 0.1], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [1.0, 0.100_097_656]); // 0.1 ≈ 205 · 2⁻¹¹
//! # Ok::<(), briquette_core::error::ReduceError>(())
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use crate::comm::{Hop, Hops, SMALL_ALL_REDUCE, expect_size};
use crate::error::{CommError, ConfigError, ReduceError};
use crate::reduce::dense::Dense;
use crate::report::Report;
use crate::seam::{ErrorBound, Exchanged, Reducer, Round, Selection, SentInput, check_average};
use crate::settings::{Described, Exchange, ReducerSettings, ReducerTraits};
use crate::state::Stateful;
use crate::{CompressionRatio, Frame, Key, Layout, Session};

mod exact;
mod int4;
mod wire;

pub use wire::Wire;
use wire::{BLOCK, SCALED};

/// A ring all-reduce with narrow partial sums; see the [module](self).
#[derive(Debug)]
pub struct Ring {
    wire: Wire,
    stochastic: bool,
    own: Frame,
    frames: Vec<Frame>,
}

/// Inputs and outputs of one exchange in progress.
struct Vectors<'a> {
    wire: Wire,
    /// Key for stochastic rounding, if enabled.
    key: Option<Key>,
    /// Delivered frames that are sent onward as they are, by their first value.
    onward: BTreeMap<usize, Frame>,
    input: &'a [f32],
    /// Received values: the sum before this rank, then the sum of all.
    average: &'a mut [f32],
    sent: Option<&'a mut [f32]>,
}

impl Hops for Vectors<'_> {
    fn bytes(&self, values: usize) -> usize {
        self.wire.bytes(values)
    }

    fn fits(&self, values: usize, bytes: usize) -> bool {
        self.wire.fits(values, bytes)
    }

    fn send(&mut self, place: Range<usize>, hop: Hop, frame: &mut Frame) {
        if let Some(delivered) = self.onward.remove(&place.start).filter(|_| hop == Hop::Onward) {
            *frame = delivered;
            return;
        }
        let (wire, is_scaled) = (self.wire, self.wire == Wire::F16 && self.needs_scales(place.clone(), hop));
        let size = |values| if is_scaled { wire.scaled_bytes(values) } else { wire.bytes(values) };
        frame.clear();
        frame.resize(size(place.len()), 0);
        let (mut sums, mut rest) = ([0.0; BLOCK], &mut frame[..]);
        for start in place.clone().step_by(BLOCK) {
            let part = start..place.end.min(start + BLOCK);
            let (bytes, later) = rest.split_at_mut(size(part.len()));
            self.send_block(part, hop, &mut sums, bytes);
            rest = later;
        }
    }

    fn collect(&mut self, place: Range<usize>, frame: &[u8]) {
        self.wire.decode(frame, &mut self.average[place]);
    }

    fn deliver(&mut self, place: Range<usize>, frame: &[u8]) {
        if !self.wire.is_stable() {
            self.onward.insert(place.start, frame.to_vec());
        }
        self.wire.decode(frame, &mut self.average[place]);
    }
}

impl Vectors<'_> {
    /// Returns whether any block of the frame is beyond the format's range. If so, all blocks of the frame carry a
    /// scale.
    fn needs_scales(&self, place: Range<usize>, hop: Hop) -> bool {
        let mut sums = [0.0; SCALED];
        place.clone().step_by(SCALED).any(|start| {
            let part = start..place.end.min(start + SCALED);
            let (before, own) = (&self.average[part.clone()], &self.input[part.clone()]);
            match hop {
                Hop::Onward => self.wire.needs_scale(before),
                Hop::Start => self.wire.needs_scale(own),
                Hop::Sum | Hop::Whole => {
                    let sums = &mut sums[..part.len()];
                    sums.iter_mut().zip(before.iter().zip(own)).for_each(|(sum, (before, own))| *sum = before + own);
                    self.wire.needs_scale(sums)
                }
            }
        })
    }

    fn send_block(&mut self, place: Range<usize>, hop: Hop, sums: &mut [f32; BLOCK], bytes: &mut [u8]) {
        let (sums, random) = (&mut sums[..place.len()], self.key.map(|key| (key, place.start)));
        let (before, own) = (&mut self.average[place.clone()], &self.input[place.clone()]);
        match hop {
            Hop::Onward => return self.wire.encode(before, None, bytes),
            Hop::Start => {
                self.wire.encode(own, random, bytes);
                if let Some(sent) = &mut self.sent {
                    self.wire.decode(bytes, &mut sent[place]);
                }
                return;
            }
            Hop::Sum | Hop::Whole => {}
        }
        sums.iter_mut().zip(before.iter().zip(own)).for_each(|(sum, (before, own))| *sum = before + own);
        self.wire.encode(sums, random, bytes);
        if self.sent.is_none() && hop != Hop::Whole {
            return;
        }
        self.wire.decode(bytes, sums);
        if let Some(sent) = &mut self.sent {
            let change = sums.iter().zip(&*before).map(|(after, before)| after - before);
            sent[place].iter_mut().zip(change).for_each(|(sent, change)| *sent = change);
        }
        if hop == Hop::Whole {
            before.copy_from_slice(sums);
        }
    }
}

impl Ring {
    /// Creates a ring that rounds to nearest.
    pub fn new(wire: Wire) -> Self {
        Ring { wire, stochastic: false, own: Frame::new(), frames: Vec::new() }
    }

    /// Creates a ring with 8-bit sums and unbiased stochastic rounding.
    pub fn stochastic() -> Self {
        Ring { stochastic: true, ..Ring::new(Wire::Int8) }
    }

    /// Sends all ranks' values to every rank: one latency, for short vectors. Also used for any vector in a world of
    /// one rank.
    fn gather(&mut self, mut vectors: Vectors<'_>, comm: &mut Session) -> Result<(), CommError> {
        let (rank, len) = (comm.rank(), vectors.input.len());
        vectors.send(0..len, Hop::Start, &mut self.own);
        comm.all_gather(&self.own, &mut self.frames)?;
        vectors.average.fill(0.0);
        let mut values = [0.0; BLOCK];
        for (from, frame) in self.frames.iter().enumerate() {
            // The session leaves this rank's own frame empty.
            let frame = if from == rank { &self.own } else { frame };
            let (plain, scaled) = (self.wire.bytes(len), self.wire.scaled_bytes(len));
            let is_scaled = frame.len() == scaled && plain != scaled;
            expect_size(comm, from, if is_scaled { scaled } else { plain }, frame)?;
            let block = if is_scaled { self.wire.scaled_bytes(BLOCK) } else { self.wire.bytes(BLOCK) };
            for (frame, sums) in frame.chunks(block).zip(vectors.average.chunks_mut(BLOCK)) {
                self.wire.decode(frame, &mut values[..sums.len()]);
                sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
            }
        }
        Ok(())
    }
}

impl Stateful for Ring {}

impl Reducer for Ring {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, input, average, sent, .. } = round;
        let (rank, world) = (comm.rank(), comm.world());
        let exchanged = if self.wire == Wire::Lossless {
            average.copy_from_slice(input);
            sent.into_iter().for_each(|sent| sent.copy_from_slice(input));
            Exchanged::count(comm, Selection::All, |comm| exact::all_reduce(average, comm))?
        } else {
            let key = self.stochastic.then(|| key.purpose("ring").rank(rank));
            let onward = BTreeMap::new();
            let mut vectors = Vectors { wire: self.wire, key, onward, input, average: &mut *average, sent };
            Exchanged::count(comm, Selection::All, |comm| {
                let reduced = match world == 1 || input.len() <= SMALL_ALL_REDUCE {
                    true => self.gather(vectors, comm),
                    false => comm.all_reduce_by(input.len(), &mut vectors),
                };
                Ok(reduced?)
            })?
        };
        let weight = 1.0 / world as f32;
        if weight != 1.0 {
            average.iter_mut().for_each(|v| *v *= weight);
        }
        check_average(average, slots)?;
        Ok(exchanged)
    }

    fn can_subtract_sent(&self) -> bool {
        self.wire == Wire::Lossless
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        self.wire == Wire::Lossless && Dense.subtract_sent(input)
    }

    fn report(&self, report: &mut Report) {
        if self.wire == Wire::Lossless {
            report.gain.get_or_insert(1.0);
        }
        report.ratio = Some(CompressionRatio::of_bits(self.wire.bits()));
        report.carrier = Some(self.wire.carrier());
    }
}

/// Settings of [`Ring`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "ring",
    help = "an all-reduce of sums in 16, 8 or 4 bits, or exact in a lossless code; int8 and int4 round to nearest, or at random (bf16)",
    representatives("ring:bf16", "ring:f16", "ring:int8", "ring:int8,stochastic=true", "ring:int4", "ring:int4,stochastic=true", "ring:lossless"),
    check = Self::check_rounding
)]
pub struct RingConfig {
    /// The number format of partial sums.
    #[setting(syntax = "bf16|f16|int8|int4|lossless")]
    pub format: Wire,
    /// Enables stochastic rounding.
    pub stochastic: bool,
}

impl RingConfig {
    fn check_rounding(&self) -> Result<(), ConfigError> {
        if self.stochastic && self.format.bits() >= 16 {
            let ring = if self.format == Wire::Lossless { "reducer ring:lossless" } else { "reducer ring in 16 bits" };
            return Err(ConfigError::conflict(
                ring,
                "stochastic rounding",
                "it rounds at random in 8 and 4 bits alone",
                "use format int8 or int4, or omit stochastic",
            ));
        }
        Ok(())
    }
}

impl ReducerSettings for RingConfig {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        Ok(Box::new(Ring { stochastic: self.stochastic, ..Ring::new(self.format) }))
    }

    fn traits(&self) -> ReducerTraits {
        let is_exact = self.format == Wire::Lossless;
        ReducerTraits { is_dense: is_exact, is_exact, ..ReducerTraits::default() }
    }

    /// If sums are rounded, a rank's loss depends on a sum that includes other ranks' values.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        (self.format == Wire::Lossless).then_some(ErrorBound::Unbiased { omega: 0.0 })
    }
}

#[cfg(test)]
mod tests;
