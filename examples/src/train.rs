//! Data-parallel training of a [`Task`]: ranks are threads, or processes over TCP, each with a model, a shard and a
//! communicator of its own.

mod failure;
mod rank;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use briquette::core::Key;
use briquette::core::comm::{Communicator, Compute, Local, Simulated, Stepped, run_ranks};
use briquette::{Checkpoint, DistributedOptimizer, WallClock, WorldChange};
use briquette_datasets::Shards;
use briquette_tcp::{Environment, TcpBuilder};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, ModuleOptimizer, SgdConfig};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::failure::{RankError, first_error};
use self::rank::Rank;
use crate::lr_schedule::LrSchedule;
use crate::record::{RunFiles, Summary, Totals, holds_a_run};
use crate::settings::{OptimizerKind, Settings};
use crate::spec::{ClockSpec, Toggle};
use crate::task::Task;

/// How a run is shown and ended.
#[derive(Debug, Clone, Default)]
pub struct Control {
    /// No progress bar.
    pub plain: bool,
    /// Nothing at all on standard output.
    pub quiet: bool,
    /// Continue the run whose directory this is.
    pub resume: bool,
    /// Replace a run that is in the directory already.
    pub overwrite: bool,
    /// Set by Ctrl-C: all ranks stop after the step, with a checkpoint.
    pub stop: Arc<AtomicBool>,
    /// Where this process is one rank of many; none where the ranks are its threads.
    pub place: Option<Environment>,
}

impl Control {
    /// A rank's number among those of its machine.
    pub(crate) fn local_rank(&self, rank: usize) -> usize {
        self.place.as_ref().map_or(rank, |place| place.local_rank)
    }

    /// Whether a run may begin, or go on, in this directory.
    ///
    /// # Errors
    /// Another run is there, and it was not said to replace or to continue it.
    pub fn check_out(&self, out: &Path) -> Result<()> {
        let other = self.place.as_ref().is_some_and(|place| place.rank != 0);
        if other || self.resume || self.overwrite || !holds_a_run(out) {
            return Ok(());
        }
        let out = out.display();
        bail!(
            "--out {out}: there is a run already; continue it with --resume {out}, replace it with --overwrite, or choose another --out"
        )
    }
}

/// Trains and writes the run's files.
///
/// # Errors
/// The first failing rank's own error: what the other ranks say is only that they were stopped.
pub fn train<T: Task>(settings: &Settings, task: &T, control: &Control) -> Result<Summary> {
    control.check_out(&settings.out)?;
    let key = Key::new(settings.seed);
    let mut shards = Shards::new(task.train_labels().len(), settings.ranks, settings.batch)?;
    if let Some(alpha) = settings.non_iid {
        shards = shards.by_label(task.train_labels(), alpha, key)?;
    }
    let steps_per_epoch = shards.epoch(key, 0).steps() as u64;
    let total = steps_per_epoch * settings.epochs as u64;
    let total = settings.steps.map_or(total, |steps| steps.min(total));
    if let Some(record) = settings.record_gradient.filter(|record| record.step() >= total) {
        bail!("--record-gradient {record}: the run has {total} steps, counted from 0");
    }
    let run = Run { settings, task, control, shards, key, steps_per_epoch, total, begin: Instant::now() };
    if control.resume && !Checkpoint::any(&run.checkpoints()) {
        bail!(
            "--resume {}: no complete checkpoint in its checkpoints/: a run that saved nothing has to begin again, without \
             --resume",
            settings.out.display()
        );
    }
    let results = match &control.place {
        None => run_ranks(threads(settings)?, |comm| run.rank(comm).map_err(RankError::from)),
        Some(place) => return run.rank(process(settings, place)?),
    };
    first_error(results)
}

/// One communicator a rank, in threads.
fn threads(settings: &Settings) -> Result<Vec<Box<dyn Communicator>>> {
    let clock = Arc::new(WallClock::start());
    let ranks = settings.ranks;
    Ok(if settings.simulated() {
        let compute = match settings.clock {
            ClockSpec::Fixed(seconds) => Compute::Fixed(Duration::from_secs_f64(seconds)),
            ClockSpec::Wall => Compute::Measured(clock),
        };
        Simulated::world(ranks, settings.network()?, compute).into_iter().map(|c| Box::new(c) as _).collect()
    } else {
        Local::builder(ranks).clock(clock).build().into_iter().map(|c| Box::new(c) as _).collect()
    })
}

/// The communicator of a process that is one rank.
fn process(settings: &Settings, place: &Environment) -> Result<Box<dyn Communicator>> {
    let comm = TcpBuilder::from_environment(place)?.clock(Arc::new(WallClock::start())).join()?;
    Ok(match settings.clock {
        ClockSpec::Fixed(seconds) => Box::new(Stepped::new(comm, Duration::from_secs_f64(seconds))),
        ClockSpec::Wall => Box::new(comm),
    })
}

/// Notes in a checkpoint.
const TOTAL: &str = "total steps";
const TOTALS: &str = "totals";

