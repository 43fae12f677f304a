//! Bytes said to a rank that takes calls, and to one that makes them.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tcp::check_handshake(bytes));
