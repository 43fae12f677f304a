//! How a world comes together: everyone calls rank 0, rank 0 tells everyone where everyone is, and each rank calls the
//! ranks below its own.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::builder::Settings;
use crate::error::JoinError;
use crate::handshake::{self, Caller, HandshakeError, Introduction, Role};
use crate::lines::{Event, Lines, Message};
use crate::secure::{Secure, explained};

/// What one handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes that go on at the same time; others wait.
const AT_ONCE: usize = 64;
/// How much longer than rank 0 the others wait, so that they hear from it who was missing.
const PATIENCE: Duration = Duration::from_secs(3);

/// A world that has come together, as one rank has it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) lines: Lines,
    /// By rank; none to itself.
    pub(crate) links: Vec<Option<Secure>>,
    /// Where each rank takes calls.
    pub(crate) addresses: Vec<String>,
}

/// Who called and knows the token, and from where.
type Calls = mpsc::Receiver<(Caller<Secure>, SocketAddr)>;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) async fn join(settings: Arc<Settings>) -> Result<World, JoinError> {
    let deadline = Instant::now() + settings.join_deadline;
    if settings.rank == 0 { lead(&settings, deadline).await } else { follow(&settings, deadline + PATIENCE).await }
}

/// Rank 0's part.
async fn lead(settings: &Arc<Settings>, deadline: Instant) -> Result<World, JoinError> {
    let listener = match settings.take_listener() {
        Some(listener) => {
            let adopt = || listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
            adopt().map_err(|source| JoinError::Listen { address: settings.master.clone(), source })?
        }
        None => bind(&settings.master).await?,
    };
    let mut calls = accept(listener, Arc::clone(settings));
    let mut lines = Lines::new();
    let mut addresses = vec![String::new(); settings.world];
    addresses[0].clone_from(&settings.master);
    let missing = |addresses: &[String]| -> Vec<usize> {
        (1..addresses.len()).filter(|rank| addresses[*rank].is_empty()).collect()
    };
    while !missing(&addresses).is_empty() {
        let came = timeout_at(deadline, async {
            tokio::select! {
                Some((caller, from)) = calls.recv() => Some((caller, from)),
                (rank, event) = lines.next() => {
                    // Gone again before the world was complete; another attempt is welcome.
                    if let Event::Closed(cause) = event {
                        tracing::warn!("rank {rank} joined and went away again: {cause}");
                        lines.remove(rank);
                        addresses[rank].clear();
                    }
                    None
                }
            }
        });
        let came = match came.await {
            Ok(came) => came,
            Err(_) => {
                let missing = missing(&addresses).iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let missing = format!("missing: {missing}");
                return fail(lines, incomplete(settings, missing)).await;
            }
        };
        let Some((caller, from)) = came else { continue };
        match enrol(settings, caller, from, &lines).await {
            Ok(Some((rank, address, stream))) => {
                addresses[rank] = address;
                lines.add(rank, stream);
            }
            Ok(None) => {}
            Err(error) => return fail(lines, error).await,
        }
    }
    let session = random_name(settings.rank)?;
    lines.tell_all(&Message::Roster { session: session.clone(), addresses: addresses.clone() }).await;
    let mut unready: BTreeSet<usize> = (1..settings.world).collect();
    let links = match mesh(settings, &addresses, &session, &mut calls, &mut lines, &mut unready, deadline).await {
        Ok(links) => links,
        Err(error) => return fail(lines, error).await,
    };
    while !unready.is_empty() {
        match timeout_at(deadline, lines.next()).await {
            Ok((rank, Event::Said(Message::Ready))) => drop(unready.remove(&rank)),
            Ok((rank, event)) => return fail(lines, stopped(rank, event)).await,
            Err(_) => {
                let missing = format!("ranks {unready:?} did not get their links to the others");
                return fail(lines, incomplete(settings, missing)).await;
            }
        }
    }
    lines.tell_all(&Message::Go).await;
    Ok(World { lines, links, addresses })
}

