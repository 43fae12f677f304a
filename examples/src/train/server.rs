//! One rank of a server's world: rank 0 serves, the others work on their shares.

use std::sync::Arc;

use anyhow::{Context, Result};
use briquette::ServerTraining;
use briquette::StepReport;
use briquette::core::Traffic;
use briquette::core::server::Served;

use super::Run;
use super::rank::Rank;
use crate::record::{SecondsAre, StepRecord};
use crate::task::{Place, Task};

impl<T: Task> Run<'_, T> {
    /// Returns the settings of the server and its workers, for this rank.
    pub(super) fn server_training(&self, rank: usize) -> Result<Option<ServerTraining>> {
        let batches = || match rank {
            0 => 0,
            worker => self.batches_of(worker - 1),
        };
        let server = self.settings.server_training()?;
        Ok(server.map(|server| server.with_batches(batches()).with_stop(Arc::clone(&self.control.stop))))
    }

    /// Returns the number of batches in a worker's own data; with an uneven split the numbers differ.
    fn batches_of(&self, worker: usize) -> u64 {
        let plan = self.shards.epoch(self.key, 0);
        (0..plan.steps()).take_while(|step| !plan.indices(*step, worker).is_empty()).count() as u64
    }
}

impl<T: Task> Rank<'_, T> {
    /// Trains all remaining epochs; returns whether it was interrupted.
    pub(super) fn train_by(&mut self, mut server: ServerTraining) -> Result<bool> {
        let run = self.run;
        if self.unevaluated() {
            self.end_epoch()?;
        }
        while self.step() < run.total {
            let epoch = self.step() / run.steps_per_epoch;
            let end = run.total.min((epoch + 1) * run.steps_per_epoch);
            let every = run.settings.checkpoint_every.filter(|n| *n > 0);
            let until = every.map_or(end, |n| end.min((self.step() / n + 1) * n));
            self.train_until(&mut server, until)?;
            if self.step() < until {
                self.save()?;
                return Ok(true);
            }
            if until == end { self.end_epoch()? } else { self.save()? }
        }
        if let Some(served) = server.served() {
            self.bar.suspend(|| run.control.say(describe(served)));
        }
        Ok(false)
    }

    fn train_until(&mut self, server: &mut ServerTraining, until: u64) -> Result<()> {
        let (run, rank, device) = (self.run, self.rank, self.device.clone());
        let before = self.optim.synchronizer_mut().session().traffic();
        let (per_epoch, bar) = (run.batches_of(rank.max(1) - 1), &self.bar);
        let mut epoch = (0, run.shards.epoch(run.key, 0));
        let rate = |update| {
            bar.set_position(update);
            run.settings.schedule.at(run.settings.lr, update, run.total)
        };
        let batch = |model: &T::Model, batch: u64| {
            let number = batch / per_epoch;
            if epoch.0 != number {
                epoch = (number, run.shards.epoch(run.key, number));
            }
            let indices = epoch.1.indices((batch % per_epoch) as usize, rank - 1);
            (run.task.loss(model, indices, Place { rank, epoch: number, step: batch }, &device), indices.len())
        };
        let model = self.model.take().context("the model was lost with an earlier error")?;
        self.model = Some(server.train(&mut self.optim, model, until, rate, batch)?);
        self.record_pause(server.served(), before)
    }

    /// Records the server's activity until this pause.
    fn record_pause(&mut self, served: Option<&Served>, before: Traffic) -> Result<()> {
        let session = self.optim.synchronizer_mut().session();
        let (traffic, clock) = (session.traffic() - before, session.now());
        self.totals.bytes_sent += traffic.sent;
        self.totals.bytes_received += traffic.received;
        let (Some(files), Some(served)) = (&mut self.files, served) else { return Ok(()) };
        let step = self.optim.synchronizer().step();
        let report = StepReport {
            step: step.saturating_sub(1),
            loss: Some(served.loss),
            traffic,
            clock,
            ..StepReport::default()
        };
        let (settings, epoch) = (self.run.settings, step.saturating_sub(1) / self.run.steps_per_epoch);
        let lr = settings.schedule.at(settings.lr, report.step, self.run.total);
        self.bar.set_message(format!("loss {:.3}", served.loss));
        self.totals.records += 1;
        files.step(&StepRecord::new(&report, epoch, lr, SecondsAre::of(settings)))
    }
}

fn describe(served: &Served) -> String {
    let Served { accepted, late, far, gradients, delays, longest_delay, .. } = *served;
    let mean = delays as f64 / accepted.max(1) as f64;
    let rejected = match (late, far) {
        (0, 0) => "none rejected".to_owned(),
        (late, 0) => format!("{late} rejected as late"),
        (0, far) => format!("{far} rejected as too far"),
        (late, far) => format!("{late} rejected as late, {far} as too far"),
    };
    format!(
        "{accepted} contributions in the model, {rejected}, of {gradients} gradients; {mean:.1} updates late in the mean, {longest_delay} at most"
    )
}
