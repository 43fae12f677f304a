//! Keyed randomness: every random bit is a pure function of the *position* where it is used.
//!
//! A [`Key`] names a position (seed, step, bucket, rank, purpose); [`Key::block`] turns it into a short, fast
//! generator. Long vectors use one generator per block of [`BLOCK`] values, so the bits depend neither on the number of
//! threads nor on earlier draws. No generator state is saved in checkpoints: a run resumed at step `k` makes the key of
//! step `k` and draws the same bits.
//!
//! ```
//! use briquette_core::Key;
//! use rand::Rng;
//! let key = Key::new(7).step(3).bucket(0);
//! let shared: u64 = key.block(0).random();             // the same on every rank
//! let private: u64 = key.rank(1).block(0).random();    // rank 1's own
//! assert_ne!(shared, private);
//! assert_eq!(shared, Key::new(7).step(3).bucket(0).block(0).random::<u64>());
//! ```

use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Number of values drawn from one generator before the next block begins.
pub const BLOCK: usize = 4096;

/// The generator behind a [`Key`]: xoshiro256++ (D. Blackman, S. Vigna, 2019), specified bit for bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRng(Xoshiro256PlusPlus);

impl RngCore for KeyRng {
    #[inline]
    fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    #[inline]
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    #[inline]
    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

/// A position in a run; two different positions give independent randomness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

/// Kinds of a key's parts. They keep `step(1)` and `bucket(1)` different.
#[derive(Clone, Copy)]
enum Domain {
    Seed = 1,
    Step,
    Bucket,
    Rank,
    Purpose,
    Block,
}

impl Key {
    /// Returns the root key of a run with this seed.
    pub fn new(seed: u64) -> Self {
        Key(0x6272_6971_7565_7474).fold(Domain::Seed, seed)
    }

    /// Returns the key of one optimizer step (or of one epoch, for data order).
    #[must_use]
    pub fn step(self, step: u64) -> Self {
        self.fold(Domain::Step, step)
    }

    /// Returns the key of one bucket of the flat vector.
    #[must_use]
    pub fn bucket(self, bucket: usize) -> Self {
        self.fold(Domain::Bucket, bucket as u64)
    }

    /// Returns the rank-local key of one rank; without this call, the key is shared by all ranks.
    #[must_use]
    pub fn rank(self, rank: usize) -> Self {
        self.fold(Domain::Rank, rank as u64)
    }

    /// Returns the key of one purpose: `"shuffle"`, `"augment"`, `"init/conv1.weight"`.
    #[must_use]
    pub fn purpose(self, name: &str) -> Self {
        // FNV-1a: stable across builds, unlike the standard library's hasher.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        self.fold(Domain::Purpose, hash)
    }

    /// Returns the generator of block `index`: values `index * BLOCK ..` of a vector.
    pub fn block(self, index: usize) -> KeyRng {
        KeyRng(Xoshiro256PlusPlus::seed_from_u64(self.fold(Domain::Block, index as u64).0))
    }

    /// Returns eight parallel generators for block `index`, to draw many random bits fast.
    pub fn lanes(self, index: usize) -> Lanes {
        let mut seeds = self.fold(Domain::Block, index as u64).0;
        let mut next = || {
            seeds = seeds.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(seeds)
        };
        let mut state = [[0; LANES]; 4];
        for lane in 0..LANES {
            let [low, high] = [next(), next()];
            // Never all zero: the generator could not leave that state.
            let words = [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32 | 1];
            words.iter().zip(&mut state).for_each(|(word, row)| row[lane] = *word);
        }
        Lanes(state)
    }

    /// Returns 64 random bits for one position. For draws that are rare and small.
    pub fn word(self, index: usize) -> u64 {
        self.fold(Domain::Block, index as u64).0
    }

    fn fold(self, domain: Domain, value: u64) -> Self {
        Key(mix(mix(self.0 ^ (domain as u64).rotate_left(56)) ^ mix(value)))
    }
}

/// Number of lanes: 256-bit vectors. With 512 bits, two rows of the state share a register, and moving the halves costs
/// more time.
const LANES: usize = 8;

/// Eight xoshiro128++ generators (D. Blackman, S. Vigna, 2019) that step together, so that compilers vectorize them.
/// Lane `i` serves values `i`, `i + 8`, `i + 16`, … of its block.
#[derive(Debug, Clone)]
pub struct Lanes([[u32; LANES]; 4]);

impl Lanes {
    /// Draws 32 random bits per value.
    pub fn fill(&mut self, out: &mut [u32]) {
        fill(&mut self.0, out);
    }

