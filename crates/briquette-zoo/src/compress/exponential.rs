//! Quantization on an exponential grid, shared by the compressors with levels that are powers of a base.

use briquette_core::compress::{Level, Quantizer, chance};
use briquette_core::message::{Coding, Grid};
use briquette_core::{Key, Message};

/// Grid of this many powers of two: a float's own exponent is its level.
#[derive(Clone, Copy)]
struct Binary(u8);

impl Level for Binary {
    #[inline(always)]
    fn level(&self, share: f32) -> (u32, u32) {
        let top = i32::from(self.0);
        // Maps the lowest level to 1.
        let lowest = f32::from_bits(((top - 1 + 127) as u32) << 23);
        let level = (share.to_bits() >> 23) as i32 + top - 127;
        let below = share * lowest;
        let below = chance(if below < 1.0 { below } else { 1.0 });
        if level > 0 { (level as u32, share.to_bits() & 0x7f_ffff) } else { (0, below) }
    }
}

/// Selects the nearer level instead of a random one; the lower one in the middle.
#[derive(Clone, Copy)]
struct Nearest<L>(L);

impl<L: Level> Level for Nearest<L> {
    #[inline(always)]
    fn level(&self, share: f32) -> (u32, u32) {
        let (level, chance) = self.0.level(share);
        (level + u32::from(chance > 1 << 22), 0)
    }
}

/// Quantizes on an exponential grid: at random if there is a key, else to the nearest level.
pub(super) fn exponential(
    (grid, bucket): (Grid, u32),
    (x, key): (&[f32], Option<Key>),
    scale: impl Fn(&[f32]) -> f32 + Sync,
    out: &mut Message,
) {
    let Grid::Exponential { base, levels } = grid else { unreachable!("a linear grid") };
    macro_rules! with {
        ($level:expr) => {
            Quantizer { grid, coding: Coding::Fixed, bucket, level: $level }.quantize(x, scale, key, out)
        };
    }
    let of = Levels::new(base, levels);
    match (base == 2.0, key.is_some()) {
        (true, true) => with!(Binary(levels)),
        (true, false) => with!(Nearest(Binary(levels))),
        (false, true) => with!(&of),
        (false, false) => with!(Nearest(&of)),
    }
}

impl Level for &Levels {
    #[inline(always)]
    fn level(&self, share: f32) -> (u32, u32) {
        let (level, low, high) = self.below(share);
        // The last level has no next level to round up to.
        let up = if high > low { chance((share - low) / (high - low)) } else { 0 };
        (u32::from(level), up)
    }
}

/// Lookup of the level below each share of the scale, on an exponential grid.
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

    /// Returns the highest level at most `a`, in [0, 1], its share, and the share of the next level.
    pub(super) fn below(&self, a: f32) -> (u8, f32, f32) {
        // A float's bits approximate its logarithm; the comparisons make the result exact, equally on every machine.
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

    /// Returns the variance of rounding `a` at random.
    pub(super) fn variance(&self, a: f32) -> f64 {
        let (_, low, high) = self.below(a);
        f64::from(a - low) * f64::from(high - a)
    }
}
