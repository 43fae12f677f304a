//! A network that is not there: real ranks and real bytes, simulated seconds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::arrivals::{Link, Started, Watch};
use super::time::{JobStart, Time};
use super::turns::Turns;
use super::{Clock, Local, LocalBuilder, Network, Paces, Session};

/// Worlds of threads whose clocks show **simulated** seconds.
///
/// Answers "how long would this take on 32 machines at 100 Mbit/s" on a laptop. Results, traffic and errors are those
/// of [`Local`], which moves the frames. [`now`](Session::now) is simulated time and should be labelled so
/// wherever it is shown.
///
/// # Model
/// Every rank has a clock of its own, and a link that is busy in each direction for as long as its bytes take. With
/// `t = 8·bytes/B` for a frame, bandwidth `B` and latency `α`:
///
/// - it departs when the sender's clock and its outgoing link allow; sending itself takes the sender no time;
/// - it has arrived at `max(departure + α, incoming link free) + t`; receiving moves the clock there if it is behind.
///
/// Where two ranks have a [path of their own](Network), `α` and `t` are the path's, and so is a queue in each direction; the links at both
/// ends are busy for no longer than their own bandwidth asks.
///
/// What a collective costs follows from the frames it sends. Frames are taken off the incoming link in the order the
/// rank asks for them, so a rank that asks for the later one first is judged slower than a real network would be;
/// the collectives ask in the order of departure. There is no congestion inside the network, and no protocol overhead
/// beyond the bytes counted.
///
/// [`recv_any`](Session::recv_any) receives the frame that arrives first in simulated seconds, of equal ones that of the lowest
/// rank, whichever thread was first: it waits until every rank of the world waits in some call, so that nothing earlier can come.
/// A rank that computes, or waits for something other than its session, holds it up, until the deadline.
///
/// # Compute
/// [`Compute::Fixed`] makes a run reproducible to the bit, whatever the threads do. [`Compute::Measured`] lets one
/// rank compute at a time, so that each one's seconds are its own; see there.
///
/// ```
/// use briquette_core::comm::{Compute, Network, Simulated, run_ranks};
/// use briquette_core::error::CommError;
/// use std::time::Duration;
///
/// let network: Network = "100mbit,1ms".parse()?;
/// let world = Simulated::world(4, network, Compute::Fixed(Duration::from_millis(50)));
/// let simulated_seconds = run_ranks(world, |mut comm| {
///     comm.begin_step(0);
///     comm.all_reduce_sum(&mut vec![1.0; 1_000_000])?;
///     Ok::<_, CommError>(comm.now())
/// });
/// // 50 ms of compute, then 2·3 rounds of a quarter of 4 MB at 100 Mbit/s, in four frames each: the link is never idle,
/// // and 1 ms of latency is paid once.
/// for seconds in simulated_seconds {
///     assert!((seconds? - (0.050 + 0.001 + 6.0 * 0.080)).abs() < 1e-9);
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Simulated {}

/// Where the simulated seconds between exchanges come from.
#[derive(Clone)]
pub enum Compute {
    /// Every step takes this long to compute on every rank: [`begin_step`](Session::begin_step) moves the clock
    /// by it, and nothing else does but frames, and compressing where its seconds [are given](Session::set_compress_seconds):
    /// without, it appears neither in the simulated seconds nor in what controllers observe.
    Fixed(Duration),
    /// The same with times that differ between ranks and steps: slower ranks, stragglers, a trace.
    Paced(Paces),
    /// What the ranks really take, by this clock. They compute one after another: a rank has its turn until it must
    /// wait for another rank, and the seconds of its turns move its simulated clock. Its first turn begins with its
    /// first call of `begin_step`, `send` or `recv`; what happens before that is not counted.
    ///
    /// Ranks must wait for each other through the session only, or two of them may wait forever. The deadline
    /// bounds one turn, not the wait for it, so that it need not grow with the world.
    Measured(Arc<dyn Clock + Sync>),
}

