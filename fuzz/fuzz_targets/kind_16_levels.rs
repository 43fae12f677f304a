//! Payloads of kind 16.
#![no_main]

briquette_fuzz::payload!(16);
