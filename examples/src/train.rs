//! Data-parallel training of a [`Task`]: ranks are threads, each with a model, a shard and a communicator of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use briquette::core::Key;
use briquette::core::comm::{Communicator, Compute, Local, Simulated, run_ranks};
use briquette::core::error::{CommError, ReduceError, SyncError};
use briquette::core::sync::StopFlags;
use briquette::{Checkpoint, DistributedOptimizer, WallClock, WorldChange};
use briquette_datasets::{EpochPlan, Shards};
use burn::module::Module;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::Device;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::record::{RunFiles, StepRecord, Summary, Totals, git_revision};
use crate::settings::{OptimizerKind, Settings};
use crate::spec::{ClockSpec, Toggle};
use crate::task::{Place, Score, Task};

/// Steps between records with gain and bytes per slot.
const SLOTS_EVERY: u64 = 50;

/// How a run is shown and ended.
#[derive(Debug, Clone, Default)]
pub struct Control {
    /// No progress bar.
    pub plain: bool,
    /// Nothing at all on standard output.
    pub quiet: bool,
    /// Continue the run whose directory this is.
    pub resume: bool,
    /// Set by Ctrl-C: all ranks stop after the step, with a checkpoint.
    pub stop: Arc<AtomicBool>,
}

/// Trains and writes the run's files.
///
/// # Errors
/// The first failing rank's own error: what the other ranks say is only that they were stopped.
pub fn train<T: Task>(settings: &Settings, task: &T, control: &Control) -> Result<Summary> {
    let key = Key::new(settings.seed);
    let mut shards = Shards::new(task.train_labels().len(), settings.ranks, settings.batch)?;
    if let Some(alpha) = settings.non_iid {
        shards = shards.by_label(task.train_labels(), alpha, key)?;
    }
    let steps_per_epoch = shards.epoch(key, 0).steps() as u64;
    let total = steps_per_epoch * settings.epochs as u64;
    let run = Run {
        settings,
        task,
        control,
        shards,
        key,
        steps_per_epoch,
        total: settings.steps.map_or(total, |steps| steps.min(total)),
        checkpoint: control.resume.then(|| newest(&settings.out)).transpose()?,
        begin: Instant::now(),
    };
    let results = run_ranks(world(settings)?, |comm| run.rank(comm).map_err(RankError::from));
    first_error(results)
}

fn newest(run: &Path) -> Result<Checkpoint> {
    let newest = Checkpoint::latest(&run.join("checkpoints"));
    newest.with_context(|| {
        format!("--resume {}: a run that saved nothing has to begin again, without --resume", run.display())
    })
}

/// One communicator a rank.
fn world(settings: &Settings) -> Result<Vec<Box<dyn Communicator>>> {
    let clock = Arc::new(WallClock::start());
    let ranks = settings.ranks;
    Ok(if settings.simulated() {
        let compute = match settings.clock {
            ClockSpec::Fixed(seconds) => Compute::Fixed(std::time::Duration::from_secs_f64(seconds)),
            ClockSpec::Wall => Compute::Measured(clock),
        };
        Simulated::world(ranks, settings.network()?, compute).into_iter().map(|c| Box::new(c) as _).collect()
    } else {
        Local::builder(ranks).clock(clock).build().into_iter().map(|c| Box::new(c) as _).collect()
    })
}

/// Whether a rank failed by itself or was stopped by another.
#[derive(Debug)]
enum RankError {
    Own(anyhow::Error),
    Stopped(anyhow::Error),
}

impl From<anyhow::Error> for RankError {
    fn from(error: anyhow::Error) -> Self {
        let by_another = |cause: &CommError| matches!(cause, CommError::Aborted { .. } | CommError::Lost { .. });
        let stopped = error.chain().filter_map(transport).any(by_another);
        if stopped { RankError::Stopped(error) } else { RankError::Own(error) }
    }
}

