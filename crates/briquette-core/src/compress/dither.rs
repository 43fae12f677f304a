//! Shared parts of quantizers with levels: norms, uniform random numbers, codes.

use super::buckets;
use crate::bits::{pack, packed_len};
use crate::key::Lanes;
use crate::math::{largest, norm1, norm2};
use crate::message::{Coding, Grid, bucket_count};
use crate::{BLOCK, Key, Message};

/// Norm that scales a bucket's levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Norm {
    /// The sum of magnitudes: nearly all zeros.
    L1,
    /// The Euclidean norm: many zeros.
    L2,
    /// The largest magnitude: less variance.
    #[default]
    Max,
}

impl Norm {
    /// Returns the norm of `x`, at most `f32::MAX`. It is at least every `|x|`: rounding to f32 keeps the order.
    pub fn of(self, x: &[f32]) -> f32 {
        match self {
            Norm::L1 => (norm1(x) as f32).min(f32::MAX).max(largest(x)),
            Norm::L2 => (norm2(x).sqrt() as f32).min(f32::MAX),
            Norm::Max => largest(x),
        }
    }
}

impl std::fmt::Display for Norm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Norm::L1 => "l1",
            Norm::L2 => "l2",
            Norm::Max => "max",
        })
    }
}

/// Random numbers for the values of one block, in their order.
pub(super) struct Dice {
    lanes: Lanes,
    ties: Key,
    place: usize,
}

impl Dice {
    pub(super) fn new(key: Key, block: usize) -> Dice {
        Dice { lanes: key.lanes(block), ties: key.purpose("ties"), place: block * BLOCK }
    }

    /// Adds 1 to every code with its chance, in units of 2⁻²³. Sixteen random bits decide, except if they equal the upper bits of the
    /// chance: then seven more bits decide. Handles at most [`PART`] codes at a time, a multiple of sixteen except for the last part.
    pub(super) fn round_up(&mut self, chances: &[u32], codes: &mut [u8]) {
        /// Few enough that a chunk rarely holds a tie, and many enough to search for one at once.
        const CHUNK: usize = 256;
        let mut random = [0; PART];
        let random = &mut random[..codes.len()];
        self.lanes.halves(random);
        let chunks = codes.chunks_mut(CHUNK).zip(chances.chunks(CHUNK)).zip(random.chunks(CHUNK));
        for (i, ((codes, chances), random)) in chunks.enumerate() {
            if round_up(chances, random, codes) {
                self.settle(i * CHUNK, (chances, random), codes);
            }
        }
        self.place += codes.len();
    }

    fn settle(&self, start: usize, (chances, random): (&[u32], &[u16]), codes: &mut [u8]) {
        for (i, code) in codes.iter_mut().enumerate().filter(|(i, _)| u32::from(random[*i]) == chances[*i] >> 7) {
            let more = (self.ties.word(self.place + start + i) >> 57) as u32;
            *code += u8::from(more < chances[i] & 0x7f);
        }
    }
}

/// Rounds up where the upper bits of a chance decide. Returns whether any remain undecided.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn round_up(chances: &[u32], random: &[u16], codes: &mut [u8]) -> bool {
    let mut ties = false;
    for ((code, &chance), &random) in codes.iter_mut().zip(chances).zip(random) {
        *code += u8::from(u32::from(random) < chance >> 7);
        ties |= u32::from(random) == chance >> 7;
    }
    ties
}

/// Values quantized at a time, so that their data stays in the first-level cache.
pub(super) const PART: usize = 1024;

/// Finds the level of a share of the scale, in [0, 1]. A trait, because closures are not inlined into kernels.
pub trait Level: Copy + Sync {
    /// Returns the level below, and the chance of the next level in units of 2⁻²³.
    fn level(&self, share: f32) -> (u32, u32);
}

/// A grid, and the search for levels on it.
#[derive(Debug, Clone, Copy)]
pub struct Quantizer<L> {
    /// The levels.
    pub grid: Grid,
    /// The encoding of codes.
    pub coding: Coding,
    /// Number of values that share a scale.
    pub bucket: u32,
    /// The search.
    pub level: L,
}

