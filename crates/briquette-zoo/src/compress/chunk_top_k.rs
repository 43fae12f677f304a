//! Chunk-wise top-k: the `k` largest magnitudes of every chunk of consecutive values.
//!
//! **Why, and when not.** Chunks are selected independently of each other, so that a vector needs one pass, its parts can be compressed on several
//! cores or on a device, and every part of the model is in every message. [`TopK`](briquette_core::compress::top_k::TopK) keeps more energy where the
//! scale of the gradient differs between layers. With error feedback and long local periods (SparseLoCo) the difference is small.
//!
//! **Method.** The vector is divided into chunks of `B` values, the last one shorter. Of a chunk of `n` values, `round(n/c)` (at least 1) of the
//! largest `|xᵢ|` are kept, ties to the lowest index. Zeros are never sent. The selection is exact: the `k`-th largest of the maxima of `4k` groups
//! is a floor, and the few values that reach it are searched.
//!
//! | paper | here |
//! |---|---|
//! | chunk size 4096 (64×64) | `chunk` `B` |
//! | top-k 64 of 4096 | `ratio` `c` 64 |
//!
//! **On the wire.** As [`TopK`](briquette_core::compress::top_k::TopK), with about `d/c` indices. At 64 of 4096, Rice codes take about 7.4 bits per
//! index; a fixed width takes 12.
//!
//! **Properties.** Contractive with δ the smallest share `k/n` of a chunk. Kept values are bit-exact. Needs error feedback.
//!
//! **Knobs.** `ratio` `c`, default 64; `chunk` `B` at least 1, default 4096.
//!
//! **Deviations.** SparseLoCo divides matrices into tiles of 64×64; here chunks are consecutive values of the vector.
//!
//! **Reference.** A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, *Communication Efficient LLM Pre-training with SparseLoCo*, 2025 (arXiv 2508.15706).
//!
//! ```
//! use briquette_core::compress::Compressor;
//! use briquette_core::{Key, Message};
//! use briquette_zoo::compress::chunk_top_k::ChunkTopK;
//! let mut message = Message::default();
//! ChunkTopK::new(0.5, 4)?.compress_into(&[9.0, -8.0, 7.0, 0.0, 1.0, -3.0, 2.0], Key::new(0), &mut message);
//! assert_eq!(message.sparse_f32(), Some((&[0, 1, 5, 6][..], &[9.0, -8.0, -3.0, 2.0][..])));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::compress::threshold::fill;
use briquette_core::compress::{Compressor, Encoding, ErrorBound, Tunable};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::{CompressionRatio, Key, Message};

/// Keeps the largest magnitudes of every chunk; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "chunk-topk",
    help = "the largest values of every chunk (1/64 of 4096)",
    places = 2,
    representatives("chunk-topk:8x,chunk=16")
)]
pub struct ChunkTopK {
    #[serde(with = "briquette_core::config::share")]
    #[setting(default = "64x", syntax = "FRACTION|RATIOx")]
    ratio: CompressionRatio,
    #[setting(default = 4096, range = "[1, inf)")]
    chunk: u32,
}

impl ChunkTopK {
    /// Creates a compressor that keeps this share of every `chunk` values, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] for another share, or chunks of 0 values or of 2³² or more.
    pub fn new(fraction: f64, chunk: usize) -> Result<Self, ConfigError> {
        let ratio = CompressionRatio::of_share("fraction of values kept by chunk-wise top-k", fraction)?;
        let size = u32::try_from(chunk).unwrap_or_default();
        ConfigError::unless(size > 0, "chunk of chunk-wise top-k", "at least 1 and below 2^32", chunk)?;
        Ok(ChunkTopK { ratio, chunk: size })
    }

    fn chunks<'x>(&self, x: &'x [f32]) -> impl Iterator<Item = &'x [f32]> + use<'x> {
        x.chunks(self.chunk as usize)
    }
}

/// Appends `base` plus the places of the `k` largest magnitudes of `x`, in ascending order.
fn select(x: &[f32], k: usize, base: usize, indices: &mut Vec<u32>, scratch: &mut Scratch) {
    let Scratch { maxima, found, ranked } = scratch;
    let group = (x.len() / (4 * k)).max(1);
    maxima.clear();
    maxima.extend(x.chunks(group).map(|group| group.iter().map(|v| magnitude(*v)).fold(0, u32::max)));
    let mut floor = 1;
    if group > 1 {
        ranked.clone_from(maxima);
        // At least k values reach the k-th largest of the maxima.
        floor = (*ranked.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1).max(1);
    }
    found.clear();
    for (number, values) in x.chunks(group).enumerate().filter(|(number, _)| maxima[*number] >= floor) {
        let places = ((number * group) as u32..).zip(values).filter(|(_, v)| magnitude(**v) >= floor);
        found.extend(places.map(|(place, v)| (magnitude(*v), place)));
    }
    let mut last = 0;
    let mut ties = 0;
    if found.len() > k {
        ranked.clear();
        ranked.extend(found.iter().map(|(size, _)| *size));
        last = *ranked.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1;
        ties = k - ranked.iter().filter(|size| **size > last).count();
    }
    for (size, place) in found.iter() {
        if *size == last {
            if ties == 0 {
                continue;
            }
            ties -= 1;
        }
        if *size >= last {
            indices.push(base as u32 + place);
        }
    }
}

