//! Rendezvous: every rank calls rank 0, rank 0 sends all addresses to all ranks, and each rank calls the ranks below it.

mod ending;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use self::ending::{send_away, stopped};
use crate::acceptor::{Calls, accept};
use crate::call::{SILENCE, Wanted, call_master, call_rank};
use crate::error::JoinError;
use crate::handshake::{Caller, Introduction, Role};
use crate::lines::{Event, Lines, Message};
use crate::secure::Secure;
use crate::settings::Settings;
use crate::{descriptors, listen};

/// Additional time that the other ranks wait after rank 0's deadline, to receive from rank 0 which ranks were missing.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time for which a rank whose call failed waits for rank 0 to report the reason.
const GRACE: Duration = Duration::from_millis(500);

/// A complete world, as seen by one rank.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) lines: Lines,
    /// Links by channel, then by rank; none to itself.
    pub(crate) links: Vec<Option<Secure>>,
    /// Address at which each rank accepts connections.
    pub(crate) addresses: Vec<String>,
    /// Machine number of each rank.
    pub(crate) machines: Vec<usize>,
}

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) async fn join(settings: Arc<Settings>) -> Result<World, JoinError> {
    let deadline = Instant::now() + settings.join_deadline;
    if settings.rank == 0 { lead(settings, deadline).await } else { follow(settings, deadline + PATIENCE).await }
}

/// State of a rank during rendezvous.
struct Gathering {
    settings: Arc<Settings>,
    deadline: Instant,
    calls: Calls,
    lines: Lines,
    /// Address at which each rank accepts connections; empty for ranks that have not joined yet.
    addresses: Vec<String>,
    /// Machine number of each rank.
    machines: Vec<usize>,
    /// Error that prevents accepting further connections.
    exhausted: Option<io::Error>,
    /// On rank 0: ranks that have not reached another rank yet, and why.
    stuck: BTreeMap<usize, JoinError>,
}

/// Runs rank 0's part.
async fn lead(settings: Arc<Settings>, deadline: Instant) -> Result<World, JoinError> {
    let (listeners, address) = settings.unless_cancelled(listen::lead(&settings, deadline)).await?;
    let calls = accept(listeners, Arc::clone(&settings));
    let mut addresses = vec![String::new(); settings.world];
    addresses[0] = address;
    let mut gathering = Gathering::new(&settings, deadline, calls);
    gathering.addresses = addresses;
    gathering.machines = vec![settings.machine; settings.world];
    match settings.unless_cancelled(gathering.lead()).await {
        Ok(links) => Ok(gathering.complete(links)),
        Err(error) => gathering.fail(error).await,
    }
}

/// Runs the part of every other rank.
async fn follow(settings: Arc<Settings>, deadline: Instant) -> Result<World, JoinError> {
    let master = settings.unless_cancelled(call_master(&settings, deadline)).await?;
    let calls = accept(vec![master.listener], Arc::clone(&settings));
    let mut gathering = Gathering::new(&settings, deadline, calls);
    gathering.lines.add(0, master.stream);
    match settings.unless_cancelled(gathering.follow(master.address)).await {
        Ok(links) => Ok(gathering.complete(links)),
        Err(error) => gathering.fail(error).await,
    }
}

impl Gathering {
    fn new(settings: &Arc<Settings>, deadline: Instant, calls: Calls) -> Gathering {
        let (settings, lines) = (Arc::clone(settings), Lines::new());
        Gathering {
            settings,
            deadline,
            calls,
            lines,
            addresses: Vec::new(),
            machines: Vec::new(),
            exhausted: None,
            stuck: BTreeMap::new(),
        }
    }

    fn complete(self, links: Vec<Option<Secure>>) -> World {
        World { lines: self.lines, links, addresses: self.addresses, machines: self.machines }
    }

