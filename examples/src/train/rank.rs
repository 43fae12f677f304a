//! One rank, from its first step to its summary.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow};
use briquette::core::error::SyncError;
use briquette::core::sync::StopFlags;
use briquette::core::trace::TARGET;
use briquette::sim::SessionExt;
use briquette::{DistributedOptimizer, Error, StepError};
use briquette_datasets::EpochPlan;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use indicatif::ProgressBar;
use tracing::trace_span;

use super::Run;
use super::deal::Deal;
use super::position::Position;
use crate::directory::Start;
use crate::record::{BURN_VERSION, Evaluation, GIT_REVISION, RunFiles, SecondsAre, StepRecord, Summary, Totals};
use crate::settings::ResizeSpec;
use crate::task::{Place, Score, Task};

pub(super) fn model<M>(model: &Option<M>) -> Result<&M> {
    model.as_ref().context("the model was lost with an earlier error")
}

/// A training rank.
pub(super) struct Rank<'a, T: Task> {
    pub(super) run: &'a Run<'a, T>,
    pub(super) start: Start,
    pub(super) rank: usize,
    pub(super) device: Device,
    pub(super) optim: DistributedOptimizer,
    /// Absent only during a step.
    pub(super) model: Option<T::Model>,
    pub(super) totals: Totals,
    /// Present on rank 0, which writes.
    pub(super) files: Option<RunFiles>,
    /// Records since the last exchange, on another rank of an elastic world: rank 0 may be lost before it has written its own.
    pub(super) unwritten: Vec<StepRecord>,
    pub(super) bar: ProgressBar,
    /// Steps by which the [position](Self::position) is ahead of the step number.
    pub(super) ahead: i64,
    /// Position at which the run ends.
    pub(super) end: u64,
    /// The samples of the current world.
    pub(super) deal: Deal,
    /// Number of the generation whose place this rank has taken, if its world is elastic.
    pub(super) generation: Option<u64>,
    /// Number of the generation to which samples are dealt.
    pub(super) dealt: Option<u64>,
}

