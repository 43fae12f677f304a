//! Every compressor on vectors of three lengths, drawn and recorded. `--bin codecs` compares them with memcpy in one run.
//!
//! `cargo bench -p briquette-benches --bench codecs -- "gaussian/encode/topk.*/262144"` runs some of them.

use briquette::core::compress::Class;
use briquette::core::config::CompressorConfig;
use briquette::core::{Key, Message};
use briquette_benches::vectors::Source;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;

/// A key for all.
const KEY: u64 = 7;

/// What was lost of `x` must be what the compressor's class says of it, before its speed counts.
fn check(config: &CompressorConfig, x: &[f32], message: &Message) {
    let energy: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    let lost = message.error_energy(x) / energy;
    let (bound, exact) = match config.build().class(x) {
        class @ Class::Contractive { .. } => (class.error(), true),
        // One draw of many values lies near its mean.
        class => (class.error(), false),
    };
    let slack = if exact { 1e-6 } else { 0.1 * bound + 0.05 };
    assert!(lost <= bound + slack, "{config}: lost {lost} of the energy, its class allows {bound}");
}

fn codecs(c: &mut Criterion) {
    for source in Source::ALL {
        for len in [1 << 12, 1 << 18, 1 << 24] {
            let x = source.values(len).expect("committed gradients");
            let mut group = c.benchmark_group(source.name());
            group.throughput(Throughput::Bytes(4 * len as u64)).sample_size(10);
            group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400));
            for config in CompressorConfig::defaults() {
                let (mut compressor, mut bytes) = (config.build(), Vec::new());
                let (mut message, mut read) = (Message::default(), Message::default());
                compressor.compress_into(&x, Key::new(KEY), &mut message);
                check(&config, &x, &message);
                message.encode_into(&mut bytes);
                group.bench_function(BenchmarkId::new(format!("encode/{config}"), len), |b| {
                    b.iter(|| {
                        compressor.compress_into(&x, Key::new(KEY), &mut message);
                        bytes.clear();
                        message.encode_into(&mut bytes);
                    });
                });
                let mut sum = vec![0.0; len];
                group.bench_function(BenchmarkId::new(format!("decode/{config}"), len), |b| {
                    b.iter(|| {
                        read.decode_from(&bytes).expect("a message reads what it wrote");
                        read.add_to(1.0, &mut sum).expect("a message fits its vector");
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
