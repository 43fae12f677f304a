//! Every compressor: the message, its addition to an average, the residual, and masked momentum.

use briquette_core::compress::{
    Compressor, HalfKind, Norm, ValueKind,
    coded::Coded,
    dense::Dense,
    half::Half,
    hard_threshold::HardThreshold,
    min_max::MinMax,
    natural::Natural,
    plain_sign::{PlainSign, Zero},
    qsgd::Qsgd,
    random_k::RandomK,
    scaled_sign::ScaledSign,
    tern_grad::TernGrad,
    threshold_top_k::ThresholdTopK,
    top_k::TopK,
};
use briquette_core::reduce::Mask;
use briquette_core::{CompressionRatio, Key, Message};
use briquette_device as device;
use briquette_device::{DeviceMessage, Run};
use briquette_zoo::compress::{
    chunk_top_k::ChunkTopK, exponential_dithering::ExponentialDithering, one_bit::OneBit, rounding::Rounding,
};

use crate::devices::{runs, same, vectors};

/// Returns the wire form, which distinguishes −0 from 0.
fn bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes);
    bytes
}

/// Compares addition, residual and mask of a message on the device with the host's.
fn assert_decodes(run: &Run, x: &[f32], host: &Message, message: &DeviceMessage, what: &str) {
    let (mut average, mut left) = (vec![0.25e-3; x.len()], x.to_vec());
    let on_device = [&average, &left].map(|vector| run.upload(vector));
    let mut sent = vec![0.0; x.len()];
    host.decode_into(&mut sent).unwrap();
    for weight in [1.0, 1.0 / 3.0] {
        host.add_to(weight, &mut average).unwrap();
        message.add(run, weight, &on_device[0], 0);
    }
    left.iter_mut().zip(&sent).for_each(|(left, sent)| *left -= sent + 0.0);
    message.subtract(run, &on_device[1], 0);
    let [sum, rest] = on_device.map(|vector| run.read(&vector).unwrap());
    assert!(same(run, &sum, &average), "the average, {what}");
    assert!(same(run, &rest, &left), "the residual, {what}");
    // Velocities where nothing was sent, and below, at and above the limit of what was sent.
    for mask in [Mask::SENT, Mask::WAITED] {
        let mut velocity: Vec<f32> = sent
            .iter()
            .zip([0.5, 0.8, -1.0].iter().cycle())
            .map(|(s, f)| if *s == 0.0 { 0.5 } else { s * f })
            .collect();
        let on_device = run.upload(&velocity);
        velocity.iter_mut().zip(&sent).for_each(|(velocity, sent)| *velocity = mask.apply(*velocity, *sent));
        message.mask(run, mask, &on_device, 0);
        assert!(same(run, &run.read(&on_device).unwrap(), &velocity), "masked momentum, {mask:?}, {what}");
    }
}

/// Tests of a compressor of the host and its twin on the device. The second encodes the vector `x` with `key`.
macro_rules! twins {
    ($($name:ident: $host:expr, |$run:ident, $x:ident, $key:ident| $encode:expr;)+) => {$(
        #[test]
        fn $name() {
            for $run in &runs() {
                for (name, values) in vectors() {
                    let (what, $key) = (format!("{}, {name}, {:?}", stringify!($name), $run), Key::new(3).step(1));
                    let (mut host, mut made) = (Message::default(), Message::default());
                    $host.compress_into(&values, $key, &mut host);
                    let $x = &$run.upload(&values);
                    let message: DeviceMessage = $encode(&mut made);
                    assert!(bytes(&made) == bytes(&host), "the message, {what}");
                    assert_decodes($run, &values, &host, &message, &what);
                }
            }
        }
    )+};
}

/// Reads a message that is encoded in one call.
macro_rules! read {
    ($run:ident, $encoded:expr) => {
        |made: &mut Message| $encoded.read($run, made).unwrap()
    };
}

fn share(share: f64) -> TopK {
    TopK::fraction(share).unwrap()
}

fn ratio(kept: f64) -> CompressionRatio {
    share(kept).nominal()
}

fn keep(share: f64, len: usize) -> usize {
    ratio(share).keep(len)
}

fn chunks(share: f64, chunk: usize) -> ChunkTopK {
    ChunkTopK::new(share, chunk).unwrap()
}

