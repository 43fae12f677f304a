//! Plain Burn and a world of one, step by step. `--bin overhead` alternates between them, which is less sensitive to noise.

use briquette_benches::overhead::{BILSTM, Plain, RESNET8, Steps, Wrapped};
use burn::tensor::Device;
use criterion::{Criterion, criterion_group, criterion_main};

fn steps(c: &mut Criterion) {
    let device = Device::flex();
    assert_eq!(Plain::new(RESNET8, &device).step(), Wrapped::alone(RESNET8, &device).step());
    let mut group = c.benchmark_group("step");
    group.sample_size(20);
    let (mut plain, mut wrapped) = (Plain::new(RESNET8, &device), Wrapped::alone(RESNET8, &device));
    group.bench_function("resnet8/plain", |b| b.iter(|| plain.step()));
    group.bench_function("resnet8/wrapped", |b| b.iter(|| wrapped.step()));
    let (mut plain, mut wrapped) = (Plain::new(BILSTM, &device), Wrapped::alone(BILSTM, &device));
    group.bench_function("bilstm/plain", |b| b.iter(|| plain.step()));
    group.bench_function("bilstm/wrapped", |b| b.iter(|| wrapped.step()));
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
