//! Membership of processes: elections over TCP.
//!
//! Every member keeps a listening socket for elections, whose address all members know. A member that loses a rank calls the others
//! there, with the same proofs and certificates as at the rendezvous, and exchanges the messages of an [`Election`]. The next
//! generation then joins as the first did, under a name of its own, with the coordinator as rank 0.
//!
//! A process that wants to become a member calls any member there, which notes its address. Once the members have formed a decision
//! about the next generation, its coordinator calls the process back.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use briquette_core::Session;
use briquette_core::membership::{
    Action, EXTENSIONS, Election, Generation, MemberId, MembershipError, Message, Next, Policy, Regroup, Regrouped,
    Standing,
};
use tokio::time::Instant;

use crate::acceptor::accept;
use crate::builder::TcpBuilder;
use crate::call::member;
use crate::error::JoinError;
use crate::handshake::Role;
use crate::lines::{self, Lines};
use crate::settings::Settings;

mod candidate;
mod doorkeeper;
mod talk;

use doorkeeper::Doorkeeper;
use talk::{Heard, Talk};

/// Rendezvous timeout of a later generation: all of its members are there.
const FORMING: Duration = Duration::from_secs(15);
/// Maximum number of announcements that may fail in a row.
const ATTEMPTS: usize = 16;

/// Membership of this process in an elastic world; made by [`TcpBuilder::join_elastic`].
#[derive(Debug)]
pub struct Members {
    me: MemberId,
    election: Election,
    /// The last generation that was formed.
    generation: Generation,
    /// Number of members that are new in it.
    new: usize,
    builder: TcpBuilder,
    /// Name of the run, which the names of its generations begin with.
    run: String,
    /// Every member that was ever known, with the address of its elections.
    known: Vec<(MemberId, String)>,
    listener: TcpListener,
    /// Settings of calls between members.
    calls: Arc<Settings>,
    policy: Policy,
    start: Wall,
    /// Notes candidates between elections.
    doorkeeper: Option<Doorkeeper>,
}

impl TcpBuilder {
    /// As [`join`](Self::join), for an [elastic world](briquette_core::membership): returns the session of the first generation, and the
    /// membership that forms later ones. It uses one more port per process. `policy` must be the same on every rank.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_elastic(mut self, policy: Policy) -> Result<(Session, Members), JoinError> {
        let (rank, world) = (self.settings.rank, self.settings.world);
        let system = |what| move |source| JoinError::system(rank, world, what)(source);
        let mut template = self.again((rank, world), self.settings.master.clone(), "");
        let name = self.settings.name.clone().unwrap_or_default();
        template.run_name.clone_from(&name);
        self.settings.is_elastic = true;
        let tcp = self.join()?;
        let own = tcp.address(rank).unwrap_or_default().to_owned();
        let listener = listen(&own, template.member_address(rank)).map_err(system("listen for elections"))?;
        let port = listener.local_addr().map_err(system("listen for elections"))?.port();
        let id = draw_id().map_err(system("draw random numbers"))?;
        let hosts: Vec<String> = (0..world).map(|rank| host(tcp.address(rank).unwrap_or_default())).collect();
        let mut session = Session::from(tcp);
        let mut parts = Vec::new();
        let mine = [&id.0.to_le_bytes()[..], &port.to_le_bytes()].concat();
        let gathered = session.all_gather(&mine, &mut parts);
        gathered.map_err(|error| JoinError::Stopped { reason: error.to_string() })?;
        parts[rank] = mine;
        let known = parts.iter().zip(hosts).map(|(part, host)| {
            let (id, port) = part.split_at_checked(8)?;
            let id = MemberId(u64::from_le_bytes(id.try_into().ok()?));
            Some((id, format!("{host}:{}", u16::from_le_bytes(port.try_into().ok()?))))
        });
        let stopped =
            || JoinError::Stopped { reason: "a rank sent no membership: start all ranks as elastic".to_owned() };
        let known: Vec<(MemberId, String)> = known.collect::<Option<_>>().ok_or_else(stopped)?;
        let generation = Generation { number: 0, members: known.iter().map(|(member, _)| *member).collect() };
        let run = format!("{name}/{:016x}", known[0].0.0);
        let mut members = Members {
            me: id,
            election: Election::new(id, generation.clone(), policy),
            generation,
            new: 0,
            calls: Arc::new(template.of_calls()),
            builder: template,
            run,
            known,
            listener,
            policy,
            start: Wall::now(),
            doorkeeper: None,
        };
        members.open_the_door();
        Ok((session, members))
    }

    /// Returns the settings of calls between members.
    fn of_calls(&self) -> Settings {
        let name = format!("{}/members", self.run_name);
        self.again((0, 1), self.settings.master.clone(), &name).settings
    }
}

