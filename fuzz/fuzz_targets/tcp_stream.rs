//! Bytes on a data link: as they are, and as a list of frames and invalid data.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tcp::check_stream(bytes);
    tcp::check_frames(bytes);
});
