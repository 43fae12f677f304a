//! Compressors: which message is made of a vector. One file per compressor.
//!
//! | compressor | error bound | wire ratio | needs error feedback |
//! |---|---|---|---|
//! | [`Redsync`](redsync::Redsync) | contractive, δ = n/d for the n sent | as `TopK` for k to 2k, fewer for heavy tails | yes |
//! | [`ChunkTopK`](chunk_top_k::ChunkTopK) | contractive, δ = the smallest k/n of a chunk | as `TopK` | yes |
//! | [`Sidco`](sidco::Sidco) | contractive, δ = n/d for the n sent | as `TopK`, ±20 % | yes |
//! | [`BiasedRandom`](biased_random::BiasedRandom) | contractive in the mean, δ = q | as `TopK` for k ≈ q·d | yes |
//! | [`AdaptiveRandom`](adaptive_random::AdaptiveRandom) | contractive in the mean, δ = ‖x‖₃³/(‖x‖₁‖x‖₂²) ≥ 1/d | ≈ d/6 | yes |
//! | [`ExponentialDithering`](exponential_dithering::ExponentialDithering) | unbiased, ω by base, level count and norm | 32/bits | no |
//! | [`Rounding`](rounding::Rounding) | nearest: contractive, δ = 4b/(b+1)²; random: unbiased, ω = (b+1/b+2)/4 − 1 | 4 | nearest |
//! | [`Bins`](bins::Bins) | contractive, δ = Σ nⱼmⱼ²/‖x‖₂² | 32/bits | yes |
//! | [`Lossless`](lossless::Lossless) | exact, δ = 1 and ω = 0 | 32/(24 + entropy of exponents) ≈ 1.2; 3 for values of bfloat16 | no |
//! | [`Float4`](float4::Float4) | nearest: contractive, δ = 8/9 in small buckets; random: unbiased, ω ≈ 1/8 | 32/(4 + 32/bucket) | nearest |
//! | [`OneBit`](one_bit::OneBit) | contractive, δ = Σ n±·m±²/‖x‖₂² | 32 | yes |

pub mod adaptive_random;
pub mod biased_random;
pub mod bins;
pub mod chunk_top_k;
mod exponential;
pub mod exponential_dithering;
pub mod float4;
pub mod lossless;
pub mod one_bit;
pub mod redsync;
pub mod rounding;
pub mod sidco;
#[cfg(test)]
mod testkit;

#[cfg(test)]
mod tests {
    use briquette_core::config::CompressorConfig;

    #[test]
    fn texts_round_trip() {
        crate::install();
        for text in [
            "dither:3:15:64:l1",
            "round:2:random",
            "topk:100x+minmax:64",
            "redsync:20x",
            "chunk-topk:64x",
            "chunk-topk:8x:16+natural",
            "chunk-topk:64x+bins:3",
            "bins:2:64,sigmas=3",
            "float4:e2m1",
            "float4:e3m0:64:random",
            "topk:20x+float4:e2m1:32",
            "sidco:20x",
            "biased-random:8x",
            "adaptive-random",
            "lossless",
            "topk:100x+lossless",
        ] {
            assert_eq!(text.parse::<CompressorConfig>().unwrap().to_string(), text);
        }
        for (keyed, placed) in [
            ("dither:3,levels=15,bucket=64,norm=l1", "dither:3:15:64:l1"),
            ("round:2,mode=random", "round:2:random"),
            ("dither:2:7:512:max", "dither:2"),
            ("round:4:nearest", "round:4"),
            ("minmax:block=20", "minmax:20"),
            ("topk:100x,values=f32+minmax:block=64", "topk:100x+minmax:64"),
        ] {
            assert_eq!(keyed.parse::<CompressorConfig>().unwrap().to_string(), placed, "{keyed}");
        }
    }

    #[test]
    fn impossible_texts_say_what_is_possible() {
        crate::install();
        for (text, says) in [
            ("redsync:0", "at most 1"),
            ("chunk-topk:64x:0", "chunk of chunk-topk must be"),
            ("bins:5", "bits of bins must be 1 to 4"),
            ("sidco:x", "`ratio`: compression ratio must be a number such as 10 or 10x, got x"),
            ("biased-random:0", "at most 1"),
            ("lossless:3", "it has no settings, got `3`"),
            ("adaptive-random:1", "it has no settings, got `1`"),
        ] {
            let error = text.parse::<CompressorConfig>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
