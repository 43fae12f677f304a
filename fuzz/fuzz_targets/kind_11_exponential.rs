//! Payloads of kind 11.
#![no_main]

briquette_fuzz::payload!(11);