/// The transport's part of an error: a transparent error hides it from the chain.
fn transport<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a CommError> {
    let reduce = |error: &'a ReduceError| if let ReduceError::Comm(error) = error { Some(error) } else { None };
    match cause.downcast_ref() {
        Some(briquette::Error::Comm(error)) => Some(error),
        Some(briquette::Error::Sync(SyncError::Reduce { source, .. })) => reduce(source),
        _ => cause.downcast_ref().or_else(|| cause.downcast_ref().and_then(reduce)),
    }
}

impl From<CommError> for RankError {
    fn from(error: CommError) -> Self {
        RankError::Own(error.into())
    }
}

fn first_error(results: Vec<Result<Summary, RankError>>) -> Result<Summary> {
    let (mut summary, mut stopped) = (None, None);
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(s) if rank == 0 => summary = Some(s),
            Ok(_) => {}
            Err(RankError::Own(error)) => return Err(error),
            Err(RankError::Stopped(error)) => stopped = Some(error),
        }
    }
    match (stopped, summary) {
        (Some(error), _) => Err(error),
        (None, summary) => summary.ok_or_else(|| anyhow!("no rank ran")),
    }
}

/// What all ranks share.
struct Run<'a, T: Task> {
    settings: &'a Settings,
    task: &'a T,
    control: &'a Control,
    shards: Shards,
    key: Key,
    steps_per_epoch: u64,
    total: u64,
    checkpoint: Option<Checkpoint>,
    begin: Instant,
}

/// One rank in training.
struct Rank<'a, T: Task> {
    run: &'a Run<'a, T>,
    rank: usize,
    device: Device,
    optim: DistributedOptimizer,
    /// Absent only while a step has it.
    model: Option<T::Model>,
    totals: Totals,
    /// Rank 0 writes.
    files: Option<RunFiles>,
    bar: ProgressBar,
}

