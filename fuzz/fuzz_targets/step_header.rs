//! Step headers: arbitrary numbers, and frames that no rank would send.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exchanges::check_headers(bytes));