    async fn lead(&mut self) -> Result<Vec<Option<Secure>>, JoinError> {
        descriptors::check(0, self.settings.world, self.settings.channels)?;
        self.gather().await?;
        let session = random_name(0)?;
        let (addresses, machines) = (self.addresses.clone(), self.machines.clone());
        self.lines.tell_all(&Message::Roster { session: session.clone(), addresses, machines }).await;
        let mut unready: BTreeSet<usize> = (1..self.settings.world).collect();
        let mut links = self.mesh(&session, &mut unready).await?;
        while !unready.is_empty() {
            match self.next(&session, &mut links).await {
                Ok(None) => {}
                Ok(Some((rank, Event::Said(Message::Ready)))) => {
                    self.stuck.remove(&rank);
                    unready.remove(&rank);
                }
                Ok(Some((rank, event))) => return Err(stopped(rank, event)),
                Err(_) => {
                    return Err(self.incomplete(format!("ranks {unready:?} did not get their links to the others")));
                }
            }
        }
        self.lines.tell_all(&Message::Go).await;
        Ok(links)
    }

    /// Waits until every rank has joined.
    async fn gather(&mut self) -> Result<(), JoinError> {
        let mut reminder = Some(Instant::now() + SILENCE);
        while !self.missing().is_empty() {
            let remind = sleep_until(reminder.unwrap_or(self.deadline));
            let came = timeout_at(self.deadline, async {
                tokio::select! {
                    // Lines are handled first: if a rank died and was restarted, its death is then known before it
                    // calls again.
                    biased;
                    (rank, event) = self.lines.next() => Err((rank, event)),
                    Some(call) = self.calls.recv() => Ok(Some(call)),
                    () = remind, if reminder.is_some() => Ok(None),
                }
            });
            match came.await {
                Ok(Ok(None)) => {
                    reminder = None;
                    let (missing, world) = (self.missing(), self.settings.world);
                    tracing::warn!("rank 0 waits at {} for ranks {missing:?} of {world}", self.addresses[0]);
                }
                Ok(Ok(Some(Ok((caller, from))))) => self.enrol(caller, from).await?,
                Ok(Ok(Some(Err(error)))) => {
                    self.exhausted = Some(error);
                    return Err(self.incomplete(String::new()));
                }
                // A rank that left before the world was complete may try again.
                Ok(Err((rank, Event::Closed(cause)))) => {
                    tracing::warn!("rank {rank} joined and disconnected again: {cause}");
                    self.lines.remove(rank);
                    self.addresses[rank].clear();
                }
                Ok(Err((_, Event::Said(Message::Unable(reason))))) => return Err(JoinError::Stopped { reason }),
                // The rank's own deadline has probably passed. The end of its line follows.
                Ok(Err((_, Event::Said(_)))) => {}
                Err(_) => {
                    let missing: Vec<_> = self.missing().iter().map(ToString::to_string).collect();
                    let (missing, place) = (missing.join(", "), &self.addresses[0]);
                    return Err(self.incomplete(format!(
                        "missing: {missing}. Were they started, and can they reach rank 0 at {place}?"
                    )));
                }
            }
        }
        Ok(())
    }

    async fn follow(&mut self, master: SocketAddr) -> Result<Vec<Option<Secure>>, JoinError> {
        descriptors::check(self.settings.rank, self.settings.world, self.settings.channels)?;
        let (session, addresses, machines) = match timeout_at(self.deadline, self.lines.next()).await {
            Ok((_, Event::Said(Message::Roster { session, addresses, machines }))) => (session, addresses, machines),
            Ok((rank, event)) => return Err(stopped(rank, event)),
            Err(_) => return Err(self.incomplete("rank 0 did not say who is missing".to_owned())),
        };
        let world = self.settings.world;
        if (addresses.len(), machines.len()) != (world, world) {
            let (addresses, machines) = (addresses.len(), machines.len());
            let problem = format!("rank 0 sent {addresses} addresses and {machines} machines for {world} ranks");
            return Err(JoinError::Stopped { reason: problem });
        }
        (self.addresses, self.machines) = (addresses, machines);
        // Rank 0's address is the one at which this rank found it, rather than the one that rank 0 advertises. Ranks of
        // rank 0's machine may have found rank 0 at a loopback address, and advertise loopback addresses themselves.
        self.addresses.iter_mut().for_each(|address| *address = as_seen_from_elsewhere(address, master));
        self.addresses[0] = master.to_string();
        let mut links = self.mesh(&session, &mut BTreeSet::new()).await?;
        self.lines.send(0, &Message::Ready).await;
        loop {
            match self.next(&session, &mut links).await {
                Ok(None) => {}
                Ok(Some((_, Event::Said(Message::Go)))) => return Ok(links),
                Ok(Some((rank, event))) => return Err(stopped(rank, event)),
                Err(_) => return Err(self.incomplete("rank 0 did not say who is missing".to_owned())),
            }
        }
    }

