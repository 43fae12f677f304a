//! NumPy's files.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frugal(bytes, files::check_npy));
