//! A checkpoint's manifest.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frugal(bytes, checkpoint::claims::check_manifest));
