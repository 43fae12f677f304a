//! Encoders: each queues the kernels of one of core's compressors.

use briquette_core::compress::{Compressor, ErrorBound, HalfKind, random_k::RandomK};
use briquette_core::{BLOCK, CompressionRatio, Key, Message};
use cubecl::prelude::*;
use rand::RngCore;

use crate::collect::Kept;
use crate::encoded::{Encoded, Made, Scales};
use crate::error::DeviceError;
use crate::run::{Run, Vector};
use crate::sums::{Groups, Terms, sums};
use crate::{chunks, dither, select, sign};

/// Encodes the `k` largest magnitudes, ties to the lowest index, without zeros: core's `TopK`.
pub fn top_k(run: &Run, x: &Vector, k: usize) -> Encoded {
    let k = k.min(x.len());
    Encoded::new(x, Made::Sparse(Kept::collect(run, x, select::largest(run, x, k), k)))
}

/// Encodes the largest magnitudes of every chunk, a share of each, ties to the lowest index, without zeros: the zoo's `ChunkTopK`.
pub fn chunk_top_k(run: &Run, x: &Vector, ratio: CompressionRatio, chunk: usize) -> Encoded {
    if chunk >= x.len() {
        return top_k(run, x, ratio.keep(x.len()));
    }
    Encoded::new(x, Made::Sparse(chunks::largest(run, x, ratio, chunk)))
}

/// Encodes magnitudes of at least `threshold`, above 0 and finite: core's `HardThreshold`. The message is read in one wait if at most `room`
/// values are kept.
pub fn hard_threshold(run: &Run, x: &Vector, threshold: f32, room: usize) -> Encoded {
    Encoded::new(x, Made::Sparse(Kept::collect(run, x, select::at_least(run, floor_of(threshold)), room.min(x.len()))))
}

/// Bits of a threshold's magnitude; zeros never pass.
fn floor_of(threshold: f32) -> u32 {
    (threshold.to_bits() & 0x7fff_ffff).max(1)
}

/// Encodes in 16 bits: core's `Half`.
pub fn half(run: &Run, x: &Vector, kind: HalfKind) -> Encoded {
    let (scales, codes) = crate::half::halves(run, x, kind == HalfKind::Bf16);
    Encoded::new(x, Made::Half { kind, scales, codes })
}

/// Encodes in 8 bits between the ends of each block: core's `MinMax`.
///
/// # Panics
/// If `block` is 0.
pub fn min_max(run: &Run, x: &Vector, block: usize) -> Encoded {
    let (ranges, codes, extreme) = crate::min_max::codes(run, x, block);
    Encoded::new(x, Made::Affine { block, ranges, codes, extreme })
}

/// Encodes as random powers of two: core's `Natural`.
pub fn natural(run: &Run, x: &Vector, key: Key) -> Encoded {
    let exponents = crate::natural::exponents(run, x, key);
    Encoded::new(x, Made::Powers { exponents, signs: sign::signs(run, x, None) })
}

/// Encodes signs with the mean magnitude of each `bucket` values, or of all: core's `ScaledSign`.
///
/// # Panics
/// If `bucket` is 0.
pub fn scaled_sign(run: &Run, x: &Vector, bucket: Option<usize>) -> Encoded {
    let bucket = bucket.unwrap_or(x.len().max(1));
    let scales = Scales::means(run, x, bucket);
    Encoded::new(x, Made::Signs { bucket, scales, bits: sign::signs(run, x, None) })
}

/// Encodes signs: core's `PlainSign`. With a key, the signs of zeros are random.
pub fn plain_sign(run: &Run, x: &Vector, zeros: Option<Key>) -> Encoded {
    let bits = sign::signs(run, x, zeros);
    Encoded::new(x, Made::Signs { bucket: x.len().max(1), scales: Scales::One, bits })
}

