//! Payloads of kind 1.
#![no_main]

briquette_fuzz::payload!(1);