    fn missing(&self) -> Vec<usize> {
        (1..self.addresses.len()).filter(|rank| self.addresses[*rank].is_empty()).collect()
    }

    /// Makes links to all ranks: calls the ranks below, and waits for calls of the ranks above. Removes from `unready`
    /// the ranks that report that they have all of their links.
    async fn mesh(&mut self, session: &str, unready: &mut BTreeSet<usize>) -> Result<Vec<Option<Secure>>, JoinError> {
        let Settings { rank, world, channels, .. } = *self.settings;
        let all = (0..=channels).flat_map(|channel| (0..world).map(move |other| (channel, other)));
        let mut links: Vec<Option<Secure>> = all.clone().map(|_| None).collect();
        for (channel, other) in all.clone().filter(|(_, other)| *other < rank) {
            let (sender, mut troubles) = unbounded_channel();
            let wanted = Wanted { other, address: &self.addresses[other], session, channel };
            let mut calling = pin!(call_rank(&self.settings, wanted, self.deadline, &sender));
            let mut is_stuck = false;
            let called = loop {
                tokio::select! {
                    called = &mut calling => break called,
                    Some(cause) = troubles.recv() => {
                        is_stuck = true;
                        let stuck = Message::Stuck { other, address: self.addresses[other].clone(), cause };
                        self.lines.send(0, &stuck).await;
                    }
                    (rank, event) = self.lines.next() => return Err(stopped(rank, event)),
                }
            };
            match called {
                Ok(link) => {
                    links[channel * world + other] = Some(link);
                    if is_stuck {
                        self.lines.send(0, &Message::Reached { other }).await;
                    }
                }
                // The other rank may have given up already. Rank 0 may then know an earlier reason.
                Err(error) => match timeout(GRACE, self.lines.next()).await {
                    Ok((rank, event @ Event::Said(Message::Fail(_)))) => return Err(stopped(rank, event)),
                    _ => return Err(error),
                },
            }
        }
        let above = all.filter(|(_, other)| *other > rank);
        while let Some((_, missing)) = above.clone().find(|(channel, other)| links[channel * world + other].is_none()) {
            match self.next(session, &mut links).await {
                Ok(None) => {}
                Ok(Some((rank, Event::Said(Message::Ready)))) if unready.remove(&rank) => {
                    self.stuck.remove(&rank);
                }
                Ok(Some((rank, event))) => return Err(stopped(rank, event)),
                Err(_) => return Err(self.incomplete(format!("rank {missing} did not call"))),
            }
        }
        Ok(links)
    }

    /// Returns the next event on a line, or `None` if a call was handled instead.
    ///
    /// Fails if the deadline has passed or no more connections can be accepted: [`incomplete`](Self::incomplete) determines which.
    async fn next(&mut self, session: &str, links: &mut [Option<Secure>]) -> Result<Option<(usize, Event)>, ()> {
        let came = timeout_at(self.deadline, async {
            tokio::select! {
                news = self.lines.next() => Err(news),
                Some(call) = self.calls.recv() => Ok(call),
            }
        });
        match came.await {
            Err(_) => Err(()),
            Ok(Err((rank, Event::Said(Message::Stuck { other, address, cause })))) if self.settings.rank == 0 => {
                self.note(JoinError::Link { rank, other, address, cause });
                Ok(None)
            }
            Ok(Err((rank, Event::Said(Message::Reached { other })))) if self.settings.rank == 0 => {
                self.forget(rank, other);
                Ok(None)
            }
            Ok(Err(news)) => Ok(Some(news)),
            Ok(Ok(Ok((caller, from)))) => {
                self.connect(caller, from, session, links).await;
                Ok(None)
            }
            Ok(Ok(Err(error))) => {
                self.exhausted = Some(error);
                Err(())
            }
        }
    }