/// Buffers of a selection.
#[derive(Debug, Default)]
struct Scratch {
    maxima: Vec<u32>,
    /// Magnitude and place of each candidate.
    found: Vec<(u32, u32)>,
    ranked: Vec<u32>,
}

/// Bits of `|v|`, which order like magnitudes.
fn magnitude(v: f32) -> u32 {
    v.to_bits() & !(1 << 31)
}

impl Tunable for ChunkTopK {
    fn tune(&mut self, ratio: CompressionRatio) {
        self.ratio = ratio;
    }
}

impl Compressor for ChunkTopK {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }

    fn encoding(&self) -> Option<Encoding> {
        (!self.ratio.is_dense()).then_some(Encoding::ChunkTopK { ratio: self.ratio, chunk: self.chunk as usize })
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let (indices, values) = out.start_sparse_f32(x.len());
        let mut scratch = Scratch::default();
        let mut base = 0;
        for chunk in self.chunks(x) {
            select(chunk, self.ratio.keep(chunk.len()), base, indices, &mut scratch);
            base += chunk.len();
        }
        fill(x, indices, values);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let share = |chunk: &[f32]| self.ratio.keep(chunk.len()) as f64 / chunk.len() as f64;
        ErrorBound::Contractive { delta: self.chunks(x).map(share).fold(1.0, f64::min) }
    }

    fn selects(&self) -> bool {
        !self.ratio.is_dense()
    }
}

impl CompressorSettings for ChunkTopK {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { needs_feedback: true, is_exact: true, is_sparse: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::compress::top_k::TopK;
    use briquette_core::laws::compress::{assert_edges, decoded, kept};
    use proptest::prelude::*;

    /// Largest first, ties to the lowest index.
    fn naive(x: &[f32], ratio: CompressionRatio, chunk: usize) -> Vec<u32> {
        let of = |(number, x): (usize, &[f32])| {
            let mut places: Vec<usize> = (0..x.len()).filter(|place| x[*place] != 0.0).collect();
            places.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()).then(a.cmp(b)));
            places.truncate(ratio.keep(x.len()));
            places.sort_unstable();
            places.into_iter().map(move |place| (number * chunk + place) as u32).collect::<Vec<_>>()
        };
        x.chunks(chunk).enumerate().flat_map(of).collect()
    }

    /// Chunks of 4 and 3: two of each, as 3/2 rounds up.
    #[test]
    fn ties_go_to_the_lowest_index_of_each_chunk_by_hand() {
        let x = [2.0, -2.0, 2.0, 1.0, -1.0, 1.0, 1.0];
        assert_eq!(kept(ChunkTopK::new(0.5, 4).unwrap(), &x, Key::new(0)), [0, 1, 4, 5]);
        assert_eq!(kept(ChunkTopK::new(0.5, 4).unwrap(), &[0.0, 3.0, 0.0, 0.0, 0.0], Key::new(0)), [1]);
    }

    #[test]
    fn one_chunk_is_top_k() {
        let x: Vec<f32> = (0..5000).map(|i| (i as f32 * 1.7).sin() * (1.0 + (i % 13) as f32)).collect();
        let chunked = decoded(&mut ChunkTopK::new(0.01, 5000).unwrap(), &x, Key::new(0));
        assert_eq!(chunked, decoded(&mut TopK::fraction(0.01).unwrap(), &x, Key::new(0)));
    }

    proptest! {
        /// Few different values, so that ties are common.
        #[test]
        fn it_keeps_what_sorting_keeps(
            x in proptest::collection::vec(-6_i8..6, 0..700), chunk in 1_usize..300, share in 0.001_f64..1.0,
        ) {
            let x: Vec<f32> = x.into_iter().map(f32::from).collect();
            let chunked = ChunkTopK::new(share, chunk).unwrap();
            prop_assert_eq!(kept(chunked, &x, Key::new(0)), naive(&x, chunked.ratio, chunk));
        }

        #[test]
        fn it_keeps_what_sorting_keeps_of_different_values(
            x in proptest::collection::vec(-1e3_f32..1e3, 0..3000), chunk in 1_usize..1500, share in 0.001_f64..0.1,
        ) {
            let chunked = ChunkTopK::new(share, chunk).unwrap();
            prop_assert_eq!(kept(chunked, &x, Key::new(0)), naive(&x, chunked.ratio, chunk));
        }
    }

    /// Claim: indices are sent in less than the 12 bits of a fixed width, and near the entropy of 1/64 (7.4 bits).
    #[test]
    fn indices_take_less_than_a_fixed_width() {
        let x: Vec<f32> = (0..1 << 18).map(|i| (i as f32 * 0.37).sin() + (i as f32 * 1.7).cos()).collect();
        let mut message = Message::default();
        ChunkTopK::new(1.0 / 64.0, 4096).unwrap().compress_into(&x, Key::new(0), &mut message);
        assert_eq!(message.kept(), 4096);
        let bits = 8.0 * (message.encoded_len() - 4 * message.kept()) as f64 / message.kept() as f64;
        assert!(bits < 8.5, "{bits} bits per index");
    }

    #[test]
    fn edges_stay_finite() {
        assert_edges(&mut ChunkTopK::new(0.5, 3).unwrap());
        assert_edges(&mut ChunkTopK::new(0.01, 4096).unwrap());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let error = ChunkTopK::new(0.1, 0).unwrap_err().to_string();
        assert!(error.contains("chunk of chunk-wise top-k"), "{error}");
    }
}
