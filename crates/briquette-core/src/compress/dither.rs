//! What quantizers with levels share: norms, uniform numbers, codes.

use crate::Key;
use crate::math::{norm1, norm2};
use crate::message::Grid;

/// What a bucket's levels are shares of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// The norm of `x`, at most `f32::MAX`. At least every `|x|`: rounding to f32 keeps the order.
    pub(super) fn of(self, x: &[f32]) -> f32 {
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

/// The largest magnitude. As integers, which order alike and vectorise.
#[multiversion::multiversion(targets("x86_64+avx2"))]
pub(super) fn largest(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff)))
}

/// The uniform numbers in [0, 1) of one block: the upper 24 of a value's 32 random bits.
pub(super) fn draw(key: Key, block: usize, uniforms: &mut [f32]) {
    let mut lanes = key.lanes(block);
    let mut words = [0; 64];
    for uniforms in uniforms.chunks_mut(64) {
        let words = &mut words[..uniforms.len()];
        lanes.fill(words);
        for (uniform, word) in uniforms.iter_mut().zip(words) {
            *uniform = (*word >> 8) as i32 as f32 * 2_f32.powi(-24);
        }
    }
}

/// The level below each share of the scale, on an exponential grid.
#[derive(Debug)]
pub(super) struct Levels {
    shares: [f32; 128],
    top: i32,
    per_octave: f32,
}

impl Levels {
    pub(super) fn new(base: f32, levels: u8) -> Levels {
        let shares = Grid::Exponential { base, levels }.shares();
        Levels { shares, top: i32::from(levels), per_octave: base.log2().recip() }
    }

    /// The highest level at most `a`, in [0, 1], the share it is, and the share of the next.
    pub(super) fn below(&self, a: f32) -> (u8, f32, f32) {
        // A float's bits are its logarithm, nearly; the comparisons make it exact, on every machine alike.
        let octaves = (a.to_bits() as i32 - 1.0_f32.to_bits() as i32) as f32 * 2_f32.powi(-23);
        let mut level = (self.top + (octaves * self.per_octave).floor() as i32).clamp(0, self.top) as usize;
        while level > 0 && self.shares[level] > a {
            level -= 1;
        }
        while level < self.top as usize && self.shares[level + 1] <= a {
            level += 1;
        }
        let next = if level < self.top as usize { self.shares[level + 1] } else { 1.0 };
        (level as u8, self.shares[level], next)
    }

    /// The variance of rounding `a` at random.
    pub(super) fn variance(&self, a: f32) -> f64 {
        let (_, low, high) = self.below(a);
        f64::from(a - low) * f64::from(high - a)
    }
}

/// Elias codes have no sign for zero.
pub(super) fn no_negative_zeros(codes: &mut [u8], bits: u8) {
    let sign = 1_u8 << (bits - 1);
    codes.iter_mut().for_each(|code| *code = if *code == sign { 0 } else { *code });
}