impl<T: Task> Run<'_, T> {
    fn optimizer(&self) -> ModuleOptimizer {
        let settings = self.settings;
        match settings.optimizer {
            OptimizerKind::Adam => AdamConfig::new().init(),
            // Under momentum correction each rank has the momentum; here it must not act twice.
            OptimizerKind::Sgd if settings.momentum_correction == Toggle::On || settings.momentum == 0.0 => {
                SgdConfig::new().init()
            }
            OptimizerKind::Sgd => {
                let momentum = MomentumConfig::new().with_momentum(settings.momentum).with_dampening(0.0);
                SgdConfig::new().with_momentum(Some(momentum)).init()
            }
        }
    }

    fn rank(&self, comm: Box<dyn Communicator>) -> Result<Summary> {
        let settings = self.settings;
        let rank = comm.rank();
        let device = crate::backend::device(&settings.backend)?.autodiff();
        let config = settings.config(self.steps_per_epoch)?;
        let mut optim = DistributedOptimizer::new(self.optimizer(), comm, config, settings.seed)
            .with_local_weight_decay(settings.weight_decay);
        let mut model = optim.join(self.task.build(&device))?;
        let mut totals = Totals::default();
        if let Some(checkpoint) = &self.checkpoint {
            model = optim.load(model, checkpoint, WorldChange::Refuse)?;
            let notes = checkpoint.note("totals").context("the checkpoint was not written by this trainer")?;
            totals = serde_json::from_str(notes).context("totals in the checkpoint")?;
            // They are sums over ranks: one rank takes them along.
            if rank != 0 {
                totals = Totals { bytes_sent: 0, bytes_received: 0, bytes_dense: 0, ..totals };
            }
        }
        let from = self.checkpoint.as_ref().map(Checkpoint::step);
        // Simulated time begins with the first step, not with the joining.
        let sync = optim.synchronizer_mut();
        let clock = from.map_or(0.0, |_| sync.communicator().now());
        // Nothing is written before every rank is ready, and no rank saves before an earlier run is out of the way.
        sync.communicator().barrier()?;
        let files = (rank == 0).then(|| RunFiles::open(settings, from)).transpose()?;
        sync.communicator().barrier()?;
        sync.set_clock(clock);
        let bar = self.progress_bar(rank);
        let mut state = Rank { run: self, rank, device, optim, model: Some(model), totals, files, bar };
        let interrupted = state.train()?;
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

impl<T: Task> Rank<'_, T> {
    /// All epochs from where the optimizer is; whether it was interrupted.
    fn train(&mut self) -> Result<bool> {
        let run = self.run;
        while self.step() < run.total {
            let epoch = self.step() / run.steps_per_epoch;
            let plan = run.shards.epoch(run.key, epoch);
            let end = run.total.min((epoch + 1) * run.steps_per_epoch);
            while self.step() < end {
                if run.control.stop.load(Ordering::Relaxed) {
                    self.optim.synchronizer_mut().request_stop(StopFlags::INTERRUPTED);
                }
                self.train_step(epoch, &plan)?;
                if self.optim.synchronizer().stopped().any() {
                    self.save()?;
                    return Ok(true);
                }
                if run.settings.checkpoint_every.is_some_and(|n| n > 0 && self.step().is_multiple_of(n))
                    && self.step() < end
                {
                    self.save()?;
                }
            }
            if (epoch + 1).is_multiple_of(run.settings.eval_every) || self.step() == run.total {
                self.evaluate(epoch)?;
            }
            if run.settings.checkpoint_every != Some(0) || self.step() == run.total {
                self.save()?;
            }
        }
        Ok(false)
    }

    fn step(&self) -> u64 {
        self.optim.synchronizer().step()
    }

    fn train_step(&mut self, epoch: u64, plan: &EpochPlan) -> Result<()> {
        let run = self.run;
        let step = self.step();
        let indices = plan.indices((step % run.steps_per_epoch) as usize, self.rank);
        let model = self.model.take().context("the model was lost with an earlier error")?;
        let mut grads = GradientsParams::new();
        if !indices.is_empty() {
            let place = Place { rank: self.rank, epoch, step };
            let loss = run.task.loss(&model, indices, place, &self.device);
            self.optim.record_loss(f64::from(loss.clone().into_scalar::<f32>()));
            grads = GradientsParams::from_grads(loss.backward(), &model);
        }
        self.optim.record_samples(indices.len());
        let lr = run.settings.schedule.at(run.settings.lr, step, run.total);
        let model = self.optim.step(lr, model, grads).map_err(|e| e.source)?;
        self.model = Some(model);
        self.record(epoch, lr)
    }

    fn record(&mut self, epoch: u64, lr: f64) -> Result<()> {
        let report = self.optim.report();
        let totals = &mut self.totals;
        totals.compute_seconds += report.compute_seconds;
        totals.compress_seconds += report.compress_seconds;
        totals.exchange_seconds += report.exchange_seconds;
        totals.bytes_sent += report.traffic.sent;
        totals.bytes_received += report.traffic.received;
        totals.bytes_dense += report.dense_traffic.sent;
        self.bar.set_position(report.step + 1);
        if let Some(loss) = report.loss {
            self.bar.set_message(format!("loss {loss:.3}"));
        }
        let Some(files) = &mut self.files else { return Ok(()) };
        let mut record = StepRecord::new(report, epoch, lr, self.run.settings.simulated());
        if report.step.is_multiple_of(SLOTS_EVERY) {
            record = record.with_slots(report, self.optim.synchronizer().layout()?);
        }
        files.step(&record)
    }

    /// All ranks score their share of the test samples; outside of simulated time.
    fn evaluate(&mut self, epoch: u64) -> Result<()> {
        let clock = self.optim.synchronizer_mut().communicator().now();
        let model = self.model.take().context("the model was lost with an earlier error")?;
        let model = self.optim.synchronizer_mut().average_buffers(model)?;
        let (len, world) = (self.run.task.test_len(), self.run.settings.ranks);
        let share: Vec<usize> = (len * self.rank / world..len * (self.rank + 1) / world).collect();
        let inference = model.valid();
        let device = self.device.clone().inner();
        let mut sums = [0.0; 3];
        for indices in share.chunks(100) {
            let Score { loss, correct, samples } = self.run.task.score(&inference, indices, &device);
            sums.iter_mut().zip([loss, correct, samples]).for_each(|(sum, v)| *sum += v);
        }
        self.model = Some(model);
        let sync = self.optim.synchronizer_mut();
        sync.communicator().all_reduce_sum_f64(&mut sums)?;
        sync.set_clock(clock);
        let [loss, correct, samples] = sums.map(|sum| sum / sums[2].max(1.0));
        self.totals.score = Some(Score { loss, correct, samples });
        self.totals.best_test_accuracy = self.totals.best_test_accuracy.max(correct);
        if self.rank == 0 && !self.run.control.quiet {
            let report = self.optim.report();
            let line = format!(
                "epoch {:>3}  step {:>6}  test accuracy {:.4}  test loss {loss:.4}  factor {:.1}  wire factor {:.1}",
                epoch + 1,
                self.step(),
                correct,
                report.exchange.factor.map_or(1.0, |f| f.get()),
                self.totals.bytes_dense as f64 / self.totals.bytes_sent.max(1) as f64,
            );
            self.bar.suspend(|| println!("{line}"));
        }
        Ok(())
    }

    /// Bytes of all ranks together.
    fn agreed_totals(&mut self) -> Result<Totals> {
        let clock = self.optim.synchronizer_mut().communicator().now();
        let mine = &self.totals;
        // Exact up to 2⁵³ bytes.
        let mut sums = [mine.bytes_sent, mine.bytes_received, mine.bytes_dense].map(|b| b as f64);
        let sync = self.optim.synchronizer_mut();
        sync.communicator().all_reduce_sum_f64(&mut sums)?;
        sync.set_clock(clock);
        let [bytes_sent, bytes_received, bytes_dense] = sums.map(|b| b as u64);
        Ok(Totals { bytes_sent, bytes_received, bytes_dense, ..self.totals.clone() })
    }

    fn save(&mut self) -> Result<()> {
        let totals = Totals { wall_seconds: self.wall_seconds(), ..self.agreed_totals()? };
        let notes = BTreeMap::from([("totals".to_owned(), serde_json::to_string(&totals)?)]);
        let model = self.model.take().context("the model was lost with an earlier error")?;
        self.model = Some(self.optim.save(model, &self.run.settings.out.join("checkpoints"), &notes)?);
        Ok(())
    }

    fn wall_seconds(&self) -> f64 {
        self.totals.wall_seconds + self.run.begin.elapsed().as_secs_f64()
    }

    fn finish(mut self, interrupted: bool) -> Result<Summary> {
        self.bar.finish_and_clear();
        let totals = self.agreed_totals()?;
        let simulated = self.run.settings.simulated();
        let score = totals.score;
        let summary = Summary {
            final_test_accuracy: score.map_or(f64::NAN, |score| score.correct),
            best_test_accuracy: score.map_or(f64::NAN, |_| totals.best_test_accuracy),
            final_test_loss: score.map_or(f64::NAN, |score| score.loss),
            steps: self.step(),
            bytes_sent: totals.bytes_sent,
            bytes_received: totals.bytes_received,
            bytes_dense: totals.bytes_dense,
            wall_seconds: self.wall_seconds(),
            simulated_seconds: simulated.then(|| self.optim.synchronizer_mut().communicator().now()),
            compute_seconds: totals.compute_seconds,
            compress_seconds: totals.compress_seconds,
            exchange_seconds: totals.exchange_seconds,
            interrupted,
            git_revision: git_revision(),
            version: env!("CARGO_PKG_VERSION").into(),
            burn_version: "0.22".into(),
        };
        if let Some(files) = &mut self.files {
            files.finish(&summary)?;
        }
        Ok(summary)
    }
}
