//! Texts of compressors.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|text: &str| claims::check_compressor_text(text));
