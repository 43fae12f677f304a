//! Payloads of kind 5.
#![no_main]

briquette_fuzz::payload!(5);
