//! Messages from workers to a server, and from a server to its workers.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exchanges::check_server(bytes));
