//! Bytes sent to a rank that accepts connections, and to one that opens them.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tcp::check_handshake(bytes));
