//! Payloads of kind 3.
#![no_main]

briquette_fuzz::payload!(3);