fn levels(levels: u8, bucket: usize, norm: Norm) -> Qsgd {
    Qsgd::with_levels(levels, bucket, norm).unwrap()
}

twins! {
    top_k_of_a_thousandth: share(0.001), |run, x, _key| read!(run, device::top_k(run, x, keep(0.001, x.len())));
    top_k_of_a_tenth: share(0.1), |run, x, _key| read!(run, device::top_k(run, x, keep(0.1, x.len())));
    top_k_of_all: share(1.0), |run, x, _key| read!(run, device::top_k(run, x, x.len()));
    top_k_in_16_bits: share(0.05).with_values(ValueKind::F16), |run, x, key| |made: &mut Message| {
        let (encoded, mut short) = (device::top_k(run, x, keep(0.05, x.len())), share(1.0).with_values(ValueKind::F16));
        encoded.start(run).finish_coded(run, &mut short, key, made).unwrap()
    };
    top_k_in_8_bits: share(0.05).with_values(ValueKind::Q8), |run, x, key| |made: &mut Message| {
        let (encoded, mut short) = (device::top_k(run, x, keep(0.05, x.len())), share(1.0).with_values(ValueKind::Q8));
        encoded.start(run).finish_coded(run, &mut short, key, made).unwrap()
    };
    top_k_and_natural: Coded::new(share(0.05), Natural), |run, x, key| |made: &mut Message| {
        device::top_k(run, x, keep(0.05, x.len())).start(run).finish_coded(run, &mut Natural, key, made).unwrap()
    };
    top_k_and_min_max: Coded::new(share(0.3), MinMax::new()), |run, x, key| |made: &mut Message| {
        device::top_k(run, x, keep(0.3, x.len())).start(run).finish_coded(run, &mut MinMax::new(), key, made).unwrap()
    };
    chunk_top_k: chunks(0.02, 500), |run, x, _key| read!(run, device::chunk_top_k(run, x, ratio(0.02), 500));
    chunk_top_k_of_long_chunks: chunks(0.01, 40_000), |run, x, _key| read!(run, device::chunk_top_k(run, x, ratio(0.01), 40_000));
    chunk_top_k_of_short_chunks: chunks(0.3, 7), |run, x, _key| read!(run, device::chunk_top_k(run, x, ratio(0.3), 7));
    chunk_top_k_of_all: chunks(1.0, 4096), |run, x, _key| read!(run, device::chunk_top_k(run, x, CompressionRatio::DENSE, 4096));
    threshold_top_k: ThresholdTopK::fraction(0.01).unwrap(), |run, x, key| {
        read!(run, device::threshold_top_k(run, x, keep(0.01, x.len()), ThresholdTopK::DEFAULT_SAMPLE, key).unwrap())
    };
    threshold_top_k_of_few: ThresholdTopK::fraction(1e-4).unwrap(), |run, x, key| {
        read!(run, device::threshold_top_k(run, x, keep(1e-4, x.len()), ThresholdTopK::DEFAULT_SAMPLE, key).unwrap())
    };
    hard_threshold: HardThreshold::new(1.5e-3).unwrap(), |run, x, _key| read!(run, device::hard_threshold(run, x, 1.5e-3, x.len()));
    hard_threshold_without_room: HardThreshold::new(1.5e-3).unwrap(), |run, x, _key| read!(run, device::hard_threshold(run, x, 1.5e-3, 3));
    random_k: RandomK::fraction(0.02).unwrap(), |run, x, key| {
        read!(run, device::random_k(run, x, RandomK::fraction(0.02).unwrap(), key))
    };
    random_k_scaled: RandomK::fraction(0.02).unwrap().scaled(), |run, x, key| {
        read!(run, device::random_k(run, x, RandomK::fraction(0.02).unwrap().scaled(), key))
    };
    min_max_of_256: MinMax::new(), |run, x, _key| read!(run, device::min_max(run, x, 256));
    min_max_of_100: MinMax::blocks(100).unwrap(), |run, x, _key| read!(run, device::min_max(run, x, 100));
    half_f16: Half::new(HalfKind::F16), |run, x, _key| read!(run, device::half(run, x, HalfKind::F16));
    half_bf16: Half::new(HalfKind::Bf16), |run, x, _key| read!(run, device::half(run, x, HalfKind::Bf16));
    qsgd_of_4_bits: levels(7, 512, Norm::Max), |run, x, key| {
        read!(run, device::qsgd(run, x, (7, 512), device::Norm::Max, key).unwrap())
    };
    qsgd_of_8_bits: levels(127, 64, Norm::Max), |run, x, key| {
        read!(run, device::qsgd(run, x, (127, 64), device::Norm::Max, key).unwrap())
    };
    qsgd_of_5_levels: levels(5, 100, Norm::Max), |run, x, key| {
        read!(run, device::qsgd(run, x, (5, 100), device::Norm::Max, key).unwrap())
    };
    qsgd_of_long_buckets: levels(3, 70_000, Norm::Max), |run, x, key| {
        read!(run, device::qsgd(run, x, (3, 70_000), device::Norm::Max, key).unwrap())
    };
    qsgd_with_the_euclidean_norm: levels(7, 512, Norm::L2), |run, x, key| {
        read!(run, device::qsgd(run, x, (7, 512), device::Norm::L2, key).unwrap())
    };
    natural: Natural, |run, x, key| read!(run, device::natural(run, x, key));
    tern_grad: TernGrad::new(), |run, x, key| {
        read!(run, device::tern_grad(run, x, Some(TernGrad::default_clip()), key).unwrap())
    };
    tern_grad_unclipped: TernGrad::unclipped(), |run, x, key| read!(run, device::tern_grad(run, x, None, key).unwrap());
    scaled_sign: ScaledSign::new(), |run, x, _key| read!(run, device::scaled_sign(run, x, None));
    scaled_sign_of_buckets: ScaledSign::bucketed(300).unwrap(), |run, x, _key| read!(run, device::scaled_sign(run, x, Some(300)));
    plain_sign: PlainSign::default(), |run, x, _key| read!(run, device::plain_sign(run, x, None));
    plain_sign_of_random_zeros: PlainSign::default().with_zero(Zero::Random), |run, x, key| {
        read!(run, device::plain_sign(run, x, Some(key)))
    };
}

