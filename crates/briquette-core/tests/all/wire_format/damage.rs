//! Damaged frames: each is rejected with the fault named, and none panics or requests more memory than allowed.

use briquette_core::Message;
use briquette_core::compress::dense::Dense;
use briquette_core::error::WireError;
use briquette_testkit::wire::claims::{check_frame, frame_of, seal};
use briquette_testkit::wire::exchanges::{check_headers, check_server, check_sparse_all_reduce};
use briquette_testkit::wire::golden::GOLDEN;
use proptest::prelude::*;

use super::common::*;

#[test]
fn wrong_frames_are_refused_with_the_field_named() {
    assert_eq!(decode(b"BQ"), Err(WireError::Truncated { what: "header and checksum", needed: 12, left: 2 }));
    assert_eq!(decode(b"BQ\x02---------"), Err(WireError::Version { expected: 1, got: *b"BQ\x02" }));
    let good = frame("00 01000000 0000803f");
    let mut bad = good.clone();
    bad[9] ^= 1;
    assert!(matches!(decode(&bad), Err(WireError::Checksum { .. })));
    for (content, what, value) in [
        ("13 00000000", "kind", 19),
        ("11 01000000 04 0000803f", "flags of a block", 4),
        ("11 01000000 00 0000807f", "value that must be finite", 0x7f80_0000),
        // Two symbols with codes of one bit and of two.
        ("11 02000000 03 7f 01 21 0000 0000 0000 0000 00 00", "sum of codes", 1536),
        // A bit that is set where the block has one symbol.
        ("11 02000000 03 7f 00 01 0100 0100 0000 0000 01 00 00 00", "code", 1),
        ("00 01000000 0000807f", "value that must be finite", 0x7f80_0000),
        ("01 01000000 007c", "value", 0x7c00),
        ("02 01000000 c0ff", "value", 0xffc0),
        ("03 02000000 03000000 00 07 000000000000000000000000", "count of indices", 3),
        ("03 02000000 01000000 20 01 00000000", "Rice parameter", 32),
        ("03 02000000 01000000 00 04 0000803f", "index", 2),
        ("03 02000000 01000000 00 05 0000803f", "padding", 2),
        ("03 02000000 01000000 1f 00000000 01000000 0000803f", "gap between indices", 32),
        ("03 02000000 01000000 00 01 0000c0ff", "value that must be finite", 0xffc0_0000),
        ("04 02000000 01000000 00 01 80 0000", "exponent", 0x80),
        ("04 02000000 01000000 00 01 72 0000", "exponent", 0x72),
        ("04 02000000 01000000 00 01 00 0078", "kept value", 0x7800),
        ("05 02000000 01000000 00 01 00000040 0000803f 00", "range", 0x4000_0000_3f80_0000),
        ("05 02000000 01000000 00 01 000080bf 0000803f 00", "range", 0xbf80_0000_3f80_0000),
        ("05 02000000 01000000 00 01 0000803f 0000807f 00", "value that must be finite", 0x7f80_0000),
        ("06 01000000 00 01000000 00000000 00", "levels", 0),
        ("06 01000000 80 01000000 00000000 00", "levels", 128),
        ("06 01000000 05 01000000 0000803f 07", "level", 7),
        ("06 01000000 04 00000000 00000000 00", "bucket size", 0),
        ("06 01000000 04 01000000 000080bf 00", "scale", 0xbf80_0000),
        ("06 01000000 04 01000000 0000c07f 00", "value that must be finite", 0x7fc0_0000),
        ("06 01000000 04 01000000 0000803f 10", "padding", 1),
        ("07 01000000 00000000 0000803f 00", "bucket size", 0),
        ("07 01000000 01000000 00000080 00", "scale", 0x8000_0000),
        ("07 01000000 01000000 0000803f 02", "padding", 1),
        ("08 01000000 ff 00", "exponent", 0xff),
        ("09 01000000 00000000 0000803f 000080bf 00", "bucket size", 0),
        ("09 01000000 01000000 0000807f 000080bf 00", "value that must be finite", 0x7f80_0000),
        ("0a 01000000 01000000 0000803f 00000000 00", "range", 0x3f80_0000_0000_0000),
        ("0b 01000000 03 0000803f 01000000 0000803f 00", "base", 0x3f80_0000),
        ("0c 01000000 01 01000000 0000803f 05", "level", 3),
        ("0c 01000000 01 01000000 0000803f 02", "padding", 1),
        ("0e 01000000 01000000 00 01000000 01 03 0000803f", "kind of the kept values", 3),
        ("0e 01000000 01000000 00 01000000 01 0e 00000000 00 00000000 00", "kind of the kept values", 14),
        ("0f 00000000", "exponents", 0),
        ("0f 01000000 71 0000", "exponent", 0x71),
        ("0f 01000000 81 0000", "exponent", 0x81),
        ("0f 01000000 70 007c", "value", 0x7c00),
        ("10 01000000 01 01000000 00000000 0000803f 00", "bits", 1),
        ("10 01000000 05 01000000 00", "bits", 5),
        ("10 01000000 02 00000000 00", "bucket size", 0),
        ("10 01000000 02 01000000 0000803f 0000803f 0000807f 0000803f 00", "value that must be finite", 0x7f80_0000),
        ("10 01000000 02 01000000 0000803f 0000803f 0000803f 0000803f 04", "padding", 1),
        // No bit of an exponent; eight bits besides the sign.
        ("12 01000000 03 01000000 0000803f 00", "format", 0x03),
        ("12 01000000 44 01000000 0000803f 00", "format", 0x44),
        ("12 01000000 80 01000000 0000803f 00", "format", 0x80),
        ("12 01000000 21 00000000 0000803f 00", "bucket size", 0),
        ("12 01000000 21 01000000 000080bf 00", "scale", 0xbf80_0000),
        ("12 01000000 21 01000000 0000807f 00", "value that must be finite", 0x7f80_0000),
        ("12 01000000 21 01000000 0000803f 10", "padding", 1),
    ] {
        assert_eq!(decode(&frame(content)), field(what, value), "{content}");
    }
}

