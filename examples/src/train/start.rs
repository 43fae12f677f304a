//! One rank, from its session to its first step: joining, deciding how the run starts, loading, opening its files.

use briquette::core::Session;
use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use briquette::optim::IterateAverageConfig;
use briquette::sim::SessionExt;
use briquette::{Checkpoint, DistributedOptimizer, WorldChange};

use briquette_tcp::Members;
use burn::tensor::Device;

use super::common::compared;
use super::deal::{Deal, StepSize};
use super::elastic::{Handover, receive};
use super::position::Position;
use super::rank::Rank;
use super::{Refused, Run, compress_seconds};
use crate::directory::{CHECKPOINTS, RunDirectory, Start, leave_config};
use crate::lr_schedule::LrSchedule;
use crate::record::{RunFiles, Summary, Totals, Written};
use crate::settings::BalanceSpec;
use crate::spec::Toggle;
use crate::task::Task;

/// Names of notes in a checkpoint.
const TOTAL: &str = "total steps";
const RUN: &str = "run";
const TOTALS: &str = "totals";
const POSITION: &str = "position";

impl<T: Task> Run<'_, T> {
    /// Trains as one rank.
    pub(super) fn rank(&self, comm: Session, members: Option<Members>) -> Result<Summary> {
        let (settings, rank) = (self.settings, comm.rank());
        let device = crate::backend::device(settings, rank, self.control.local_rank(rank))?.autodiff();
        let server = self.server_training(rank)?;
        let optim = match &server {
            Some(server) => DistributedOptimizer::new(self.optimizer(&device)?, comm, server.strategy(), settings.seed),
            None => {
                let strategy = self.task.strategy(settings.config(self.steps_per_epoch)?, rank);
                DistributedOptimizer::new(self.optimizer(&device)?, comm, strategy, settings.seed)
            }
        };
        let mut optim = optim.with_local_weight_decay(settings.weight_decay);
        if let Some(members) = members {
            optim = optim.with_membership(members);
        }
        if server.is_none() {
            optim = optim.with_run_steps(self.total);
        }
        if settings.balance == Some(BalanceSpec::Auto) {
            optim = optim.with_balance(settings.batch);
        }
        optim = compared(optim, settings, &self.fingerprints)?;
        optim = optim.with_background_saving(settings.background_saving == Some(Toggle::On));
        if let Some(from) = settings.average_from {
            optim = optim.with_iterate_average(&IterateAverageConfig::new().with_from(from));
        }
        if let Some(steps) = settings.rebroadcast {
            optim = optim.with_rebroadcast(steps);
        }
        if self.control.joins() {
            return self.enter(optim, device);
        }
        let mut model = optim.join(self.task.build(&device))?;
        self.set_compress_seconds(&mut optim)?;
        let (directory, start) = self.start(&mut optim)?;
        let (mut totals, mut from, mut ahead) = (Totals::default(), None, 0);
        if start.resumed && self.records_frames() {
            bail!(Refused::new(
                "--record-frames on: the recording would lack the frames before the run was resumed; begin it anew with --overwrite"
            ));
        }
        if start.resumed {
            (model, totals, ahead) = self.resume(&mut optim, model, &start)?;
            // They are sums over ranks, so one rank carries them.
            if rank != 0 {
                totals = Totals { bytes_sent: 0, bytes_received: 0, bytes_dense: 0, ..totals };
            }
            let step = optim.synchronizer().step();
            from = Some(match server {
                Some(_) => Written::Pauses { count: totals.records, before: step },
                None => Written::EachStepBefore(step),
            });
        }
        let mut files = self.open(&mut optim, directory, &start, from)?;
        if let Some(files) = files.as_mut().filter(|_| start.resumed) {
            // Without those after the checkpoint.
            let written = files.evaluated(&totals.evaluations);
            written.inspect_err(|error| optim.synchronizer_mut().session().abort(&format!("{error:#}")))?;
        }
        if self.records_frames() {
            optim.synchronizer_mut().session().record();
        }
        let deal = Deal::new(self.shards.clone(), StepSize::of(settings), self.steps_per_epoch, rank);
        let mut state = self.trainee(start, (optim, model), device, (deal, ahead));
        (state.totals, state.files) = (totals, files);
        let ended = match server {
            Some(server) => state.train_by(server).and_then(|interrupted| Ok((interrupted, state.agreed_totals()?))),
            None => state.train(),
        };
        let (interrupted, totals) = ended.inspect_err(|error| state.tell_others(error))?;
        state.finish(interrupted, totals)
    }

    /// Trains as a new member of a running world.
    fn enter(&self, mut optim: DistributedOptimizer, device: Device) -> Result<Summary> {
        let (settings, model) = (self.settings, optim.join(self.task.build(&device))?);
        self.set_compress_seconds(&mut optim)?;
        let Handover { start, ranks, position, began, best_test_accuracy, evaluations, changes } = receive(&mut optim)?;
        if ranks != settings.ranks {
            let given = settings.ranks;
            bail!(Refused::new(format!(
                "the run began with {ranks} ranks, not {given}: launch with --world-size {ranks}"
            )));
        }
        let place = (optim.rank(), optim.world());
        let deal = Deal::of_running(self.shards.samples(), place, StepSize::of(settings), began, self.key)?;
        let ahead = position as i64 - optim.synchronizer().step() as i64;
        let mut state = self.trainee(start, (optim, model), device, (deal, ahead));
        (state.totals.best_test_accuracy, state.totals.evaluations) = (best_test_accuracy, evaluations);
        state.totals.elastic = changes;
        let (interrupted, totals) = state.train().inspect_err(|error| state.tell_others(error))?;
        state.finish(interrupted, totals)
    }

    /// Returns a rank that trains from its optimizer's step on, at a position that is `ahead` steps further.
    fn trainee<'a>(
        &'a self,
        start: Start,
        (mut optim, model): (DistributedOptimizer, T::Model),
        device: Device,
        (deal, ahead): (Deal, i64),
    ) -> Rank<'a, T> {
        let end = self.end(ahead, deal.steps_per_epoch);
        // The world that a new member joins may have another size than the one it was started for.
        if ahead != 0 || self.control.joins() {
            optim.synchronizer_mut().set_run_steps(end.saturating_add_signed(-ahead));
        }
        let (rank, bar) = (optim.rank(), self.progress_bar(optim.rank(), end));
        let generation = optim.generation().map(|generation| generation.number);
        Rank {
            run: self,
            start,
            rank,
            device,
            optim,
            model: Some(model),
            totals: Totals::default(),
            files: None,
            unwritten: Vec::new(),
            bar,
            ahead,
            end,
            deal,
            generation,
            dealt: generation,
        }
    }

    /// Sets the encode and decode times, if they are given.
    fn set_compress_seconds(&self, optim: &mut DistributedOptimizer) -> Result<()> {
        if let Some(path) = &self.settings.compress_seconds {
            let (sync, reducer) = (optim.synchronizer_mut(), &self.settings.config.exchange.reducer);
            let seconds = compress_seconds::read(path, &reducer.to_string(), sync.layout()?.len())?;
            sync.session().set_compress_seconds(seconds);
        }
        Ok(())
    }

    pub(super) fn records_frames(&self) -> bool {
        self.settings.record_frames == Some(Toggle::On)
    }

    /// Decides how the run starts. Once every rank is ready, and before anything is written, rank 0 takes the directory
    /// and decides for all.
    fn start(&self, optim: &mut DistributedOptimizer) -> Result<(Option<RunDirectory>, Start)> {
        let sync = optim.synchronizer_mut();
        sync.session().barrier()?;
        let claim = (sync.rank() == 0).then(|| RunDirectory::claim(&self.settings.out, self.control)).transpose();
        let claimed = claim.inspect_err(|error| sync.session().abort(&format!("{error:#}")))?;
        let mut decided = claimed.as_ref().map_or(Ok(Vec::new()), |(_, start)| serde_json::to_vec(start))?;
        sync.session().broadcast(0, &mut decided)?;
        let start = serde_json::from_slice(&decided).context("how the run starts, as received from rank 0")?;
        Ok((claimed.map(|(directory, _)| directory), start))
    }

    /// Opens rank 0's files. No rank continues before an earlier run has been moved aside.
    fn open(
        &self,
        optim: &mut DistributedOptimizer,
        directory: Option<RunDirectory>,
        start: &Start,
        from: Option<Written>,
    ) -> Result<Option<RunFiles>> {
        let sync = optim.synchronizer_mut();
        // Simulated time begins with the first step, not with joining.
        let clock = from.map_or(0.0, |_| sync.session().now());
        let open = |directory: RunDirectory| match (from, start.run.as_deref()) {
            (Some(written), run) => directory.resume(self.settings, run, written, &[]),
            (None, Some(run)) => directory.begin(self.settings, run),
            (None, None) => bail!("a run that begins has an id"),
        };
        let files = directory.map(open).transpose();
        let files = files.inspect_err(|error| sync.session().abort(&format!("{error:#}")))?;
        sync.session().barrier()?;
        // An elastic world survives a failure, and its ranks have other numbers afterwards.
        if self.control.place.as_ref().is_none_or(|place| place.elastic.is_none()) {
            self.control.recorders.add(&self.settings.out, sync.session());
        }
        // One rank of each other machine, once rank 0's file exists.
        if sync.rank() != 0 && self.control.place.as_ref().is_some_and(|place| place.local_rank == 0) {
            let left = leave_config(&self.settings.out, self.settings, start.run.as_deref());
            left.inspect_err(|error| sync.session().abort(&format!("{error:#}")))?;
        }
        sync.set_clock(clock);
        Ok(files)
    }

    /// Resumes from the newest checkpoint of this run that all ranks can load. Returns, with the totals, the steps by
    /// which the run's position is ahead of its step number: 0 unless the world had another size.
    fn resume(
        &self,
        optim: &mut DistributedOptimizer,
        model: T::Model,
        start: &Start,
    ) -> Result<(T::Model, Totals, i64)> {
        let accept = |checkpoint: &Checkpoint| -> Result<Totals, String> {
            let run = checkpoint.note(RUN);
            if run != start.run.as_deref() {
                let name = |run: Option<&str>| run.unwrap_or("without an id").to_owned();
                return Err(format!("it is of another run: {} there, {} here", name(run), name(start.run.as_deref())));
            }
            let note = checkpoint.note(TOTALS).ok_or("it was not written by this trainer: it has no totals")?;
            serde_json::from_str(note).map_err(|error| format!("its totals cannot be read: {error}"))
        };
        // The launcher may start a world again that had lost ranks.
        let is_elastic = self.control.place.as_ref().is_some_and(|place| place.elastic.is_some());
        let default = if is_elastic { WorldChange::SpreadResiduals } else { WorldChange::default() };
        let change = self.control.world_change.unwrap_or(default);
        let found = optim.resume(model, &self.checkpoints(), change, accept);
        let (model, checkpoint, totals) = found.with_context(|| format!("--resume {}", self.settings.out.display()))?;
        let step = optim.synchronizer().step();
        let position = checkpoint.note(POSITION).context("the checkpoint has no position in the data")?;
        let saved: Position =
            serde_json::from_str(position).context("the position in the data, as the checkpoint has it")?;
        self.check_resumed(&checkpoint, saved)?;
        let here = saved.in_steps_of(self.samples_of_a_step(), self.shards.samples() as u64);
        if checkpoint.world() != self.settings.ranks && optim.synchronizer().rank() == 0 {
            let (epoch, step) = (here.step / self.steps_per_epoch, here.step % self.steps_per_epoch);
            self.control.say(format_args!(
                "# ranks: {} in the checkpoint, {} here; epoch {} continues at sample {}",
                checkpoint.world(),
                self.settings.ranks,
                epoch + 1,
                step.saturating_mul(here.samples),
            ));
        }
        Ok((model, totals, here.step as i64 - step as i64))
    }

    /// Returns the samples of a step, over all ranks.
    pub(super) fn samples_of_a_step(&self) -> u64 {
        (self.settings.ranks as u64).saturating_mul(self.settings.batch as u64)
    }

    /// Returns the run's last position: --steps counts steps, whatever their size.
    pub(super) fn end(&self, ahead: i64, steps_per_epoch: u64) -> u64 {
        let steps = self.settings.steps.map_or(u64::MAX, |steps| steps.saturating_add_signed(ahead));
        steps.min(steps_per_epoch.saturating_mul(self.settings.epochs as u64))
    }

    /// Checks that the learning rates of a resumed run's past steps are unchanged.
    fn check_resumed(&self, checkpoint: &Checkpoint, position: Position) -> Result<()> {
        let saved = checkpoint.note(TOTAL).unwrap_or("unknown");
        if self.settings.schedule == LrSchedule::Constant {
            return Ok(());
        }
        // In steps of this size: whole epochs stay whole.
        let samples = self.shards.samples() as u64;
        let here =
            saved.parse().map(|step| Position { step, ..position }.in_steps_of(self.samples_of_a_step(), samples));
        let same_size = position.samples == self.samples_of_a_step();
        if here.is_ok_and(|here| here.step == self.total) && (same_size || self.settings.steps.is_none()) {
            return Ok(());
        }
        bail!(Refused::new(format!(
            "--resume {}: --schedule {} runs over the whole of a run, {saved} steps there, {} here with --epochs and \
             --steps: the learning rates would not be those it began with. Leave them as they were; only a run under \
             --schedule constant can be made longer or shorter",
            self.settings.out.display(),
            self.settings.schedule,
            self.total,
        )))
    }

    pub(super) fn checkpoints(&self) -> PathBuf {
        self.settings.out.join(CHECKPOINTS)
    }

    /// Returns the notes that a resumed run needs.
    pub(super) fn notes(&self, start: &Start, totals: &Totals, position: Position) -> Result<BTreeMap<String, String>> {
        let totals = serde_json::to_string(totals)?;
        let position = serde_json::to_string(&position)?;
        let notes = [(TOTAL, self.total.to_string()), (TOTALS, totals), (POSITION, position)];
        let run = start.run.clone().map(|run| (RUN, run));
        Ok(notes.into_iter().chain(run).map(|(name, note)| (name.to_owned(), note)).collect())
    }
}
