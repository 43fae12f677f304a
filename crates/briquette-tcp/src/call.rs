//! Calls to other ranks: finding their addresses, connecting, and the caller's side of the handshake.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::time::{Instant, sleep, timeout_at};

use crate::acceptor::HANDSHAKE;
use crate::builder::Settings;
use crate::descriptors::{are_exhausted, exhausted};
use crate::error::JoinError;
use crate::handshake::{self, HandshakeError, Introduction, Role};
use crate::rendezvous::VERSION;
use crate::secure::{Secure, explained};

/// What one address may take to answer; a name may have others.
const CONNECT: Duration = Duration::from_secs(5);

/// For so long a rank 0 that hangs up in the middle of the handshake is called again: a relay whose rank is not there yet
/// takes calls and drops them, and so does a network that fails now and then; a rank that refuses this one refuses it every time.
const HANGING_UP: Duration = Duration::from_secs(2);

/// Between the first attempt and the second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Between later ones.
fn longer(pause: Duration) -> Duration {
    (2 * pause).min(Duration::from_secs(1))
}

/// Rank 0 has answered.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) stream: Secure,
    /// Where it was found.
    pub(crate) address: SocketAddr,
    /// Where this rank takes calls itself.
    pub(crate) listener: TcpListener,
}

/// Why an attempt to call came to nothing.
#[derive(Debug)]
enum Setback {
    /// The name means nothing, perhaps not yet.
    Name(io::Error),
    /// No answer, perhaps not yet.
    Silence(String),
    /// Too many files are open. Callers that do not belong here may hold some of them, for no longer than a handshake lasts.
    Exhausted(JoinError),
    /// There is no use in another attempt.
    Final(JoinError),
}

/// Joins at rank 0, trying again until it is there.
pub(crate) async fn call_master(settings: &Settings, deadline: Instant) -> Result<Master, JoinError> {
    let begin = Instant::now();
    let (mut pause, mut exhausted) = (FIRST_PAUSE, None::<Instant>);
    // An address that was asked for is tried first: if it cannot be had, no rank need be called.
    let mut listener = settings.take_listener()?;
    if let (None, Some(address)) = (&listener, &settings.listen) {
        listener = Some(bind(settings, address, deadline).await?);
    }
    loop {
        let may_hang_up = begin.elapsed() < HANGING_UP;
        let setback = match attempt(settings, &mut listener, may_hang_up, deadline).await {
            Ok(master) => return Ok(master),
            Err(setback) => setback,
        };
        let is_over = Instant::now() + pause >= deadline;
        let (rank, address) = (settings.rank, settings.master.clone());
        match setback {
            Setback::Final(error) => return Err(error),
            Setback::Exhausted(error) if is_over || has_lasted(&mut exhausted) => return Err(error),
            // No later attempt makes an address of a text that is none.
            Setback::Name(source) if is_over || source.kind() == io::ErrorKind::InvalidInput => {
                return Err(JoinError::Resolve { address, source });
            }
            Setback::Silence(cause) if is_over => {
                return Err(JoinError::Unreachable { rank, address, seconds: begin.elapsed().as_secs_f64(), cause });
            }
            Setback::Exhausted(_) => sleep(pause).await,
            Setback::Name(_) | Setback::Silence(_) => {
                exhausted = None;
                sleep(pause).await;
            }
        }
        pause = longer(pause);
    }
}

/// One call to rank 0. A listener that was made for it is kept for the next.
async fn attempt(
    settings: &Settings,
    listener: &mut Option<TcpListener>,
    may_hang_up: bool,
    deadline: Instant,
) -> Result<Master, Setback> {
    let (socket, address) = connect(settings, &settings.master, deadline).await?;
    let refused = |error: HandshakeError| Setback::Final(refusal(settings.rank, format!("rank 0 ({address})"), error));
    let system = |what| move |source| Setback::Final(JoinError::system(settings.rank, settings.world, what)(source));
    // The way to rank 0 is the way on which the others are likely to reach this rank.
    let mut here = socket.local_addr().map_err(system("tell its own address"))?;
    here.set_port(0);
    let own = match listener.take() {
        Some(own) => own,
        None => bind(settings, &here.to_string(), deadline).await.map_err(|error| match error {
            JoinError::Descriptors { .. } => Setback::Exhausted(error),
            error => Setback::Final(error),
        })?,
    };
    let port = own.local_addr().map_err(system("tell its own address"))?;
    if !port.ip().is_unspecified() {
        here.set_ip(port.ip());
    }
    here.set_port(port.port());
    let own_address = settings.advertise.clone().unwrap_or_else(|| here.to_string());
    let role = Role::Join { address: own_address, channels: settings.channels, machine: settings.machine };
    let greeted = timeout_at(deadline.min(Instant::now() + HANDSHAKE), greet(socket, settings, 0, role)).await;
    match greeted {
        Ok(Ok(stream)) => Ok(Master { stream, address, listener: own }),
        Ok(Err(HandshakeError::Io(error))) if may_hang_up && error.kind() != io::ErrorKind::InvalidData => {
            *listener = Some(own);
            let cause = format!("{address}: {}", reason(error.into()));
            Err(Setback::Silence(cause))
        }
        Ok(Err(error)) => Err(refused(error)),
        Err(_) => {
            *listener = Some(own);
            Err(Setback::Silence(format!("{address}: {}", slow())))
        }
    }
}

