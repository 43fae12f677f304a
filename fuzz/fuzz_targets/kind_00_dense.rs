//! Payloads of kind 0.
#![no_main]

briquette_fuzz::payload!(0);
