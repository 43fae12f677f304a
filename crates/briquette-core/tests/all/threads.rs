//! Any number of threads gives the same bits: messages, and the sums computed from them.
#![cfg(feature = "rayon")]

use briquette_core::config::CompressorConfig;
use briquette_core::{Key, Message};

/// Segments are 65 536 values: no full one, some, and a partial last one.
const LENGTHS: [usize; 4] = [1, 4095, 65_536, 3 * 65_536 + 77];

fn vector(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin().powi(3) * (1.0 + (i % 13) as f32)).collect()
}

/// Returns the frame, and the values that decoding adds to a vector from its second value on.
fn frame_and_sum(config: &CompressorConfig, x: &[f32]) -> (Vec<u8>, Vec<u32>) {
    let (mut message, mut bytes, mut sum) = (Message::default(), Vec::new(), vec![0.1; x.len()]);
    config.build().compress_into(x, Key::new(11), &mut message);
    message.encode_into(&mut bytes);
    message.add_to(0.3, &mut sum).expect("as long as the vector");
    message.add_range(1, -0.7, &mut sum[1..]).expect("a part of it");
    (bytes, sum.into_iter().map(f32::to_bits).collect())
}

#[test]
fn one_two_three_threads_and_none_of_a_pool_give_the_same_bits() {
    briquette_zoo::install();
    let pools = [1, 2, 3].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads"));
    // Buckets that divide a segment, that do not, and that are longer than one.
    let more = ["qsgd:3:100", "minmax:1000", "sign:70000", "one-bit:300", "qsgd:4:512:l2", "qsgd:s64:131072:l2:elias"];
    let more = more.iter().map(|name| name.parse().expect("a compressor"));
    for config in CompressorConfig::defaults().into_iter().chain(more) {
        for len in LENGTHS {
            let x = vector(len);
            let alone = frame_and_sum(&config, &x);
            for pool in &pools {
                let shared = pool.install(|| frame_and_sum(&config, &x));
                assert!(shared == alone, "{config} of {len} values on {} threads", pool.current_num_threads());
            }
        }
    }
}
