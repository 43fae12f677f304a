//! Payloads of kind 13.
#![no_main]

briquette_fuzz::payload!(13);
