//! Properties of every frame and of every compressor's text.

use briquette_core::compress::Compressor;
use briquette_core::config::{CompressorConfig, Config};
use briquette_core::{Key, Layout, Message};

use super::asked::asked;

/// Maximum memory that decoding requests, as a multiple of the bytes of the frame. The limit is higher for kinds that may contain a lossless code.
fn memory(frame: &[u8]) -> u64 {
    if matches!(frame.get(3), Some(14 | 17)) { 33 } else { 20 }
}

/// Additional memory, which matters for frames so short that the minimum capacity of a vector exceeds the multiple.
const LEAST: u64 = 256;
/// Length above which vectors are checked in parts; a sparse frame of a few bytes can claim more.
const WHOLE: usize = 1 << 16;

/// Returns the frame of a content (magic, version, kind, length and payload), with its checksum appended.
pub fn seal(mut content: Vec<u8>) -> Vec<u8> {
    let checksum = crc32fast::hash(&content);
    content.extend(checksum.to_le_bytes());
    content
}

/// Returns a frame of a kind with a correct checksum. `content` is the length and the payload.
pub fn frame_of(kind: u8, content: &[u8]) -> Vec<u8> {
    seal([b"BQ\x01", &[kind][..], content].concat())
}

/// Checks that arbitrary bytes give an error and the empty message, or a message that can be used and encodes to the same bytes
/// again. Neither takes more memory than the bytes allow.
pub fn check_frame(bytes: &[u8]) {
    let (mut message, before) = (Message::default(), asked());
    let decoded = message.decode_from(bytes);
    let took = asked() - before;
    assert!(
        took <= memory(bytes) * bytes.len() as u64 + LEAST,
        "{} bytes took {took} of memory: {decoded:?}",
        bytes.len()
    );
    match decoded {
        Err(_) => assert_eq!(message, Message::default(), "an error leaves the empty message"),
        Ok(()) => {
            check_canonical(&message, bytes);
            check_use(&message);
        }
    }
}

/// Checks that the message decoded from `bytes` encodes to the same bytes, except for a Rice parameter that the encoder would
/// not have chosen.
fn check_canonical(message: &Message, bytes: &[u8]) {
    let again = encoded(message);
    // In kinds with indices the parameter follows the count; the encoder chooses the parameter with the fewest bits.
    let rice = matches!(bytes[3], 3..=5 | 14).then_some(12);
    match rice {
        Some(at) if again[at] != bytes[at] => assert!(again.len() <= bytes.len(), "a better parameter is no longer"),
        _ => assert!(again == bytes, "kind {} encodes to other bytes", bytes[3]),
    }
    let mut back = message.clone();
    back.decode_from(&again).expect("what was encoded decodes, into used storage");
    assert!(&back == message && encoded(&back) == again, "kind {} does not come back", bytes[3]);
}

/// Checks that a message decodes to finite values, that adding, in parts or whole, adds the decoded values, and that its
/// energies are consistent.
fn check_use(message: &Message) {
    let len = message.len();
    assert!(message.kept() <= len);
    if len > WHOLE {
        for start in [0, (len - WHOLE) / 2, len - WHOLE] {
            let mut part = vec![0.0; WHOLE];
            message.add_range(start, 1.0, &mut part).expect("a part within the vector");
            assert!(part.iter().all(|v| v.is_finite()));
        }
        return;
    }
    let mut out = vec![f32::NAN; len];
    message.decode_into(&mut out).expect("the right length");
    assert!(out.iter().all(|v| v.is_finite()), "a value is not finite");
    let expected: Vec<u32> = out.iter().map(|v| (0.25 + 0.5 * v).to_bits()).collect();
    let (mut whole, mut parts) = (vec![0.25; len], vec![0.25; len]);
    message.add_to(0.5, &mut whole).expect("the right length");
    let (first, last) = parts.split_at_mut(len / 3);
    message.add_range(len / 3, 0.5, last).expect("a part within the vector");
    message.add_range(0, 0.5, first).expect("a part within the vector");
    for added in [whole, parts] {
        assert!(added.iter().map(|v| v.to_bits()).eq(expected.iter().copied()), "adding differs from decoding");
    }
    let norm2: f64 = out.iter().map(|v| f64::from(*v).powi(2)).sum();
    assert!(message.error_energy(&out) <= 1e-9 * norm2, "it differs from what it decodes to");
    assert!((message.kept_energy(&out) - norm2).abs() <= 1e-9 * norm2, "it keeps less than what it decodes to");
    assert!(message.add_to(1.0, &mut vec![0.0; len + 1]).is_err(), "another length is an error");
}

/// Checks that a compressor's message for a finite vector survives the wire, also when the storage of earlier messages is
/// reused.
pub fn check_compressor(compressor: &mut dyn Compressor, x: &[f32], key: Key) {
    let mut message = Message::default();
    compressor.compress_into(x, key, &mut message);
    assert_eq!(message.len(), x.len());
    let bytes = encoded(&message);
    check_frame(&bytes);
    let mut reused = Message::default();
    reused.decode_from(&bytes).expect("what was encoded decodes");
    assert!(reused == message, "it decodes to another message");
    compressor.compress_into(x, key, &mut reused);
    assert!(encoded(&reused) == bytes, "equal arguments give equal messages");
}

/// Checks that a text is rejected, or is the short form of a compressor and survives being written.
pub fn check_compressor_text(text: &str) {
    briquette_zoo::install();
    let Ok(config) = text.parse::<CompressorConfig>() else { return };
    let written = config.to_string();
    let back: CompressorConfig = written.parse().unwrap_or_else(|e| panic!("`{text}` is written `{written}`: {e}"));
    assert_eq!((&back, back.to_string()), (&config, written), "`{text}`");
    assert!(config.build().nominal().get() >= 1.0, "`{text}`");
}

/// Checks that settings are rejected, or survive being written. Building them may return an error, but must not panic.
pub fn check_settings(text: &str) {
    briquette_zoo::install();
    let Ok(config) = toml::from_str::<Config>(text) else { return };
    let written = toml::to_string(&config).expect("settings that were read can be written");
    assert_eq!(toml::from_str::<Config>(&written).as_ref(), Ok(&config), "{written}");
    let layout = Layout::new([("weight", vec![4, 3]), ("bias", vec![4])]);
    let _ = config.build(&layout, 2);
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes);
    assert_eq!(bytes.len(), message.encoded_len(), "the length told beforehand");
    bytes
}