/// What all ranks share.
struct Run<'a, T: Task> {
    settings: &'a Settings,
    task: &'a T,
    control: &'a Control,
    shards: Shards,
    key: Key,
    steps_per_epoch: u64,
    total: u64,
    begin: Instant,
}

impl<T: Task> Run<'_, T> {
    fn checkpoints(&self) -> PathBuf {
        self.settings.out.join("checkpoints")
    }

    /// The steps of a resumed run had the learning rates they have now.
    fn check_resumed(&self, checkpoint: &Checkpoint) -> Result<()> {
        let saved = checkpoint.note(TOTAL).unwrap_or("unknown");
        if self.settings.schedule == LrSchedule::Constant || saved == self.total.to_string() {
            return Ok(());
        }
        bail!(
            "--resume {}: --schedule {} runs over the whole of a run, {saved} steps there, {} here with --epochs and \
             --steps: the learning rates would not be those it began with. Leave them as they were; only a run under \
             --schedule constant can be made longer or shorter",
            self.settings.out.display(),
            self.settings.schedule,
            self.total,
        );
    }

    /// What a run that is resumed has to know.
    fn notes(&self, totals: &Totals) -> Result<BTreeMap<String, String>> {
        let totals = serde_json::to_string(totals)?;
        Ok(BTreeMap::from([(TOTAL.to_owned(), self.total.to_string()), (TOTALS.to_owned(), totals)]))
    }

    /// Continues from the newest checkpoint that all ranks can use.
    fn resume(&self, optim: &mut DistributedOptimizer, model: T::Model) -> Result<(T::Model, Totals)> {
        let totals = |checkpoint: &Checkpoint| -> Result<Totals, String> {
            let note = checkpoint.note(TOTALS).ok_or("it was not written by this trainer: it has no totals")?;
            serde_json::from_str(note).map_err(|error| format!("its totals cannot be read: {error}"))
        };
        let found = optim.resume(model, &self.checkpoints(), WorldChange::Refuse, totals);
        let (model, checkpoint, totals) = found.with_context(|| format!("--resume {}", self.settings.out.display()))?;
        self.check_resumed(&checkpoint)?;
        Ok((model, totals))
    }

    fn optimizer(&self) -> ModuleOptimizer {
        let settings = self.settings;
        match settings.optimizer {
            OptimizerKind::Adam => AdamConfig::new().init(),
            // Under momentum correction each rank has the momentum; here it must not act twice.
            OptimizerKind::Sgd if settings.momentum_correction == Toggle::On => SgdConfig::new().init(),
            OptimizerKind::Sgd => {
                let given = settings.momentum.filter(|momentum| *momentum != 0.0);
                let momentum = given.map(|m| MomentumConfig::new().with_momentum(m).with_dampening(0.0));
                SgdConfig::new().with_momentum(momentum).init()
            }
        }
    }

    fn rank(&self, comm: Box<dyn Communicator>) -> Result<Summary> {
        let settings = self.settings;
        let rank = comm.rank();
        let device = crate::backend::device(settings, rank, self.control.local_rank(rank))?.autodiff();
        let config = settings.config(self.steps_per_epoch)?;
        let mut optim = DistributedOptimizer::new(self.optimizer(), comm, config, settings.seed)
            .with_local_weight_decay(settings.weight_decay);
        if let Some(steps) = settings.rebroadcast {
            optim = optim.with_rebroadcast(steps);
        }
        let mut model = optim.join(self.task.build(&device))?;
        let mut totals = Totals::default();
        if self.control.resume {
            (model, totals) = self.resume(&mut optim, model)?;
            // They are sums over ranks: one rank takes them along.
            if rank != 0 {
                totals = Totals { bytes_sent: 0, bytes_received: 0, bytes_dense: 0, ..totals };
            }
        }
        let from = self.control.resume.then(|| optim.synchronizer().step());
        // Simulated time begins with the first step, not with the joining.
        let sync = optim.synchronizer_mut();
        let clock = from.map_or(0.0, |_| sync.communicator().now());
        // Nothing is written before every rank is ready, and no rank saves before an earlier run is out of the way.
        sync.communicator().barrier()?;
        let files = (rank == 0).then(|| RunFiles::open(settings, from)).transpose();
        let files = files.inspect_err(|error| sync.communicator().abort(&format!("{error:#}")))?;
        sync.communicator().barrier()?;
        sync.set_clock(clock);
        let bar = self.progress_bar(rank);
        let mut state = Rank { run: self, rank, device, optim, model: Some(model), totals, files, bar };
        let interrupted = state.train().inspect_err(|error| state.tell_others(error))?;
        state.finish(interrupted)
    }

    fn progress_bar(&self, rank: usize) -> ProgressBar {
        let show = rank == 0 && !self.control.plain && !self.control.quiet;
        let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(self.total), target);
        let style = ProgressStyle::with_template("{bar:30} step {pos}/{len} {per_sec} {eta} left  {msg}");
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }
}
