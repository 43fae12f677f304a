//! Checkpoints of a distributed run: replicated state once, and one file for each rank.
//!
//! ```text
//! checkpoints/step-00000390/common-0.safetensors   replicated state: the model, usually the inner optimizer,
//!                                                  a mean of iterates
//!                           rank-0.safetensors     buffers, residuals, controller, step
//!                           rank-1.safetensors
//!                           manifest.json          written last: a checkpoint without one is not complete
//! ```
//!
//! Every file is written under a temporary name, synced and renamed, so a full disk or a killed process leaves the previous
//! checkpoint intact. Ranks that share a directory save replicated state once. If each machine has its own directory, the first
//! rank of each machine writes `common-…` and the manifest there. Files are safetensors, so any tool can read the residuals.
//! Resuming is bit-exact in a world of the same size; another size requires an explicit [`WorldChange`].

#[cfg(test)]
mod claims;
mod common;
mod directory;
mod file;
pub(crate) mod ids;
mod model;
mod replicas;
mod resume;
mod save;
pub(crate) mod state;
mod timing;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use briquette_core::state::{OnResize, State};
use burn::tensor::Bytes;
use safetensors::tensor::SafeTensors;

pub(crate) use self::common::Leaders;
pub use self::directory::Checkpoint;
pub(crate) use self::directory::Series;
use self::directory::file_name;
pub(crate) use self::file::{Blobs, Saved, make_directory, put_in_place, write_partial};
pub(crate) use self::save::Pending;
pub use self::save::SaveReport;
use self::state::read_state;
use crate::backend::panic_text;
use crate::error::Error;
use crate::handshake::{Difference, RANK, WORLD};
use crate::synchronizer::{LocalValues, Synchronizer};

/// Treatment of residuals when a run resumes in a world of another size than the one that saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WorldChange {
    /// Another size is an error.
    #[default]
    Refuse,
    /// Rank-local state (residuals, velocities, strategy state) starts as in a new run; its contents are lost.
    DropResiduals,
    /// Every rank starts with the mean of the saved ranks' rank-local state. Updates are means over ranks, so nothing is
    /// lost.
    SpreadResiduals,
}

/// The name of the iterate average among the [`Blobs`].
const AVERAGE: &str = "average";

pub(crate) fn fail(path: &Path, problem: impl ToString) -> Error {
    Error::Checkpoint { path: path.to_owned(), problem: problem.to_string() }
}

fn other_run(path: &Path, problem: String) -> Error {
    Error::OtherRun { path: path.to_owned(), problem }
}

/// Returns this rank's own buffers and parameters, which replace the means in the saved model when it is loaded.
pub(crate) fn local_blobs(own: LocalValues) -> impl Iterator<Item = (&'static str, Bytes)> {
    let own = [("buffers", Some(own.buffers)), ("parameters", own.parameters)];
    own.into_iter().filter_map(|(name, bytes)| Some((name, Bytes::from_bytes_vec(bytes?))))
}

/// Loads an optimizer's state. Burn first puts the state on the build's default device, whatever the module's device, and
/// panics if the default device is unavailable. Optimizers of this crate panic if the state belongs to another optimizer.
pub(crate) fn by_the_default_device<T>(load: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(load)).map_err(|panic| {
        let said = panic_text(&*panic);
        if said.starts_with(crate::optim::REFUSED) {
            return Error::OptimizerRecord(said);
        }
        Error::Device(format!(
            "Burn loads an optimizer's state by way of this build's default device, which cannot be used here ({said}); set \
             BURN_DEVICE to a backend that can, such as BURN_DEVICE=flex"
        ))
    })
}