    /// Draws 16 random bits per value, at half the cost. Of 16 values, the first eight take the low halves of the eight
    /// lanes' next words, and the others take the high halves.
    pub fn halves(&mut self, out: &mut [u16]) {
        halves(&mut self.0, out);
    }
}

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn halves(state: &mut [[u32; LANES]; 4], out: &mut [u16]) {
    let cut = |words: [u32; LANES]| -> [u16; 2 * LANES] {
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        for i in 0..LANES {
            (low[i], high[i]) = (words[i] as u16, (words[i] >> 16) as u16);
        }
        std::array::from_fn(|i| if i < LANES { low[i] } else { high[i - LANES] })
    };
    let (chunks, rest) = out.as_chunks_mut::<{ 2 * LANES }>();
    for chunk in chunks {
        *chunk = cut(next(state));
    }
    if !rest.is_empty() {
        let last = cut(next(state));
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn fill(state: &mut [[u32; LANES]; 4], out: &mut [u32]) {
    let (chunks, rest) = out.as_chunks_mut::<LANES>();
    for chunk in chunks {
        *chunk = next(state);
    }
    if !rest.is_empty() {
        let last = next(state);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn next(state: &mut [[u32; LANES]; 4]) -> [u32; LANES] {
    let [mut a, mut b, mut c, mut d] = *state;
    let mut out = [0; LANES];
    for i in 0..LANES {
        out[i] = a[i].wrapping_add(d[i]).rotate_left(7).wrapping_add(a[i]);
        let shifted = b[i] << 9;
        c[i] ^= a[i];
        d[i] ^= b[i];
        b[i] ^= c[i];
        a[i] ^= d[i];
        c[i] ^= shifted;
        d[i] = d[i].rotate_left(11);
    }
    *state = [a, b, c, d];
    out
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use std::collections::HashSet;

    #[test]
    fn different_places_give_different_keys() {
        let root = Key::new(0);
        let mut seen = HashSet::new();
        for i in 0..500u64 {
            for key in [root.step(i), root.bucket(i as usize), root.rank(i as usize), Key::new(i)] {
                assert!(seen.insert(key), "collision at {i}");
            }
        }
        assert_ne!(root.step(1).bucket(2), root.step(2).bucket(1));
        assert_ne!(root.purpose("shuffle"), root.purpose("augment"));
    }

    #[test]
    fn bits_are_pinned_across_builds() {
        // A change here breaks the replay of every recorded run.
        let first: u64 = Key::new(42).step(1).bucket(2).rank(3).block(0).random();
        assert_eq!(first, PINNED);
        let (mut half, mut bytes) = (Key::new(42).step(1).bucket(2).rank(3).block(0), [0; 8]);
        Key::new(42).step(1).bucket(2).rank(3).block(0).fill_bytes(&mut bytes);
        assert_eq!((half.next_u32(), bytes), ((PINNED >> 32) as u32, PINNED.to_le_bytes()));
    }
    const PINNED: u64 = 3_055_498_562_126_258_532;

    #[test]
    fn lanes_are_xoshiro128_plus_plus_each_with_a_seed_of_its_own() {
        let mut lanes = Key::new(3).lanes(2);
        let mut twins: Vec<[u32; 4]> = (0..LANES).map(|i| lanes.0.map(|row| row[i])).collect();
        assert_eq!(twins.iter().collect::<HashSet<_>>().len(), LANES);
        let mut out = [0; 100];
        lanes.fill(&mut out);
        for (i, word) in out.iter().enumerate() {
            let s = &mut twins[i % LANES];
            // The reference code, one step.
            assert_eq!(*word, s[0].wrapping_add(s[3]).rotate_left(7).wrapping_add(s[0]));
            let t = s[1] << 9;
            s[2] ^= s[0];
            s[3] ^= s[1];
            s[1] ^= s[2];
            s[0] ^= s[3];
            s[2] ^= t;
            s[3] = s[3].rotate_left(11);
        }
        let mean = out.iter().map(|w| f64::from(*w)).sum::<f64>() / 100.0 / 2_f64.powi(32);
        assert!((mean - 0.5).abs() < 0.15, "{mean}"); // sd of the mean is 0.029
        assert_ne!(next(&mut Key::new(3).lanes(2).0), next(&mut Key::new(3).lanes(3).0));
    }

    #[test]
    fn halves_are_those_of_the_same_words() {
        for len in [0, 1, 8, 9, 16, 17, 40] {
            let (mut words, mut halves) = ([0; 24], vec![0; len]);
            Key::new(3).lanes(2).fill(&mut words);
            Key::new(3).lanes(2).halves(&mut halves);
            for (i, half) in halves.iter().enumerate() {
                let word = words[i / 16 * 8 + i % 8];
                assert_eq!(u32::from(*half), if i % 16 < 8 { word & 0xffff } else { word >> 16 });
            }
        }
    }

    #[test]
    fn uniform_draws_have_the_right_mean() {
        let mut rng = Key::new(5).block(9);
        let mean = (0..10_000).map(|_| rng.random::<f64>()).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}"); // sd of the mean is 0.0029
    }
}
