//! Resumption from the newest checkpoint that all ranks can load.

use std::path::Path;

use briquette_core::state::State;
use briquette_core::sync::SyncStrategy;
use burn::module::Module;
use burn::optim::ModuleOptimizer;

use super::directory::{Series, remove_old, settle};
use super::file::Saved;
use super::timing::StepTiming;
use super::{AVERAGE, Checkpoint, WorldChange, by_the_default_device, fail, other_run};
use crate::error::Error;
use crate::flat::{self, Part};
use crate::optim::IterateAverage;
use crate::optimizer::DistributedOptimizer;
use crate::synchronizer::Synchronizer;

/// First byte of a rank's report on a candidate; an error message follows.
const USABLE: u8 = 0;
/// Damaged or unreadable. An older checkpoint may be usable.
const UNUSABLE: u8 = 1;
/// Failed in a way in which an older checkpoint would fail too.
const REFUSED: u8 = 2;
/// Intact, but from another run. Older checkpoints would also be.
const OTHER_RUN: u8 = 3;

/// State that was read and fits; nothing has changed yet.
pub(crate) struct Prepared {
    strategy: Box<dyn SyncStrategy>,
    books: StepTiming,
}

/// The same with a module and its optimizer.
struct Loaded<M> {
    module: M,
    inner: ModuleOptimizer,
    average: Option<IterateAverage>,
    sync: Prepared,
}

impl DistributedOptimizer {
    /// Loads a checkpoint. Call it on every rank after [`join`](DistributedOptimizer::join), with the module that joined. In a
    /// world of the same size, the run continues bit for bit as if it had not been interrupted. Ranks do not communicate. If a
    /// rank may find a file damaged, use [`resume`](DistributedOptimizer::resume), which agrees on another checkpoint.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when a file is damaged. [`Error::OtherRun`] when it belongs to another model, configuration or
    /// world; the error names the difference. After an error the optimizer is unchanged, but the module is lost.
    pub fn load<M: Module>(&mut self, module: M, checkpoint: &Checkpoint, change: WorldChange) -> Result<M, Error> {
        // If an exchange is pending, it holds the strategy.
        self.sync.give_up()?;
        let loaded = prepare((&self.inner, &self.average), &self.sync, module, (checkpoint, change))?;
        self.apply(loaded)
    }

    /// Resumes from the newest checkpoint under `directory` that every rank can read and load. Call it on every rank after
    /// [`join`](DistributedOptimizer::join), with the module that joined. Rank 0's directory determines the list of checkpoints.
    /// If any rank finds one damaged, all ranks try the previous one, and rank 0 logs a warning. Also removes the checkpoints
    /// that a save would remove.
    ///
    /// `accept` reads the training loop's [notes](Checkpoint::note) in the checkpoint. If it returns an error, the checkpoint
    /// is skipped as if it were damaged. The result for the chosen checkpoint is returned with the module.
    ///
    /// # Errors
    /// [`Error::OtherRun`] when the newest intact checkpoint belongs to another model, configuration or world; older ones are
    /// then not tried. [`Error::Checkpoint`] when there is no checkpoint, or none is intact. After an error nothing has
    /// changed, but the module is lost.
    pub fn resume<M: Module, T>(
        &mut self,
        module: M,
        directory: &Path,
        change: WorldChange,
        mut accept: impl FnMut(&Checkpoint) -> Result<T, String>,
    ) -> Result<(M, Checkpoint, T), Error> {
        self.sync.give_up()?;
        // Clones share running statistics, and loading writes them.
        let buffers = flat::read_bytes(&module, Part::Buffers);
        let buffers = buffers.inspect_err(|error| self.sync.comm.abort(&error.to_string()))?;
        let DistributedOptimizer { inner, average, sync, .. } = self;
        let found = sync.newest_usable(Series::steps(directory), u64::MAX, |sync, checkpoint| {
            let accepted = accept(checkpoint).map_err(|problem| fail(checkpoint.path(), problem))?;
            Ok((prepare((inner, average), sync, module.clone(), (checkpoint, change))?, accepted))
        });
        match found {
            Ok((number, checkpoint, (loaded, accepted))) => {
                // Removes the remains of an interrupted save. Every rank has read its files.
                if sync.rank() == 0 {
                    remove_old(Series::steps(directory), number);
                }
                Ok((self.apply(loaded)?, checkpoint, accepted))
            }
            Err(error) => {
                let _ = flat::write_bytes(module, Part::Buffers, &buffers);
                Err(error)
            }
        }
    }

    fn apply<M: Module>(&mut self, loaded: Loaded<M>) -> Result<M, Error> {
        self.sync.apply(loaded.sync);
        (self.inner, self.average) = (loaded.inner, loaded.average);
        self.sync.keep_buffers(&loaded.module)?;
        Ok(loaded.module)
    }
}

fn prepare<M: Module>(
    (inner, average): (&ModuleOptimizer, &Option<IterateAverage>),
    sync: &Synchronizer,
    module: M,
    (checkpoint, change): (&Checkpoint, WorldChange),
) -> Result<Loaded<M>, Error> {
    let mut saved = sync.read_checkpoint(checkpoint, change)?;
    let (module, record) = saved.load(module)?;
    let empty = ModuleOptimizer::clone(inner);
    let inner = by_the_default_device(|| empty.load_record(record))?;
    let load = |average: &IterateAverage| saved.record(AVERAGE, |bytes| average.clone().load_bytes(bytes, &module));
    let average = average.as_ref().map(load).transpose()?;
    let sync = sync.prepare(&saved, &module)?;
    Ok(Loaded { module, inner, average, sync })
}

