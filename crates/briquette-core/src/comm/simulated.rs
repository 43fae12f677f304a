//! A network that is not there: real ranks and real bytes, simulated seconds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::turns::Turns;
use super::{Clock, Communicator, Frame, Local, LocalBuilder, Network, forward};
use crate::error::CommError;

/// One rank of a world of threads whose clock shows **simulated** seconds.
///
/// Answers "how long would this take on 32 machines at 100 Mbit/s" on a laptop. Results, traffic and errors are those
/// of [`Local`], which moves the frames. [`now`](Communicator::now) is simulated time and should be labelled so
/// wherever it is shown.
///
/// # Model
/// Every rank has a clock of its own, and a link that is busy in each direction for as long as its bytes take. With
/// `t = 8·bytes/B` for a frame, bandwidth `B` and latency `α`:
///
/// - it departs when the sender's clock and its outgoing link allow; sending itself takes the sender no time;
/// - it has arrived at `max(departure + α, incoming link free) + t`; receiving moves the clock there if it is behind.
///
/// What a collective costs follows from the frames it sends. Frames are taken off the incoming link in the order the
/// rank asks for them, so a rank that asks for the later one first is judged slower than a real network would be;
/// the collectives ask in the order of departure. There is no congestion inside the network, and no protocol overhead
/// beyond the bytes counted.
///
/// # Compute
/// [`Compute::Fixed`] makes a run reproducible to the bit, whatever the threads do. [`Compute::Measured`] lets one
/// rank compute at a time, so that each one's seconds are its own; see there.
///
/// ```
/// use briquette_core::Communicator;
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
pub struct Simulated {
    inner: Local,
    world: Arc<World>,
    /// Simulated seconds, as of `since` while this rank computes.
    clock: f64,
    /// When this rank's turn to compute began, on the real clock; `None` when it has none.
    since: Option<f64>,
    /// When the links to and from this rank are free, in simulated seconds.
    outgoing: f64,
    incoming: f64,
}

/// Where the simulated seconds between exchanges come from.
#[derive(Clone)]
pub enum Compute {
    /// Every step takes this long to compute on every rank: [`begin_step`](Communicator::begin_step) moves the clock
    /// by it, and nothing else does but frames. Compressing takes no time on this clock: it appears neither in the
    /// simulated seconds nor in what controllers observe.
    Fixed(Duration),
    /// What the ranks really take, by this clock. They compute one after another: a rank has its turn until it must
    /// wait for another rank, and the seconds of its turns move its simulated clock. Its first turn begins with its
    /// first call of `begin_step`, `send` or `recv`; what happens before that is not counted.
    ///
    /// Ranks must wait for each other through the communicator only, or two of them may wait forever. The deadline
    /// bounds one turn, not the wait for it, so that it need not grow with the world.
    Measured(Arc<dyn Clock + Sync>),
}

#[derive(Debug)]
struct World {
    network: Network,
    compute: Pace,
    /// When frames under way departed, a queue per pair (`from · world + to`), in the order of the frames.
    departures: Vec<Mutex<VecDeque<f64>>>,
}

#[derive(Debug)]
enum Pace {
    Fixed(f64),
    Measured(Turns),
}

impl Simulated {
    /// A world of `ranks` threads on `network`, in rank order.
    pub fn world(ranks: usize, network: Network, compute: Compute) -> Vec<Simulated> {
        Simulated::over(Local::builder(ranks), network, compute)
    }

    /// The same with the deadline and queue capacity of `local`, which are real; its clock is not used.
    pub fn over(local: LocalBuilder, network: Network, compute: Compute) -> Vec<Simulated> {
        let compute = match compute {
            Compute::Fixed(step) => Pace::Fixed(step.as_secs_f64()),
            Compute::Measured(clock) => Pace::Measured(Turns::new(clock, local.longest_wait())),
        };
        let departures = (0..local.ranks() * local.ranks()).map(|_| Mutex::default()).collect();
        let world = Arc::new(World { network, compute, departures });
        let endpoint = |mut inner: Local| {
            if let Pace::Measured(turns) = &world.compute {
                inner.wait_while_moving(turns.taken());
            }
            Simulated { inner, world: Arc::clone(&world), clock: 0.0, since: None, outgoing: 0.0, incoming: 0.0 }
        };
        local.build().into_iter().map(endpoint).collect()
    }

    /// The network being simulated.
    pub fn network(&self) -> Network {
        self.world.network
    }

    fn turns(&self) -> Option<&Turns> {
        match &self.world.compute {
            Pace::Fixed(_) => None,
            Pace::Measured(turns) => Some(turns),
        }
    }

