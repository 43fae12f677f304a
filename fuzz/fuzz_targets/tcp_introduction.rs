//! Introductions and answers of a peer that knows the token.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|text: &[u8]| tcp::check_introduction(text));
