//! MPI transport: ranks are MPI processes.
//!
//! [`Mpi`] is a [`Transport`] over the system's MPI. With it, a training program runs in environments in which MPI
//! starts processes and configures the network, such as clusters with InfiniBand. Nothing else in the program changes.
//!
//! ```no_run
//! use briquette_core::Session;
//! use briquette_mpi::Mpi;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut comm = Session::from(Mpi::builder().deadline(Duration::from_secs(600)).init()?);
//! let mut x = vec![comm.rank() as f32; 1000];
//! comm.all_reduce_sum(&mut x)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Building and starting
//! `scripts/mpi.sh` installs the build requirements on Debian and Ubuntu: an MPI with its compiler wrapper `mpicc`, and
//! libclang. Open MPI, MPICH and their derivatives work. On a cluster, load the site's MPI module before `cargo build`,
//! and build on the machine on which the program runs.
//!
//! ```sh
//! mpirun -n 4 target/release/train               # four processes here
//! mpirun --oversubscribe -n 4 target/release/train   # on fewer cores; Open MPI
//! mpirun --hostfile hosts -n 32 target/release/train
//! srun --mpi=pmix -n 32 target/release/train     # Slurm; `srun --mpi=list` says what it has
//! ```
//!
//! Under MPI the launcher assigns the ranks; no address or port is configured.
//!
//! # Use of MPI
//! Frames are sent as MPI messages, in buffers that this crate owns until MPI has released them. **All** collectives
//! are core's, and none is MPI's:
//! - An all-reduce must give the same bits on every transport, but MPI leaves the order of a sum to the library.
//! - MPI's broadcast and all-gather need lengths that are known in advance, and copies. Their bytes also differ from
//!   those that [`traffic`](briquette_core::Session::traffic) promises to count.
//! - MPI's barrier would be usable, but a collective that has begun cannot be cancelled: a world that is stopped during
//!   one could not be shut down. Messages, in contrast, can be received and discarded.
//!
//! # Waiting
//! MPI's own waits have no timeout, so this crate polls. It polls continuously at first, then yields to other threads,
//! then sleeps briefly between polls, so that there may be more ranks than cores. MPI transfers bytes only during calls
//! to it: a rank that computes for long delays the ranks that wait for its large frames.
//!
//! Sends are synchronous in MPI's sense: a frame counts against the queue of 16 frames per rank until the other side
//! has begun to receive it. Frames of 2 GiB and more are refused, because MPI's counts have 32 bits.
//!
//! # How a job ends
//! Every message ends with the sender's operation, step and bucket, at most 272 bytes. If two ranks are in different calls,
//! both get an error that names both calls.
//!
//! An abort is sent as a message to every rank, with the rank, its operation and the reason (its first 2 kB). It ends
//! pending and later calls on each rank. If two ranks abort at the same time, each keeps its own reason.
//!
//! Dropping an [`Mpi`] announces that this rank leaves, and receives messages in transit until all ranks have left. It
//! then finalizes MPI, which returns when all processes do so. If the world has stopped and some rank has not left by
//! the deadline, MPI cannot be finalized, and `MPI_Abort` ends the job. If a process ends without dropping its `Mpi`,
//! by `std::process::exit` or a signal, only the launcher can detect it; `mpirun` and `srun` then end the job. Return
//! errors from `main` and drop the `Mpi` instead of calling `exit`.
//!
//! Errors inside MPI itself end the job at once. This is MPI's default, and libraries cannot continue after such an
//! error.

use briquette_core::Frame;
use briquette_core::comm::{AbortCause, Call, Clock, Scope, Session, Transport};
use briquette_core::error::CommError;
use mpi::environment::Universe;
use mpi::topology::Color;
use mpi::traits::Communicator as _;
use mpi::{Rank, Threading};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

mod endpoint;
mod error;
mod label;
mod pending;
mod wait;

use endpoint::Endpoint;
pub use error::MpiError;

/// Default timeout of a call that waits for another rank.
const DEADLINE: Duration = Duration::from_secs(300);

/// This process's rank in a world of MPI processes. There is one per process, and it is the only one that may call MPI.
///
/// It may be moved to another thread. MPI requires finalization by the thread that initialized it, and some
/// implementations enforce this. Move it back before it is dropped, or keep it in the main thread.
pub struct Mpi {
    // Before the universe, so that its communicator is freed before MPI is finalized.
    endpoint: Endpoint,
    universe: Universe,
}

/// Settings of an [`Mpi`].
#[derive(Debug, Clone)]
pub struct MpiBuilder {
    deadline: Duration,
}