/// More chunks than a row of cubes holds, and chunks of more than a tile.
#[test]
fn many_chunks_and_long_chunks_have_the_bits_of_the_host() {
    let x: Vec<f32> = (0..200_001).map(|i| ((i * 7919) % 1009) as f32 - 504.0).collect();
    for run in &runs() {
        let vector = run.upload(&x);
        for (share, chunk) in [(0.4, 3), (0.01, 70_000)] {
            let (mut host, mut made) = (Message::default(), Message::default());
            chunks(share, chunk).compress_into(&x, Key::new(0), &mut host);
            device::chunk_top_k(run, &vector, ratio(share), chunk).read(run, &mut made).unwrap();
            assert!(bytes(&made) == bytes(&host), "{share} of chunks of {chunk}, {run:?}");
        }
    }
}

/// Messages of other ranks: every kind that a host makes, also those that no kernel encodes.
#[test]
fn uploaded_messages_have_the_values_of_the_host() {
    let compressors = || -> Vec<Box<dyn Compressor>> {
        vec![
            Box::new(Dense),
            Box::new(OneBit::default()),
            Box::new(Rounding::nearest(2.0).unwrap()),
            Box::new(ExponentialDithering::default()),
            Box::new(levels(7, 300, Norm::L2).elias()),
            Box::new(share(0.1).with_values(ValueKind::F16)),
            Box::new(share(0.1).with_values(ValueKind::Q8)),
            Box::new(Coded::new(share(0.1), levels(3, 64, Norm::Max))),
            Box::new(Half::new(HalfKind::F16)),
            Box::new(MinMax::blocks(33).unwrap()),
            Box::new(ScaledSign::bucketed(7).unwrap()),
            Box::new(Natural),
        ]
    };
    for run in &runs() {
        for (name, x) in vectors() {
            for (number, mut compressor) in compressors().into_iter().enumerate() {
                let mut host = Message::default();
                compressor.compress_into(&x, Key::new(9), &mut host);
                let message = DeviceMessage::upload(run, &host).unwrap();
                assert_decodes(run, &x, &host, &message, &format!("compressor {number}, {name}, {run:?}"));
            }
        }
    }
}