/// Every other rank's part.
async fn follow(settings: &Arc<Settings>, deadline: Instant) -> Result<World, JoinError> {
    let (mut stream, address) = call_master(settings, deadline).await?;
    let refused = |error: HandshakeError| refusal(settings.rank, format!("rank 0 ({address})"), error);
    let system = |what| move |source| JoinError::System { rank: settings.rank, what, source };
    // The way to rank 0 is the way on which the others are likely to reach this rank.
    let listener = match &settings.listen {
        Some(address) => bind(address).await?,
        None => {
            let here = local_address(&stream).map_err(system("tell its own address"))?.ip();
            bind(&SocketAddr::new(here, 0).to_string()).await?
        }
    };
    let here = listener.local_addr().map_err(system("tell its own address"))?;
    let mut calls = accept(listener, Arc::clone(settings));
    let introduction = Introduction {
        role: Role::Join { address: settings.advertise.clone().unwrap_or_else(|| here.to_string()) },
        ..introduction(settings, String::new())
    };
    let binding = stream.binding().map_err(|error| refused(error.into()))?;
    let greeted = timeout(HANDSHAKE, handshake::call(&mut stream, &settings.token, &binding, &introduction)).await;
    greeted.map_err(|_| refused(slow().into())).and_then(|result| result.map_err(refused))?;
    let mut lines = Lines::new();
    lines.add(0, stream);
    let (session, mut addresses) = match timeout_at(deadline, lines.next()).await {
        Ok((_, Event::Said(Message::Roster { session, addresses }))) => (session, addresses),
        Ok((rank, event)) => return Err(stopped(rank, event)),
        Err(_) => return Err(incomplete(settings, "rank 0 did not say who is missing".to_owned())),
    };
    if addresses.len() != settings.world {
        return Err(JoinError::Settings(format!(
            "rank 0 sent {} addresses for {} ranks",
            addresses.len(),
            settings.world
        )));
    }
    // Where this rank found rank 0 counts, not what rank 0 calls itself.
    addresses[0] = address.to_string();
    let mut nobody = BTreeSet::new();
    let links = match mesh(settings, &addresses, &session, &mut calls, &mut lines, &mut nobody, deadline).await {
        Ok(links) => links,
        Err(error) => return fail(lines, error).await,
    };
    lines.send(0, &Message::Ready).await;
    match timeout_at(deadline, lines.next()).await {
        Ok((_, Event::Said(Message::Go))) => Ok(World { lines, links, addresses }),
        Ok((rank, event)) => Err(stopped(rank, event)),
        Err(_) => Err(incomplete(settings, "rank 0 did not say who is missing".to_owned())),
    }
}

/// Links to everyone: calls the ranks below, waits for those above. Ranks that have all of theirs meanwhile are no longer
/// `unready`.
async fn mesh(
    settings: &Settings,
    addresses: &[String],
    session: &str,
    calls: &mut Calls,
    lines: &mut Lines,
    unready: &mut BTreeSet<usize>,
    deadline: Instant,
) -> Result<Vec<Option<Secure>>, JoinError> {
    let mut links: Vec<Option<Secure>> = (0..settings.world).map(|_| None).collect();
    for (other, address) in addresses.iter().enumerate().take(settings.rank) {
        links[other] = Some(call_peer(settings, other, address, session, deadline).await?);
    }
    while let Some(missing) = (settings.rank + 1..settings.world).find(|rank| links[*rank].is_none()) {
        let came = timeout_at(deadline, async {
            tokio::select! {
                Some((caller, _)) = calls.recv() => Ok(caller),
                (rank, event) = lines.next() => Err((rank, event)),
            }
        });
        let caller = match came.await {
            Err(_) => return Err(incomplete(settings, format!("rank {missing} did not call"))),
            Ok(Ok(caller)) => caller,
            Ok(Err((rank, Event::Said(Message::Ready)))) if unready.remove(&rank) => continue,
            Ok(Err((rank, event))) => return Err(stopped(rank, event)),
        };
        let rank = caller.introduction.rank;
        let same = caller.introduction.role == Role::Data { session: session.to_owned() };
        if !same || rank <= settings.rank || rank >= settings.world || links[rank].is_some() {
            drop(caller.refuse(format!("rank {} does not expect this call", settings.rank)).await);
            continue;
        }
        links[rank] = caller.welcome().await.ok();
    }
    Ok(links)
}

