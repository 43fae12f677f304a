//! Devices of this build, and vectors that are hard for one algorithm or another.

use briquette_core::Key;
use briquette_device::Run;
use rand::Rng;

/// Returns the devices of all runtimes in this build, each also in whole numbers.
pub(crate) fn runs() -> Vec<Run> {
    let clients: Vec<cubecl::client::Client> = vec![
        #[cfg(feature = "cpu")]
        cubecl::Device::Cpu(Default::default()).client(),
        #[cfg(feature = "wgpu")]
        cubecl::Device::Wgpu(Default::default()).client(),
        #[cfg(feature = "cuda")]
        cubecl::Device::Cuda(Default::default()).client(),
    ];
    if clients.is_empty() {
        eprintln!(
            "skipped: no runtime in this build; name one with --features cpu, wgpu or cuda (scripts/llvm.sh, scripts/vulkan.sh)"
        );
    }
    let run = |client| Run::new(client).inspect_err(|error| eprintln!("skipped: {error}")).ok();
    clients.into_iter().filter_map(run).flat_map(|run| [run.clone(), run.in_whole_numbers()]).collect()
}

/// Lengths next to the borders of blocks and tiles.
const LENGTHS: [usize; 10] = [0, 1, 2, 255, 256, 257, 4095, 4096, 4097, 10_000];

/// Returns vectors of every length next to a border, and hard ones.
pub(crate) fn vectors() -> Vec<(String, Vec<f32>)> {
    let mut all: Vec<(String, Vec<f32>)> =
        LENGTHS.iter().map(|len| (format!("{len} values"), normal(*len, 1e-3))).collect();
    all.extend(hard().into_iter().map(|(name, x)| (name.to_owned(), x)));
    all
}

/// Returns values near a normal distribution.
pub(crate) fn normal(len: usize, scale: f32) -> Vec<f32> {
    let mut rng = Key::new(len as u64).block(0);
    let mut value = || ((0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0) * scale;
    (0..len).map(|_| value()).collect()
}

fn hard() -> Vec<(&'static str, Vec<f32>)> {
    let mut sparse = normal(9000, 1.0);
    sparse
        .iter_mut()
        .enumerate()
        .filter(|(i, _)| i % 37 != 0)
        .for_each(|(i, v)| *v = if i % 2 == 0 { 0.0 } else { -0.0 });
    let mut mixed = normal(5000, 1e-3);
    let special = [f32::MAX, -f32::MAX, 1e-45, -1e-45, 3e-39, f32::MIN_POSITIVE, -0.0, 1e37, -2.5e-31];
    special.into_iter().enumerate().for_each(|(i, v)| mixed[500 * i + 5] = v);
    vec![
        ("zeros", vec![0.0; 4100]),
        ("zeros of both signs", (0..300).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect()),
        ("equal", vec![-2.5; 5000]),
        ("ties", (0..9000).map(|i| (i / 7 % 50) as f32 - 25.0).collect()),
        ("powers of two", (0..2000).map(|i| 2_f32.powi(i % 250 - 125) * if i % 3 == 0 { -1.0 } else { 1.0 }).collect()),
        ("heavy tails", normal(9000, 1.0).iter().map(|v| v.powi(5)).collect()),
        ("huge", normal(5000, 1e37)),
        ("small", normal(5000, 1e-25)),
        (
            "denormal",
            (0..5000).map(|i| f32::from_bits(i * i % 0x7f_ffff) * if i % 2 == 0 { 1.0 } else { -1.0 }).collect(),
        ),
        (
            "any bits",
            (0..9000_u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).filter(|v| v.is_finite()).collect(),
        ),
        ("sparse", sparse),
        ("mixed", mixed),
        ("several segments", normal(140_001, 0.1)),
        ("many ties", (0..40_000).map(|i| if i % 20 == 3 { [1.0, -1.0][i / 20 % 2] } else { 0.0 }).collect()),
        ("few values", (0..40_000).map(|i| if i % 400 == 3 { i as f32 } else { 0.0 }).collect()),
    ]
}

/// Returns whether two vectors have the same bits. A device that flushes denormal numbers may differ in these.
pub(crate) fn same(run: &Run, device: &[f32], host: &[f32]) -> bool {
    let flushes = !matches!(run.client().name(), "cpu" | "cuda");
    let tiny = |v: f32| v.abs() < 2.0 * f32::MIN_POSITIVE;
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (flushes && tiny(*a) && tiny(*b));
    device.len() == host.len() && device.iter().zip(host).all(equal)
}
