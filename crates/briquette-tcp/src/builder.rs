//! Builder of a rank's endpoint: its settings, and the rendezvous with the other ranks.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use briquette_core::comm::Clock;
use tokio::sync::mpsc::unbounded_channel;

use crate::control::{self, Pulse};
use crate::environment::{Environment, names};
use crate::error::JoinError;
use crate::link::Link;
use crate::reader::Limits;
use crate::rendezvous::{self, World};
use crate::secure::Certificates;
use crate::settings::{LOOK, Settings};
use crate::shared::Shared;
use crate::tcp::{Channel, Parts, Tcp, join_within};
use crate::token::{BLANK, Token};
use crate::world;

mod again;

/// Time for which a rank that could not join waits for its control thread to end. A name lookup may still be in
/// progress.
const ENDING: Duration = Duration::from_secs(3);

/// Settings with which a rank joins its process group. All but the rank, the world size and rank 0's address have
/// defaults.
#[must_use = "call `join`"]
pub struct TcpBuilder {
    pub(crate) settings: Settings,
    deadline: Duration,
    pulse: Pulse,
    limits: Limits,
    clock: Option<SharedClock>,
    /// Addresses of the members of an elastic world, by the rank with which they began.
    pub(crate) members: Vec<String>,
    /// Name of the first generation's world.
    pub(crate) run_name: String,
}

type SharedClock = Arc<dyn Clock + Sync>;

impl std::fmt::Debug for TcpBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TcpBuilder { settings, deadline, pulse, limits, .. } = self;
        write!(f, "TcpBuilder({settings:?}, deadline {deadline:?}, {pulse:?}, {limits:?})")
    }
}

impl TcpBuilder {
    /// Creates the settings of rank `rank` of `world` ranks. `master`, as `host:port`, is the address at which rank 0
    /// accepts connections. With port 0, the port is derived from the [world's name](TcpBuilder::world_name).
    pub fn new(rank: usize, world: usize, master: impl Into<String>) -> TcpBuilder {
        TcpBuilder {
            settings: Settings::new(rank, world, master.into()),
            deadline: Duration::from_secs(300),
            pulse: Pulse { interval: Duration::from_secs(1), lost_after: Duration::from_secs(30) },
            limits: Limits { queue: 16, frame: 1 << 30, checksums: true },
            clock: None,
            members: Vec::new(),
            run_name: String::new(),
        }
    }

    /// Creates the settings from a launcher's environment, including token and certificates.
    ///
    /// # Errors
    /// [`JoinError::File`] if the token or the certificates cannot be read.
    pub fn from_environment(environment: &Environment) -> Result<TcpBuilder, JoinError> {
        let Environment { rank, world, master, token, token_file, tls, .. } = environment;
        // No given port: it follows from the world's name.
        let port = environment.port.unwrap_or(0);
        // An IPv6 address needs its brackets.
        let host =
            if master.contains(':') && !master.starts_with('[') { format!("[{master}]") } else { master.clone() };
        let mut builder = TcpBuilder::new(*rank, *world, format!("{host}:{port}")).machine(environment.machine());
        builder.settings.is_alone = environment.local_world == *world;
        builder.settings.ports.clone_from(&environment.ports);
        if let Some(name) = &environment.world_name {
            builder = builder.world_name(name);
        }
        if let Some(elastic) = &environment.elastic {
            builder = builder.members(elastic.members.iter().cloned());
        }
        if let Some(deadline) = environment.join_deadline {
            builder = builder.join_deadline(deadline);
        }
        if let Some(deadline) = environment.deadline {
            builder = builder.deadline(deadline);
        }
        if let Some(token) = token.as_ref().map(Token::new) {
            let problem = if token.is_empty() { Some(BLANK.to_owned()) } else { token.problem() };
            if let Some(problem) = problem {
                return Err(JoinError::Settings(format!("{} {problem}", names::TOKEN)));
            }
            builder = builder.token(token);
        } else if let Some(path) = token_file {
            builder = builder.token(Token::read(path)?);
        }
        if let Some(directory) = tls {
            builder = builder.certificates(Certificates::read(directory)?);
        }
        Ok(builder)
    }