/// The clock of one rank and its link to the network.
#[derive(Debug)]
pub(super) struct Simulation {
    watch: Watch,
    network: Network,
    pace: Pace,
    /// Simulated seconds, as of `since` while this rank computes.
    clock: f64,
    /// When the channel's job began.
    began: f64,
    /// When this rank's turn to compute began, on the real clock; `None` when it has none.
    since: Option<f64>,
    /// When the links to and from this rank are free, in simulated seconds.
    outgoing: f64,
    incoming: f64,
    /// The same for paths of their own from this rank.
    paths: BTreeMap<usize, f64>,
    /// Into how many parts the link is divided while jobs in the background are unfinished; this is one of them.
    shares: usize,
    /// Held by every unfinished job, too.
    unfinished: Arc<()>,
    /// How often the clock was set.
    settings: u64,
}

#[derive(Debug, Clone)]
enum Pace {
    Given(Paces),
    Measured(Arc<Turns>),
}

impl Simulated {
    /// A world of `ranks` threads on `network`, in rank order.
    ///
    /// # Panics
    /// As for [`over`](Self::over).
    pub fn world(ranks: usize, network: Network, compute: Compute) -> Vec<Session> {
        Simulated::over(Local::builder(ranks), network, compute)
    }

    /// The same with the deadline and queue capacity of `local`, which are real; its clock is not used.
    ///
    /// # Panics
    /// For a network with a path that means nothing in this world: [`Network::check`] says so before.
    pub fn over(local: LocalBuilder, network: Network, compute: Compute) -> Vec<Session> {
        let pace = match compute {
            Compute::Fixed(step) => Pace::Given(step.into()),
            Compute::Paced(paces) => Pace::Given(paces),
            Compute::Measured(clock) => Pace::Measured(Arc::new(Turns::new(clock, local.longest_wait()))),
        };
        let session = |(endpoint, watch): (Local, Watch)| {
            let simulation = Simulation::new(watch, network.clone(), pace.clone());
            Session::with_time(Box::new(endpoint), Time::Simulated(simulation))
        };
        let (watches, endpoints) = (local.watches(), local.endpoints());
        network.check(endpoints.len()).unwrap_or_else(|error| panic!("{error}"));
        endpoints.into_iter().zip(watches).map(session).collect()
    }
}

impl Simulation {
    fn new(watch: Watch, network: Network, pace: Pace) -> Self {
        let (clock, since, outgoing, incoming, unfinished) = (0.0, None, 0.0, 0.0, Arc::default());
        Simulation {
            watch,
            network,
            pace,
            clock,
            began: 0.0,
            since,
            outgoing,
            incoming,
            paths: BTreeMap::new(),
            shares: 1,
            unfinished,
            settings: 0,
        }
    }

