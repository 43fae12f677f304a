//! Payloads of kind 17.
#![no_main]

briquette_fuzz::payload!(17);
