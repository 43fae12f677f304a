//! TCP transport for ranks in separate processes, on one machine or many: a
//! [`Transport`](briquette_core::comm::Transport), plain or under TLS.
//!
//! ```no_run
//! use briquette_core::Session;
//! use briquette_tcp::{Environment, TcpBuilder};
//!
//! // As `briquette launch`, torchrun or a scheduler's script has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
//! let place = Environment::from_env()?.ok_or("start this with `briquette launch`")?;
//! let mut comm = Session::from(TcpBuilder::from_environment(&place)?.join()?);
//! let mut x = vec![comm.rank() as f32; 1_000_000];
//! comm.all_reduce_sum(&mut x)?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! **Rendezvous.** Every rank calls rank 0's address, retrying until rank 0 is there. (If no port is given, it follows from
//! the [world's name](TcpBuilder::world_name).) Both sides compare that name, which separates the ranks of two jobs. The
//! rank then sends its rank, the world size, the library version and the address where it accepts connections itself.
//! Rank 0 answers once all ranks have called, and each rank calls the ranks below it. Both sides of every
//! connection prove that they know the same [`Token`], which is never sent; outside of loopback a token is required.
//! [`Certificates`] add TLS 1.3 to every connection. Strangers are refused and logged once, and change nothing.
//!
//! **Communication.** Each pair of ranks has one connection for frames, and one more for each of its
//! [background channels](TcpBuilder::channels), driven by the thread that calls the session of the channel. A control
//! thread sends heartbeats and receives the reasons why other ranks stop. The collectives are core's, so results are
//! bitwise identical to those of every other transport.
//!
//! **Bytes.** A frame of `n` bytes takes `68 + n` ([`frame`]) on its connection;
//! [`traffic`](briquette_core::Session::traffic) counts the `n`. Heartbeats take about 100 bytes a second from every
//! rank. Rank 0 forwards every rank's heartbeat to every rank, about `100·W` bytes a second to each.
//!
//! ```
//! use briquette_core::comm::run_ranks;
//! use briquette_core::error::CommError;
//!
//! let world = briquette_tcp::loopback(3, |rank| rank)?;
//! let meters: Vec<_> = world.iter().map(briquette_tcp::Tcp::meter).collect();
//! let sent = run_ranks(world, |mut comm| {
//!     comm.all_reduce_sum(&mut [1.0; 100])?;
//!     Ok::<_, CommError>(comm.traffic().sent)
//! });
//! assert_eq!(sent, vec![Ok(2 * 400); 3]);
//! assert!(meters.iter().all(|meter| meter.read().written == 2 * (68 + 400)));
//! # Ok::<_, briquette_tcp::JoinError>(())
//! ```
//!
//! **Failures.** Every rank's call returns with an error that names rank, address, operation and step: `rank 3
//! (10.0.0.4:5000) lost during all_gather of bucket 2 at step 1841: connection reset`. A slow rank still sends
//! heartbeats and has until the timeout; a rank without heartbeats is declared dead sooner. The outcome of each kind of
//! fault is listed in `docs/faults.md`, and the design rationale in `docs/adr/0016-tcp.md`.

mod acceptor;
mod builder;
mod call;
mod control;
mod descriptors;
mod environment;
mod error;
pub mod frame;
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod lines;
mod link;
mod listen;
mod meter;
mod reader;
mod rendezvous;
mod secure;
mod settings;
mod shared;
mod stream;
mod tcp;
mod token;
mod world;

pub use builder::{TcpBuilder, loopback};
pub use environment::{Environment, EnvironmentError, names};
pub use error::JoinError;
pub use link::SocketBytes;
pub use meter::SocketMeter;
pub use secure::Certificates;
pub use tcp::Tcp;
pub use token::Token;