    /// Sets the secret that all ranks share. Required unless rank 0's address is a loopback address.
    pub fn token(mut self, token: Token) -> TcpBuilder {
        self.settings.token = token;
        self
    }

    /// Enables TLS on every connection. Either all ranks have certificates of the same authority, or no rank has any.
    pub fn certificates(mut self, certificates: Certificates) -> TcpBuilder {
        self.settings.certificates = Some(certificates);
        self
    }

    /// Sets the world's name, which separates its ranks from those of other worlds: both sides of every connection must
    /// have the same name, or neither may have one. If rank 0's port is 0, a few ports are derived from the name. Rank
    /// 0 listens on the first free one, and the other ranks try the same ports.
    ///
    /// ```
    /// use briquette_core::comm::run_ranks;
    /// use briquette_core::error::CommError;
    /// use briquette_tcp::{JoinError, TcpBuilder};
    ///
    /// let name = format!("job {}", std::process::id());
    /// let rank = |rank| TcpBuilder::new(rank, 2, "127.0.0.1:0").world_name(&name);
    /// let world = std::thread::scope(|threads| {
    ///     let joining = [0, 1].map(|number| threads.spawn(move || rank(number).join()));
    ///     joining.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// let ranks = run_ranks(world, |comm| Ok::<_, CommError>(comm.rank()));
    /// assert_eq!(ranks, [Ok(0), Ok(1)]);
    /// # Ok::<_, JoinError>(())
    /// ```
    pub fn world_name(mut self, name: impl AsRef<str>) -> TcpBuilder {
        self.settings.tag = world::tag(Some(name.as_ref()));
        self.settings.name = Some(name.as_ref().to_owned());
        self
    }

    /// Sets the ports on which this rank accepts connections, unless [`listen`](TcpBuilder::listen) sets an address. By
    /// default it uses any free port. A firewall must admit the other ranks to these ports and to rank 0's. The range
    /// needs one port per rank on the machine; a wider range leaves room for other jobs.
    pub fn ports(mut self, ports: RangeInclusive<u16>) -> TcpBuilder {
        self.settings.ports = Some(ports);
        self
    }

    /// Uses a socket that is already listening instead of binding one for [`listen`](TcpBuilder::listen).
    pub fn listener(mut self, listener: TcpListener) -> TcpBuilder {
        self.settings.listener = Mutex::new(Some(listener));
        self
    }

    /// Sets the address at which this rank accepts connections, as `host:port`. By default, rank 0 listens at all
    /// addresses of its name, and every other rank at any port of the interface that leads to rank 0. There is one
    /// exception: rank 0's name may resolve to loopback on its own machine (Debian's 127.0.1.1). If there is a token
    /// and ranks may be on other machines, the ranks of rank 0's machine then listen at all of its addresses.
    pub fn listen(mut self, address: impl Into<String>) -> TcpBuilder {
        self.settings.listen = Some(address.into());
        self
    }

    /// Sets the address that the other ranks use for this one, if it differs from the listening address: behind a
    /// relay, or in a container with forwarded ports.
    pub fn advertise(mut self, address: impl Into<String>) -> TcpBuilder {
        self.settings.advertise = Some(address.into());
        self
    }

    /// Sets the rendezvous timeout; 2 minutes by default.
    pub fn join_deadline(mut self, deadline: Duration) -> TcpBuilder {
        self.settings.join_deadline = deadline;
        self
    }

    /// Sets a cancellation flag. Once the flag is true, this rank stops waiting for the others:
    /// [`join`](TcpBuilder::join) returns [`JoinError::Cancelled`] within 0.5 s, and the ranks that have joined fail
    /// with the reason.
    pub fn cancel(mut self, cancel: Arc<AtomicBool>) -> TcpBuilder {
        self.settings.cancel = Some(cancel);
        self
    }

    /// Sets the timeout of a call that waits for a rank that is alive; 5 minutes by default. It should exceed the
    /// duration of anything that one rank does alone, such as testing or saving.
    pub fn deadline(mut self, deadline: Duration) -> TcpBuilder {
        self.deadline = deadline;
        self
    }

