//! Payloads of kind 18.
#![no_main]

briquette_fuzz::payload!(18);
