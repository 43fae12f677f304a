//! Payloads of kind 14.
#![no_main]

briquette_fuzz::payload!(14);