impl Synchronizer {
    /// Reads and checks this rank's file, without changing anything yet.
    pub(crate) fn read_checkpoint(&self, checkpoint: &Checkpoint, change: WorldChange) -> Result<Saved, Error> {
        let (rank, world, saved) = (self.rank(), self.world(), checkpoint.world());
        if self.joined.is_none() {
            return Err(Error::NotJoined { rank });
        }
        if saved != world && change == WorldChange::Refuse {
            let problem = format!(
                "saved by {saved} ranks, this world has {world}: resume with {saved}, or choose what becomes of the residuals \
                 (DropResiduals or SpreadResiduals)"
            );
            return Err(other_run(checkpoint.path(), problem));
        }
        let source = if saved == world { rank } else { rank % saved };
        let path = checkpoint.path().join(file_name(source));
        let bytes = checkpoint.read(source)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| fail(&path, e))?;
        self.check_metadata(&bytes, &path, saved == world)?;
        let mut state = read_state(&file).map_err(|e| fail(&path, e))?;
        if saved != world {
            self.resize(&mut state, checkpoint, change)?;
        }
        let mut blobs = BTreeMap::new();
        if let Some(common) = checkpoint.read_common()? {
            let common = SafeTensors::deserialize(&common).map_err(|e| fail(checkpoint.path(), e))?;
            blobs = file::read_blobs(&common);
        }
        blobs.extend(file::read_blobs(&file));
        if saved != world {
            // Rank-local values do not apply: the ranks of a world of another size start with the means.
            blobs.retain(|name, _| name != "buffers" && name != "parameters");
        }
        Ok(Saved { path, state, same_world: saved == world, blobs })
    }

    /// Checks the settings of this run against those of the run that saved.
    fn check_metadata(&self, bytes: &[u8], path: &Path, same_world: bool) -> Result<(), Error> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| fail(path, e))?;
        let saved = header.metadata().clone().unwrap_or_default();
        let joined = self.joined.as_ref().ok_or(Error::NotJoined { rank: self.rank() })?;
        let of = |field: &str, ours: usize| {
            let (ours, theirs) = (ours.to_string(), saved.get(field).map_or("absent", String::as_str).to_owned());
            (same_world && ours != theirs).then(|| Difference { field: field.to_owned(), ours, theirs })
        };
        let difference = joined.identity.difference_to_saved(&saved, &joined.inventory.layout, same_world);
        match difference.or_else(|| of(RANK, self.rank())).or_else(|| of(WORLD, self.world())) {
            None => Ok(()),
            Some(Difference { field, ours, theirs }) => {
                let what = if field == "layout" { "model" } else { &field };
                Err(other_run(path, format!("saved by another {what}: {theirs} there, {ours} here")))
            }
        }
    }

    /// Converts rank-local state to a world of another size: drops it, or replaces it by the mean over the saved ranks. The
    /// resuming strategy determines the vectors concerned.
    fn resize(&self, state: &mut State, checkpoint: &Checkpoint, change: WorldChange) -> Result<(), Error> {
        let mut own = State::default();
        own.put_part("strategy", &*self.build_strategy(self.layout()?)?);
        let mut saved = Vec::new();
        for rank in (0..checkpoint.world()).filter(|_| change == WorldChange::SpreadResiduals) {
            let path = checkpoint.path().join(file_name(rank));
            let bytes = checkpoint.read(rank)?;
            let file = SafeTensors::deserialize(&bytes).map_err(|e| fail(&path, e))?;
            saved.push(read_state(&file).map_err(|e| fail(&path, e))?);
        }
        state.for_each_own(&own, |name, resize, values| match (resize, &saved[..]) {
            (OnResize::Drop, _) | (_, []) => values.clear(),
            (OnResize::Spread | OnResize::Waits | OnResize::Keep, saved) => {
                let mut sums = vec![0.0_f64; values.len()];
                for other in saved {
                    let theirs = other.f32s(name, Some(sums.len())).unwrap_or_default();
                    sums.iter_mut().zip(theirs).for_each(|(sum, v)| *sum += f64::from(*v));
                }
                values.iter_mut().zip(sums).for_each(|(v, sum)| *v = (sum / saved.len() as f64) as f32);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_device_that_cannot_be_had_is_an_error_that_names_the_way_out() {
        assert_eq!(by_the_default_device(|| 7).unwrap(), 7);
        let text = by_the_default_device(|| panic!("no adapter")).unwrap_err().to_string();
        assert!(text.contains("(no adapter)") && text.contains("BURN_DEVICE=flex"), "{text}");
    }
}