/// Threat R2.
#[test]
fn counts_beyond_the_frame_are_refused() {
    for content in [
        "00 ffffffff 0000803f",
        "01 ffffffff 003c",
        "03 ffffffff ffffffff 00 ff",
        "04 ffffffff 10000000 00 ff 00 0000",
        "05 ffffffff ffffff7f 00 ff",
        "06 ffffffff 08 01000000 00",
        "07 ffffffff ffffffff 0000803f ff",
        "08 ffffffff 7f",
        "09 ffffffff 01000000 0000803f 0000803f",
        "0a ffffffff ffffffff 0000803f 0000803f 00",
        "0b ffffffff 7f 00000040 ffffffff 0000803f ff",
        "0c ffffffff 7f ffffffff 0000803f ff",
        "12 ffffffff 21 ffffffff 0000803f ff",
        "0e ffffffff 01000000 00 ffffffff 01",
        "0e ffffffff ffffffff 00 01000000 ff 07 ffffffff 0000803f",
    ] {
        check_frame(&frame(content));
        assert!(matches!(decode(&frame(content)), Err(WireError::Truncated { .. })), "{content}");
    }
    for content in ["00 00000000 00", "03 08000000 01000000 00 01 00 0000803f", "07 01000000 01000000 0000803f 00 00"] {
        assert_eq!(decode(&frame(content)), Err(WireError::Trailing { extra: 1 }), "{content}");
    }
}

/// Threat R2.
#[test]
fn indices_without_values_take_no_memory() {
    // 517 indices of a bit each, and one byte for as many values.
    let text = format!("0e 00040000 05020000 00 41000000 {} 07 00", "ff".repeat(65));
    check_frame(&frame(&text));
    assert_eq!(decode(&frame(&text)), Err(WireError::Truncated { what: "kept values", needed: 65, left: 1 }));
}

#[test]
fn a_failed_decode_leaves_the_empty_message() {
    let mut out = message(&mut Dense, &[1.0, 2.0]);
    assert!(out.decode_from(&frame("03 02000000 02000000 00 05 0000803f 0000803f")).is_err());
    assert_eq!(out, Message::default());
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let message = message(&mut Dense, &[1.0; 3]);
    let mut out = [5.0; 4];
    assert_eq!(message.add_to(1.0, &mut out), Err(WireError::Length { expected: 4, got: 3 }));
    assert_eq!(message.decode_into(&mut out), Err(WireError::Length { expected: 4, got: 3 }));
    assert_eq!(message.add_range(2, 1.0, &mut out[..2]), Err(WireError::Length { expected: 4, got: 3 }));
    assert!(message.add_range(usize::MAX, 1.0, &mut out).is_err());
    assert_eq!(out, [5.0; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_damaged_byte_is_always_noticed(x in values(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        for (name, mut compressor) in compressors() {
            let mut bytes = encode(&message(&mut *compressor, &x));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(decode(&bytes).is_err(), "{} at {}", name, at);
        }
    }

    #[test]
    fn a_truncated_frame_is_always_noticed(x in values(), at in any::<prop::sample::Index>()) {
        for (name, mut compressor) in compressors() {
            let bytes = encode(&message(&mut *compressor, &x));
            prop_assert!(decode(&bytes[..at.index(bytes.len())]).is_err(), "{}", name);
        }
    }

    #[test]
    fn arbitrary_content_with_a_right_checksum_never_panics(
        len in prop_oneof![0..40_u32, any::<u32>()],
        mut body in proptest::collection::vec(any::<u8>(), 0..120),
        small in 0..40_u32,
    ) {
        // Half of the time a small count or bucket, so that later fields are reached.
        if body.len() > 8 && len < 40 {
            body[..4].copy_from_slice(&small.to_le_bytes());
            body[4] %= 34;
        }
        let content = [&len.to_le_bytes()[..], &body].concat();
        (0..16).for_each(|kind| check_frame(&frame_of(kind, &content)));
    }

    #[test]
    fn a_changed_field_under_a_right_checksum_never_panics(
        x in proptest::collection::vec(-1.0_f32..1.0, 0..60),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let made = compressors().into_iter().map(|(_, mut compressor)| encode(&message(&mut *compressor, &x)));
        for mut bytes in made.chain(GOLDEN.iter().map(|(_, _, text)| frame(text))) {
            bytes.truncate(bytes.len() - 4);
            let at = at.index(bytes.len());
            bytes[at] = value;
            check_frame(&seal(bytes));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn ranks_agree_on_headers_whatever_is_in_them(input in proptest::collection::vec(any::<u8>(), 0..600)) {
        check_headers(&input);
    }

    #[test]
    fn a_server_and_a_worker_survive_whatever_is_sent(
        input in proptest::collection::vec(prop_oneof![3 => 0..6_u8, 1 => any::<u8>()], 0..300),
    ) {
        check_server(&input);
    }

    #[test]
    fn a_sparse_all_reduce_survives_whatever_is_sent(
        input in proptest::collection::vec(prop_oneof![3 => 0..16_u8, 1 => any::<u8>()], 0..300),
    ) {
        check_sparse_all_reduce(&input);
    }
}