impl<L: Level> Quantizer<L> {
    /// Fills the message: the `scale` of every bucket, and codes, which are rounded at random if there is a key.
    ///
    /// # Panics
    /// If the grid is one of floats, and codes are not of fixed width.
    pub fn quantize(&self, x: &[f32], scale: impl Fn(&[f32]) -> f32 + Sync, key: Option<Key>, out: &mut Message) {
        let is_fixed = self.coding == Coding::Fixed;
        assert!(is_fixed || !matches!(self.grid, Grid::Float { .. }), "codes of floats have a fixed width");
        let bits = self.grid.bits();
        let (scales, codes) = out.quantized(x.len(), (self.grid, self.coding), self.bucket);
        let (scales, codes) =
            (scales.sized(bucket_count(x.len(), self.bucket)), codes.sized(packed_len(x.len(), bits)));
        buckets::encode((x, self.bucket), (scales, scale), (codes, bits), |segment, packed| {
            let (mut codes, mut chances) = ([0; PART], [0; PART]);
            for (number, block) in segment.blocks(BLOCK) {
                let mut dice = key.map(|key| Dice::new(key, number));
                for (_, part) in block.blocks(PART) {
                    let (codes, chances) = (&mut codes[..part.x.len()], &mut chances[..part.x.len()]);
                    part.for_buckets(self.bucket, |scale, range| {
                        levels(
                            (&part.x[range.clone()], scale),
                            self.level,
                            (&mut codes[range.clone()], &mut chances[range]),
                        );
                    });
                    if let Some(dice) = &mut dice {
                        dice.round_up(chances, codes);
                    }
                    finish((part.x, codes), (bits, self.coding));
                    let at = (part.start - segment.start) / 8 * usize::from(bits);
                    pack(codes, bits, &mut packed[at..][..packed_len(codes.len(), bits)]);
                }
            }
        });
    }
}

/// Writes the unpacked codes of a block's values, rounded at random to one of its `levels`. No value exceeds `scale`.
pub(super) fn block_codes(x: &[f32], (scale, levels): (f32, u8), (key, block): (Key, usize), codes: &mut [u8]) {
    let (mut dice, mut chances) = (Dice::new(key, block), [0; PART]);
    let bits = Grid::Linear { levels }.bits();
    for (x, codes) in x.chunks(PART).zip(codes.chunks_mut(PART)) {
        let chances = &mut chances[..x.len()];
        self::levels((x, scale), Linear(levels), (codes, chances));
        dice.round_up(chances, codes);
        finish((x, codes), (bits, Coding::Fixed));
    }
}

/// Writes the levels and chances of a part of one bucket.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn levels<L: Level>((x, scale): (&[f32], f32), level: L, (codes, chances): (&mut [u8], &mut [u32])) {
    if scale == 0.0 {
        codes.fill(0);
        return chances.fill(0);
    }
    for ((code, chance), x) in codes.iter_mut().zip(chances).zip(x) {
        let share = x.abs() / scale;
        // Clipped values exceed the scale.
        let (level, up) = level.level(if share < 1.0 { share } else { 1.0 });
        (*code, *chance) = (level as u8, up);
    }
}

/// Adds the signs to the levels. Elias codes have none for zero.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn finish((x, codes): (&[f32], &mut [u8]), (bits, coding): (u8, Coding)) {
    for (code, x) in codes.iter_mut().zip(x) {
        let sign = ((x.to_bits() >> 31) as u8) << (bits - 1);
        *code |= if coding == Coding::Elias && *code == 0 { 0 } else { sign };
    }
}

/// 2²³: adding it to a number between 0 and 2²³ leaves the nearest integer in the lowest bits.
const UNITS: f32 = 8_388_608.0;

/// Converts a chance to units of 2⁻²³, to the nearest.
#[inline(always)]
pub fn chance(share: f32) -> u32 {
    (share * UNITS + UNITS).to_bits() - UNITS.to_bits()
}

/// Linear grid with this many levels.
#[derive(Clone, Copy)]
pub(super) struct Linear(pub(super) u8);

impl Level for Linear {
    #[inline(always)]
    fn level(&self, share: f32) -> (u32, u32) {
        let a = share * f32::from(self.0);
        let nearest = (a + UNITS) - UNITS;
        let floor = if nearest > a { nearest - 1.0 } else { nearest };
        ((floor + UNITS).to_bits() - UNITS.to_bits(), chance(a - floor))
    }
}
