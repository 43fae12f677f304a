//! Start of ranks: as processes of a launcher, or as threads of this process.

use std::error::Error as StdError;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use briquette_core::Session;
use briquette_core::comm::{Local, LocalBuilder, run_ranks};
use briquette_core::error::{CommError, ReduceError, SyncError};
use briquette_core::membership::{Policy, Regroup, Threads};
#[cfg(feature = "tcp")]
use briquette_tcp::{Environment, EnvironmentError, JoinError, TcpBuilder};

use crate::{Error, WallClock};

briquette_core::debug_by_display!(RunError);

/// Errors of [`run`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The world has no ranks.
    #[error("a world has at least 1 rank, got 0")]
    NoRanks,
    /// An environment variable of the launcher is invalid.
    #[cfg(feature = "tcp")]
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// This process could not join the other ranks.
    #[cfg(feature = "tcp")]
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A rank failed, or ended for an unknown reason.
    #[error("{}", of_rank(*rank, &source.to_string()))]
    Rank {
        /// The rank. If ranks are threads, the first one that failed by itself.
        rank: usize,
        /// Its error.
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// Starts the ranks and runs `body`, the program of one rank, on each.
///
/// - Under `briquette launch`, torchrun, `mpirun` or `srun` ([`Environment::from_env`](crate::tcp::Environment::from_env)) this
///   process is one rank of their world, and communicates over TCP. `ranks` is then ignored.
/// - Otherwise the world consists of `ranks` threads of this process.
///
/// Each session has the wall clock, and a channel for background exchanges. Each rank computes in a [thread pool](crate::Pool)
/// with its share of the machine's cores. The result is that of `body` on rank 0 if ranks are threads, and on its own rank in
/// each process. [`Run`] has further settings: timeouts, ports, cancellation. Work for a single rank (printing, writing files)
/// belongs inside `body`, on the rank whose [`rank`](Session::rank) is 0.
///
/// ```
/// use briquette::core::error::CommError;
///
/// let sum = briquette::run(3, |mut comm| {
///     let mut x = [comm.rank() as f32];
///     comm.all_reduce_sum(&mut x)?;
///     Ok::<_, CommError>(x[0])
/// })?;
/// assert_eq!(sum, 3.0);
/// # Ok::<_, briquette::RunError>(())
/// ```
///
/// `body` may return any error type that converts to a `Box<dyn Error + Send + Sync>`: this crate's, `String`, `anyhow::Error`,
/// the box itself.
///
/// # Errors
/// [`RunError`]. If several threads failed, the error of the first that was not [stopped by another rank](was_stopped).
pub fn run<T, E>(ranks: usize, body: impl Fn(Session) -> Result<T, E> + Sync) -> Result<T, RunError>
where
    T: Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    Run::new(ranks).start(body)
}

/// Starts the ranks of an elastic world, which continues while at least `fewest` of them are left, and runs `body` on each.
///
/// As [`run`], except that `body` also receives this rank's membership, for
/// [`with_membership`](crate::DistributedOptimizer::with_membership). Under `briquette launch --elastic MIN` the launcher's minimum applies,
/// and processes may join while the others train.
///
/// The loop of `body` has the lines of a fixed world. It counts the optimizer's steps instead of batches, because a
/// [`step`](crate::DistributedOptimizer::step) during which a rank is lost is computed again, and reads rank and world before each step.
///
/// ```
/// use briquette::{DistributedConfig, DistributedOptimizer, Error};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::prelude::*;
///
/// # fn loss(model: &Linear, _rank: usize, _world: usize, device: &Device) -> Tensor<1> {
/// #     model.forward(Tensor::<2>::ones([1, 2], device)).mean()
/// # }
/// // Three ranks; the last one ends after two steps of five.
/// let world = briquette::run_elastic(3, 1, |session, membership| {
///     let (device, last) = (Device::default().autodiff(), session.rank() == 2);
///     let optim = DistributedOptimizer::new(SgdConfig::new().init(), session, DistributedConfig::dense(), 42);
///     let mut optim = optim.with_membership(membership);
///     let mut model = optim.join(LinearConfig::new(2, 1).init(&device))?;
///     while optim.synchronizer().step() < 5 {
///         if last && optim.synchronizer().step() == 2 {
///             return Ok::<_, Error>(0); // lost
///         }
///         let loss = loss(&model, optim.rank(), optim.world(), &device);
///         let grads = GradientsParams::from_grads(loss.backward(), &model);
///         model = optim.step(0.1, model, grads)?;
///     }
///     optim.leave(&model)?; // no rank is in doubt about the last step
///     Ok(optim.world())
/// })?;
/// assert_eq!(world, 2);
/// # Ok::<_, briquette::RunError>(())
/// ```
///
/// # Errors
/// [`RunError`], if no rank ended well; that of the first that was not [stopped by another rank](was_stopped). Errors of lost ranks are logged. A
/// rank whose `body` returns early with a value is lost for the others, and ended well.
pub fn run_elastic<T, E>(
    ranks: usize,
    fewest: usize,
    body: impl Fn(Session, Box<dyn Regroup>) -> Result<T, E> + Sync,
) -> Result<T, RunError>
where
    T: Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    Run::new(ranks).start_elastic(fewest, body)
}