fn draw_id() -> io::Result<MemberId> {
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(MemberId(u64::from_le_bytes(id)))
}

/// Listens at the port of `given`, or at any port, on the host of `address`.
fn listen(address: &str, given: Option<&str>) -> io::Result<TcpListener> {
    let port = given.and_then(|given| given.rsplit_once(':')).map_or("0", |(_, port)| port);
    let places: Vec<_> = format!("{}:{port}", host(address)).to_socket_addrs()?.collect();
    TcpListener::bind(&places[..])
}

fn host(address: &str) -> String {
    address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned()
}

impl Regroup for Members {
    fn regroup(&mut self, standing: Standing, admits: bool) -> Result<Regrouped, MembershipError> {
        let before = self.generation.clone();
        // Candidates that are not admitted ask again.
        let candidates = self.doorkeeper.take().map(Doorkeeper::end).unwrap_or_default();
        self.election.begin(standing, admits.then_some(candidates), self.now());
        let mut cause = String::new();
        for _ in 0..ATTEMPTS {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| self.failed(&before, error.to_string()))?;
            let next = runtime.block_on(self.elect())?;
            // Its sockets are closed, so that calls for the next generation are not held by it.
            drop(runtime);
            match self.form(&next) {
                Ok(session) => {
                    self.election.formed();
                    self.generation = next.generation.clone();
                    self.new = next.candidates.len();
                    let ranks = next.generation.members.iter().filter_map(|member| before.rank_of(*member)).collect();
                    self.open_the_door();
                    let commits = next.commits_for(standing);
                    return Ok(Regrouped { session, generation: next.generation, before: ranks, commits });
                }
                Err(error) => {
                    tracing::warn!("generation {} was not formed: {error}; trying again", next.generation.number);
                    cause = error.to_string();
                }
            }
            self.election.begin_again(self.now());
        }
        Err(self.failed(&before, cause))
    }

    fn generation(&self) -> &Generation {
        &self.generation
    }

    fn new_members(&self) -> usize {
        self.new
    }

    fn has_candidates(&self) -> bool {
        self.doorkeeper.as_ref().is_some_and(Doorkeeper::has_candidates)
    }
}

