//! Payloads of kind 6.
#![no_main]

briquette_fuzz::payload!(6);
