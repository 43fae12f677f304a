//! Storage of the best model of a run.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use briquette_core::files;
use burn::module::Module;

use crate::checkpoint::{fail, make_directory, put_in_place, write_partial};
use crate::error::Error;
use crate::optimizer::DistributedOptimizer;

/// Keeps the best model of a run on disk. The model is that of [`evaluation_copy`](DistributedOptimizer::evaluation_copy), in Burn's own format, and
/// rank 0 writes it.
///
/// The score is stored next to the model (`PATH.score`, a number as text), so that a resumed run continues the comparison. A new run needs a new
/// path; otherwise its model is compared with the old one. Both files are replaced atomically. A path without an extension gets Burn's (`.bpk`).
///
/// ```no_run
/// # use briquette::{BestModel, DistributedOptimizer, Error};
/// # use burn::module::Module;
/// # fn train<M: Module>(optim: &mut DistributedOptimizer, model: M, loss: f64) -> Result<(), Error> {
/// let mut best = BestModel::lowest("runs/best");
/// // After each evaluation, on every rank; `loss` may be each rank's own, over 128 samples.
/// let loss = optim.mean_over_ranks(&[loss], 128)?[0];
/// if best.offer(optim, &model, loss)? {
///     optim.print(format_args!("best so far: {loss:.4}"));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BestModel {
    path: PathBuf,
    is_lower_better: bool,
}

impl BestModel {
    /// Keeps the model with the lowest score (a loss) at `path`.
    pub fn lowest(path: impl Into<PathBuf>) -> Self {
        BestModel { path: named(path.into()), is_lower_better: true }
    }

    /// Keeps the model with the highest score (an accuracy) at `path`.
    pub fn highest(path: impl Into<PathBuf>) -> Self {
        BestModel { path: named(path.into()), is_lower_better: false }
    }

    /// The model's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the best score so far, as read from this rank's disk. `None` without a model or its score.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the score exists but cannot be read.
    pub fn score(&self) -> Result<Option<f64>, Error> {
        if !self.path.exists() {
            return Ok(None);
        }
        match files::read_to_string(&self.score_path()) {
            Ok(text) => text.trim().parse().map(Some).map_err(|error| fail(&self.score_path(), error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fail(&self.score_path(), error)),
        }
    }

    /// Saves the model if `score` is better than the best so far, and returns whether it was; the result is the same on every rank. All ranks must
    /// call it with the same score: use [`mean_over_ranks`](DistributedOptimizer::mean_over_ranks). NaN is never better.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] on every rank if rank 0 cannot write; those of [`evaluation_copy`](DistributedOptimizer::evaluation_copy).
    pub fn offer<M: Module>(&mut self, optim: &mut DistributedOptimizer, model: &M, score: f64) -> Result<bool, Error> {
        let sync = optim.synchronizer_mut();
        let (begin, last_end) = (sync.comm.now(), sync.last_end);
        let offered = self.offer_now(optim, model, score);
        // The time of this call belongs to no step.
        let sync = optim.synchronizer_mut();
        sync.last_end = last_end + (sync.comm.now() - begin);
        offered
    }

    fn offer_now<M: Module>(&mut self, optim: &mut DistributedOptimizer, model: &M, score: f64) -> Result<bool, Error> {
        let is_better = |best: f64| if self.is_lower_better { score < best } else { score > best };
        // Rank 0 decides, because the other ranks may not see its disk.
        let best = if optim.rank() == 0 { self.score() } else { Ok(None) };
        let better = optim.rank() == 0 && !score.is_nan() && best.as_ref().is_ok_and(|best| best.is_none_or(is_better));
        let (better, has_failed) = (optim.any_rank(better)?, optim.any_rank(best.is_err())?);
        best?;
        if has_failed {
            return Err(fail(&self.path, "rank 0 could not read the best score"));
        }
        if !better {
            return Ok(false);
        }
        let shown = optim.evaluation_copy(model)?;
        let written = if optim.rank() == 0 { self.write(shown, score) } else { Ok(()) };
        let has_failed = optim.any_rank(written.is_err())?;
        written?;
        if has_failed { Err(fail(&self.path, "rank 0 could not write it")) } else { Ok(true) }
    }

    fn write<M: Module>(&self, model: M, score: f64) -> Result<(), Error> {
        let failed = |error: std::io::Error| fail(&self.path, error);
        make_directory(self.path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let bytes = model.into_record().into_bytes().map_err(|error| fail(&self.path, error))?;
        write_partial(&self.path, &bytes)?;
        write_partial(&self.score_path(), score.to_string().as_bytes())?;
        // The old score is removed before the model is replaced, so a new model never has an old score. A model without
        // a score is replaced by the next one.
        match std::fs::remove_file(self.score_path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        put_in_place(&self.path)?;
        put_in_place(&self.score_path())
    }

    fn score_path(&self) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(".score");
        name.into()
    }
}

fn named(path: PathBuf) -> PathBuf {
    let path = if path.extension().is_some() { path } else { path.with_extension("bpk") };
    // The parent of a bare file name is empty, which is not a directory.
    if path.parent() == Some(Path::new("")) { Path::new(".").join(path) } else { path }
}
