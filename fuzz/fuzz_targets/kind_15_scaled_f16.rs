//! Payloads of kind 15.
#![no_main]

briquette_fuzz::payload!(15);
