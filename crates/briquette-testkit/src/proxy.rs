//! Fault-injecting relay of TCP connections for tests.
//!
//! A test points the connecting side at [`Proxy::address`] instead of the real address, and sets with [`Proxy::set`]
//! how the network disturbs the bytes, at any time, for present and future connections. Everything runs in threads of
//! this process over real sockets, so a transport sees genuine kernel behavior: resets are resets, and a full pipe
//! pushes back.
//!
//! ```
//! use briquette_testkit::proxy::{Harm, Proxy};
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//!
//! let server = TcpListener::bind("127.0.0.1:0")?;
//! let proxy = Proxy::to(server.local_addr()?)?;
//! proxy.set(Harm::latency(Duration::from_millis(5)));
//!
//! TcpStream::connect(proxy.address())?.write_all(b"late")?;
//! let mut heard = String::new();
//! server.accept()?.0.read_to_string(&mut heard)?;
//! assert_eq!(heard, "late");
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

mod relay;
#[cfg(test)]
mod tests;

use relay::Link;

/// Disturbance of the bytes. By default there is none: they are passed on as they arrive.
///
/// Each constructor makes one disturbance; combine several with `Harm { latency, ..Harm::rate(1_000) }`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Harm {
    /// Bytes per second that pass, for each direction of each connection. Causes backpressure at the sender when its pipe is full.
    pub rate: Option<NonZeroU64>,
    /// Delay of all data.
    pub latency: Duration,
    /// Condition for resetting a connection: both ends get a reset, not an orderly end.
    pub reset: Option<Reset>,
    /// Swallows everything in both directions, including ends of streams, and keeps the sockets open: the other side is
    /// gone and neither side is notified. Swallowed data stays lost when the harm is lifted.
    pub half_open: bool,
    /// A byte whose lowest bit is flipped.
    pub flip: Option<Flip>,
    /// Division of the bytes into writes.
    pub writes: Writes,
    /// Passes nothing on until the harm is lifted; nothing is lost.
    pub frozen: bool,
}

/// Condition for resetting a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reset {
    /// After this many bytes of either direction, or more, since the connection was made.
    After(u64),
    /// With this probability, for every piece that arrives. The draws follow from the seed. The kernel decides how a
    /// stream is cut into pieces, so two runs need not end at the same byte.
    Chance {
        /// From 0 to 1, per piece of at most 16 kB.
        probability: f64,
        /// Seed of the draws.
        seed: u64,
    },
}

/// A byte to be changed in transit, in every connection that has not passed it yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flip {
    /// Stream that is changed.
    pub direction: Direction,
    /// Offset of the byte in that stream, since the connection was made.
    pub offset: u64,
}

/// One of the two streams of a connection. The side that connects is the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Division of the bytes into writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Writes {
    /// One write per read.
    #[default]
    AsTheyCome,
    /// 1 to 7 bytes at a time.
    Split,
    /// Held back until there are 64 kB or the first byte is 20 ms old.
    Coalesced,
}

/// A relay from a free port to one address. Dropping it resets its connections and ends its threads.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// State shared by the proxy's threads.
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    /// Notified when the harm changed or a connection was reset.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    harm: Harm,
    closing: bool,
    accepted: u64,
    swallowed: u64,
    links: Vec<Weak<Link>>,
    threads: Vec<JoinHandle<()>>,
}

impl Harm {
    /// No disturbance: bytes are passed on as they arrive.
    pub fn none() -> Self {
        Harm::default()
    }

    /// A slow link, in bytes per second.
    ///
    /// # Panics
    /// If the rate is 0; use [`Harm::frozen`] for that.
    pub fn rate(bytes_per_second: u64) -> Self {
        let rate = NonZeroU64::new(bytes_per_second).expect("a rate of at least one byte per second");
        Harm { rate: Some(rate), ..Harm::none() }
    }

    /// A link with high latency.
    pub fn latency(latency: Duration) -> Self {
        Harm { latency, ..Harm::none() }
    }

    /// Resets connections after `bytes` bytes of either direction.
    pub fn reset_after(bytes: u64) -> Self {
        Harm { reset: Some(Reset::After(bytes)), ..Harm::none() }
    }

    /// Resets connections at random; see [`Reset::Chance`].
    pub fn reset_by_chance(probability: f64, seed: u64) -> Self {
        Harm { reset: Some(Reset::Chance { probability, seed }), ..Harm::none() }
    }

    /// The other side disappears without notice.
    pub fn half_open() -> Self {
        Harm { half_open: true, ..Harm::none() }
    }

    /// Flips one bit, in the byte after the first `offset` ones.
    pub fn flip(direction: Direction, offset: u64) -> Self {
        Harm { flip: Some(Flip { direction, offset }), ..Harm::none() }
    }

    /// Splits data into writes of a few bytes.
    pub fn split_writes() -> Self {
        Harm { writes: Writes::Split, ..Harm::none() }
    }

    /// Coalesces data into large, late writes.
    pub fn coalesced_writes() -> Self {
        Harm { writes: Writes::Coalesced, ..Harm::none() }
    }

    /// Holds everything until the harm is lifted.
    pub fn frozen() -> Self {
        Harm { frozen: true, ..Harm::none() }
    }
}

impl Proxy {
    /// Starts a relay to `target` on a free port of the loopback interface, without a disturbance. It has the address of `target` if that is a
    /// loopback address.
    ///
    /// # Errors
    /// If the system has no free port or thread left.
    pub fn to(target: SocketAddr) -> io::Result<Proxy> {
        let own = if target.ip().is_loopback() { target.ip() } else { Ipv4Addr::LOCALHOST.into() };
        let listener = TcpListener::bind((own, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { target, state: Mutex::default(), changed: Condvar::new() });
        let accepting = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("proxy accepts".into()).spawn(move || accept(&shared, &listener))?
        };
        Ok(Proxy { address, shared, accepting: Some(accepting) })
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the harm, for present and future connections. Bytes that are being written are not affected.
    pub fn set(&self, harm: Harm) {
        self.shared.lock().harm = harm;
        self.shared.changed.notify_all();
    }

    /// Resets every present connection now.
    pub fn cut(&self) {
        let links: Vec<_> = self.shared.lock().links.iter().filter_map(Weak::upgrade).collect();
        links.iter().for_each(|link| link.reset());
        self.shared.changed.notify_all();
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// Returns the number of bytes that half-open connections have swallowed so far.
    pub fn swallowed(&self) -> u64 {
        self.shared.lock().swallowed
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        // Wakes the thread that accepts, which looks at `closing` next.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok();
        let accepting = self.accepting.take().filter(|_| woken);
        let _ = accepting.map(JoinHandle::join);
        self.cut();
        let threads = std::mem::take(&mut self.shared.lock().threads);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        write!(f, "Proxy({} to {}, {} accepted, {:?})", self.address, self.shared.target, state.accepted, state.harm)
    }
}

impl Shared {
    /// Locks the state. No code panics while holding the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the harm, for at most `longest`.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, longest: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Until the proxy closes, connects every client to the target. If the target does not answer, the client's connection is reset.
fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        let number = {
            let mut state = shared.lock();
            if state.closing {
                return;
            }
            state.accepted += u64::from(accepted.is_ok());
            state.accepted
        };
        match accepted {
            Ok((client, _)) => {
                // Without the other end, the client is dropped, which notifies it.
                let _ = relay::start(shared, client, number);
            }
            // Out of file descriptors, possibly only briefly.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}
