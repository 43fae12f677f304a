//! Payloads of kind 9.
#![no_main]

briquette_fuzz::payload!(9);
