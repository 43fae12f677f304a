//! Payloads of kind 4.
#![no_main]

briquette_fuzz::payload!(4);
