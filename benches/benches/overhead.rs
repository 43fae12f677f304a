//! Plain Burn and a world of one, step by step. `--bin overhead` compares them in turns, which noise disturbs less.

use briquette_benches::overhead::{BiLstm, Plain, ResNet8, Wrapped};
use criterion::{Criterion, criterion_group, criterion_main};

fn steps(c: &mut Criterion) {
    assert_eq!(Plain::new(ResNet8).step(), Wrapped::new(ResNet8).step());
    let mut group = c.benchmark_group("step");
    group.sample_size(20);
    let (mut plain, mut wrapped) = (Plain::new(ResNet8), Wrapped::new(ResNet8));
    group.bench_function("resnet8/plain", |b| b.iter(|| plain.step()));
    group.bench_function("resnet8/wrapped", |b| b.iter(|| wrapped.step()));
    let (mut plain, mut wrapped) = (Plain::new(BiLstm), Wrapped::new(BiLstm));
    group.bench_function("bilstm/plain", |b| b.iter(|| plain.step()));
    group.bench_function("bilstm/wrapped", |b| b.iter(|| wrapped.step()));
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