    /// Sets the heartbeat interval, and the time without heartbeats after which a rank counts as dead; 1 s and 30 s by default. In an
    /// [elastic world](Self::join_elastic), that time is the upper limit of the one that follows from the
    /// [history](briquette_core::membership::detector) of heartbeats.
    pub fn heartbeat(mut self, interval: Duration, lost_after: Duration) -> TcpBuilder {
        self.pulse = Pulse { interval, lost_after };
        self
    }

    /// Sets the capacity of each rank's queue in frames, in each direction; 16 by default. The collectives need four.
    pub fn capacity(mut self, frames: NonZeroUsize) -> TcpBuilder {
        self.limits.queue = frames.get();
        self
    }

    /// Sets the maximum frame length sent or accepted, in bytes; 1 GiB by default. Must be the same on every rank.
    /// Longer data is split into several frames.
    pub fn longest_frame(mut self, bytes: u32) -> TcpBuilder {
        self.limits.frame = bytes as usize;
        self
    }

    /// Sets whether the bytes of every frame are checked with a CRC-32; on by default. Must be the same on every rank.
    pub fn checksums(mut self, on: bool) -> TcpBuilder {
        self.limits.checksums = on;
        self
    }

    /// Sets the number of background channels, for [`Session::start`](briquette_core::Session::start); none by default.
    /// Each channel adds one connection between every two ranks. Must be the same on every rank.
    pub fn channels(mut self, channels: usize) -> TcpBuilder {
        self.settings.channels = channels;
        self
    }

    /// Sets the number of this rank's machine, for [`Session::machine_map`](briquette_core::Session::machine_map). Ranks on one
    /// machine have the same number. By default it is this rank's own number, which places every rank on a separate
    /// machine.
    pub fn machine(mut self, machine: usize) -> TcpBuilder {
        self.settings.machine = machine;
        self
    }

    /// Sets the clock that [`now`](briquette_core::Session::now) reads. Without a clock the time is always 0.
    pub fn clock(mut self, clock: Arc<dyn Clock + Sync>) -> TcpBuilder {
        self.clock = Some(clock);
        self
    }

