//! Data-parallel training of a [`Task`]: ranks are threads, or processes over TCP, each with a separate model, shard and session.

mod common;
mod compress_seconds;
mod deal;
mod elastic;
mod failure;
mod position;
mod progress;
mod rank;
mod server;
mod start;
mod transfers;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use briquette::core::Key;
use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::membership::Policy;
use briquette::optim::{
    CompAmsConfig, DelayedAdaGradConfig, DelayedAdaGradMomentumConfig, FtrlSgdConfig, GeneralizedSignSgdConfig,
    GenericAdamConfig, OneBitAdamConfig, PAdamWConfig,
};
use briquette::sim::{Compute, SessionExt, Simulated};
use briquette::zoo::wrapper::dion::DionConfig;
use briquette::{Pool, RunSummary, WallClock, WorldChange};
use briquette_cli::memory;
use briquette_datasets::{Shards, by_label};
use briquette_tcp::{Elastic, Environment, Members, TcpBuilder};
use burn::module::{Module, ParamGroup};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdjustLrFn, ModuleOptimizer, MuonConfig, SgdConfig};
use burn::tensor::Device;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use self::common::OF_SIZE;
pub use self::failure::Refused;
use self::failure::{RankError, first_error};
pub use self::transfers::Recorders;
use crate::directory;
use crate::endpoint::Endpoint;
use crate::interrupt::Stage;
use crate::models::hidden_matrices;
use crate::output::Output;
use crate::record::Summary;
use crate::settings::{OptimizerKind, Settings};
use crate::spec::ClockSpec;
use crate::task::Task;

/// Control of a run's display, start and end.
#[derive(Debug, Clone, Default)]
pub struct Control {
    /// Hides the progress bar.
    pub plain: bool,
    /// Writes nothing to standard output, until this process [leads](Self::leads).
    pub quiet: bool,
    /// Set when the process becomes rank 0, because the former one was lost.
    pub leads: Arc<AtomicBool>,
    /// Resumes the run in this directory.
    pub resume: bool,
    /// Treatment of rank-local state if the run resumes with another number of ranks; `None` refuses such a resume.
    pub world_change: Option<WorldChange>,
    /// Replaces a run that is already in the directory.
    pub overwrite: bool,
    /// Set by Ctrl-C: all ranks stop after the current step, with a checkpoint.
    pub stop: Arc<AtomicBool>,
    /// Place of this process in its world, if it is one rank of many; `None` if the ranks are its threads.
    pub place: Option<Environment>,
    /// Destination of the display.
    pub output: Output,
    /// Stage of the run.
    pub stage: Stage,
    /// Records of the last transfers of this process's ranks.
    pub recorders: Recorders,
}

impl Control {
    /// Returns a rank's number among those of its machine.
    pub(crate) fn local_rank(&self, rank: usize) -> usize {
        self.place.as_ref().map_or(rank, |place| place.local_rank)
    }

    /// Returns whether this process begins as rank 0.
    pub(crate) fn is_rank_0(&self) -> bool {
        self.place.as_ref().is_none_or(|place| place.rank == 0) && !self.joins()
    }

    /// Returns whether this process joins a running world.
    pub(crate) fn joins(&self) -> bool {
        self.place.as_ref().and_then(|place| place.elastic.as_ref()).is_some_and(|elastic| elastic.joins)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet && !self.leads.load(Ordering::Relaxed)
    }

    /// Writes a line to standard output, unless the run is quiet.
    pub fn say(&self, text: impl Display) {
        if !self.is_quiet() {
            self.output.out(text);
        }
    }

    /// Prints the summary of a run, and advice if there is any.
    fn summarize(&self, summary: &RunSummary) {
        self.say(summary);
        summary.advice().into_iter().for_each(|advice| self.say(advice));
    }

    /// Checks whether a run may start, or resume, in this directory. Changes nothing.
    ///
    /// # Errors
    /// [`Refused`]: another process uses the directory; or it holds another run, which is neither to be replaced nor to
    /// be resumed; or there is nothing to resume.
    pub fn check_out(&self, out: &Path) -> Result<()> {
        if !self.is_rank_0() {
            return Ok(());
        }
        directory::check(out, self)
    }
}

