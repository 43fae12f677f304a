//! A rank in a world that goes on when another rank is lost.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use briquette::core::error::CommError;
use briquette::{DistributedOptimizer, Error};
use serde::{Deserialize, Serialize};

use super::Refused;
use super::rank::{Rank, model};
use crate::directory::{RunDirectory, Start};
use crate::record::{Changes, Evaluation, Totals, Written};
use crate::settings::Settings;
use crate::task::Task;

/// Refuses settings that an elastic world cannot keep.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let refused = [
        ("--server", settings.server.is_some()),
        ("--non-iid", settings.non_iid.is_some()),
        ("--background-saving", settings.background_saving == Some(crate::spec::Toggle::On)),
        ("--average-from", settings.average_from.is_some()),
        ("--record-frames", settings.record_frames == Some(crate::spec::Toggle::On)),
    ];
    match refused.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => bail!(Refused::new(format!(
            "{flag} does not go with an elastic world (BRIQUETTE_ELASTIC, or `briquette launch --elastic`): leave out one of the two"
        ))),
        None => Ok(()),
    }
}

/// Position of a run, which a new member receives from the others.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Handover {
    pub(super) start: Start,
    /// Number of ranks with which the run began.
    pub(super) ranks: usize,
    pub(super) position: u64,
    /// The epoch that began in another world, and the samples of it that were seen there.
    pub(super) began: Option<(u64, usize)>,
    pub(super) best_test_accuracy: f64,
    pub(super) evaluations: Vec<Evaluation>,
    pub(super) changes: Changes,
}

/// Receives the value of [`Rank::take_place`] on a new member.
pub(super) fn receive(optim: &mut DistributedOptimizer) -> Result<Handover> {
    let mut bytes = Vec::new();
    optim.synchronizer_mut().send_to_new_members(&mut bytes)?;
    serde_json::from_slice(&bytes).context("the state of training, as received from rank 0")
}

impl<T: Task> Rank<'_, T> {
    /// Continues after an error that means that another rank was lost: this rank is then in the next world, and goes on from [its
    /// position](Self::position).
    ///
    /// # Errors
    /// The error itself, if it has another cause or the world is not elastic; that of forming the next world.
    pub(super) fn survive(&mut self, error: anyhow::Error) -> Result<()> {
        let of_transport =
            matches!(error.downcast_ref(), Some(Error::WorldChanged { .. } | Error::Comm(_) | Error::Sync(_)));
        if self.generation.is_none() || !(of_transport || error.is::<CommError>()) {
            return Err(error);
        }
        // A hand-over to new members may fail on some ranks only: all deal to the world in which it was made.
        if self.is_deal_due() {
            self.deal_again()?;
        }
        let error = error.downcast::<Error>().or_else(|error| error.downcast::<CommError>().map(Error::from))?;
        Ok(self.optim.synchronizer_mut().recover(model(&self.model)?, error)?)
    }

    /// Opens the run's files if this rank has become rank 0. A former rank 0 that is suspended still holds them: then they are tried again at
    /// the end of each epoch.
    pub(super) fn take_files(&mut self) {
        if self.rank != 0 || self.files.is_some() || self.generation.is_none_or(|number| number == 0) {
            return;
        }
        let settings = self.run.settings;
        let written = Written::EachStepBefore(self.step());
        let directory = RunDirectory::take_over(&settings.out);
        let run = self.start.run.as_deref();
        let files = directory.and_then(|directory| directory.resume(settings, run, written, &self.unwritten));
        match files {
            Ok(files) => (self.files, self.unwritten) = (Some(files), Vec::new()),
            Err(error) => tracing::warn!("rank 0 cannot take the run's files yet, and records nothing: {error:#}"),
        }
    }

    /// Returns whether an epoch or the run ends here.
    pub(super) fn is_at_an_end(&self) -> bool {
        self.position() > 0 && (self.position() == self.end || self.is_between_epochs(1))
    }

    /// Returns whether the world has changed since this rank took its place, or its samples.
    pub(super) fn is_elsewhere(&self) -> bool {
        let number = self.optim.generation().map(|generation| generation.number);
        number != self.generation || self.is_deal_due()
    }

    /// Returns whether samples are dealt to an earlier world, and all ranks are at the same step of the current one.
    fn is_deal_due(&self) -> bool {
        let number = self.optim.generation().map(|generation| generation.number);
        number != self.dealt && self.optim.synchronizer().is_settled()
    }

    /// Deals the rest of the run to the current world.
    fn deal_again(&mut self) -> Result<()> {
        let place = (self.optim.rank(), self.optim.world());
        let position = self.deal.change(place, self.position(), self.run.key)?;
        self.ahead = position as i64 - self.step() as i64;
        self.end = self.run.end(self.ahead, self.deal.steps_per_epoch);
        self.optim.synchronizer_mut().set_run_steps(self.end.saturating_add_signed(-self.ahead));
        self.dealt = self.optim.generation().map(|generation| generation.number);
        Ok(())
    }

    /// Takes this rank's place in a new generation of the world, and its samples once all ranks are at the same step.
    pub(super) fn take_place(&mut self) -> Result<()> {
        let number = self.optim.generation().map(|generation| generation.number);
        let (rank, world, run) = (self.optim.rank(), self.optim.world(), self.run);
        if self.is_deal_due() {
            self.deal_again()?;
        }
        let is_new = number != self.generation;
        if rank == 0 && self.rank != 0 {
            run.control.leads.store(true, Ordering::Relaxed);
            self.bar = run.progress_bar(0, self.end);
        }
        (self.rank, self.generation) = (rank, number);
        self.take_files();
        // What was evaluated or saved here is done again: others may not have come that far.
        self.totals.evaluated = None;
        self.bar.set_length(self.end);
        if self.optim.synchronizer().new_members() > 0 && is_new {
            let Totals { best_test_accuracy, elastic: mut changes, .. } = self.totals;
            // Of this generation, which the others report after its first exchange.
            changes.generations += 1;
            changes.new_members += self.optim.synchronizer().new_members() as u64;
            let position = self.position();
            let (start, began, ranks) = (self.start.clone(), self.deal.began, run.settings.ranks);
            let evaluations = self.totals.evaluations.clone();
            let handover = Handover { start, ranks, position, began, best_test_accuracy, evaluations, changes };
            self.optim.synchronizer_mut().send_to_new_members(&mut serde_json::to_vec(&handover)?)?;
        }
        if rank == 0 && is_new {
            let (step, number) = (self.step(), number.unwrap_or_default());
            run.control.say(format_args!("# generation {number}: {world} ranks go on at step {step}"));
        }
        Ok(())
    }
}
