//! Times encoders and decoders of every runtime in this build, next to a copy on the device and to the compressor of the host.
//!
//! `cargo run --release -p briquette-device --features cuda --example measure -- 25557032 20 > device.csv`: the number of values, and of
//! repetitions, of which the median counts.

use std::time::Instant;

use briquette_core::compress::{
    Compressor, HalfKind, half::Half, min_max::MinMax, natural::Natural, qsgd::Qsgd, random_k::RandomK,
    scaled_sign::ScaledSign, tern_grad::TernGrad, threshold_top_k::ThresholdTopK, top_k::TopK,
};
use briquette_core::{CompressionRatio, Key, Message};
use briquette_device as device;
use briquette_device::{Encoded, Groups, Run, Terms, Vector};
use briquette_zoo::compress::chunk_top_k::ChunkTopK;
use cubecl::device::{Device, DeviceUnavailable};

type Encode = fn(&Run, &Vector) -> Encoded;

/// Returns the compressors of the host, and their twins.
fn twins() -> Vec<(&'static str, Box<dyn Compressor>, Encode)> {
    let share = 0.01;
    let qsgd = Qsgd::with_levels(7, 512, briquette_core::compress::Norm::Max).expect("valid settings");
    vec![
        ("topk:0.01", Box::new(TopK::fraction(share).expect("a share")), |run, x| device::top_k(run, x, x.len() / 100)),
        ("chunk-topk:64x", Box::new(ChunkTopK::new(1.0 / 64.0, 4096).expect("a share")), |run, x| {
            device::chunk_top_k(run, x, CompressionRatio::new(64.0).expect("a ratio"), 4096)
        }),
        ("threshold-topk:0.01", Box::new(ThresholdTopK::fraction(share).expect("a share")), |run, x| {
            device::threshold_top_k(run, x, x.len() / 100, 0.01, Key::new(0)).expect("a device")
        }),
        ("randk:0.01", Box::new(RandomK::fraction(share).expect("a share")), |run, x| {
            device::random_k(run, x, RandomK::fraction(0.01).expect("a share"), Key::new(0))
        }),
        ("minmax", Box::new(MinMax::new()), |run, x| device::min_max(run, x, 256)),
        ("f16", Box::new(Half::new(HalfKind::F16)), |run, x| device::half(run, x, HalfKind::F16)),
        ("bf16", Box::new(Half::new(HalfKind::Bf16)), |run, x| device::half(run, x, HalfKind::Bf16)),
        ("qsgd:4", Box::new(qsgd), |run, x| {
            device::qsgd(run, x, (7, 512), device::Norm::Max, Key::new(0)).expect("a device")
        }),
        ("natural", Box::new(Natural), |run, x| device::natural(run, x, Key::new(0))),
        ("terngrad", Box::new(TernGrad::new()), |run, x| {
            device::tern_grad(run, x, Some(2.5), Key::new(0)).expect("a device")
        }),
        ("sign", Box::new(ScaledSign::new()), |run, x| device::scaled_sign(run, x, None)),
    ]
}

/// Returns the median time of `work`, in seconds, after one call that compiles kernels.
fn median(repeats: usize, mut work: impl FnMut()) -> f64 {
    work();
    let mut times: Vec<f64> = (0..repeats)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn row(runtime: &str, name: &str, work: &str, len: usize, seconds: f64) {
    println!("{runtime},{name},{work},{len},{seconds:.6},{:.2}", 4e-9 * len as f64 / seconds);
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let (len, repeats) = (arguments.next().unwrap_or(1 << 22), arguments.next().unwrap_or(5).max(1));
    let devices: Vec<Result<Device, DeviceUnavailable>> = vec![
        #[cfg(feature = "cpu")]
        Device::cpu(),
        #[cfg(feature = "wgpu")]
        Ok(Device::Wgpu(Default::default())),
        #[cfg(feature = "cuda")]
        Device::cuda(0),
    ];
    if devices.is_empty() {
        eprintln!("no runtime in this build: name one with --features cpu, wgpu or cuda");
    }
    let x: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7).sin().powi(5)).collect();
    println!("runtime,what,work,values,seconds,gigabytes_per_second");
    for device in devices {
        let device = device.unwrap_or_else(|error| {
            eprintln!("measure: {error}");
            std::process::exit(1)
        });
        let run = Run::new(device.client()).expect("a device with all that kernels need");
        let runtime = run.client().name();
        run.check().expect("a device with the bits of the host");
        let (vector, out) = (run.upload(&x), run.zeros(len));
        let done = |out: &Vector| drop(run.read(&run.part(out, 0..1)).expect("a device"));
        row(
            runtime,
            "copy",
            "on the device",
            len,
            median(repeats, || {
                device::copy_to(&run, &vector, 0..len, &out, 0);
                done(&out);
            }),
        );
        row(runtime, "dense", "read", len, median(repeats, || drop(run.read(&vector).expect("a device"))));
        row(
            runtime,
            "feedback",
            "on the device",
            len,
            median(repeats, || {
                device::feed(&run, &out, &vector, 0.5, 0..len);
                done(&out);
            }),
        );
        let groups = Groups::new(&run, [len]);
        row(
            runtime,
            "energy",
            "read",
            len,
            median(repeats, || {
                drop(device::sums(&run, &vector, &groups, Terms::Squares).read(&run).expect("a device"));
            }),
        );
        for (name, mut compressor, encode) in twins() {
            let mut message = Message::default();
            let seconds = median(repeats, || drop(encode(&run, &vector).read(&run, &mut message).expect("a message")));
            row(runtime, name, "encode and read", len, seconds);
            let on_device = encode(&run, &vector).read(&run, &mut message).expect("a message");
            row(
                runtime,
                name,
                "add",
                len,
                median(repeats, || {
                    on_device.add(&run, 0.5, &out, 0);
                    done(&out);
                }),
            );
            let seconds = median(repeats, || compressor.compress_into(&x, Key::new(0), &mut message));
            row(runtime, name, "encode on the host", len, seconds);
        }
    }
}
