//! A line with a compressor's text, then the vector it is to compress, through the wire and back.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|input: &[u8]| compress(input));