    /// Waits for this rank's turn to compute, unless it has it.
    fn take_turn(&mut self) -> Result<(), CommError> {
        let (rank, since) = (self.rank(), self.since);
        let Some(turns) = self.turns().filter(|_| since.is_none()) else { return Ok(()) };
        match turns.take(rank) {
            Ok(held) => {
                self.since = held.then(|| turns.seconds());
                Ok(())
            }
            Err(holder) => {
                turns.stop();
                Err(self.inner.overdue(holder))
            }
        }
    }

    /// Ends this rank's turn and adds its seconds to the clock.
    fn end_turn(&mut self) {
        self.clock = self.now();
        if self.since.take().is_some() {
            self.turns().into_iter().for_each(Turns::give);
        }
    }

    /// Passes an error on, after letting ranks that wait for a turn go on and see it too.
    fn stop_on_error<T>(&mut self, result: Result<T, CommError>) -> Result<T, CommError> {
        if result.is_err() {
            self.clock = self.now();
            self.since = None;
            self.turns().into_iter().for_each(Turns::stop);
        }
        result
    }

    /// When a frame of `bytes` bytes departs to rank `to`.
    fn departure(&mut self, to: usize, bytes: usize) -> f64 {
        let now = self.now();
        if self.world.network.same_machine(self.rank(), to) {
            return now;
        }
        let departure = now.max(self.outgoing);
        self.outgoing = departure + self.world.network.transfer_seconds(bytes);
        departure
    }

    /// Moves the clock to the arrival of a frame from rank `from`.
    fn arrive(&mut self, from: usize, bytes: usize, departure: f64) {
        let network = self.world.network;
        let arrival = if network.same_machine(self.rank(), from) {
            departure
        } else {
            let begins = self.incoming.max(departure + network.latency().as_secs_f64());
            self.incoming = begins + network.transfer_seconds(bytes);
            self.incoming
        };
        let now = self.now();
        if arrival > now {
            self.clock += arrival - now;
        }
    }

    fn departures(&self, from: usize, to: usize) -> &Mutex<VecDeque<f64>> {
        &self.world.departures[from * self.world() + to]
    }
}

impl Communicator for Simulated {
    forward!(self => self.inner; rank world flush verdict traffic scope pool);

    fn send(&mut self, to: usize, frame: Frame) -> Result<(), CommError> {
        self.take_turn()?;
        if to < self.world() {
            // Before the frame, so that the receiver always finds it.
            let departure = self.departure(to, frame.len());
            lock(self.departures(self.rank(), to)).push_back(departure);
        }
        if !self.inner.can_send(to) {
            self.end_turn();
        }
        let sent = self.inner.send(to, frame);
        self.stop_on_error(sent)?;
        self.take_turn()
    }

    fn recv(&mut self, from: usize) -> Result<Frame, CommError> {
        self.take_turn()?;
        if !self.inner.can_recv(from) {
            self.end_turn();
        }
        let received = self.inner.recv(from);
        let frame = self.stop_on_error(received)?;
        self.take_turn()?;
        let departure = lock(self.departures(from, self.rank())).pop_front();
        self.arrive(from, frame.len(), departure.expect("every frame has its departure"));
        Ok(frame)
    }

    fn abort(&mut self, reason: &str) {
        self.inner.abort(reason);
        self.end_turn();
        self.turns().into_iter().for_each(Turns::stop);
    }

    /// Not with measured compute: there one rank computes at a time, and has one clock.
    fn overlaps(&self) -> bool {
        self.turns().is_none()
    }

    /// **Simulated** seconds since the world was made.
    fn now(&self) -> f64 {
        match (self.turns(), self.since) {
            (Some(turns), Some(since)) => self.clock + (turns.seconds() - since),
            _ => self.clock,
        }
    }

    fn set_clock(&mut self, seconds: f64) {
        (self.clock, self.outgoing, self.incoming) = (seconds, seconds, seconds);
        if self.since.is_some() {
            self.since = self.turns().map(Turns::seconds);
        }
    }

    fn begin_step(&mut self, step: u64) {
        self.inner.begin_step(step);
        match &self.world.compute {
            Pace::Fixed(seconds) => self.clock += seconds,
            // A failure here poisons the communicator, and the next call reports it.
            Pace::Measured(_) => drop(self.take_turn()),
        }
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("panicked");
        }
        self.end_turn();
    }
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compute::Fixed(step) => write!(f, "Fixed({step:?})"),
            Compute::Measured(_) => f.write_str("Measured"),
        }
    }
}

/// Nothing panics while holding one of these locks.
fn lock(departures: &Mutex<VecDeque<f64>>) -> std::sync::MutexGuard<'_, VecDeque<f64>> {
    departures.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