/// Norm that scales a bucket, as in core's `Qsgd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Norm {
    /// The Euclidean norm.
    L2,
    /// The largest magnitude.
    Max,
}

/// Encodes as random levels of each bucket's norm, in codes of fixed width: core's `Qsgd`. The Euclidean norm waits for its sums, because a
/// square root in f64 is the host's.
///
/// # Errors
/// [`DeviceError::Failed`] if a kernel failed.
///
/// # Panics
/// If `bucket` is 0, or `levels` is not in 1 to 127.
pub fn qsgd(
    run: &Run,
    x: &Vector,
    (levels, bucket): (u8, usize),
    norm: Norm,
    key: Key,
) -> Result<Encoded, DeviceError> {
    assert!((1..=127).contains(&levels), "QSGD has 1 to 127 levels, got {levels}");
    let scales = match norm {
        Norm::Max => dither::largest_of(run, x, bucket),
        Norm::L2 => {
            let energies = sums(run, x, &Groups::of_buckets(run, x.len(), bucket), Terms::Squares).read(run)?;
            let norms: Vec<f32> = energies.iter().map(|energy| (energy.sqrt() as f32).min(f32::MAX)).collect();
            run.upload(&norms)
        }
    };
    let codes = dither::codes(run, x, (levels, bucket), &scales, key);
    Ok(Encoded::new(x, Made::Levels { levels, bucket, scales, codes }))
}

/// Encodes as −1, 0 or 1 times a scale, clipped at `clip` standard deviations: core's `TernGrad`. Clipping waits for the norm.
///
/// # Errors
/// [`DeviceError::Failed`] if a kernel failed.
pub fn tern_grad(run: &Run, x: &Vector, clip: Option<f32>, key: Key) -> Result<Encoded, DeviceError> {
    let bucket = x.len().max(1);
    let mut scales = dither::largest_of(run, x, bucket);
    if let Some(clip) = clip.filter(|_| !x.is_empty()) {
        let energy = sums(run, x, &Groups::new(run, [x.len()]), Terms::Squares);
        let read = run.read_words(&[&scales, &energy.words])?;
        let limit = f64::from(clip) * (energy.groups.totals(&read[1])[0] / x.len() as f64).sqrt();
        scales = run.upload(&[f32::from_bits(read[0][0]).min(limit as f32)]);
    }
    let codes = dither::codes(run, x, (1, bucket), &scales, key);
    Ok(Encoded::new(x, Made::Levels { levels: 1, bucket, scales, codes }))
}

/// Values at some places of a vector.
#[cube(launch)]
pub(crate) fn gathered(x: &[f32], places: &[u32], out: &mut [f32]) {
    let at = ABSOLUTE_POS;
    if at < places.len() {
        out[at] = x[places[at] as usize];
    }
}

pub(crate) fn gather(run: &Run, x: &Vector, places: &[u32]) -> Vector {
    gather_at(run, x, &run.upload_words(places))
}

/// Queues the values at places that are on the device.
pub(crate) fn gather_at(run: &Run, x: &Vector, places: &Vector) -> Vector {
    let out = run.empty(places.len());
    if !places.is_empty() {
        let cubes = run.cubes_for(places.len());
        gathered::launch(run.launch(), cubes, run.dim(), x.arg(), places.arg(), out.arg());
    }
    out
}

/// Encodes the coordinates that core's `RandomK` draws. The host draws them: it takes as long as drawing them anywhere.
pub fn random_k(run: &Run, x: &Vector, mut random_k: RandomK, key: Key) -> Encoded {
    let mut message = Message::default();
    let scaled = matches!(random_k.error_bound(&[0.0]), ErrorBound::Unbiased { .. });
    random_k.compress_into(&vec![0.0; x.len()], key, &mut message);
    let indices = message.sparse_indices().expect("random-k makes sparse messages").to_vec();
    let scale = if scaled && !indices.is_empty() { x.len() as f32 / indices.len() as f32 } else { 1.0 };
    let values = gather(run, x, &indices);
    Encoded::new(x, Made::Drawn { indices, values, scale })
}

