//! Arrival order of frames in a simulated world.
//!
//! Threads run in any order, but simulated time does not: the first frame that a thread finds need not be the first to
//! arrive. A wait for any of several ranks therefore ends only when **every** rank of the world waits. Then no new
//! frame can arrive before the earliest frame in flight. That frame is received, the lowest rank's in the case of a
//! tie, and its receiver continues. A world then behaves the same in every run.
//!
//! For this purpose, sessions report their sends, receives and waits. The transport still moves the frames.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use briquette_core::comm::Sender;

use super::Network;
use super::network::Passage;

/// Frames in flight in a world, and the state of every session.
#[derive(Debug)]
pub(super) struct Arrivals {
    world: Mutex<World>,
    changed: Condvar,
    deadline: Duration,
    /// Maximum number of frames in flight between two ranks of a channel.
    capacity: usize,
}

#[derive(Debug, Default)]
struct World {
    stopped: bool,
    sessions: BTreeMap<Place, Doing>,
    /// Number of sessions that do not wait.
    running: usize,
    /// Number of times that a session began or ended a wait.
    changes: u64,
    /// Frames in flight, by channel, sender and receiver.
    under_way: BTreeMap<(usize, usize, usize), VecDeque<Flight>>,
    /// Number of jobs started and of jobs ended, by channel and rank.
    jobs: BTreeMap<Place, (u64, u64)>,
    /// Ranks that have dropped their transport.
    left: Vec<usize>,
}

/// Channel and rank.
type Place = (usize, usize);

#[derive(Debug, Clone, Copy)]
struct Flight {
    departure: f64,
    bytes: usize,
}

#[derive(Debug)]
enum Doing {
    /// Computes, or is about to.
    Runs,
    /// Has nothing to do: a channel without a job, a rank that leaves.
    Idle,
    WaitsFor(usize),
    WaitsForRoomAt(usize),
    /// Waits for the job with this number on this channel.
    WaitsForJob(usize, u64),
    /// Waits for a frame of one of these ranks, until this second.
    WaitsForAny(Link, Vec<usize>, f64),
    /// Has ended such a wait, with a frame of this rank or without one.
    Receives(Option<usize>),
}

/// The state of a rank's link that determines the arrival of frames.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) network: Network,
    pub(super) rank: usize,
    /// Second from which the incoming link is free, in simulated time.
    pub(super) incoming: f64,
    /// Number of parts into which the link is divided.
    pub(super) shares: usize,
}

impl Link {
    /// Returns the passage of a frame of `bytes` bytes to or from rank `other` on this share of the link; `None` inside
    /// a machine.
    pub(super) fn passage(&self, other: usize, bytes: usize) -> Option<Passage<'_>> {
        let is_near = self.network.same_machine(self.rank, other);
        (!is_near).then(|| self.network.between(self.rank, other, bytes, self.shares))
    }

    /// Returns the arrival of a frame from rank `from`, and the second from which the incoming link is free afterwards.
    pub(super) fn arrival(&self, from: usize, bytes: usize, departure: f64) -> (f64, f64) {
        let Some(passage) = self.passage(from, bytes) else { return (departure, self.incoming) };
        let first = departure + passage.latency(departure);
        let free = passage.link_end(self.incoming.max(first));
        (passage.end(first).max(free), free)
    }
}

/// One session's entry in a world of [`Arrivals`]. It is dropped with the transport.
#[derive(Debug)]
pub(super) struct Watch {
    all: Arc<Arrivals>,
    place: Place,
}

/// A background job for which its session may wait.
#[derive(Debug)]
pub(super) struct Started {
    all: Arc<Arrivals>,
    rank: usize,
    channel: usize,
    number: u64,
}