async fn call_peer(
    settings: &Settings,
    other: usize,
    address: &str,
    session: &str,
    deadline: Instant,
) -> Result<Secure, JoinError> {
    let place = resolve(address).await?;
    let failed = |cause: String| JoinError::Link { rank: settings.rank, other, address: place, cause };
    let attempt = async {
        let socket = TcpStream::connect(place).await?;
        let mut stream = Secure::call(socket, settings.certificates.as_ref()).await?;
        let binding = stream.binding()?;
        let introduction = introduction(settings, session.to_owned());
        handshake::call(&mut stream, &settings.token, &binding, &introduction).await?;
        Ok::<_, HandshakeError>(stream)
    };
    let until = deadline.min(Instant::now() + HANDSHAKE);
    match timeout_at(until, attempt).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(slow().to_string())),
    }
}

/// Connects to rank 0, again and again until it is there.
async fn call_master(settings: &Settings, deadline: Instant) -> Result<(Secure, SocketAddr), JoinError> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(20);
    loop {
        let attempt = async {
            let address = lookup_host(&settings.master).await?.next().ok_or(io::ErrorKind::NotFound)?;
            Ok::<_, io::Error>((TcpStream::connect(address).await?, address))
        };
        let cause = match timeout_at(deadline, attempt).await {
            Ok(Ok((socket, address))) => {
                let by = format!("rank 0 ({address})");
                return match timeout(HANDSHAKE, Secure::call(socket, settings.certificates.as_ref())).await {
                    Ok(Ok(stream)) => Ok((stream, address)),
                    Ok(Err(error)) => Err(refusal(settings.rank, by, error.into())),
                    Err(_) => Err(refusal(settings.rank, by, slow().into())),
                };
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => slow().to_string(),
        };
        if Instant::now() + pause >= deadline {
            let (rank, address) = (settings.rank, settings.master.clone());
            return Err(JoinError::Unreachable { rank, address, seconds: begin.elapsed().as_secs_f64(), cause });
        }
        sleep(pause).await;
        pause = (2 * pause).min(Duration::from_secs(1));
    }
}

/// Whether a caller becomes a rank. Whoever knows the token and has other settings ends the attempt for everyone; whoever
/// is one too many is sent away.
async fn enrol(
    settings: &Settings,
    caller: Caller<Secure>,
    from: SocketAddr,
    lines: &Lines,
) -> Result<Option<(usize, String, Secure)>, JoinError> {
    let Introduction { rank, world, version, role } = caller.introduction.clone();
    let differs = [
        ("world size", settings.world.to_string(), world.to_string()),
        ("version of briquette", VERSION.to_owned(), version),
    ];
    if let Some((field, ours, theirs)) = differs.into_iter().find(|(_, ours, theirs)| ours != theirs) {
        let error = JoinError::Mismatch { field, rank: 0, ours, other: rank, theirs };
        drop(caller.refuse(error.to_string()).await);
        return Err(error);
    }
    let problem = match role {
        Role::Data { .. } => "the world has not come together yet".to_owned(),
        Role::Join { .. } if rank == 0 => "rank 0 is this one: two processes were started as rank 0".to_owned(),
        Role::Join { .. } if rank >= world => format!("ranks are 0 to {}", world - 1),
        Role::Join { .. } if lines.has(rank) => {
            format!("rank {rank} has joined already: two processes were started as rank {rank}")
        }
        Role::Join { address } => {
            return Ok(caller.welcome().await.ok().map(|stream| (rank, address, stream)));
        }
    };
    tracing::warn!("refused a process at {from} as rank {rank}: {problem}");
    drop(caller.refuse(problem).await);
    Ok(None)
}

