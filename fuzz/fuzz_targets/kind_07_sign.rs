//! Payloads of kind 7.
#![no_main]

briquette_fuzz::payload!(7);