    /// Joins the process group and returns once all ranks have joined.
    ///
    /// Starts one control thread, which keeps this rank responsive while it computes. The thread that calls the session
    /// drives the data sockets.
    ///
    /// # Errors
    /// [`JoinError`] states what is missing, where, and how to fix it.
    pub fn join(self) -> Result<Tcp, JoinError> {
        self.check()?;
        let TcpBuilder { settings, deadline, pulse, limits, clock, .. } = self;
        let settings = Arc::new(settings);
        let (rank, world, is_elastic) = (settings.rank, settings.world, settings.is_elastic);
        let system = |what| JoinError::system(rank, world, what);
        let polls = (0..=settings.channels).map(|_| watch(world)).collect::<Result<(Vec<_>, Vec<_>), _>>();
        let (polls, wakers) = polls.map_err(system("watch sockets"))?;
        let (commands, orders) = unbounded_channel();
        let (result, joined) = mpsc::channel();
        let body = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(source) => {
                    let error = JoinError::system(rank, world, "start its control thread")(source);
                    return drop(result.send(Err(error)));
                }
            };
            runtime.block_on(async move {
                let World { lines, links, addresses, machines } = match rendezvous::join(settings).await {
                    Ok(world) => world,
                    Err(error) => return drop(result.send(Err(error))),
                };
                let shared = Arc::new(Shared::new((rank, is_elastic), addresses, machines, wakers));
                let streams: Result<Vec<_>, _> =
                    links.into_iter().map(|link| link.map(|link| link.into_stream()).transpose()).collect();
                let streams = streams.map_err(JoinError::system(rank, world, "take over a socket"));
                if result.send(streams.map(|streams| (streams, Arc::clone(&shared)))).is_ok() {
                    control::watch(lines, shared, orders, pulse).await;
                }
            });
        };
        let thread = thread::Builder::new().name(format!("rank {rank} control"));
        let control = thread.spawn(body).map_err(system("start its control thread"))?;
        let gone = || system("start its control thread")(std::io::ErrorKind::BrokenPipe.into());
        let (streams, shared) = match joined.recv().map_err(|_| gone()).and_then(|result| result) {
            Ok(joined) => joined,
            Err(error) => {
                // A failed attempt must leave nothing behind for the next one: no thread, no port.
                let is_hurried = matches!(error, JoinError::Cancelled { .. });
                join_within(control, if is_hurried { LOOK } else { ENDING });
                return Err(error);
            }
        };
        let mut links = streams.into_iter().map(|stream| stream.map(|stream| Link::new(stream, limits)));
        let mut channels = VecDeque::new();
        for poll in polls {
            let links = links.by_ref().take(world).collect();
            channels.push_back(Channel::new(links, poll).map_err(system("watch sockets"))?);
        }
        Ok(Tcp::new(Parts { channels, shared, commands, control, deadline, limits, clock }))
    }

    pub(crate) fn check(&self) -> Result<(), JoinError> {
        let Settings { rank, world, master, listener, listen, token, ports, .. } = &self.settings;
        let problem = |text: String| Err(JoinError::Settings(text));
        if let Some(ports) = ports.as_ref().filter(|ports| ports.is_empty() || *ports.start() == 0) {
            return problem(format!("the range of ports {}-{} has none that can be used", ports.start(), ports.end()));
        }
        let is_listening = listener.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if master.ends_with(":0") && self.settings.name.is_none() && *world > 1 && !is_listening {
            return problem(format!(
                "rank 0's port is 0 in {master}, and the world has no name that it could follow from: give a port, or \
                 `TcpBuilder::world_name` on every rank"
            ));
        }
        if rank >= world {
            return problem(format!("rank {rank} of a world of {world}: ranks are counted from 0"));
        }
        if self.pulse.interval.is_zero() || self.pulse.lost_after < 3 * self.pulse.interval {
            return problem(
                "a rank can be dead after three heartbeats at the earliest: lost_after ≥ 3 · interval".to_owned(),
            );
        }
        if let Some(text) = token.problem().filter(|_| !token.is_empty()) {
            return problem(format!("the token {text}"));
        }
        if token.is_empty() && *world > 1 {
            let listening = listener.lock().unwrap_or_else(PoisonError::into_inner);
            let listening = listening.as_ref().and_then(|socket| socket.local_addr().ok()).map(|a| a.to_string());
            for address in [Some(master), listen.as_ref(), listening.as_ref()].into_iter().flatten() {
                if !is_loopback(address)? {
                    return problem(format!(
                        "a token is needed, as {address} is not an address of this machine alone: give every rank the \
                         same secret (BRIQUETTE_TOKEN_FILE, or `briquette launch --token-file`; `briquette token` makes \
                         one)"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Creates a poll over the sockets, and its waker.
fn watch(world: usize) -> io::Result<(mio::Poll, mio::Waker)> {
    let poll = mio::Poll::new()?;
    let waker = mio::Waker::new(poll.registry(), mio::Token(world))?;
    Ok((poll, waker))
}

/// Returns whether an address is unreachable from other machines. An address that is not known yet counts as reachable.
fn is_loopback(address: &str) -> Result<bool, JoinError> {
    let found = address.to_socket_addrs();
    let found = found.map_err(|source| JoinError::Resolve { address: address.to_owned(), source })?;
    Ok(found.map(|place: SocketAddr| place.ip()).all(|ip| ip.is_loopback()))
}

/// Creates a world of `ranks` threads of this process that communicate over loopback, in rank order, for tests and
/// measurements. `edit` changes each rank's settings.
///
/// # Errors
/// [`JoinError`].
pub fn loopback(ranks: usize, edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync) -> Result<Vec<Tcp>, JoinError> {
    let address = "127.0.0.1:0";
    let listener = TcpListener::bind(address);
    let listen = |source| JoinError::Listen { address: address.to_owned(), source };
    let listener = listener.map_err(listen)?;
    let master = listener.local_addr().map_err(listen)?.to_string();
    let mut listener = Some(listener);
    thread::scope(|threads| {
        let join = |rank: usize| {
            let mut builder = edit(TcpBuilder::new(rank, ranks, &master));
            if rank == 0 {
                builder.settings.listener = Mutex::new(listener.take());
            }
            threads.spawn(move || builder.join())
        };
        let joining: Vec<_> = (0..ranks).map(join).collect();
        joining.into_iter().map(|rank| rank.join().expect("joining does not panic")).collect()
    })
}
