//! Outgoing connections to other ranks: address resolution, connecting, and the caller's side of the handshake.

pub(crate) mod member;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, timeout_at};

use crate::acceptor::HANDSHAKE;
use crate::descriptors::{are_exhausted, exhausted};
use crate::error::JoinError;
use crate::handshake::{self, HandshakeError, Introduction, Role};
use crate::listen::{self, resolve};
use crate::rendezvous::VERSION;
use crate::secure::{Secure, explained};
use crate::settings::Settings;
use crate::world;

/// Connect timeout of one address; a name may have others.
const CONNECT: Duration = Duration::from_secs(5);

/// Time for which rank 0 is called again although it hangs up during the handshake. A relay whose rank is not there yet
/// accepts and drops connections, and a network may fail transiently. A rank that refuses this one does so every time.
const HANGING_UP: Duration = Duration::from_secs(2);

/// Pause between the first attempt and the second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Returns the pause between later attempts. It is shorter than the time for which an interrupted rank 0 still reports the reason.
fn longer(pause: Duration) -> Duration {
    (2 * pause).min(Duration::from_millis(200))
}

/// Time without success after which a rank logs the rank or address it is waiting for.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Time for which a rank that already accepts connections may fail to answer. After it, the network is assumed to block this
/// rank.
const LINKING: Duration = Duration::from_secs(15);

/// Rank 0, after it has answered.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) stream: Secure,
    /// Address at which it was found.
    pub(crate) address: SocketAddr,
    /// Listener of this rank.
    pub(crate) listener: TcpListener,
}

/// Listening socket of a rank that calls rank 0.
#[derive(Debug)]
struct OwnListener {
    socket: TcpListener,
    /// Set if the address was given, rather than determined by the route to rank 0.
    is_given: bool,
}

impl OwnListener {
    fn at_given_address(socket: TcpListener) -> OwnListener {
        OwnListener { socket, is_given: true }
    }

    fn port(&self) -> Option<u16> {
        self.socket.local_addr().ok().map(|address| address.port())
    }
}

/// Reason why a connection attempt failed.
#[derive(Debug)]
enum Setback {
    /// The name does not resolve, perhaps not yet.
    Name(io::Error),
    /// There is no answer, perhaps not yet.
    Silence(String),
    /// The answer came from another job or program, or cannot be parsed.
    Elsewhere(JoinError),
    /// Too many files are open. Unrelated callers may hold some of them, for at most the duration of a handshake.
    Exhausted(JoinError),
    /// Another attempt would also fail.
    Final(JoinError),
}

/// Joins at rank 0, retrying until it answers.
pub(crate) async fn call_master(settings: &Settings, deadline: Instant) -> Result<Master, JoinError> {
    let begin = Instant::now();
    let (mut pause, mut exhausted) = (FIRST_PAUSE, None::<Instant>);
    // A given address is bound first: if it is not available, calling rank 0 is useless.
    let mut listener = settings.take_listener()?.map(OwnListener::at_given_address);
    if let (None, Some(address)) = (&listener, &settings.listen) {
        listener = Some(OwnListener::at_given_address(listen::at_given_address(settings, address, deadline).await?));
    }
    let (mut is_said, mut before) = (false, None);
    let (masters, mut pass) = (settings.masters(), 0);
    loop {
        let may_hang_up = begin.elapsed() < HANGING_UP;
        let places = world::of_pass(&masters, pass);
        let setback = match any_master(settings, &mut listener, (places, may_hang_up), deadline).await {
            Ok(master) => return Ok(master),
            Err(setback) => setback,
        };
        let is_over = Instant::now() + pause >= deadline;
        let (rank, address) = (settings.rank, settings.whereabouts());
        let cause = match setback {
            Setback::Final(error) | Setback::Elsewhere(error) => return Err(error),
            Setback::Exhausted(error) if is_over || has_lasted(&mut exhausted) => return Err(error),
            // No later attempt can resolve invalid text.
            Setback::Name(source) if is_over || source.kind() == io::ErrorKind::InvalidInput => {
                return Err(JoinError::Resolve { address, source });
            }
            Setback::Silence(cause) if is_over => {
                let (seconds, cause) = (begin.elapsed().as_secs_f64(), whole(cause, before, deadline));
                return Err(JoinError::Unreachable { rank, address, seconds, cause });
            }
            Setback::Exhausted(error) => error.to_string(),
            Setback::Name(error) => {
                exhausted = None;
                error.to_string()
            }
            Setback::Silence(cause) => {
                exhausted = None;
                cause
            }
        };
        if begin.elapsed() >= SILENCE && !std::mem::replace(&mut is_said, true) {
            tracing::warn!("rank {rank} has not reached rank 0 at {address} yet: {cause}");
        }
        before = Some(cause);
        sleep(pause).await;
        (pause, pass) = (longer(pause), pass + 1);
    }
}

