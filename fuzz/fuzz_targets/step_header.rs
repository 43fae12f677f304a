//! Headers of a step: whatever numbers ranks say, and frames that no rank would send.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exchanges::check_headers(bytes));
