//! Settings in TOML.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|text: &str| claims::check_settings(text));
