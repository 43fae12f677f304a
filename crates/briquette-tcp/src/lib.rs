//! Ranks that are processes, on one machine or many: a communicator over TCP.

mod environment;

pub use environment::{Environment, EnvironmentError, names};