impl Synchronizer {
    /// Restores residuals, controller, step and clock, and the last exchange if the world has the same size. State that a world
    /// of another size drops is initialized from the parameters in `module`, which are then the same on every rank.
    pub(crate) fn prepare<M: Module>(&self, saved: &Saved, module: &M) -> Result<Prepared, Error> {
        let strategy = self.strategy_of(module, &saved.state)?;
        Ok(Prepared { strategy, books: StepTiming::read(&saved.state, saved.same_world)? })
    }

    /// Builds the strategy with a saved state.
    pub(crate) fn strategy_of<M: Module>(&self, module: &M, saved: &State) -> Result<Box<dyn SyncStrategy>, Error> {
        let mut strategy = self.fresh_strategy(module)?;
        saved.load_part("strategy", &mut *strategy)?;
        Ok(strategy)
    }

    /// Creates the strategy that begins with the parameters of `module`.
    pub(crate) fn fresh_strategy<M: Module>(&self, module: &M) -> Result<Box<dyn SyncStrategy>, Error> {
        let (mut strategy, mut parameters) = (self.build_strategy(self.layout()?)?, Vec::new());
        flat::read_values(module, Part::Trainable, &mut parameters)?;
        strategy.begin(&parameters);
        Ok(strategy)
    }

    pub(crate) fn apply(&mut self, prepared: Prepared) {
        self.driver.set_strategy(prepared.strategy);
        prepared.books.apply(self);
    }

    /// Makes every rank prepare the newest checkpoint of the series up to `newest`, and older ones while any rank fails.
    /// Returns the number, the checkpoint, and the prepared state.
    pub(crate) fn newest_usable<T>(
        &mut self,
        series: Series<'_>,
        newest: u64,
        mut prepare: impl FnMut(&Synchronizer, &Checkpoint) -> Result<T, Error>,
    ) -> Result<(u64, Checkpoint, T), Error> {
        // Rank 0's list is used. If rank 0 cannot list its directory, the other ranks receive an empty list.
        let mine = if self.rank() == 0 { series.complete() } else { Ok(Vec::new()) };
        let listed: Vec<u8> = mine.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
        let heard = self.gather_bytes("choice of a checkpoint", &listed)?;
        mine?;
        let numbers = heard[0].as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut numbers = numbers.rev().filter(|number| *number <= newest).peekable();
        let mut error = series.none();
        while let Some(number) = numbers.next() {
            let prepared =
                Checkpoint::open(series, number).and_then(|found| prepare(self, &found).map(|t| (number, found, t)));
            let identity = prepared.as_ref().map_or(0, |(_, found, _)| found.identity());
            match self.agree_on_candidate(&series.path(number), identity, prepared)? {
                Ok(prepared) => {
                    // Every rank has read its files by now. A file that keeps its temporary name is still found.
                    let _ = settle(&series.path(number), self.rank());
                    return Ok(prepared);
                }
                Err(problem) => error = problem,
            }
            if let Some(before) = numbers.peek().filter(|_| self.rank() == 0) {
                tracing::warn!("{error}; going back to {}", series.name(*before));
            }
        }
        Err(error)
    }

    /// Returns the prepared state if every rank has prepared it. Otherwise all ranks return an error.
    fn agree_on_candidate<T>(
        &mut self,
        path: &Path,
        identity: u32,
        prepared: Result<T, Error>,
    ) -> Result<Result<T, Error>, Error> {
        let mine = match &prepared {
            Ok(_) => [&[USABLE], &identity.to_le_bytes()[..]].concat(),
            Err(error) => [&[severity(error)], error.to_string().as_bytes()].concat(),
        };
        let heard = self.gather_bytes("choice of a checkpoint", &mine)?;
        let worst = heard.iter().map(|bytes| bytes.first().copied().unwrap_or(REFUSED)).max().unwrap_or(USABLE);
        if worst == USABLE {
            // With separate directories, one may contain a newer save of the same step than the other.
            let other = heard.iter().position(|bytes| *bytes != heard[0]);
            return Ok(match other {
                Some(rank) => Err(fail(path, format!("rank {rank}'s directory has another save of it than rank 0's"))),
                None => prepared,
            });
        }
        // Reports this rank's own error, or that of the first rank with the same severity.
        let rank = heard.iter().position(|bytes| bytes.first() == Some(&worst)).unwrap_or_default();
        let problem = match prepared {
            Err(error) if severity(&error) == worst => error,
            _ => {
                let words = String::from_utf8_lossy(heard[rank].get(1..).unwrap_or_default());
                let problem = format!("rank {rank}: {words}");
                if worst == OTHER_RUN { other_run(path, problem) } else { fail(path, problem) }
            }
        };
        if worst == UNUSABLE { Ok(Err(problem)) } else { Err(problem) }
    }
}

fn severity(error: &Error) -> u8 {
    match error {
        Error::Checkpoint { .. } | Error::State(_) => UNUSABLE,
        Error::OtherRun { .. } => OTHER_RUN,
        _ => REFUSED,
    }
}
