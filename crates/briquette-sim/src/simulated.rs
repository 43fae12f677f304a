//! Simulated network: real ranks and real bytes, simulated seconds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use briquette_core::comm::{Clock, Local, LocalBuilder, Overdue, Sender, Session};

use super::arrivals::{Link, Started, Watch};
use super::source::Source;
use super::timed::Timed;
use super::turns::Turns;
use super::{Network, Paces};

/// Creates worlds of threads whose clocks show **simulated** seconds.
///
/// A simulation on a laptop answers "how long would this take on 32 machines at 100 Mbit/s". Results, traffic and
/// errors are those of [`Local`], which moves the frames. [`now`](Session::now) is simulated time, and should be
/// labeled as such wherever it is shown.
///
/// # Model
/// Every rank has a separate clock, and a link that is busy in each direction for as long as its bytes take. A frame
/// takes `t = 8·bytes/B` at bandwidth `B`; `α` is the latency.
///
/// - A frame departs when both the sender's clock and its outgoing link are ready. Sending takes the sender no time.
/// - It has arrived at `max(departure + α, incoming link free) + t`. Receiving advances the receiver's clock to this
///   time if it is behind.
///
/// If two ranks have a [separate path](Network), `α` and `t` are those of the path, which has a queue in each
/// direction. The links at both ends are busy only for the transfer time at their own bandwidth.
///
/// The cost of a collective follows from the frames that it sends. Frames are taken off the incoming link in the order
/// in which the rank requests them. A rank that requests the later frame first therefore appears slower than on a real
/// network; the collectives request frames in order of departure. There is no congestion inside the network, and no
/// protocol overhead beyond the bytes counted.
///
/// [`recv_any`](Session::recv_any) receives the frame that arrives first in simulated seconds, or the lowest rank's in
/// the case of a tie, whatever the order of the threads. To exclude an earlier frame, it waits until every rank of the
/// world waits in some call. A rank that computes, or waits for something other than its session, delays it, at most
/// until the deadline.
///
/// # Compute
/// [`Compute::Fixed`] and [`Compute::Paced`] make a run bit-reproducible, for any scheduling of the threads. With
/// [`Compute::Measured`] only one rank computes at a time, so that each rank's measured seconds are its own.
///
/// ```
/// use briquette_core::comm::run_ranks;
/// use briquette_core::error::CommError;
/// use briquette_sim::{Compute, Network, Simulated};
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

/// Source of the simulated compute times between exchanges.
#[derive(Clone)]
#[non_exhaustive]
pub enum Compute {
    /// Every step takes this compute time on every rank: [`begin_step`](Session::begin_step) advances the clock by it. Apart
    /// from that, only frames advance the clock, and compression if its seconds [are
    /// given](super::SessionExt::set_compress_seconds). Without given seconds, compression appears neither in the simulated
    /// seconds nor in the measurements that controllers observe.
    Fixed(Duration),
    /// Like `Fixed`, with compute times that differ between ranks and steps: slower ranks, stragglers, a trace.
    Paced(Paces),
    /// Compute times of the ranks, measured by this clock. The ranks compute one after another: a rank has its turn
    /// until it must wait for another rank, and the seconds of its turns advance its simulated clock. Its first turn
    /// begins with its first call of `begin_step`, `send` or `recv`. Earlier work does not count.
    ///
    /// Ranks must wait for each other only through the session; otherwise two of them may wait forever. The deadline
    /// bounds one turn, not the wait for it, so it need not grow with the world.
    Measured(Arc<dyn Clock + Sync>),
}

/// Simulated clock and link of one rank.
#[derive(Debug)]
pub(super) struct Simulation {
    watch: Watch,
    network: Network,
    pace: Pace,
    /// Simulated seconds, at the time `since` while this rank computes.
    clock: f64,
    /// Start of the channel's job.
    began: f64,
    /// Start of this rank's turn to compute, on the real clock; `None` without a turn.
    since: Option<f64>,
    /// Second from which each direction of this rank's link is free, in simulated time.
    outgoing: f64,
    incoming: f64,
    /// Second from which each separate path from this rank is free, by the other rank.
    paths: BTreeMap<usize, f64>,
    /// Number of parts into which the link is divided while background jobs are unfinished; this rank's channel has one
    /// part.
    shares: usize,
    /// Counts unfinished jobs: each of them holds a clone.
    unfinished: Arc<()>,
    /// Number of times that the clock was set.
    settings: u64,
}

#[derive(Debug, Clone)]
enum Pace {
    Given(Paces),
    Measured(Arc<Turns>),
}

impl Simulated {
    /// Creates a world of `ranks` threads on `network`, in rank order.
    ///
    /// # Panics
    /// As for [`over`](Self::over).
    pub fn world(ranks: usize, network: Network, compute: Compute) -> Vec<Session> {
        Simulated::over(Local::builder(ranks), network, compute)
    }

