//! Payloads of kind 10.
#![no_main]

briquette_fuzz::payload!(10);