impl<T: Task> Rank<'_, T> {
    /// Trains all remaining epochs; returns whether it was interrupted, and the sums of all ranks.
    pub(super) fn train(&mut self) -> Result<(bool, Totals)> {
        // An interrupt at the last step of an epoch leaves its evaluation to the resumed run.
        // A new member does what the others do.
        let mut is_due = if self.run.control.joins() { self.is_at_an_end() } else { self.unevaluated() };
        loop {
            match self.go_on(is_due) {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {}
                Err(error) => self.survive(error)?,
            }
            while self.is_elsewhere() {
                if let Err(error) = self.take_place() {
                    self.survive(error)?;
                }
            }
            // All ranks end the epoch again: others may not have come that far.
            is_due = self.is_at_an_end();
        }
    }

    /// Trains to the end, or until the world changes.
    fn go_on(&mut self, is_due: bool) -> Result<Option<(bool, Totals)>> {
        let run = self.run;
        if is_due {
            self.end_epoch()?;
        }
        while self.position() < self.end {
            let epoch = self.position() / self.deal.steps_per_epoch;
            let plan = self.deal.plan(run.key, epoch)?;
            let end = self.end.min((epoch + 1) * self.deal.steps_per_epoch);
            while self.position() < end {
                if run.control.stop.load(Ordering::Relaxed) {
                    self.optim.synchronizer_mut().request_stop(StopFlags::INTERRUPTED);
                }
                self.train_step(epoch, &plan)?;
                if self.is_elsewhere() {
                    return Ok(None);
                }
                if self.optim.synchronizer().stopped().any() {
                    self.save()?;
                    return Ok(Some((true, self.agreed_totals()?)));
                }
                if run.settings.checkpoint_every.is_some_and(|n| n > 0 && self.step().is_multiple_of(n))
                    && self.position() < end
                    && self.optim.synchronizer().is_settled()
                {
                    self.save()?;
                }
            }
            self.end_epoch()?;
        }
        let totals = self.agreed_totals()?;
        let is_over = self.optim.synchronizer_mut().leave(model(&self.model)?)?;
        Ok(is_over.then_some((false, totals)))
    }

    pub(super) fn is_between_epochs(&self, every: u64) -> bool {
        self.deal.is_between_epochs(self.position(), every)
    }

    /// Returns whether an evaluation is due at this position, the end of an epoch or of the run, and has not been made.
    pub(super) fn unevaluated(&self) -> bool {
        let position = self.position();
        let last = position == self.end;
        let due = self.is_between_epochs(self.run.settings.eval_every);
        position > 0 && (last || due) && self.totals.evaluated != Some(self.step())
    }

    pub(super) fn end_epoch(&mut self) -> Result<()> {
        self.take_files();
        // Ranks may be at different local steps. At the end of the run they repeat what they do together until all have done it.
        if !self.optim.synchronizer().is_settled() && self.position() < self.end {
            return Ok(());
        }
        if self.unevaluated() {
            self.evaluate()?;
        }
        if self.run.settings.checkpoint_every != Some(0) || self.position() == self.end {
            self.save()?;
        }
        Ok(())
    }

    pub(super) fn step(&self) -> u64 {
        self.optim.synchronizer().step()
    }

    /// Returns the position of the run in its data and its schedule: the number of its step if its world had always had this size.
    pub(super) fn position(&self) -> u64 {
        self.step().saturating_add_signed(self.ahead)
    }

    fn train_step(&mut self, epoch: u64, plan: &EpochPlan) -> Result<()> {
        let run = self.run;
        let (step, position) = (self.step(), self.position());
        let (number, rank) = (self.deal.step(plan, position), self.deal.rank);
        // Until the samples of a smaller or larger world are dealt, shares are those of another world.
        let shares = self.optim.shares().filter(|_| self.dealt == self.generation).unwrap_or_default().to_vec();
        let indices =
            if shares.is_empty() { plan.indices(number, rank) } else { plan.in_shares(number, rank, &shares) };
        let model = self.model.take().context("the model was lost with an earlier error")?;
        let mut grads = GradientsParams::new();
        // --steps counts steps, whatever their size.
        let (at, total) = match run.settings.steps.filter(|_| self.generation.is_some_and(|number| number > 0)) {
            Some(steps) => (step, steps),
            None => (position, run.end(0, self.deal.steps_per_epoch)),
        };
        let peak = match run.settings.resize {
            Some(ResizeSpec::Rate) => run.settings.lr * self.deal.world() as f64 / run.settings.ranks as f64,
            _ => run.settings.lr,
        };
        let lr = run.settings.schedule.at(peak, at, total);
        self.optim.record_samples(indices.len());
        self.optim.record_learning_rate(lr);
        if !indices.is_empty() {
            let place = Place { rank: self.rank, epoch, step };
            let _compute = trace_span!(target: TARGET, "compute", step).entered();
            let pass = trace_span!(target: TARGET, "forward").entered();
            let forward = self.optim.forward_model(&model)?;
            let loss = run.task.loss(&forward, indices, place, &self.device);
            // A device failure is reported here, since this waits for its computations.
            let failed = |error| anyhow!("rank {} at step {step}: {}", self.rank, Error::device(error));
            let value: f32 = loss.clone().try_into_scalar().map_err(failed)?;
            self.optim.record_loss(f64::from(value));
            drop(pass);
            let _pass = trace_span!(target: TARGET, "backward").entered();
            grads = GradientsParams::from_grads(loss.backward(), &model);
        }
        if run.settings.record_gradient.is_some_and(|record| record.step() == step) && self.rank == 0 {
            let values = self.optim.synchronizer().flat_gradient(&model, &grads)?;
            crate::record::gradient(run.settings, self.optim.synchronizer().layout()?, &values)?;
        }
        let exchange = self.optim.synchronizer().plan()?;
        match self.optim.try_step(lr, model, grads) {
            Ok(model) => self.model = Some(model),
            Err(StepError { model, source, .. }) => {
                self.model = Some(*model);
                // A new member may be lost after the step is completed.
                if self.step() > step {
                    self.record((epoch, lr), shares, exchange.exchanges())?;
                }
                return Err(self.keep(source));
            }
        }
        self.record((epoch, lr), shares, exchange.exchanges())
    }

    /// Handles an error. A refused gradient is refused on every rank, before any change, so the trained state can be saved.
    fn keep(&mut self, source: Error) -> anyhow::Error {
        let refused = matches!(source, Error::Sync(SyncError::NonFinite { .. }));
        let unchanged = self.optim.synchronizer().plan().is_ok_and(|plan| plan.gradients);
        let error = anyhow::Error::from(source);
        if !(refused && unchanged) {
            return error;
        }
        let (step, out) = (self.step(), self.run.settings.out.display());
        match self.save().and_then(|()| Ok(self.optim.finish_saving()?)) {
            Ok(()) => error.context(format!(
                "stopped before step {step} and saved; --resume {out} computes this step again, with the same result where \
                 training has diverged: begin anew then, with a lower --lr"
            )),
            Err(other) => error.context(format!("stopped before step {step}, which could not be saved ({other:#})")),
        }
    }

    /// Sends the reason why this rank ends to the others, unless all ranks have found the same.
    pub(super) fn tell_others(&mut self, error: &anyhow::Error) {
        if !error.chain().any(|cause| cause.is::<Error>()) {
            self.optim.synchronizer_mut().session().abort(&format!("{error:#}"));
        }
    }

    fn record(&mut self, (epoch, lr): (u64, f64), shares: Vec<usize>, has_exchanged: bool) -> Result<()> {
        let report = self.optim.report();
        let totals = &mut self.totals;
        totals.compute_seconds += report.compute_seconds;
        totals.compress_seconds += report.compress_seconds;
        totals.exchange_seconds += report.exchange_seconds;
        totals.bytes_sent += report.traffic.sent;
        totals.bytes_received += report.traffic.received;
        totals.bytes_dense += report.dense_traffic.sent;
        totals.elastic.add(&report.generations);
        let (at, are) = ((report.step + 1).saturating_add_signed(self.ahead), SecondsAre::of(self.run.settings));
        super::progress::show((&self.bar, at), (report, totals), || self.optim.summary(), are);
        let new = || StepRecord { shares, ..StepRecord::new(report, epoch, lr, are) };
        let Some(files) = &mut self.files else {
            if self.generation.is_some() {
                // Rank 0 had written those before when it took part in this exchange.
                let number = self.optim.generation().map(|generation| generation.number);
                if has_exchanged && number == self.generation && self.rank != 0 {
                    self.unwritten.clear();
                }
                self.unwritten.push(new());
            }
            return Ok(());
        };
        self.run.endpoint.iter().for_each(|endpoint| endpoint.record(report));
        let (sync, every) = (self.optim.synchronizer(), self.run.settings.slots_every);
        let mut record = new();
        let has_slots = every > 0 && report.step.is_multiple_of(every);
        if has_slots || record.reason.is_some() {
            record = record.with_state(sync.controller_state());
        }
        if has_slots {
            record = record.with_slots(report, sync.layout()?);
        }
        self.totals.records += 1;
        files.step(&record)
    }

    /// Returns the model with the mean of iterates in it, if there is one, and with running statistics of a pass over
    /// this rank's training data; in training form.
    fn averaged(&self, model: &T::Model) -> Result<Option<T::Model>, Error> {
        let Some(average) = self.optim.iterate_average() else { return Ok(None) };
        let plan = self.deal.plan(self.run.key, 0)?;
        let batches =
            (0..plan.steps()).map(|step| plan.indices(step, self.deal.rank)).filter(|batch| !batch.is_empty());
        let batches: Vec<&[usize]> = batches.collect();
        let forward = |model: &T::Model, batch: u64| {
            let place = Place { rank: self.rank, epoch: 0, step: batch };
            self.run.task.loss(model, batches[batch as usize], place, &self.device);
        };
        let averaged = match batches.len() as u64 {
            0 => average.evaluation_model(model),
            passes => average.evaluation_model_with(model, passes, forward)?,
        };
        Ok(averaged.map(T::Model::train))
    }

    /// Evaluates: all ranks score their share of the test samples, outside of simulated time.
    fn evaluate(&mut self) -> Result<()> {
        let clock = self.optim.synchronizer_mut().session().hold_clock();
        // A copy: evaluating does not change the training state of any rank.
        let trained = model(&self.model)?;
        // The others are about to wait for this rank.
        let averaged = self.averaged(trained);
        let averaged =
            averaged.inspect_err(|error| self.optim.synchronizer_mut().session().abort(&error.to_string()))?;
        let inference = self.optim.evaluation_copy(averaged.as_ref().unwrap_or(trained))?;
        let (len, world) = (self.run.task.test_len(), self.optim.world());
        let rank = self.optim.rank();
        let share: Vec<usize> = (len * rank / world..len * (rank + 1) / world).collect();
        let device = self.device.clone().inner();
        let mut sums = [0.0; 3];
        for indices in share.chunks(100) {
            let Score { loss, correct, samples } = self.run.task.score(&inference, indices, &device);
            sums.iter_mut().zip([loss, correct, samples]).for_each(|(sum, v)| *sum += v);
        }
        let sync = self.optim.synchronizer_mut();
        sync.session().all_reduce_sum_f64(&mut sums)?;
        sync.set_clock(clock);
        let [loss, correct, samples] = sums.map(|sum| sum / sums[2].max(1.0));
        self.totals.score = Some(Score { loss, correct, samples });
        self.totals.evaluated = Some(self.step());
        self.totals.best_test_accuracy = self.totals.best_test_accuracy.max(correct);
        self.totals.add(Evaluation { step: self.step(), test_accuracy: correct, test_loss: loss });
        self.files.as_mut().map_or(Ok(()), |files| files.evaluated(&self.totals.evaluations))?;
        if self.rank == 0 {
            let line = format!("{}  test accuracy {correct:.4}  test loss {loss:.4}{}", self.place(), self.ratios());
            self.bar.suspend(|| self.run.control.say(line));
        }
        Ok(())
    }

    fn place(&self) -> String {
        let step = self.step();
        format!("epoch {:>3}  step {step:>6}", self.position().div_ceil(self.deal.steps_per_epoch))
    }

    /// Formats the ratios; empty if nothing was sent, since a single rank has none.
    fn ratios(&self) -> String {
        let Totals { bytes_sent, bytes_dense, .. } = self.totals;
        if bytes_sent == 0 || bytes_dense == 0 {
            return String::new();
        }
        let ratio = self.optim.report().exchange.ratio.map_or(1.0, |ratio| ratio.get());
        format!("  ratio {ratio:.1}  wire ratio {:.1}", bytes_dense as f64 / bytes_sent as f64)
    }

    /// Sums the bytes of all ranks.
    pub(super) fn agreed_totals(&mut self) -> Result<Totals> {
        let clock = self.optim.synchronizer_mut().session().hold_clock();
        let mine = &self.totals;
        // Exact up to 2⁵³ bytes.
        let mut sums = [mine.bytes_sent, mine.bytes_received, mine.bytes_dense].map(|b| b as f64);
        let sync = self.optim.synchronizer_mut();
        sync.session().all_reduce_sum_f64(&mut sums)?;
        sync.set_clock(clock);
        let [bytes_sent, bytes_received, bytes_dense] = sums.map(|b| b as u64);
        Ok(Totals { bytes_sent, bytes_received, bytes_dense, ..self.totals.clone() })
    }

    pub(super) fn save(&mut self) -> Result<()> {
        let totals = Totals { wall_seconds: self.wall_seconds(), ..self.agreed_totals()? };
        let position = Position { step: self.position(), samples: self.deal.samples_of_a_step() };
        let notes = self.run.notes(&self.start, &totals, position)?;
        self.optim.save(model(&self.model)?, &self.run.checkpoints(), &notes)?;
        Ok(())
    }

    fn wall_seconds(&self) -> f64 {
        self.totals.wall_seconds + self.run.begin.elapsed().as_secs_f64()
    }

    pub(super) fn finish(mut self, interrupted: bool, totals: Totals) -> Result<Summary> {
        self.optim.finish_saving()?;
        self.bar.finish_and_clear();
        if self.rank == 0 && self.run.settings.server.is_none() {
            self.run.control.summarize(&self.optim.summary());
        }
        if self.run.records_frames() {
            let frames = self.optim.synchronizer_mut().session().take_recording();
            crate::record::write_frames(&self.run.settings.out, self.rank, &frames)?;
        }
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
            simulated_seconds: simulated.then(|| self.optim.synchronizer_mut().session().now()),
            compute_seconds: totals.compute_seconds,
            compress_seconds: totals.compress_seconds,
            exchange_seconds: totals.exchange_seconds,
            seconds_are: Some(SecondsAre::of(self.run.settings)),
            elastic: (totals.elastic.generations > 0).then_some(totals.elastic),
            interrupted,
            git_revision: GIT_REVISION.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            burn_version: BURN_VERSION.into(),
        };
        if let Some(files) = &mut self.files {
            files.finish(&summary)?;
        }
        Ok(summary)
    }
}
