//! Every compressor on vectors of three lengths, drawn and recorded. `--bin codecs` compares them with memcpy in one run.
//!
//! `cargo bench -p briquette-benches --bench codecs -- "gaussian/encode/topk.*/262144"` runs some of them.

use briquette::core::compress::ErrorBound;
use briquette::core::config::CompressorConfig;
use briquette::core::{Key, Message};
use briquette_benches::vectors::Source;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::collections::HashMap;
use std::time::Duration;

/// Key of all compressors.
const KEY: u64 = 7;

/// Returns the share of the energy that each compressor keeps of 16 Mi values, from the committed table.
fn expected(source: Source) -> HashMap<String, f64> {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/results");
    let ending = format!("-codecs-{}.csv", source.name());
    let files = std::fs::read_dir(results).expect("committed results").map(|file| file.expect("a file").path());
    let newest = files.filter(|path| path.to_string_lossy().ends_with(&ending)).max();
    let Some(path) = newest else { return HashMap::new() };
    let rows = csv::Reader::from_path(path).expect("a table").into_deserialize::<HashMap<String, String>>();
    let text =
        |row: &HashMap<String, String>| row["compressor"].parse::<CompressorConfig>().expect("settings").to_string();
    let gain = |row: HashMap<String, String>| (text(&row), row["gain"].parse().expect("a number"));
    rows.map(|row| gain(row.expect("a row"))).collect()
}

/// Checks correctness before speed: the energy kept must be within the bounds of the compressor's class and, for the
/// longest vectors, equal to the table's.
fn check(config: &CompressorConfig, x: &[f32], message: &Message, expected: Option<&f64>) {
    let energy: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    let lost = message.error_energy(x) / energy;
    let class = config.build().error_bound(x);
    let bound = class.error();
    // One draw of many values lies near its mean.
    let slack = if matches!(class, ErrorBound::Contractive { .. }) { 1e-6 } else { 0.1 * bound + 0.05 };
    assert!(lost <= bound + slack, "{config}: lost {lost} of the energy, its class allows {bound}");
    // The very vector of the table, and the same key.
    if let Some(gain) = expected.filter(|_| x.len() == 1 << 24) {
        assert!((1.0 - lost - gain).abs() < 1e-6, "{config}: kept {}, the table says {gain}", 1.0 - lost);
    }
}

fn codecs(c: &mut Criterion) {
    briquette::zoo::install();
    for source in Source::ALL {
        let expected = expected(source);
        for len in [1 << 12, 1 << 18, 1 << 24] {
            let x = source.values(len).expect("committed gradients");
            let mut group = c.benchmark_group(source.name());
            group.throughput(Throughput::Bytes(4 * len as u64)).sample_size(10);
            group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400));
            for config in CompressorConfig::defaults() {
                let (mut compressor, mut bytes) = (config.build(), Vec::new());
                let (mut message, mut read) = (Message::default(), Message::default());
                compressor.compress_into(&x, Key::new(KEY), &mut message);
                check(&config, &x, &message, expected.get(&config.to_string()));
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
