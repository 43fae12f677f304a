//! Every compressor, and frames written by hand.

use briquette_core::compress::{
    Compressor, HalfKind, Norm, ValueKind, coded::Coded, dense::Dense, half::Half, hard_threshold::HardThreshold,
    min_max::MinMax, natural::Natural, plain_sign::PlainSign, qsgd::Qsgd, random_k::RandomK, scaled_sign::ScaledSign,
    tern_grad::TernGrad, threshold_top_k::ThresholdTopK, top_k::TopK,
};
use briquette_core::error::WireError;
use briquette_core::{Key, Message};
use briquette_testkit::wire::claims::frame_of;
use briquette_testkit::wire::golden::content;
use briquette_zoo::compress::{
    adaptive_random::AdaptiveRandom,
    biased_random::BiasedRandom,
    bins::Bins,
    exponential_dithering::ExponentialDithering,
    float4::{Float4, Format},
    lossless::Lossless,
    one_bit::OneBit,
    redsync::Redsync,
    rounding::Rounding,
    sidco::Sidco,
};
use proptest::prelude::*;

pub(crate) fn compressors() -> Vec<(&'static str, Box<dyn Compressor>)> {
    let top_k = |values| Box::new(TopK::fraction(0.3).unwrap().with_values(values));
    vec![
        ("dense", Box::new(Dense)),
        ("f16", Box::new(Half::new(HalfKind::F16))),
        ("bf16", Box::new(Half::new(HalfKind::Bf16))),
        ("top-k f32", top_k(ValueKind::F32)),
        ("top-k f16", top_k(ValueKind::F16)),
        ("top-k q8", top_k(ValueKind::Q8)),
        ("threshold top-k", Box::new(ThresholdTopK::fraction(0.3).unwrap())),
        ("redsync", Box::new(Redsync::fraction(0.3).unwrap())),
        ("sidco", Box::new(Sidco::fraction(0.3).unwrap())),
        ("hard threshold", Box::new(HardThreshold::new(0.03).unwrap())),
        ("random-k", Box::new(RandomK::fraction(0.3).unwrap())),
        ("random-k, scaled", Box::new(RandomK::fraction(0.3).unwrap().scaled())),
        ("biased random", Box::new(BiasedRandom::new(0.3).unwrap())),
        ("adaptive random", Box::new(AdaptiveRandom)),
        ("qsgd 2", Box::new(Qsgd::new(2, 7, Norm::Max).unwrap())),
        ("qsgd 5", Box::new(Qsgd::new(5, 512, Norm::L2).unwrap())),
        ("qsgd 8", Box::new(Qsgd::new(8, 100, Norm::Max).unwrap())),
        ("qsgd s5", Box::new(Qsgd::with_levels(5, 64, Norm::Max).unwrap())),
        ("elias", Box::new(Qsgd::with_levels(31, 1000, Norm::L2).unwrap().elias())),
        ("natural", Box::new(Natural)),
        ("minmax", Box::new(MinMax::blocks(33).unwrap())),
        ("dither", Box::new(ExponentialDithering::new(3.0, 6, 50, Norm::L2).unwrap())),
        ("round", Box::new(Rounding::nearest(2.0).unwrap())),
        ("terngrad", Box::new(TernGrad::new())),
        ("one-bit", Box::new(OneBit::bucketed(9).unwrap())),
        ("bins", Box::new(Bins::new(3).unwrap().bucketed(20).unwrap())),
        ("lossless", Box::new(Lossless)),
        ("e3m0", Box::new(Float4::new(Format::E3M0).bucketed(20).unwrap())),
        ("e2m1", Box::new(Float4::new(Format::E2M1))),
        ("plain-sign", Box::new(PlainSign::default())),
        ("top-k natural", Box::new(Coded::new(TopK::fraction(0.3).unwrap(), Natural))),
        ("top-k minmax", Box::new(Coded::new(TopK::fraction(0.3).unwrap(), MinMax::new()))),
        ("sign", Box::new(ScaledSign::new())),
        ("signs", Box::new(ScaledSign::bucketed(9).unwrap())),
    ]
}

pub(crate) fn message(compressor: &mut dyn Compressor, x: &[f32]) -> Message {
    let mut out = Message::default();
    compressor.compress_into(x, Key::new(11), &mut out);
    out
}

pub(crate) fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes);
    assert_eq!(bytes.len(), message.encoded_len());
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Message, WireError> {
    let mut out = Message::default();
    out.decode_from(bytes).map(|()| out)
}

/// Returns a frame from its content: kind, length and fields, all in hexadecimal.
pub(crate) fn frame(text: &str) -> Vec<u8> {
    let content = content(text);
    frame_of(content[0], &content[1..])
}

pub(crate) fn field(what: &'static str, value: u64) -> Result<Message, WireError> {
    Err(WireError::Field { what, value })
}

pub(crate) fn values() -> impl Strategy<Value = Vec<f32>> {
    let finite = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite());
    let special = prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, 1e-45, f32::MAX, -f32::MAX]);
    prop_oneof![
        proptest::collection::vec(-1.0_f32..1.0, 0..2100),
        proptest::collection::vec(prop_oneof![finite, special], 0..80),
    ]
}