/// Trains and writes the run's files.
///
/// # Errors
/// The first failing rank's own error; the other ranks only report that they were stopped.
pub fn train<T: Task>(settings: &Settings, task: &T, control: &Control) -> Result<Summary> {
    control.check_out(&settings.out)?;
    control.recorders.clear();
    let key = Key::new(settings.seed);
    // A server has no data.
    let workers = settings.ranks - usize::from(settings.server.is_some());
    let mut shards = Shards::new(task.train_labels().len(), workers, settings.batch)?;
    if let Some(alpha) = settings.non_iid {
        shards = by_label(shards, task.train_labels(), alpha, key)?;
    }
    let batches = shards.epoch(key, 0).steps() as u64;
    let steps_per_epoch = match settings.server {
        None => batches,
        Some(_) => (batches * workers as u64 / settings.gradients_of_an_update()).max(1),
    };
    let total = steps_per_epoch.saturating_mul(settings.epochs as u64);
    let total = settings.steps.map_or(total, |steps| steps.min(total));
    if let Some(record) = settings.record_gradient.filter(|record| record.step() >= total) {
        bail!("--record-gradient {record}: the run has {total} steps, counted from 0");
    }
    if let Some(from) = settings.average_from.filter(|from| *from >= total) {
        bail!("--average-from {from}: the run has {total} steps, counted from 0");
    }
    // A resumed run has the choices made when it began.
    if control.resume {
        settings.check_budget_steps(total)?;
    }
    let (settings, choice) = settings.for_steps((!control.resume).then_some(total));
    choice.into_iter().for_each(|choice| control.say(format_args!("# {choice}")));
    let settings = &settings;
    let fingerprints = task.fingerprints();
    let begin = Instant::now();
    let mut run =
        Run { settings, task, control, shards, key, steps_per_epoch, total, fingerprints, begin, endpoint: None };
    run.check_memory()?;
    run.endpoint = run.open_endpoint()?;
    control.stage.join();
    if let Some(place) = &control.place {
        let (comm, members) = process(settings, place, control)?;
        control.stage.train();
        return Pool::share(place.local_world).run(place.rank, || run.rank(comm, members))?;
    }
    let world = threads(settings)?;
    control.stage.train();
    // Under a measured simulated clock one rank computes at a time.
    let measured = settings.simulated() && matches!(settings.clock, ClockSpec::Wall);
    let at_once = if measured { 1 } else { settings.ranks };
    let rank = |comm: Session| {
        let rank = comm.rank();
        let result = Pool::share(at_once).run(rank, || run.rank(comm, None));
        result.map_err(anyhow::Error::from).and_then(|result| result).map_err(RankError::from)
    };
    first_error(run_ranks(world, rank))
}

/// Creates one session per rank, for threads.
fn threads(settings: &Settings) -> Result<Vec<Session>> {
    let clock = Arc::new(WallClock::start());
    let ranks = settings.ranks;
    Ok(if settings.simulated() {
        let compute = settings.clock.paces()?.map_or(Compute::Measured(clock), Compute::Paced);
        Simulated::world(ranks, settings.network()?, compute)
    } else {
        Local::builder(ranks).clock(clock).build()
    })
}

/// Creates the session of a process that is one rank, and its membership if its world is elastic.
fn process(settings: &Settings, place: &Environment, control: &Control) -> Result<(Session, Option<Members>)> {
    let channels = settings.config.channels();
    // Lets the process that started this rank know from when on a stop signal is not lost.
    let Environment { rank, world, master, .. } = place;
    control.output.err(format_args!("rank {rank} of {world} handles signals, and joins the others at {master}"));
    let builder = TcpBuilder::from_environment(place)?.cancel(Arc::clone(&control.stop)).channels(channels);
    let builder = builder.clock(Arc::new(WallClock::start()));
    let (comm, members) = match &place.elastic {
        None => (Session::from(builder.join()?), None),
        Some(Elastic { fewest, joins, .. }) => {
            elastic::check(settings)?;
            let policy = Policy { fewest: *fewest, ..Policy::default() };
            let joined = if *joins { builder.join_running(policy) } else { builder.join_elastic(policy) };
            let (comm, members) = joined?;
            (comm, Some(members))
        }
    };
    Ok(match settings.clock.paces()? {
        Some(paces) => (comm.stepped(paces), members),
        None => (comm, members),
    })
}