/// Starts ranks as [`run`] does, with settings.
///
/// Settings made here take precedence over the environment. If ranks are processes, environment variables may set the others
/// ([`names`](crate::tcp::names): `BRIQUETTE_JOIN_DEADLINE`, `BRIQUETTE_DEADLINE`, `BRIQUETTE_PORTS`, `BRIQUETTE_WORLD`).
///
/// ```
/// use std::time::Duration;
///
/// use briquette::Run;
/// use briquette::core::error::CommError;
///
/// let run = Run::new(2).join_deadline(Duration::from_secs(600)).deadline(Duration::from_secs(60)).ports(29600..=29699);
/// assert_eq!(run.start(|comm| Ok::<_, CommError>(comm.world()))?, 2);
/// # Ok::<_, briquette::RunError>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "call `start`"]
pub struct Run {
    ranks: usize,
    join_deadline: Option<Duration>,
    deadline: Option<Duration>,
    ports: Option<RangeInclusive<u16>>,
    cancel: Option<Arc<AtomicBool>>,
    patience: Option<Duration>,
}

impl Run {
    /// Creates settings for `ranks` threads, or for the processes of a launcher.
    pub fn new(ranks: usize) -> Run {
        Run { ranks, ..Run::default() }
    }

    /// Sets the rendezvous timeout: how long a process waits for the others to join. 2 minutes if not set. Threads join at once.
    pub fn join_deadline(mut self, deadline: Duration) -> Run {
        self.join_deadline = Some(deadline);
        self
    }

    /// Sets the timeout of a call that waits for a live rank. 5 minutes if not set. It should be longer than any work that one
    /// rank does alone, such as testing or saving.
    pub fn deadline(mut self, deadline: Duration) -> Run {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the ports on which processes accept connections, for firewalls. Any free ports if not set. If a launcher sets rank
    /// 0's port, rank 0 uses that port.
    pub fn ports(mut self, ports: RangeInclusive<u16>) -> Run {
        self.ports = Some(ports);
        self
    }

    /// Sets a flag that cancels the rendezvous, for signal handlers. While the flag is true, this process does not wait for
    /// others to join, and fails within 0.5 s.
    pub fn cancel(mut self, cancel: Arc<AtomicBool>) -> Run {
        self.cancel = Some(cancel);
        self
    }

    /// Sets how long the survivors of an [elastic world](run_elastic) wait for a rank that can be reached and has not noticed the loss yet. 60 s
    /// if not set. It should be longer than a step, and with local steps longer than a period.
    pub fn patience(mut self, patience: Duration) -> Run {
        self.patience = Some(patience);
        self
    }

    /// Starts the ranks and runs `body` on each, as [`run`] does.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn start<T, E>(self, body: impl Fn(Session) -> Result<T, E> + Sync) -> Result<T, RunError>
    where
        T: Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        #[cfg(feature = "tcp")]
        if let Some(place) = Environment::from_env()? {
            let clock = Arc::new(WallClock::start());
            let comm = self.over_tcp(TcpBuilder::from_environment(&place)?.channels(1).clock(clock)).join()?;
            let result = on_own_threads(comm.into(), place.local_world, &body);
            return result.map_err(|Failed(source)| RunError::Rank { rank: place.rank, source });
        }
        let mut world = Local::builder(self.ranks).clock(Arc::new(WallClock::start()));
        if let Some(deadline) = self.deadline {
            world = world.deadline(deadline);
        }
        first(run_ranks(world.build(), |comm| on_own_threads(comm, self.ranks, &body)))
    }