    /// Makes a link from an expected call.
    async fn connect(&self, caller: Caller<Secure>, from: SocketAddr, session: &str, links: &mut [Option<Secure>]) {
        let Settings { rank: own, world, channels, .. } = *self.settings;
        let Introduction { rank, to, role, .. } = caller.introduction.clone();
        let problem = match role {
            Role::Join { .. } => format!("rank {rank} has joined already, and the world is complete"),
            Role::Member { member, .. } | Role::Candidate { member, .. } => {
                format!("{member} calls a world that is being formed")
            }
            // It is here, and will call.
            Role::Probe { .. } => return,
            Role::Data { session: other, .. } if other != session => "that call is for another run".to_owned(),
            Role::Data { .. } if to != own => format!("that call is for rank {to}, and this is rank {own}"),
            Role::Data { channel, .. } if channel > channels => {
                format!("that call is for channel {channel}, and rank {own} has {channels} in the background")
            }
            // A rank that connects again has lost its previous link.
            Role::Data { .. } if rank <= own || rank >= world => {
                format!("rank {own} does not expect a call from rank {rank}")
            }
            Role::Data { channel, .. } => return links[channel * world + rank] = caller.welcome().await.ok(),
        };
        send_away(caller, from, problem).await;
    }

    /// Decides whether a caller becomes a rank. A caller that knows the token but has other settings ends the attempt
    /// for all ranks; a caller beyond the world size is rejected.
    async fn enrol(&mut self, caller: Caller<Secure>, from: SocketAddr) -> Result<(), JoinError> {
        let Introduction { rank, to, world, version, role } = caller.introduction.clone();
        let channels = if let Role::Join { channels, .. } = role { channels } else { self.settings.channels };
        let differs = [
            ("world size", self.settings.world.to_string(), world.to_string()),
            ("number of background channels", self.settings.channels.to_string(), channels.to_string()),
            ("version of briquette", VERSION.to_owned(), version),
        ];
        if let Some((field, ours, theirs)) = differs.into_iter().find(|(_, ours, theirs)| ours != theirs) {
            let error = JoinError::Mismatch { field, rank: 0, ours, other: rank, theirs };
            drop(caller.refuse(error.to_string()).await);
            return Err(error);
        }
        let problem = match role {
            Role::Data { .. } | Role::Member { .. } | Role::Probe { .. } | Role::Candidate { .. } => {
                "the process group is not initialized yet".to_owned()
            }
            Role::Join { .. } if to != 0 => format!("that call is for rank {to}, and this is rank 0"),
            Role::Join { .. } if rank == 0 => "rank 0 is this one: two processes were started as rank 0".to_owned(),
            Role::Join { .. } if rank >= world => format!("ranks are 0 to {}", world - 1),
            Role::Join { .. } if self.lines.has(rank) => {
                format!("rank {rank} has joined already: two processes were started as rank {rank}")
            }
            Role::Join { address, machine, .. } => {
                if let Ok(stream) = caller.welcome().await {
                    (self.addresses[rank], self.machines[rank]) = (address, machine);
                    self.lines.add(rank, stream);
                }
                return Ok(());
            }
        };
        send_away(caller, from, problem).await;
        Ok(())
    }
}

/// Returns the address at which this rank must call a rank that advertises `address`. This rank found rank 0 at
/// `master`.
fn as_seen_from_elsewhere(address: &str, master: SocketAddr) -> String {
    match address.parse::<SocketAddr>() {
        Ok(own) if own.ip().is_loopback() && !master.ip().is_loopback() => {
            SocketAddr::new(master.ip(), own.port()).to_string()
        }
        _ => address.to_owned(),
    }
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

#[cfg(test)]
mod tests;