impl Members {
    /// Notes candidates from now on.
    fn open_the_door(&mut self) {
        let listener = self.listener.try_clone();
        self.doorkeeper =
            listener.and_then(|listener| Doorkeeper::start(self.me, listener, Arc::clone(&self.calls))).ok();
        if self.doorkeeper.is_none() {
            tracing::warn!("this member cannot admit new ones: its listener cannot be shared");
        }
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn failed(&self, before: &Generation, cause: String) -> MembershipError {
        MembershipError::Failed { rank: before.rank_of(self.me).unwrap_or_default(), generation: before.number, cause }
    }

    fn address(&self, member: MemberId) -> Option<&str> {
        self.known.iter().find(|(known, _)| *known == member).map(|(_, address)| address.as_str())
    }

    /// Forms the session of a generation. The sockets for elections accept its connections.
    fn form(&self, next: &Next) -> Result<Session, JoinError> {
        let Next { generation, coordinator, attempt, .. } = next;
        let rank = generation.rank_of(self.me).unwrap_or_default();
        let first = generation.members.first().and_then(|member| self.address(*member)).unwrap_or_default();
        let name = format!("{}/{}/{:016x}/{attempt}", self.run, generation.number, coordinator.0);
        let place = (rank, generation.members.len());
        let listener = self.listener.try_clone().map_err(JoinError::system(rank, place.1, "share its listener"))?;
        let port = listener.local_addr().map_err(JoinError::system(rank, place.1, "share its listener"))?.port();
        let mut builder = self.builder.again(place, first.to_owned(), &name).listener(listener);
        // A relay's port leads to the listener of the first generation.
        let advertised = &mut builder.settings.advertise;
        *advertised = advertised.take().map(|given| format!("{}:{port}", host(&given)));
        Ok(builder.join_deadline(FORMING).join()?.into())
    }

    /// Runs the election until a generation is announced.
    async fn elect(&mut self) -> Result<Next, MembershipError> {
        let generation = self.generation.clone();
        let adopt = |listener: TcpListener| {
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener)
        };
        let listener = self.listener.try_clone().and_then(adopt);
        let listener = listener.map_err(|error| self.failed(&generation, error.to_string()))?;
        let mut calls = Talk::new(accept(vec![listener], Arc::clone(&self.calls)));
        loop {
            while let Some(action) = self.election.next_action() {
                match action {
                    Action::Send { to, message } => self.send(&mut calls, to, message).await,
                    Action::Probe(member) => self.probe(&calls, member),
                    Action::Form(next) => {
                        self.known.extend(next.candidates.iter().map(|new| (new.member, new.address.clone())));
                        if next.coordinator == self.me {
                            self.call_back(&next).await;
                        }
                        return Ok(next);
                    }
                    Action::End(error) => return Err(error),
                }
            }
            let due = self.election.due().map_or(f64::INFINITY, |due| due - self.now()).clamp(0.0, 3600.0);
            let event = calls.next(self.me, &self.known, Instant::now() + Duration::from_secs_f64(due)).await;
            let now = self.now();
            match event {
                Heard::Line(place, stream) => {
                    calls.lines.add(place, stream);
                    for message in calls.take(place) {
                        calls.lines.send(place, &lines::Message::Membership(message)).await;
                    }
                }
                Heard::Event(event) => self.election.handle(event, now),
                Heard::Nothing => {}
            }
        }
    }

    /// Calls the candidates of the next generation. One that cannot be reached fails its formation.
    async fn call_back(&self, next: &Next) {
        for (place, candidate) in next.candidates.iter().enumerate() {
            let deadline = Instant::now() + FORMING / 3;
            let role = Role::Member { member: self.me, to: candidate.member };
            match member::call(&self.calls, &candidate.address, role, deadline).await {
                Ok(stream) => {
                    let mut line = Lines::new();
                    line.add(place, stream);
                    let (known, run) = (self.known.clone(), self.run.clone());
                    line.send(place, &lines::Message::Admit { next: next.clone(), known, run }).await;
                    line.close().await;
                }
                Err(cause) => {
                    tracing::warn!("{} cannot be reached at {}: {cause}", candidate.member, candidate.address)
                }
            }
        }
    }

    async fn send(&self, calls: &mut Talk, to: MemberId, message: Message) {
        let Some(place) = self.known.iter().position(|(known, _)| *known == to) else { return };
        if calls.lines.has(place) {
            return calls.lines.send(place, &lines::Message::Membership(message)).await;
        }
        if !matches!(message, Message::Report { .. }) {
            // The line on which it reported is gone, so it has given up waiting for this reply.
            return;
        }
        calls.unsent.push((place, message));
        let (settings, address, me) = (Arc::clone(&self.calls), self.known[place].1.clone(), self.me);
        let (sender, deadline) =
            (calls.sender.clone(), Instant::now() + Duration::from_secs_f64(2.0 * self.policy.patience));
        tokio::spawn(async move {
            let called = member::call(&settings, &address, Role::Member { member: me, to }, deadline).await;
            drop(sender.send((place, called)));
        });
    }

    fn probe(&self, calls: &Talk, member: MemberId) {
        let Some(place) = self.known.iter().position(|(known, _)| *known == member) else { return };
        let (settings, address) = (Arc::clone(&self.calls), self.known[place].1.clone());
        // A coordinator without a quorum extends its patience.
        let longest = f64::from(1 + EXTENSIONS) * self.policy.patience;
        let (sender, deadline) = (calls.sender.clone(), Instant::now() + Duration::from_secs_f64(longest));
        tokio::spawn(async move {
            let cause = member::watch(&settings, &address, member, deadline).await;
            drop(sender.send((place, Err(cause))));
        });
    }
}