/// State shared by all ranks.
struct Run<'a, T: Task> {
    settings: &'a Settings,
    task: &'a T,
    control: &'a Control,
    shards: Shards,
    key: Key,
    steps_per_epoch: u64,
    /// Number of steps of the run, if its world has always had this size.
    total: u64,
    /// Fingerprints of the training data and the test data.
    fingerprints: [String; 2],
    begin: Instant,
    /// Present in the process of rank 0.
    endpoint: Option<Endpoint>,
}

/// Address space of the stacks of a rank's two threads.
const STACK: u64 = 4 << 20;

impl<T: Task> Run<'_, T> {
    /// Checks that the ranks of this process fit into memory. The minimum for each is a model, its gradients, their
    /// average and a momentum, one more vector in transit between model and exchange, and the queues between threads.
    fn check_memory(&self) -> Result<()> {
        let ranks = if self.control.place.is_some() { 1 } else { self.settings.ranks as u64 };
        let rank = self.control.place.as_ref().map_or(0, |place| place.rank);
        let device = crate::backend::device(self.settings, rank, self.control.local_rank(rank))?;
        let values = self.task.build(&device).num_params() as u64;
        let queues = ranks.pow(2) * 32;
        let vectors = 5 + u64::from(self.settings.average_from.is_some());
        let needed = ranks * (STACK + vectors * 4 * values) + queues;
        Ok(memory::check(&format!("--ranks {ranks}: that many models of {values} values take at least"), needed)?)
    }

    /// Opens the endpoint that serves rank 0's numbers, if requested.
    fn open_endpoint(&self) -> Result<Option<Endpoint>> {
        self.settings.metrics_addr.filter(|_| self.control.is_rank_0()).map(Endpoint::open).transpose()
    }

    fn optimizer(&self, device: &Device) -> Result<ModuleOptimizer> {
        let settings = self.settings;
        Ok(match settings.optimizer {
            OptimizerKind::Adam => AdamConfig::new().init(),
            OptimizerKind::Muon => {
                let matrices = hidden_matrices(&self.task.build(device));
                if matrices.is_empty() {
                    let model = &settings.model;
                    bail!(Refused::new(format!(
                        "--optimizer muon is for matrices between the first and the last layer, and {model} has none: use adam or sgd"
                    )));
                }
                // With this factor, the rate of Adam suits the matrices too.
                let mut muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
                if settings.config.exchange.feedback.is::<DionConfig>() {
                    // Each rank has the momentum.
                    muon = muon.with_momentum(MomentumConfig::new().with_momentum(0.0).with_dampening(0.0));
                }
                AdamConfig::new().init().with_group(ParamGroup::from_paths(matrices), muon.build(), None)
            }
            OptimizerKind::CompAms => CompAmsConfig::new().init(),
            OptimizerKind::SignSgd => GeneralizedSignSgdConfig::new().init(),
            OptimizerKind::GenericAdam => GenericAdamConfig::new().init(),
            OptimizerKind::DelayedAdagrad => DelayedAdaGradConfig::new().init(),
            OptimizerKind::DelayedAdagradMomentum => DelayedAdaGradMomentumConfig::new().init(),
            OptimizerKind::FtrlSgd => FtrlSgdConfig::new().init(),
            OptimizerKind::Padamw => PAdamWConfig::new().init(),
            OptimizerKind::OneBitAdam => {
                let of_exchange = settings.one_bit_adam().unwrap_or_default();
                OneBitAdamConfig::new(of_exchange.warm_up).with_beta_1(of_exchange.beta).init()
            }
            // Under momentum correction each rank has the momentum; here it must not act twice.
            OptimizerKind::Sgd if settings.corrects_momentum() => SgdConfig::new().init(),
            OptimizerKind::Sgd => {
                let given = settings.momentum.filter(|momentum| *momentum != 0.0);
                let momentum = given.map(|m| MomentumConfig::new().with_momentum(m).with_dampening(0.0));
                SgdConfig::new().with_momentum(momentum).init()
            }
        })
    }

    fn progress_bar(&self, rank: usize, steps: u64) -> ProgressBar {
        let show = rank == 0 && !self.control.plain && !self.control.is_quiet();
        let target = if show { self.control.output.bar() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        let style = ProgressStyle::with_template("{bar:30} step {pos}/{len} {per_sec} {eta} left\n{msg}");
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }
}