impl Watch {
    /// Creates an entry for each rank of a world.
    pub(super) fn world(ranks: usize, capacity: usize, deadline: Duration) -> Vec<Watch> {
        let sessions = (0..ranks).map(|rank| ((0, rank), Doing::Runs)).collect();
        let world = World { sessions, running: ranks, ..World::default() };
        let all = Arc::new(Arrivals { world: Mutex::new(world), changed: Condvar::new(), deadline, capacity });
        (0..ranks).map(|rank| Watch { all: Arc::clone(&all), place: (0, rank) }).collect()
    }

    /// Returns the same rank's entry on a channel, which is idle until it gets a job.
    pub(super) fn of_channel(&self, channel: usize) -> Watch {
        Watch { all: Arc::clone(&self.all), place: (channel, self.place.1) }
    }

    pub(super) fn rank(&self) -> usize {
        self.place.1
    }

    pub(super) fn is_channel(&self) -> bool {
        self.place.0 > 0
    }

    /// Reports that a frame is about to be sent to rank `to`; it may wait for room.
    pub(super) fn sends(&self, to: usize, bytes: usize, departure: f64) {
        let ((channel, rank), mut world) = (self.place, self.all.lock());
        let queue = world.under_way.entry((channel, rank, to)).or_default();
        queue.push_back(Flight { departure, bytes });
        let is_full = queue.len() > self.all.capacity;
        if matches!(world.sessions.get(&(channel, to)), Some(Doing::WaitsFor(from)) if *from == rank) {
            world.set((channel, to), Doing::Runs);
        }
        if is_full {
            self.wait(&mut world, Doing::WaitsForRoomAt(to));
        }
    }

    /// Reports that a frame of rank `from` is about to be received.
    pub(super) fn waits_for(&self, from: usize) {
        let mut world = self.all.lock();
        if world.first(self.place, from).is_none() {
            self.wait(&mut world, Doing::WaitsFor(from));
        }
    }

    /// Reports that a frame of rank `from` was received.
    pub(super) fn received(&self, from: usize) {
        let ((channel, rank), mut world) = (self.place, self.all.lock());
        let queue = world.under_way.entry((channel, from, rank)).or_default();
        queue.pop_front();
        let has_room = queue.len() <= self.all.capacity;
        let waits = matches!(world.sessions.get(&(channel, from)), Some(Doing::WaitsForRoomAt(to)) if *to == rank);
        if has_room && waits {
            world.set((channel, from), Doing::Runs);
        }
    }