impl Mpi {
    /// Initializes MPI with the default settings; see [`MpiBuilder::init`].
    ///
    /// # Errors
    /// As for [`MpiBuilder::init`].
    pub fn init() -> Result<Mpi, MpiError> {
        Mpi::builder().init()
    }

    /// Returns default settings, to be changed before [`init`](MpiBuilder::init).
    pub fn builder() -> MpiBuilder {
        MpiBuilder { deadline: DEADLINE }
    }

    /// Waits until every rank has called it: a [`Session::barrier`] for a rank without a session, as between two
    /// [parts](Self::part).
    ///
    /// # Errors
    /// If this world is stopped.
    pub fn barrier(&mut self) -> Result<(), CommError> {
        self.endpoint.meet()
    }

    /// Runs `body` in a separate world of only the first `ranks` ranks, and shuts that world down; returns nothing on
    /// the other ranks. **Every** rank must call it with the same number. Meant for tests.
    ///
    /// The session is valid only inside `body`: keeping it ends the job, as two endpoints would call MPI at once. A
    /// panic of `body` is not caught. Errors in the smaller world do not stop this one.
    ///
    /// # Errors
    /// If this world is stopped.
    ///
    /// # Panics
    /// If there are fewer ranks.
    pub fn part<T>(
        &mut self,
        ranks: usize,
        deadline: Duration,
        body: impl FnOnce(&mut Session) -> T,
    ) -> Result<Option<T>, CommError> {
        assert!((1..=self.world()).contains(&ranks), "{ranks} ranks of a world of {}", self.world());
        // Splitting waits without a timeout; this call has one.
        self.barrier()?;
        let member = self.rank() < ranks;
        let color = if member { Color::with_value(0) } else { Color::undefined() };
        let part = self.endpoint.comm().split_by_color_with_key(color, self.rank() as Rank);
        let Some(comm) = part else { return Ok(None) };
        let endpoint = Endpoint::new(comm, deadline);
        let (alive, mut session) = (endpoint.alive(), Session::from(endpoint));
        let result = body(&mut session);
        drop(session);
        if alive.upgrade().is_some() {
            eprintln!("the session of a part of the world was kept: rank {} ends the job", self.rank());
            self.universe.world().abort(1);
        }
        Ok(Some(result))
    }
}

impl MpiBuilder {
    /// Sets the timeout of a call that waits for another rank; 5 minutes by default.
    ///
    /// It should exceed the duration of anything that one rank does alone, such as testing or saving.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Initializes MPI. Returns once all processes of the job have called it, as MPI decides.
    ///
    /// # Errors
    /// If MPI was initialized before in this process, or cannot be called from more than one thread of a process (one
    /// after another: `MPI_THREAD_SERIALIZED`).
    pub fn init(self) -> Result<Mpi, MpiError> {
        let needed = Threading::Serialized;
        let (universe, got) = mpi::initialize_with_threading(needed).ok_or(MpiError::InitializedBefore)?;
        if got < needed {
            return Err(MpiError::Threading { needed: error::name(needed), got: error::name(got) });
        }
        // A separate context, so that no other messages are mistaken for frames.
        let endpoint = Endpoint::new(universe.world().duplicate(), self.deadline);
        Ok(Mpi { endpoint, universe })
    }
}

/// Delegates everything to the endpoint.
impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.endpoint.rank()
    }
    fn world(&self) -> usize {
        self.endpoint.world()
    }
    fn machine(&self, rank: usize) -> usize {
        self.endpoint.machine(rank)
    }
    fn longest_frame(&self) -> usize {
        self.endpoint.longest_frame()
    }
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.endpoint.send(to, frame, call)
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.endpoint.recv_any(from, call)
    }
    fn flush(&mut self, call: &mut Call) -> Result<(), CommError> {
        self.endpoint.flush(call)
    }
    fn abort(&mut self, during: Scope, reason: &str) {
        self.endpoint.abort(during, reason);
    }
    fn abort_cause(&self) -> AbortCause {
        self.endpoint.abort_cause()
    }
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        self.endpoint.clock()
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let complete = self.endpoint.leave();
        if let Some(why) = self.endpoint.stopped()
            && !complete
        {
            // A rank is missing, and finalizing would wait for it forever. No other rank can report why.
            eprintln!("{why}; not every rank has left since, so rank {} ends the job", self.rank());
            self.universe.world().abort(1);
        }
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mpi({:?})", self.endpoint)
    }
}
