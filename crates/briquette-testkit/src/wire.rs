//! Claims about untrusted bytes: frames, settings, and exchanges with other ranks. The fuzz targets and core's integration tests
//! assert them.
//!
//! They count memory with [`asked`]; a binary that uses them declares its allocator:
//!
//! ```
//! use briquette_testkit::wire::asked::{Counting, asked};
//!
//! #[global_allocator]
//! static COUNTING: Counting = Counting;
//!
//! let before = asked();
//! drop(Vec::<u8>::with_capacity(100));
//! assert_eq!(asked() - before, 100);
//! ```

pub mod asked;
pub mod claims;
pub mod exchanges;
pub mod golden;

use briquette_core::config::CompressorConfig;
use briquette_core::{Key, Message};

/// Returns the wire form of the message of a compressor, which may be one of `briquette-zoo`.
///
/// # Panics
/// If no compressor has this text.
pub fn encoded(compressor: &str, x: &[f32]) -> Vec<u8> {
    briquette_zoo::install();
    let compressor: CompressorConfig = compressor.parse().unwrap_or_else(|error| panic!("{error}"));
    let (mut message, mut bytes) = (Message::default(), Vec::new());
    compressor.build().compress_into(x, Key::new(3), &mut message);
    message.encode_into(&mut bytes);
    bytes
}
