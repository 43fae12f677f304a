//! Shared code of the fuzz targets. What they assert is in `briquette_testkit` and next to `crates/briquette/src/checkpoint`; the
//! crates' own tests assert the same.

pub mod checkpoint;

use briquette_core::Key;
use briquette_core::config::CompressorConfig;
use briquette_testkit::wire::asked::{Counting, asked};
pub use briquette_testkit::wire::{claims, exchanges, golden};
pub use briquette_testkit::{links as tcp, vector_files as files};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Defines a target for the payloads of a kind: the input is length and payload, and gets a header and a correct checksum.
#[macro_export]
macro_rules! payload {
    ($kind:literal) => {
        libfuzzer_sys::fuzz_target!(|content: &[u8]| {
            $crate::claims::check_frame(&$crate::claims::frame_of($kind, content));
        });
    };
}

/// Runs a check that takes at most a small multiple of the input's memory, plus that of errors and empty tables.
pub fn frugal(input: &[u8], check: impl Fn(&[u8])) {
    let before = asked();
    check(input);
    let took = asked() - before;
    assert!(took <= 200 * input.len() as u64 + (64 << 10), "{} bytes took {took} of memory", input.len());
}

/// Reads a line with a compressor's text, then values of four bytes each. The first value sets how often the others are
/// repeated, so that a short input can be a long vector; it is also the seed.
pub fn compress(input: &[u8]) {
    briquette_zoo::install();
    let Some(end) = input.iter().position(|&b| b == b'\n') else { return };
    let (text, rest) = (std::str::from_utf8(&input[..end]), &input[end + 1..]);
    let Some(config) = text.ok().and_then(|text| text.parse::<CompressorConfig>().ok()) else { return };
    let mut words = rest.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let seed = words.next().unwrap_or(0);
    let once: Vec<f32> = words.map(finite).collect();
    let x = once.repeat(1 + (seed as usize & 0xff) % (1 + 3000 / once.len().max(1)));
    claims::check_compressor(&mut *config.build(), &x, Key::new(u64::from(seed)));
}

/// Returns the number with these bits or, if it would not be finite, one with a smaller exponent.
fn finite(bits: u32) -> f32 {
    let v = f32::from_bits(bits);
    if v.is_finite() { v } else { f32::from_bits(bits ^ 0x4000_0000) }
}