    /// Creates a world with the deadline and queue capacity of `local`, which are real; its clock is not used.
    ///
    /// # Panics
    /// For a network with a path that is invalid in this world; use [`Network::check`] to check it in advance.
    pub fn over(local: LocalBuilder, network: Network, compute: Compute) -> Vec<Session> {
        let (deadline, capacity) = local.limits();
        let pace = match compute {
            Compute::Fixed(step) => Pace::Given(step.into()),
            Compute::Paced(paces) => Pace::Given(paces),
            Compute::Measured(clock) => Pace::Measured(Arc::new(Turns::new(clock, deadline))),
        };
        let session = |(endpoint, watch): (Local, Watch)| {
            let source = Source::Simulated(Simulation::new(watch, network.clone(), pace.clone()));
            Session::with_timeline(Box::new(endpoint), Box::new(Timed::around(Box::new(source))))
        };
        let endpoints = local.endpoints();
        network.check(endpoints.len()).unwrap_or_else(|error| panic!("{error}"));
        let watches = Watch::world(endpoints.len(), capacity.get(), deadline);
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

    /// Returns the record of the rank's sends, receives and waits.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(super) fn network(&self) -> &Network {
        &self.network
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

    pub(super) fn begin_step(&mut self, step: u64, samples: Option<u64>) {
        if let Pace::Given(paces) = &self.pace {
            self.clock += paces.seconds_of(self.watch.rank(), step, samples);
        }
    }

    /// Advances the clock to the compute progress of a step. The rank's own thread keeps its turn until it waits for
    /// this job, so its measured time is its own.
    pub(super) fn computed(&mut self, step: u64, share: f64, elapsed: f64) {
        let computed = match &self.pace {
            Pace::Given(paces) => share * paces.seconds(self.watch.rank(), step),
            Pace::Measured(_) => elapsed,
        };
        self.clock += (self.began + computed - self.now()).max(0.0);
    }

    /// Adds compute time in addition to that of a step, if compute time is not measured.
    pub(super) fn spend(&mut self, seconds: f64) {
        if let Pace::Given(_) = self.pace {
            self.clock += seconds;
        }
    }

    /// Returns the same rank's simulation for a channel, with a separate clock and share of the link.
    pub(super) fn of_channel(&self, channel: usize) -> Self {
        Simulation::new(self.watch.of_channel(channel), self.network.clone(), self.pace.clone())
    }

    pub(super) fn start_job(&mut self, channel: usize, shares: usize) -> (Job, UnderWay) {
        self.shares = shares;
        let under_way = UnderWay { started: self.watch.starts(channel), _unfinished: Arc::clone(&self.unfinished) };
        let (now, settings, network) = (self.now(), self.settings, Some(self.network.clone()));
        (Job { now, settings, shares, network }, under_way)
    }

    pub(super) fn begin_job(&mut self, start: &Job) {
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

    /// Returns the rank among `from` whose frame arrives first; see [`Watch::first_of`].
    pub(super) fn first_of(&mut self, from: &[usize], until: f64) -> Result<Sender, Duration> {
        self.end_turn();
        let until = until.max(self.clock);
        let first = self.watch.first_of(from, (self.link(), until))?;
        if first == Sender::Late {
            self.clock = until;
        }
        Ok(first)
    }

    /// Waits for this rank's turn to compute, unless it has it.
    pub(super) fn take_turn(&mut self) -> Result<(), Overdue> {
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

    /// Wakes ranks that wait for a turn, so that they find the world stopped.
    pub(super) fn stop(&mut self) {
        self.clock = self.now();
        self.since = None;
        self.turns().into_iter().for_each(Turns::stop);
        self.watch.stop();
    }

    /// Returns the departure of a frame of `bytes` bytes to rank `to`, and occupies the link.
    pub(super) fn departure(&mut self, to: usize, bytes: usize) -> f64 {
        let now = self.now();
        let link = self.link();
        let Some(passage) = link.passage(to, bytes) else { return now };
        let departure = now.max(self.outgoing);
        self.outgoing = passage.link_end(departure);
        if !passage.is_on_a_path() {
            return departure;
        }
        let free = self.paths.entry(to).or_insert(departure);
        let departure = departure.max(*free);
        *free = passage.end(departure);
        departure
    }

    /// Advances the clock to the arrival of a frame from rank `from`.
    pub(super) fn arrive(&mut self, from: usize, bytes: usize, departure: f64) {
        let (arrival, free) = self.link().arrival(from, bytes, departure);
        self.incoming = free;
        let now = self.now();
        if arrival > now {
            self.clock += arrival - now;
        }
    }
}

/// Start of a background job, for the source of its channel.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) now: f64,
    /// Number of times that the clock was set.
    settings: u64,
    /// Number of parts into which the link is divided.
    shares: usize,
    /// The network, if it is simulated.
    network: Option<Network>,
}

/// A job for which no session has waited yet. Dropping it frees its share of the link.
#[derive(Debug)]
pub(super) struct UnderWay {
    started: Started,
    _unfinished: Arc<()>,
}

impl UnderWay {
    /// Reports that the job's session is about to wait for its end.
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