    /// Starts the ranks of an elastic world and runs `body` on each, as [`run_elastic`] does.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn start_elastic<T, E>(
        self,
        fewest: usize,
        body: impl Fn(Session, Box<dyn Regroup>) -> Result<T, E> + Sync,
    ) -> Result<T, RunError>
    where
        T: Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let patience = self.patience.map_or(Policy::default().patience, |patience| patience.as_secs_f64());
        let policy = Policy { fewest, patience };
        #[cfg(feature = "tcp")]
        if let Some(place) = Environment::from_env()? {
            let elastic = place.elastic.as_ref();
            let policy = Policy { fewest: elastic.map_or(fewest, |elastic| elastic.fewest), ..policy };
            let builder = TcpBuilder::from_environment(&place)?.channels(1).clock(Arc::new(WallClock::start()));
            let builder = self.over_tcp(builder);
            let joins = elastic.is_some_and(|elastic| elastic.joins);
            let joined = if joins { builder.join_running(policy) } else { builder.join_elastic(policy) };
            let (comm, members) = joined?;
            let members = Mutex::new(Some(members));
            let body = |comm| body(comm, Box::new(taken(&members)));
            let result = on_own_threads(comm, place.local_world, &body);
            return result.map_err(|Failed(source)| RunError::Rank { rank: place.rank, source });
        }
        let deadline = self.deadline;
        let clock = Arc::new(WallClock::start());
        let sessions = move |ranks| {
            let world = Local::builder(ranks).clock(Arc::clone(&clock) as Arc<_>);
            deadline.into_iter().fold(world, LocalBuilder::deadline).build()
        };
        let (sessions, members): (Vec<_>, Vec<_>) = Threads::world(self.ranks, policy, sessions).into_iter().unzip();
        let members: Vec<_> = members.into_iter().map(|member| Mutex::new(Some(member))).collect();
        let body = |comm: Session| {
            let member = taken(&members[comm.rank()]);
            body(comm, Box::new(member))
        };
        let mut ended = run_ranks(sessions, |comm| on_own_threads(comm, self.ranks, &body));
        // Ranks that are lost do not fail the run.
        if ended.iter().any(Result::is_ok) {
            for (rank, end) in ended.iter().enumerate() {
                if let Err(Failed(error)) = end {
                    tracing::warn!("{}", of_rank(rank, &error.to_string()));
                }
            }
            ended.retain(Result::is_ok);
        }
        first(ended)
    }

    #[cfg(feature = "tcp")]
    fn over_tcp(self, mut tcp: TcpBuilder) -> TcpBuilder {
        let Run { join_deadline, deadline, ports, cancel, .. } = self;
        tcp = join_deadline.into_iter().fold(tcp, TcpBuilder::join_deadline);
        tcp = deadline.into_iter().fold(tcp, TcpBuilder::deadline);
        tcp = ports.into_iter().fold(tcp, TcpBuilder::ports);
        cancel.into_iter().fold(tcp, TcpBuilder::cancel)
    }
}

/// Takes the membership of a rank, which starts once.
fn taken<M>(member: &Mutex<Option<M>>) -> M {
    member.lock().unwrap_or_else(PoisonError::into_inner).take().expect("a rank starts once")
}

/// Returns rank 0's value, or the error of the first thread that was not stopped by another rank.
fn first<T>(results: Vec<Result<T, Failed>>) -> Result<T, RunError> {
    let (mut first, mut failed) = (None, None::<(bool, RunError)>);
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => first = first.or((rank == 0).then_some(value)),
            Err(Failed(source)) => {
                let own = !was_stopped(&*source);
                if failed.as_ref().is_none_or(|(other_is_own, _)| own && !other_is_own) {
                    failed = Some((own, RunError::Rank { rank, source }));
                }
            }
        }
    }
    match failed {
        Some((_, error)) => Err(error),
        None => first.ok_or(RunError::NoRanks),
    }
}

/// Runs `body` in a pool with this rank's share of the machine's cores.
fn on_own_threads<T, E>(
    comm: Session,
    ranks_here: usize,
    body: &(impl Fn(Session) -> Result<T, E> + Sync),
) -> Result<T, Failed>
where
    T: Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    let run = |comm| body(comm).map_err(|error| Failed(error.into()));
    #[cfg(feature = "rayon")]
    {
        let rank = comm.rank();
        crate::Pool::share(ranks_here).run(rank, || run(comm)).unwrap_or_else(|error| Err(Failed(error.into())))
    }
    #[cfg(not(feature = "rayon"))]
    {
        let _ = ranks_here;
        run(comm)
    }
}

/// Adds the rank to an error text, unless the text names it, as most do.
fn of_rank(rank: usize, text: &str) -> String {
    let name = format!("rank {rank}");
    if text.contains(&name) { text.to_owned() } else { format!("{name}: {text}") }
}

struct Failed(Box<dyn StdError + Send + Sync>);

impl From<CommError> for Failed {
    fn from(error: CommError) -> Self {
        Failed(error.into())
    }
}

/// Returns whether a rank failed only because another rank did: the other rank stopped it, or the connection to it was
/// lost. The error of the other rank then explains more.
///
/// ```
/// use briquette::core::comm::{Local, Scope};
/// use briquette::core::error::CommError;
///
/// let during = Scope::default();
/// let stopped = CommError::Aborted { by: 1, during, reason: "out of memory".into() };
/// assert!(briquette::was_stopped(&briquette::Error::from(stopped)));
/// assert!(!briquette::was_stopped(&briquette::Error::NotJoined { rank: 0 }));
/// ```
pub fn was_stopped(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(of_transport(error), Some(CommError::Aborted { .. } | CommError::Lost { .. })) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns the transport's part of an error. The chain of sources omits it if a transparent error contains it.
fn of_transport<'a>(cause: &'a (dyn StdError + 'static)) -> Option<&'a CommError> {
    let reduce = |error: &'a ReduceError| if let ReduceError::Comm(error) = error { Some(error) } else { None };
    match cause.downcast_ref() {
        Some(Error::Comm(error)) => Some(error),
        Some(Error::Sync(SyncError::Reduce { source, .. })) => reduce(source),
        _ => cause.downcast_ref().or_else(|| cause.downcast_ref().and_then(reduce)),
    }
}
