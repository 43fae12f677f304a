//! Payloads of kind 12.
#![no_main]

briquette_fuzz::payload!(12);
