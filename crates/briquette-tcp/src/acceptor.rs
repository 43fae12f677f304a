//! Connection acceptor of a rank. Peers that know the token are accepted; unauthenticated peers are logged once and
//! cannot keep the ranks out. When too many handshakes are open, the oldest one is dropped first.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::descriptors::are_exhausted;
use crate::handshake::{self, Caller, HandshakeError};
use crate::secure::Secure;
use crate::settings::Settings;

/// Time limit of one handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Concurrent handshakes; further connections wait in the system's accept queue.
const AT_ONCE: usize = 128;
/// Time limit of a handshake while other callers wait for its slot. A rank sends its whole introduction at once, so a
/// silent connection is not a rank.
const CROWDED: Duration = Duration::from_secs(1);

/// Authenticated callers and their addresses.
pub(crate) type Calls = mpsc::Receiver<Call>;
/// A caller, or the error that prevents accepting further connections: this rank has too many open files.
type Call = io::Result<(Caller<Secure>, SocketAddr)>;

/// Accepts connections until the receiver of the callers is dropped.
pub(crate) fn accept(listeners: Vec<TcpListener>, settings: Arc<Settings>) -> Calls {
    let (sender, calls) = mpsc::channel(AT_ONCE);
    let (pending, handshakes, refused) = (VecDeque::new(), JoinSet::new(), RefusedPeers::default());
    tokio::spawn(Acceptor { settings, sender, pending, handshakes, refused, exhausted: None }.run(listeners));
    calls
}

/// A caller, or the problem of its handshake, which is absent if it is expected.
type Handshaken = Result<Caller<Secure>, Option<String>>;

struct Acceptor {
    settings: Arc<Settings>,
    sender: mpsc::Sender<Call>,
    /// Peers whose handshakes are in progress, oldest first.
    pending: VecDeque<PendingHandshake>,
    handshakes: JoinSet<(SocketAddr, Handshaken)>,
    refused: RefusedPeers,
    /// Time since which no connection could be accepted although no handshake uses a file descriptor.
    exhausted: Option<Instant>,
}

struct PendingHandshake {
    since: Instant,
    from: IpAddr,
    handshake: AbortHandle,
}

impl Acceptor {
    async fn run(mut self, listeners: Vec<TcpListener>) {
        loop {
            self.pending.retain(|pending| !pending.handshake.is_finished());
            let is_full = self.pending.len() >= AT_ONCE;
            let oldest = self.pending.front().map_or_else(Instant::now, |pending| pending.since);
            tokio::select! {
                () = self.sender.closed() => return,
                Some(done) = self.handshakes.join_next() => {
                    // A dropped handshake has been logged already.
                    let Ok((from, result)) = done else { continue };
                    match result {
                        Ok(caller) => drop(self.sender.send(Ok((caller, from))).await),
                        Err(problem) => problem.iter().for_each(|problem| self.refused.record(from.ip(), problem)),
                    }
                }
                () = sleep_until(oldest + CROWDED), if is_full => self.drop_oldest(),
                call = any(&listeners), if !is_full => match call {
                    Ok((socket, from)) => {
                        self.exhausted = None;
                        self.start_handshake(socket, from);
                    }
                    // Most likely there are no free file descriptors. Dropping a handshake frees one.
                    Err(_) if oldest.elapsed() >= CROWDED => self.drop_oldest(),
                    Err(error) => {
                        self.report(error);
                        sleep(Duration::from_millis(100)).await;
                    }
                },
            }
        }
    }

    /// Reports an error of `accept`. Unauthenticated peers must not end the run. Exhausted file descriptors are
    /// therefore this rank's own error only while no handshake uses one.
    fn report(&mut self, error: io::Error) {
        if !are_exhausted(&error) || !self.pending.is_empty() {
            self.exhausted = None;
        } else if self.exhausted.get_or_insert_with(Instant::now).elapsed() >= CROWDED {
            // If the channel is full, the error is reported the next time.
            drop(self.sender.try_send(Err(error)));
        }
    }

    fn start_handshake(&mut self, socket: TcpStream, from: SocketAddr) {
        let settings = Arc::clone(&self.settings);
        let handshake = self.handshakes.spawn(async move {
            let result = match timeout(HANDSHAKE, receive(socket, &settings)).await {
                Ok(result) => result.map_err(|error| (!is_expected(&settings, &error)).then(|| error.to_string())),
                Err(_) => Err(Some(unfinished(HANDSHAKE))),
            };
            (from, result)
        });
        self.pending.push_back(PendingHandshake { since: Instant::now(), from: from.ip(), handshake });
    }

    /// Drops the handshake that has been open longest.
    fn drop_oldest(&mut self) {
        if let Some(PendingHandshake { since, from, handshake }) = self.pending.pop_front() {
            handshake.abort();
            self.refused.record(from, &unfinished(since.elapsed()));
        }
    }
}

/// Returns whether members of an elastic world cause an error: one finds out whether another is there, or calls for another generation.
fn is_expected(settings: &Settings, error: &HandshakeError) -> bool {
    let is_left = matches!(error, HandshakeError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof);
    settings.is_later && (is_left || matches!(error, HandshakeError::OtherWorld))
}

fn unfinished(after: Duration) -> String {
    format!("it did not end its handshake within {:.0} s", after.as_secs_f64())
}

/// Returns the next connection on any of several addresses.
async fn any(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    poll_fn(|context| {
        let mut calls = listeners.iter().map(|listener| listener.poll_accept(context));
        calls.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

async fn receive(socket: TcpStream, settings: &Settings) -> Result<Caller<Secure>, HandshakeError> {
    let stream = Secure::listen(socket, settings.certificates.as_ref()).await?;
    let binding = stream.binding()?;
    handshake::listen(stream, settings.terms(&binding)).await
}

/// Maximum number of distinct reasons logged per address.
const REASONS: usize = 8;

/// Refused sources, with a count per reason. Each reason is logged once when it first occurs, and its count at the end.
#[derive(Debug, Default)]
struct RefusedPeers(HashMap<(IpAddr, String), usize>);

impl RefusedPeers {
    fn record(&mut self, from: IpAddr, problem: &str) {
        // Bounded, because there may be thousands of addresses, and the caller chooses the bytes of a reason.
        let reasons = self.0.keys().filter(|(address, _)| *address == from).count();
        let is_full = self.0.len() >= 1000 || reasons >= REASONS;
        let known = self.0.get_mut(&(from, problem.to_owned()));
        match known {
            Some(count) => *count += 1,
            None if is_full => {}
            None => {
                tracing::warn!("refused a connection from {from}: {problem} (further ones are counted)");
                self.0.insert((from, problem.to_owned()), 1);
            }
        }
    }
}

impl Drop for RefusedPeers {
    fn drop(&mut self) {
        for ((from, problem), count) in self.0.iter().filter(|(_, count)| **count > 1) {
            tracing::warn!("refused {count} connections from {from} in all: {problem}");
        }
    }
}