/// Encodes about the `k` largest magnitudes, by the threshold of a sample of at most a share `sample` of the vector: core's `ThresholdTopK`.
/// It waits for the sample. Reading waits again if the threshold keeps far more or fewer than `k` values.
///
/// # Errors
/// [`DeviceError::Failed`] if a kernel failed.
pub fn threshold_top_k(run: &Run, x: &Vector, k: usize, sample: f64, key: Key) -> Result<Encoded, DeviceError> {
    let Some(count) = samples(x.len(), k, sample) else { return Ok(top_k(run, x, k)) };
    let mut drawn: Vec<u32> = run.read_words(&[&gather(run, x, &places(x.len(), count, key))])?.swap_remove(0);
    drawn.iter_mut().for_each(|bits| *bits &= 0x7fff_ffff);
    drawn.sort_unstable_by(|a, b| b.cmp(a));
    let expected = k as f64 / x.len() as f64 * count as f64;
    Ok(Search { k, drawn, rank: (expected + expected.sqrt()) as usize, pass: 0 }.encode(run, x))
}

/// Search for a threshold that keeps about `k` values.
#[derive(Debug)]
pub(crate) struct Search {
    k: usize,
    /// Magnitudes of the sample, the largest first.
    drawn: Vec<u32>,
    /// Number of sampled values that the threshold keeps.
    rank: usize,
    pass: usize,
}

impl Search {
    fn floor(&self) -> u32 {
        self.drawn[self.rank.clamp(1, self.drawn.len()) - 1].max(1)
    }

    fn most(&self) -> usize {
        (MOST * self.k / 10).max(self.k)
    }

    fn encode(self, run: &Run, x: &Vector) -> Encoded {
        let kept = Kept::collect(run, x, select::at_least(run, self.floor()), self.most());
        Encoded::new(x, Made::Searched(kept, self))
    }

    /// Returns what to encode instead, if `found` values are not about `k`.
    pub(crate) fn other(self, run: &Run, x: &Vector, found: usize) -> Option<Encoded> {
        if found > self.most() {
            return Some(top_k(run, x, self.k));
        }
        if 10 * found >= LEAST * self.k || self.floor() == 1 {
            return None;
        }
        if self.pass + 1 == PASSES {
            return Some(top_k(run, x, self.k));
        }
        let rank = 2 * self.rank.clamp(1, self.drawn.len());
        Some(Search { rank, pass: self.pass + 1, ..self }.encode(run, x))
    }
}

/// Bounds on the number of kept values, in tenths of `k`, and on the number of thresholds, of core's `ThresholdTopK`.
const LEAST: usize = 7;
const MOST: usize = 13;
const PASSES: usize = 4;

/// Number of values to sample; `None` if an exact selection is as cheap.
fn samples(len: usize, k: usize, sample: f64) -> Option<usize> {
    if len < 1 << 15 || k == len {
        return None;
    }
    let enough = (128 * len as u64 / k as u64) as usize;
    let samples = ((sample * len as f64) as usize).min(enough).clamp(1 << 12, 1 << 15);
    (samples <= len / 4).then_some(samples)
}

/// One place in each of `count` equal strides.
fn places(len: usize, count: usize, key: Key) -> Vec<u32> {
    let border = |i: usize| (i as u64 * len as u64 / count as u64) as usize;
    let mut out = Vec::with_capacity(count);
    for block in 0..count.div_ceil(BLOCK) {
        let mut rng = key.block(block);
        for i in block * BLOCK..count.min((block + 1) * BLOCK) {
            let (from, to) = (border(i), border(i + 1));
            let within = (u64::from(rng.next_u32()) * (to - from) as u64) >> 32;
            out.push((from as u64 + within) as u32);
        }
    }
    out
}