    /// Returns the rank among `from` whose frame arrives first on `link`, if one arrives until the second `until`;
    /// [`Sender::Any`] if the transport has an error to report instead.
    ///
    /// # Errors
    /// The deadline, if it passed without such a frame and without any session beginning or ending a wait.
    pub(super) fn first_of(&self, from: &[usize], (link, until): (Link, f64)) -> Result<Sender, Duration> {
        let mut world = self.all.lock();
        self.wait(&mut world, Doing::WaitsForAny(link, from.to_vec(), until));
        loop {
            let first = match world.sessions.get(&self.place) {
                Some(Doing::Receives(first)) => Some(first.map_or(Sender::Late, Sender::Rank)),
                _ => None,
            };
            if first.is_some() || world.stopped || world.is_in_vain(self.place, from) {
                world.set(self.place, Doing::Runs);
                return Ok(first.unwrap_or(Sender::Any));
            }
            let before = world.changes;
            let waited = self.all.changed.wait_timeout(world, self.all.deadline);
            let timeout;
            (world, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() && world.changes == before && !world.stopped {
                world.set(self.place, Doing::Runs);
                return Err(self.all.deadline);
            }
        }
    }

    /// Reports a new job for a channel of this rank.
    pub(super) fn starts(&self, channel: usize) -> Started {
        let (rank, mut world) = (self.rank(), self.all.lock());
        let (started, ended) = world.jobs.entry((channel, rank)).or_default();
        let (number, is_idle) = (*started, started == ended);
        *started += 1;
        if is_idle {
            world.set((channel, rank), Doing::Runs);
        }
        Started { all: Arc::clone(&self.all), rank, channel, number }
    }

    /// Reports that the job of this channel has ended.
    pub(super) fn ends(&self) {
        let ((channel, rank), mut world) = (self.place, self.all.lock());
        let (started, ended) = world.jobs.entry(self.place).or_default();
        let number = *ended;
        *ended += 1;
        let is_last = started == ended;
        let waits = |doing: &Doing| matches!(doing, Doing::WaitsForJob(at, job) if (*at, *job) == (channel, number));
        if world.sessions.get(&(0, rank)).is_some_and(waits) {
            world.set((0, rank), Doing::Runs);
        }
        if is_last {
            self.wait(&mut world, Doing::Idle);
        }
    }

    /// Reports that this rank leaves: it waits only for its jobs.
    pub(super) fn leaves(&self) {
        self.wait(&mut self.all.lock(), Doing::Idle);
    }

    /// Ends every wait, so that its session finds the world stopped.
    pub(super) fn stop(&self) {
        self.all.lock().stopped = true;
        self.all.changed.notify_all();
    }

    fn wait(&self, world: &mut World, doing: Doing) {
        world.set(self.place, doing);
        world.grant();
        self.all.changed.notify_all();
    }
}

impl Started {
    /// Reports that the job's session is about to wait for its end.
    pub(super) fn awaited(&self) {
        let mut world = self.all.lock();
        let has_ended = world.jobs.get(&(self.channel, self.rank)).is_some_and(|(_, ended)| *ended > self.number);
        let is_idle = matches!(world.sessions.get(&(0, self.rank)), None | Some(Doing::Idle));
        if !has_ended && !is_idle {
            world.set((0, self.rank), Doing::WaitsForJob(self.channel, self.number));
            world.grant();
            self.all.changed.notify_all();
        }
    }
}

impl Arrivals {
    /// Locks the world. No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    fn set(&mut self, place: Place, doing: Doing) {
        let is_running = doing.is_running();
        let before = self.sessions.insert(place, doing);
        let was_running = before.is_some_and(|before| before.is_running());
        self.changes += 1;
        self.running = self.running + usize::from(is_running) - usize::from(was_running);
    }

    /// Returns the next frame of rank `from` to a session.
    fn first(&self, (channel, rank): Place, from: usize) -> Option<Flight> {
        self.under_way.get(&(channel, from, rank))?.front().copied()
    }

    fn is_in_vain(&self, place: Place, from: &[usize]) -> bool {
        from.iter().all(|rank| self.left.contains(rank) && self.first(place, *rank).is_none())
    }

    /// If every session waits, lets the receiver of the earliest receivable frame continue, or the session whose wait ends before it.
    fn grant(&mut self) {
        if self.running > 0 {
            return;
        }
        let mut earliest: Option<(f64, (usize, usize), Option<usize>)> = None;
        for (&(channel, rank), doing) in &self.sessions {
            let Doing::WaitsForAny(link, from, until) = doing else { continue };
            let mut offer = |event: (f64, (usize, usize), Option<usize>)| {
                // A frame that arrives as the wait ends is received.
                let order = |(at, place, from): (f64, (usize, usize), Option<usize>)| (at, place, from.is_none(), from);
                if earliest.is_none_or(|earliest| order(event) < order(earliest)) {
                    earliest = Some(event);
                }
            };
            if until.is_finite() {
                offer((*until, (rank, channel), None));
            }
            for &from in from {
                let Some(Flight { departure, bytes }) = self.first((channel, rank), from) else { continue };
                offer((link.arrival(from, bytes, departure).0, (rank, channel), Some(from)));
            }
        }
        if let Some((_, (rank, channel), from)) = earliest {
            self.set((channel, rank), Doing::Receives(from));
        }
    }
}

impl Doing {
    fn is_running(&self) -> bool {
        matches!(self, Doing::Runs | Doing::Receives(_))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_channel() {
            let mut world = self.all.lock();
            world.left.push(self.place.1);
            self.wait(&mut world, Doing::Idle);
        }
    }
}
