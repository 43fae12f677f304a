//! Ranks that are processes, on one machine or many: a communicator over TCP.

mod builder;
mod call;
mod control;
mod door;
mod environment;
mod error;
pub mod frame;
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod lines;
mod link;
mod reader;
mod rendezvous;
mod secure;
mod shared;
mod stream;
mod tcp;
mod token;

pub use builder::{TcpBuilder, loopback};
pub use environment::{Environment, EnvironmentError, names};
pub use error::JoinError;
pub use link::SocketBytes;
pub use secure::Certificates;
pub use tcp::Tcp;
pub use token::Token;