/// Calls a rank of a world that has a name.
pub(crate) async fn call_rank(
    settings: &Settings,
    (other, address): (usize, &str),
    (session, channel): (&str, usize),
    deadline: Instant,
) -> Result<Secure, JoinError> {
    let (rank, place) = (settings.rank, address.to_owned());
    let failed = |cause: String| JoinError::Link { rank, other, address: place.clone(), cause };
    let role = Role::Data { session: session.to_owned(), channel };
    let (mut pause, mut exhausted) = (FIRST_PAUSE, None::<Instant>);
    loop {
        let until = deadline.min(Instant::now() + HANDSHAKE);
        let made = async {
            let (socket, _) = connect(settings, address, until).await?;
            match timeout_at(until, greet(socket, settings, other, role.clone())).await {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(HandshakeError::Io(error))) if error.kind() != io::ErrorKind::InvalidData => {
                    Err(Setback::Silence(reason(error.into())))
                }
                Ok(Err(error)) => Err(Setback::Final(failed(reason(error)))),
                Err(_) => Err(Setback::Silence(slow().to_string())),
            }
        };
        let cause = match made.await {
            Ok(stream) => return Ok(stream),
            Err(Setback::Final(error)) => return Err(error),
            Err(Setback::Exhausted(error)) if has_lasted(&mut exhausted) => return Err(error),
            Err(Setback::Exhausted(error)) => error.to_string(),
            Err(Setback::Silence(cause)) => {
                exhausted = None;
                cause
            }
            Err(Setback::Name(error)) => {
                exhausted = None;
                format!("the address cannot be resolved: {error}")
            }
        };
        if Instant::now() + pause >= deadline {
            return Err(failed(cause));
        }
        sleep(pause).await;
        pause = longer(pause);
    }
}

/// Whether no attempt for as long as a handshake may take found a free descriptor: then those that hold them are no passing
/// callers. `since` is when the first did not.
fn has_lasted(since: &mut Option<Instant>) -> bool {
    since.get_or_insert_with(Instant::now).elapsed() >= HANDSHAKE
}

/// The caller's side of the handshake.
async fn greet(socket: TcpStream, settings: &Settings, to: usize, role: Role) -> Result<Secure, HandshakeError> {
    let mut stream = Secure::call(socket, settings.certificates.as_ref()).await?;
    let binding = stream.binding()?;
    let Settings { rank, world, .. } = *settings;
    let introduction = Introduction { rank, to, world, version: VERSION.to_owned(), role };
    handshake::call(&mut stream, &settings.token, &binding, &introduction).await?;
    Ok(stream)
}

/// A listener at the first address of a name that can be had; if none can, every one is named.
pub(crate) async fn bind(settings: &Settings, address: &str, deadline: Instant) -> Result<TcpListener, JoinError> {
    let unresolved = |source| JoinError::Resolve { address: address.to_owned(), source };
    let places = resolve(address, deadline).await.map_err(unresolved)?;
    let mut causes = Vec::new();
    let mut kind = io::ErrorKind::NotFound;
    for place in &places {
        match TcpListener::bind(place).await {
            Ok(listener) => return Ok(listener),
            Err(error) if are_exhausted(&error) => {
                return Err(exhausted(settings.rank, settings.world, error.to_string()));
            }
            Err(error) if places.len() == 1 => {
                return Err(JoinError::Listen { address: address.to_owned(), source: error });
            }
            Err(error) => {
                kind = error.kind();
                causes.push(format!("{place}: {error}"));
            }
        }
    }
    Err(JoinError::Listen { address: address.to_owned(), source: io::Error::new(kind, causes.join("; ")) })
}

/// All addresses of a name, in the system's order.
async fn resolve(address: &str, until: Instant) -> io::Result<Vec<SocketAddr>> {
    let found = timeout_at(until, lookup_host(address)).await;
    let found: Vec<_> = found.map_err(|_| io::Error::other("nobody knew the name in time"))??.collect();
    if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
}

/// Tries every address of a name.
async fn connect(settings: &Settings, address: &str, until: Instant) -> Result<(TcpStream, SocketAddr), Setback> {
    let full = |error: &io::Error| Setback::Exhausted(exhausted(settings.rank, settings.world, error.to_string()));
    let named = |error| if are_exhausted(&error) { full(&error) } else { Setback::Name(error) };
    let mut causes = Vec::new();
    for place in resolve(address, until).await.map_err(named)? {
        let cause = match timeout_at(until.min(Instant::now() + CONNECT), TcpStream::connect(place)).await {
            // A port of this machine's without a listener may be drawn for the call itself, which then answers itself.
            Ok(Ok(socket)) if socket.local_addr().ok() == Some(place) => "nobody listens there".to_owned(),
            Ok(Ok(socket)) => return Ok((socket, place)),
            Ok(Err(error)) if are_exhausted(&error) => return Err(full(&error)),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        causes.push(format!("{place}: {cause}"));
    }
    Err(Setback::Silence(causes.join("; ")))
}

fn refusal(rank: usize, by: String, error: HandshakeError) -> JoinError {
    JoinError::Refused { rank, by, reason: reason(error) }
}

/// What happened in a handshake and what to do, for the caller.
fn reason(error: HandshakeError) -> String {
    match error {
        HandshakeError::Io(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                format!("it hung up in the middle of the handshake ({error}); its log says why")
            }
            // TLS 1.3: a listener that does not like the caller's certificate says so after its own part is done.
            io::ErrorKind::InvalidData => explained(error).to_string(),
            _ => error.to_string(),
        },
        other => other.to_string(),
    }
}

fn slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", HANDSHAKE.as_secs()))
}
