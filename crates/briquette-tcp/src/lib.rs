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
//! **Rendezvous.** Every rank calls rank 0's address, and retries until rank 0 answers. (If no port is given, rank 0's port
//! is derived from the [world's name](TcpBuilder::world_name).) Both sides first compare that name, which separates the
//! ranks of different jobs. The calling rank then sends its rank, the world size, the library version, and the address at
//! which it accepts connections itself. Once all ranks have called, rank 0 answers with all addresses, and each rank calls
//! the ranks below it. Both sides of every connection prove that they know the same [`Token`], which is never sent; outside
//! of loopback a token is required. [`Certificates`] add TLS 1.3 to every connection. Callers that do not belong to the
//! world are refused and logged once; they change nothing.
//!
//! **Communication.** Each pair of ranks has one connection for frames, and one more for each [background
//! channel](TcpBuilder::channels). The thread that calls the session of a channel drives the channel's connections. A
//! separate control thread sends heartbeats, and receives the reasons why other ranks stop. The collectives are core's,
//! so results are bitwise identical to those of every other transport.
//!
//! **Bytes.** A frame of `n` bytes takes `68 + n` bytes ([`frame`]) on its connection;
//! [`traffic`](briquette_core::Session::traffic) counts `n`. Heartbeats take about 100 bytes per second from every
//! rank. Rank 0 forwards them to every rank, which takes about `100·W` bytes per second for each of the `W` ranks.
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
//! **Elastic worlds.** [`TcpBuilder::join_elastic`] returns a session with its membership: after a loss, the survivors form the next session.
//! [`TcpBuilder::join_running`] enters a running world.
//!
//! **Failures.** If a rank fails, every rank's call returns an error with rank, address, operation and step: `rank 3
//! (10.0.0.4:5000) lost during all_gather of bucket 2 at step 1841: connection reset`. A slow rank still sends
//! heartbeats, and has until the timeout. A rank without heartbeats is declared dead sooner: after 30 s, or in an elastic world by the
//! [history](briquette_core::membership::detector) of its heartbeats, after about 3 s on a quiet link. `docs/faults.md` lists the
//! outcome of each kind of fault, and `docs/adr/0016-tcp.md` explains the design.

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
mod members;
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
pub use environment::{Elastic, Environment, EnvironmentError, names};
pub use error::JoinError;
pub use link::SocketBytes;
pub use members::Members;
pub use meter::SocketMeter;
pub use secure::Certificates;
pub use tcp::Tcp;
pub use token::Token;
