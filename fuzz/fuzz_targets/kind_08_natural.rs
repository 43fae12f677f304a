//! Payloads of kind 8.
#![no_main]

briquette_fuzz::payload!(8);
