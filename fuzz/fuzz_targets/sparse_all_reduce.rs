//! Messages from other ranks in a sparse all-reduce: quantiles, pieces, results.
#![no_main]

use briquette_fuzz::*;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exchanges::check_sparse_all_reduce(bytes));
