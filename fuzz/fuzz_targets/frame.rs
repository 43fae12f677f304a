//! Whole frames: as they are, and with a checksum appended.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    claims::check_frame(bytes);
    claims::check_frame(&claims::seal(bytes.to_vec()));
});
