//! Where a rank takes calls. Whoever knows the token is let in; strangers are named once, and cannot keep the ranks out:
//! when there is a crowd, those go first that have been at the door for long.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::builder::Settings;
use crate::handshake::{self, Caller, HandshakeError};
use crate::secure::Secure;

/// What one handshake may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes that go on at the same time; others wait in the system's queue.
const AT_ONCE: usize = 128;
/// What a handshake may take while others wait for its place. A rank says all it has to say at once; who holds a place in
/// silence is not one.
const CROWDED: Duration = Duration::from_secs(1);

/// Who called and knows the token, and from where.
pub(crate) type Calls = mpsc::Receiver<(Caller<Secure>, SocketAddr)>;

/// Takes calls until nobody wants them any more.
pub(crate) fn accept(listener: TcpListener, settings: Arc<Settings>) -> Calls {
    let (sender, calls) = mpsc::channel(AT_ONCE);
    let (guests, handshakes, strangers) = (VecDeque::new(), JoinSet::new(), Strangers::default());
    tokio::spawn(Door { settings, sender, guests, handshakes, strangers }.keep(listener));
    calls
}

struct Door {
    settings: Arc<Settings>,
    sender: mpsc::Sender<(Caller<Secure>, SocketAddr)>,
    /// Whose handshakes go on, in the order in which they came.
    guests: VecDeque<Guest>,
    handshakes: JoinSet<(SocketAddr, Result<Caller<Secure>, String>)>,
    strangers: Strangers,
}

struct Guest {
    since: Instant,
    from: IpAddr,
    handshake: AbortHandle,
}

impl Door {
    async fn keep(mut self, listener: TcpListener) {
        loop {
            self.guests.retain(|guest| !guest.handshake.is_finished());
            let is_full = self.guests.len() >= AT_ONCE;
            let oldest = self.guests.front().map_or_else(Instant::now, |guest| guest.since);
            tokio::select! {
                () = self.sender.closed() => return,
                Some(done) = self.handshakes.join_next() => {
                    // One that was turned away has been named already.
                    let Ok((from, result)) = done else { continue };
                    match result {
                        Ok(caller) => drop(self.sender.send((caller, from)).await),
                        Err(problem) => self.strangers.name(from.ip(), &problem),
                    }
                }
                () = sleep_until(oldest + CROWDED), if is_full => self.turn_away(),
                call = listener.accept(), if !is_full => match call {
                    Ok((socket, from)) => self.greet(socket, from),
                    // Out of descriptors, most likely: others may be closed meanwhile.
                    Err(_) if oldest.elapsed() >= CROWDED => self.turn_away(),
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }

    fn greet(&mut self, socket: TcpStream, from: SocketAddr) {
        let settings = Arc::clone(&self.settings);
        let handshake = self.handshakes.spawn(async move {
            let result = match timeout(HANDSHAKE, receive(socket, &settings)).await {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => Err(unfinished(HANDSHAKE)),
            };
            (from, result)
        });
        self.guests.push_back(Guest { since: Instant::now(), from: from.ip(), handshake });
    }

    /// The one that has been here for longest goes.
    fn turn_away(&mut self) {
        if let Some(Guest { since, from, handshake }) = self.guests.pop_front() {
            handshake.abort();
            self.strangers.name(from, &unfinished(since.elapsed()));
        }
    }
}

fn unfinished(after: Duration) -> String {
    format!("it did not end its handshake within {:.0} s", after.as_secs_f64())
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