/// Takes calls and passes on those who know the token. Everyone else is named once in the log, and does no harm.
fn accept(listener: TcpListener, settings: Arc<Settings>) -> Calls {
    let (sender, calls) = mpsc::channel(AT_ONCE);
    let room = Arc::new(Semaphore::new(AT_ONCE));
    tokio::spawn(async move {
        let mut strangers = Strangers::default();
        let (rejected, mut rejects) = mpsc::channel::<(IpAddr, String)>(AT_ONCE);
        loop {
            tokio::select! {
                () = sender.closed() => return,
                Some((from, problem)) = rejects.recv() => strangers.name(from, &problem),
                call = listener.accept() => {
                    let Ok((socket, from)) = call else {
                        // Out of descriptors, most likely: others may be closed meanwhile.
                        sleep(Duration::from_millis(100)).await;
                        continue;
                    };
                    let (sender, settings, rejected) = (sender.clone(), Arc::clone(&settings), rejected.clone());
                    let Ok(room) = Arc::clone(&room).acquire_owned().await else { return };
                    tokio::spawn(async move {
                        let _room = room;
                        let problem = match timeout(HANDSHAKE, receive(socket, &settings)).await {
                            Ok(Ok(caller)) => return drop(sender.send((caller, from)).await),
                            Ok(Err(error)) => error.to_string(),
                            Err(_) => "it said nothing".to_owned(),
                        };
                        drop(rejected.send((from.ip(), problem)).await);
                    });
                }
            }
        }
    });
    calls
}

async fn receive(socket: TcpStream, settings: &Settings) -> Result<Caller<Secure>, HandshakeError> {
    let stream = Secure::listen(socket, settings.certificates.as_ref()).await?;
    let binding = stream.binding()?;
    handshake::listen(stream, &settings.token, &binding).await
}

/// Sources that were refused, each named once.
#[derive(Debug, Default)]
struct Strangers(HashSet<IpAddr>);

impl Strangers {
    fn name(&mut self, from: IpAddr, problem: &str) {
        // Bounded: whoever has a thousand addresses is not worth a line each.
        if self.0.len() < 1000 && self.0.insert(from) {
            tracing::warn!("refused a connection from {from}: {problem} (further ones from there are not reported)");
        }
    }
}

fn introduction(settings: &Settings, session: String) -> Introduction {
    let Settings { rank, world, .. } = *settings;
    Introduction { rank, world, version: VERSION.to_owned(), role: Role::Data { session } }
}

async fn bind(address: &str) -> Result<TcpListener, JoinError> {
    let place = resolve(address).await?;
    TcpListener::bind(place).await.map_err(|source| JoinError::Listen { address: address.to_owned(), source })
}

async fn resolve(address: &str) -> Result<SocketAddr, JoinError> {
    let failed = |source| JoinError::Resolve { address: address.to_owned(), source };
    let mut found = lookup_host(address).await.map_err(failed)?;
    found.next().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
}

fn local_address(stream: &Secure) -> io::Result<SocketAddr> {
    match stream {
        Secure::Plain(socket) => socket.local_addr(),
        Secure::Tls(stream) => stream.get_ref().0.local_addr(),
    }
}

/// Tells the others before giving up.
async fn fail<T>(mut lines: Lines, error: JoinError) -> Result<T, JoinError> {
    lines.tell_all(&Message::Fail(error.to_string())).await;
    Err(error)
}

fn stopped(rank: usize, event: Event) -> JoinError {
    let reason = match event {
        Event::Said(Message::Fail(reason)) => reason,
        Event::Said(message) => format!("rank {rank} said {message:?} out of turn"),
        Event::Closed(cause) => format!("rank {rank} went away while the world came together: {cause}"),
    };
    JoinError::Stopped { reason }
}

fn incomplete(settings: &Settings, missing: String) -> JoinError {
    let Settings { rank, world, join_deadline, .. } = settings;
    JoinError::Incomplete { rank: *rank, world: *world, seconds: join_deadline.as_secs_f64(), missing }
}

fn refusal(rank: usize, by: String, error: HandshakeError) -> JoinError {
    let reason = match error {
        HandshakeError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it hung up in the middle of the handshake".to_owned()
        }
        // TLS 1.3: a listener that does not like the caller's certificate says so after its own part is done.
        HandshakeError::Io(error) if error.kind() == io::ErrorKind::InvalidData => explained(error).to_string(),
        other => other.to_string(),
    };
    JoinError::Refused { rank, by, reason }
}

fn slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", HANDSHAKE.as_secs()))
}

fn random_name(rank: usize) -> Result<String, JoinError> {
    let mut bytes = [0; 16];
    let failed = |error: getrandom::Error| JoinError::System {
        rank,
        what: "draw random numbers",
        source: io::Error::other(error.to_string()),
    };
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(hex::encode(bytes))
}
