//! Size and speed of the lossless code, from values to a frame and back, next to `memcpy`: `cargo bench -p briquette-core --bench lossless -- FILE...`
//! writes rows of `lossless.csv`, in CPU seconds of the thread. Files are raw little-endian `f32`.

use std::hint::black_box;
use std::path::Path;

use briquette_core::{Key, Message};
use nix::time::{ClockId, clock_gettime};

/// Values of a drawn vector.
const VALUES: usize = 1 << 20;
/// Timed runs; the medians count.
const RUNS: usize = 101;

fn main() {
    println!("source,values,ratio_f32,ratio_bf16,encode_gbps,decode_gbps,memcpy_gbps");
    let normal = normal();
    let layer = |i: usize| 10_f32.powf(-2.0 - (i / 40_000 % 7) as f32 / 2.0);
    let layers: Vec<f32> = normal.iter().enumerate().map(|(i, v)| v * layer(i)).collect();
    let key = Key::new(2);
    let scattered = layers.iter().enumerate().map(|(i, v)| if key.word(i) % 10 < 3 { 0.0 } else { *v });
    let rows = layers.iter().enumerate().map(|(i, v)| if i / 64 % 10 != 0 { 0.0 } else { *v });
    report("normal", &normal);
    report("seven scales", &layers);
    report("seven scales with three of ten values zero", &scattered.collect::<Vec<f32>>());
    report("seven scales with nine of ten rows of 64 zero", &rows.collect::<Vec<f32>>());
    report("normal in bf16", &short(&normal));
    report("seven scales in bf16", &short(&layers));
    report("random bits", &(0..VALUES).map(random_bits).collect::<Vec<f32>>());
    for path in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        let bytes = std::fs::read(&path).expect("a file of values");
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        let name = Path::new(&path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        report(&name, &values);
        report(&format!("{name} in bf16"), &short(&values));
    }
}

/// CPU time, not affected by other programs that take turns on the core.
fn seconds_of_thread() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the clock of a thread");
    time.tv_sec() as f64 + 1e-9 * time.tv_nsec() as f64
}

/// Values of a normal distribution (G. E. P. Box, M. E. Muller, 1958).
fn normal() -> Vec<f32> {
    let key = Key::new(1);
    let uniform = |word: u32| (f64::from(word) + 0.5) / 2_f64.powi(32);
    let value = |word: u64| {
        let (u, v) = (uniform(word as u32), uniform((word >> 32) as u32));
        ((-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()) as f32
    };
    (0..VALUES).map(|i| value(key.word(i))).collect()
}

fn random_bits(i: usize) -> f32 {
    let value = f32::from_bits(Key::new(3).word(i) as u32);
    if value.is_finite() { value } else { 1.0 }
}

/// Rounds to bfloat16, to nearest.
fn short(values: &[f32]) -> Vec<f32> {
    let round = |bits: u32| f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
    values.iter().map(|v| round(v.to_bits())).collect()
}

fn report(source: &str, x: &[f32]) {
    let (mut message, mut read, mut frame, mut out) =
        (Message::default(), Message::default(), Vec::new(), vec![0.0; x.len()]);
    let mut sum = vec![0.0; x.len()];
    let (mut copy, mut spare, mut bytes) = (vec![0.0; x.len()], Vec::new(), 0);
    let mut seconds = [(); 3].map(|()| Vec::new());
    for _ in 0..=RUNS {
        let begin = seconds_of_thread();
        copy.copy_from_slice(black_box(x));
        black_box(&mut copy);
        let copied = seconds_of_thread();
        message.write_lossless(black_box(x)).expect("finite values");
        let sent = message.to_frame(&mut spare).expect("a short message");
        let encoded = seconds_of_thread();
        frame.clear();
        frame.extend_from_slice(black_box(sent));
        bytes = frame.len();
        let received = seconds_of_thread();
        read.read_frame(&mut frame).expect("a frame of this library");
        read.add_to(1.0, &mut sum).expect("the same length");
        let times = [encoded - copied, seconds_of_thread() - received, copied - begin];
        seconds.iter_mut().zip(times).for_each(|(all, one)| all.push(one));
    }
    read.decode_into(&mut out).expect("the same length");
    assert!(x.iter().zip(&out).all(|(x, out)| x == out), "{source}: other values");
    let speeds = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        4e-9 * x.len() as f64 / seconds[RUNS / 2]
    });
    let ratio = 4.0 * x.len() as f64 / bytes as f64;
    let [encode, decode, copy] = speeds;
    println!("{source},{},{ratio:.3},{:.3},{encode:.2},{decode:.2},{copy:.2}", x.len(), ratio / 2.0);
}