/// Calls rank 0 once at each of these addresses, until one answers.
async fn any_master(
    settings: &Settings,
    listener: &mut Option<OwnListener>,
    (places, may_hang_up): (impl Iterator<Item = &String>, bool),
    deadline: Instant,
) -> Result<Master, Setback> {
    let mut causes = Vec::new();
    for address in places {
        match attempt(settings, listener, (address, may_hang_up), deadline).await {
            Err(Setback::Silence(cause)) => causes.push(cause),
            // Rank 0 found that port taken, too, and uses one of the next.
            Err(Setback::Elsewhere(error)) if settings.derives_port().is_some() || settings.is_later => {
                causes.push(error.to_string());
            }
            done => return done,
        }
    }
    Err(Setback::Silence(causes.join("; ")))
}

/// Calls rank 0 once at this address. A listener created for this call is kept for the next.
async fn attempt(
    settings: &Settings,
    listener: &mut Option<OwnListener>,
    (place, may_hang_up): (&str, bool),
    deadline: Instant,
) -> Result<Master, Setback> {
    let (socket, address) = connect(settings, place, deadline).await?;
    let refused = |error: HandshakeError| refusal(settings.rank, format!("rank 0 ({address})"), error);
    let system = |what| move |source| Setback::Final(JoinError::system(settings.rank, settings.world, what)(source));
    // The route to rank 0 is the one on which the others are likely to reach this rank.
    let mut here = socket.local_addr().map_err(system("tell its own address"))?;
    if here.ip() == address.ip() && listener.as_ref().is_some_and(|own| own.port() == Some(address.port())) {
        return Err(Setback::Silence(format!("{address}: this rank listens there itself")));
    }
    let own = match listener.take() {
        Some(own) => own,
        None => {
            let socket = listen::follow(settings, here.ip()).await.map_err(|error| match error {
                JoinError::Descriptors { .. } => Setback::Exhausted(error),
                error => Setback::Final(error),
            })?;
            OwnListener { socket, is_given: false }
        }
    };
    let port = own.socket.local_addr().map_err(system("tell its own address"))?;
    if !port.ip().is_unspecified() {
        here.set_ip(port.ip());
    }
    here.set_port(port.port());
    let own_address = settings.advertise.clone().unwrap_or_else(|| here.to_string());
    let role = Role::Join { address: own_address, channels: settings.channels, machine: settings.machine };
    let handshaken =
        timeout_at(deadline.min(Instant::now() + HANDSHAKE), handshake_with(socket, settings, 0, role)).await;
    let setback = match handshaken {
        Ok(Ok(stream)) => return Ok(Master { stream, address, listener: own.socket }),
        Ok(Err(HandshakeError::Io(error))) if may_hang_up && error.kind() != io::ErrorKind::InvalidData => {
            Setback::Silence(format!("{address}: {}", reason(error.into())))
        }
        // The proof shows that the refusal comes from a rank of this world. A wrong proof shows nothing, because any
        // program may send one.
        Ok(Err(error @ HandshakeError::Refused(_))) => Setback::Final(refused(error)),
        Ok(Err(error)) => Setback::Elsewhere(refused(error)),
        Err(_) => Setback::Silence(format!("{address}: {}", slow())),
    };
    // The route to another address may use another interface.
    *listener = Some(own).filter(|own| own.is_given || !matches!(setback, Setback::Elsewhere(_)));
    Err(setback)
}

/// A link to be made to another rank, in a world whose rendezvous is complete.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// Rank to connect to.
    pub(crate) other: usize,
    /// Address at which that rank accepts connections.
    pub(crate) address: &'a str,
    /// World name of this attempt.
    pub(crate) session: &'a str,
    pub(crate) channel: usize,
}