    /// What the rank sends, receives and waits for.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(super) fn network(&self) -> Network {
        self.network.clone()
    }

    pub(super) fn set_network(&mut self, network: Network) {
        self.network = network;
    }

    fn turns(&self) -> Option<&Turns> {
        match &self.pace {
            Pace::Given(_) => None,
            Pace::Measured(turns) => Some(turns),
        }
    }

    pub(super) fn progress(&self) -> Option<u64> {
        self.turns().map(Turns::taken)
    }

    pub(super) fn now(&self) -> f64 {
        match (self.turns(), self.since) {
            (Some(turns), Some(since)) => self.clock + (turns.seconds() - since),
            _ => self.clock,
        }
    }

    pub(super) fn set_clock(&mut self, seconds: f64) {
        (self.clock, self.outgoing, self.incoming) = (seconds, seconds, seconds);
        self.paths.clear();
        self.settings += 1;
        if self.since.is_some() {
            self.since = self.turns().map(Turns::seconds);
        }
    }

    pub(super) fn begin_step(&mut self, step: u64) {
        if let Pace::Given(paces) = &self.pace {
            self.clock += paces.seconds(self.watch.rank(), step);
        }
    }

    /// The rank's own thread has the turn until it waits for this job, so that what it measured is its own.
    pub(super) fn computed(&mut self, step: u64, share: f64, elapsed: f64) {
        let computed = match &self.pace {
            Pace::Given(paces) => share * paces.seconds(self.watch.rank(), step),
            Pace::Measured(_) => elapsed,
        };
        self.clock += (self.began + computed - self.now()).max(0.0);
    }

    /// Computing beside that of a step, where it is not measured.
    pub(super) fn spend(&mut self, seconds: f64) {
        if let Pace::Given(_) = self.pace {
            self.clock += seconds;
        }
    }

    /// The same rank's, with a clock and a share of the link of its own.
    pub(super) fn of_channel(&self, channel: usize) -> Self {
        Simulation::new(self.watch.of_channel(channel), self.network.clone(), self.pace.clone())
    }

    pub(super) fn start_job(&mut self, channel: usize, shares: usize) -> JobStart {
        self.shares = shares;
        let under_way = UnderWay { started: self.watch.starts(channel), _unfinished: Arc::clone(&self.unfinished) };
        let (now, settings, network) = (self.now(), self.settings, Some(self.network.clone()));
        JobStart { now, settings, shares, network, under_way: Some(under_way) }
    }

    pub(super) fn begin_job(&mut self, start: &JobStart) {
        if self.settings == start.settings {
            self.clock = self.clock.max(start.now);
        } else {
            self.set_clock(start.now);
            self.settings = start.settings;
        }
        self.began = start.now;
        self.shares = start.shares;
        if let Some(network) = &start.network {
            self.network.clone_from(network);
        }
    }

    pub(super) fn finish_job(&mut self, at: f64) {
        self.clock = self.clock.max(at);
    }

    fn link(&self) -> Link {
        let is_whole = !self.watch.is_channel() && Arc::strong_count(&self.unfinished) == 1;
        let shares = if is_whole { 1 } else { self.shares };
        Link { network: self.network.clone(), rank: self.watch.rank(), incoming: self.incoming, shares }
    }

    /// The rank among `from` whose frame arrives first; see [`Watch::first_of`].
    pub(super) fn first_of(&mut self, from: &[usize]) -> Result<Option<usize>, Duration> {
        self.end_turn();
        self.watch.first_of(from, self.link())
    }

    /// Waits for this rank's turn to compute, unless it has it; the rank that kept it past the deadline, in seconds.
    pub(super) fn take_turn(&mut self) -> Result<(), (usize, f64)> {
        if let Some(turns) = self.turns().filter(|_| self.since.is_none()) {
            self.since = turns.take(self.watch.rank())?.then(|| turns.seconds());
        }
        Ok(())
    }

    /// Ends this rank's turn and adds its seconds to the clock.
    pub(super) fn end_turn(&mut self) {
        self.clock = self.now();
        if self.since.take().is_some() {
            self.turns().into_iter().for_each(Turns::give);
        }
    }

    /// Lets ranks that wait for a turn go on, to find the world stopped.
    pub(super) fn stop(&mut self) {
        self.clock = self.now();
        self.since = None;
        self.turns().into_iter().for_each(Turns::stop);
        self.watch.stop();
    }

    /// When a frame of `bytes` bytes departs to rank `to`.
    pub(super) fn departure(&mut self, to: usize, bytes: usize) -> f64 {
        let now = self.now();
        let Some(passage) = self.link().passage(to, bytes) else { return now };
        let departure = now.max(self.outgoing);
        self.outgoing = departure + passage.link_seconds;
        if !passage.is_own {
            return departure;
        }
        let free = self.paths.entry(to).or_insert(departure);
        let departure = departure.max(*free);
        *free = departure + passage.seconds;
        departure
    }

    /// Moves the clock to the arrival of a frame from rank `from`.
    pub(super) fn arrive(&mut self, from: usize, bytes: usize, departure: f64) {
        let (arrival, free) = self.link().arrival(from, bytes, departure);
        self.incoming = free;
        let now = self.now();
        if arrival > now {
            self.clock += arrival - now;
        }
    }
}

/// A job that no session has waited for. Its share of the link goes with it.
#[derive(Debug)]
pub(super) struct UnderWay {
    started: Started,
    _unfinished: Arc<()>,
}

impl UnderWay {
    /// Before the job's session waits for its end.
    pub(super) fn awaited(&self) {
        self.started.awaited();
    }
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compute::Fixed(step) => write!(f, "Fixed({step:?})"),
            Compute::Paced(paces) => write!(f, "Paced({paces})"),
            Compute::Measured(_) => f.write_str("Measured"),
        }
    }
}

#[cfg(test)]
mod tests;
