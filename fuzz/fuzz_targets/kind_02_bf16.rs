//! Payloads of kind 2.
#![no_main]

briquette_fuzz::payload!(2);