/// Connects to a rank that accepts connections. The error of every attempt is sent to `troubles`.
pub(crate) async fn call_rank(
    settings: &Settings,
    wanted: Wanted<'_>,
    deadline: Instant,
    troubles: &UnboundedSender<String>,
) -> Result<Secure, JoinError> {
    let Wanted { other, address, session, channel } = wanted;
    let (rank, place) = (settings.rank, address.to_owned());
    let failed = |cause: String| JoinError::Link { rank, other, address: place.clone(), cause };
    let role = Role::Data { session: session.to_owned(), channel };
    let (mut pause, mut exhausted, mut unanswered) = (FIRST_PAUSE, None::<Instant>, None::<Instant>);
    let mut before = None;
    loop {
        let begin = Instant::now();
        let until = deadline.min(begin + HANDSHAKE);
        let connected = connect(settings, address, until).await;
        unanswered = if connected.is_ok() { None } else { unanswered.or(Some(begin)) };
        let made = match connected {
            Ok((socket, _)) => match timeout_at(until, handshake_with(socket, settings, other, role.clone())).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(HandshakeError::Io(error))) if error.kind() != io::ErrorKind::InvalidData => {
                    Setback::Silence(reason(error.into()))
                }
                Ok(Err(error)) => return Err(failed(reason(error))),
                Err(_) => Setback::Silence(slow().to_string()),
            },
            Err(setback) => setback,
        };
        let cause = match made {
            Setback::Final(error) | Setback::Elsewhere(error) => return Err(error),
            Setback::Exhausted(error) if has_lasted(&mut exhausted) => return Err(error),
            Setback::Exhausted(error) => {
                unanswered = None;
                error.to_string()
            }
            Setback::Silence(cause) => {
                exhausted = None;
                cause
            }
            Setback::Name(error) => {
                exhausted = None;
                format!("the address cannot be resolved: {error}")
            }
        };
        // The rank is on the roster, so it accepts connections.
        let is_in_vain = unanswered.is_some_and(|since| since.elapsed() + pause >= LINKING);
        if is_in_vain || Instant::now() + pause >= deadline {
            return Err(failed(whole(cause, before, deadline)));
        }
        before = Some(cause.clone());
        // Sending fails only after the attempt to join has ended.
        drop(troubles.send(cause));
        sleep(pause).await;
        pause = longer(pause);
    }
}

/// Returns the cause of the last attempt, or that of the previous attempt if the deadline interrupted the last one.
fn whole(cause: String, before: Option<String>, deadline: Instant) -> String {
    before.filter(|_| Instant::now() >= deadline).unwrap_or(cause)
}

/// Returns whether no attempt has found a free file descriptor for as long as a handshake may take. If so, transient
/// callers do not hold the descriptors. `since` is the time of the first failure.
fn has_lasted(since: &mut Option<Instant>) -> bool {
    since.get_or_insert_with(Instant::now).elapsed() >= HANDSHAKE
}

/// Performs the caller's side of the handshake.
async fn handshake_with(
    socket: TcpStream,
    settings: &Settings,
    to: usize,
    role: Role,
) -> Result<Secure, HandshakeError> {
    let mut stream = Secure::call(socket, settings.certificates.as_ref()).await?;
    let binding = stream.binding()?;
    let Settings { rank, world, .. } = *settings;
    let introduction = Introduction { rank, to, world, version: VERSION.to_owned(), role };
    handshake::call(&mut stream, settings.terms(&binding), &introduction).await?;
    Ok(stream)
}

/// Tries every address of a name.
async fn connect(settings: &Settings, address: &str, until: Instant) -> Result<(TcpStream, SocketAddr), Setback> {
    let full = |error: &io::Error| Setback::Exhausted(exhausted(settings.rank, settings.world, error.to_string()));
    let named = |error| if are_exhausted(&error) { full(&error) } else { Setback::Name(error) };
    let mut causes = Vec::new();
    for place in resolve(address, until).await.map_err(named)? {
        let cause = match timeout_at(until.min(Instant::now() + CONNECT), TcpStream::connect(place)).await {
            // Without a listener, the system may choose the called port as the call's own source port. The call then connects to
            // itself.
            Ok(Ok(socket)) if socket.local_addr().ok() == Some(place) => "no process listens there".to_owned(),
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

/// Returns a description of a handshake error and its remedy, for the caller.
fn reason(error: HandshakeError) -> String {
    match error {
        HandshakeError::Io(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                format!("it hung up in the middle of the handshake ({error}); its log says why")
            }
            // In TLS 1.3, the error of a listener that rejects the caller's certificate arrives after the caller's part
            // is done.
            io::ErrorKind::InvalidData => explained(error).to_string(),
            _ => error.to_string(),
        },
        other => other.to_string(),
    }
}

fn slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", HANDSHAKE.as_secs()))
}
