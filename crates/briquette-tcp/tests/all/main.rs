//! Integration tests of the TCP transport, in one binary; `fault_matrix` has its own.

mod addresses;
mod arbitrary;
mod bad_input;
mod cancelled;
mod common;
mod descriptors;
mod detection;
mod elastic;
mod faults;
mod jobs;
mod leaving;
mod limits;
mod out_of_step;
mod pieces;
mod security;
mod server;
mod transports;
mod unreachable;
