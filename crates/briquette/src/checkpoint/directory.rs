//! Where checkpoints lie, and which of them are complete.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use briquette_core::files;
use briquette_core::manifest::Manifest;

use super::fail;
use super::file::{partial, put_in_place};
use crate::error::Error;

/// What makes a checkpoint complete.
pub(super) const MANIFEST: &str = "manifest.json";

/// Checkpoints kept when a new one is complete.
const KEEP: usize = 2;

/// Directories named `PREFIXnumber`, and nothing else, in one directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Series<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) prefix: &'static str,
}

impl<'a> Series<'a> {
    /// Those of [`DistributedOptimizer::save`](crate::DistributedOptimizer::save).
    pub(crate) fn steps(directory: &'a Path) -> Series<'a> {
        Series { directory, prefix: "step-" }
    }

    /// Those of [`DataParallel::with_checkpoints`](crate::DataParallel::with_checkpoints).
    pub(crate) fn epochs(directory: &'a Path) -> Series<'a> {
        Series { directory, prefix: "epoch-" }
    }

    pub(crate) fn path(self, number: u64) -> PathBuf {
        self.directory.join(format!("{}{number:08}", self.prefix))
    }

    /// For people: "step 390".
    pub(crate) fn name(self, number: u64) -> String {
        format!("{} {number}", self.prefix.trim_end_matches('-'))
    }

    /// `step-00000390` is 390. Only what [`path`](Self::path) makes counts: nothing else is ever read or removed.
    fn number(self, path: &Path) -> Option<u64> {
        let number = path.file_name()?.to_str()?.strip_prefix(self.prefix)?.parse().ok()?;
        (path == self.path(number)).then_some(number)
    }

    /// Complete ones and others, oldest first; none where there is no directory. One that cannot be listed may hold some.
    fn found(self) -> Result<Vec<u64>, Error> {
        let list = || -> io::Result<Vec<u64>> {
            let entries = match fs::read_dir(self.directory) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
            Ok(paths.iter().filter_map(|path| self.number(path)).collect())
        };
        let mut numbers = list().map_err(|e| fail(self.directory, format!("cannot be listed: {e}")))?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Those that are complete, damaged or not, oldest first. One whose manifest is no regular file is damaged.
    pub(crate) fn complete(self) -> Result<Vec<u64>, Error> {
        let complete = |number: &u64| fs::symlink_metadata(self.path(*number).join(MANIFEST)).is_ok();
        Ok(self.found()?.into_iter().filter(complete).collect())
    }

    /// What is wrong where none is complete.
    pub(crate) fn none(self) -> Error {
        fail(self.directory, "no complete checkpoint here (one has a manifest.json); give the directory of a run")
    }
}

/// A complete checkpoint.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Finds the newest complete checkpoint in `directory` of which every rank's file is as it was saved. One that is
    /// damaged is passed over for the one before, with a warning. Every rank finds the same, as each reads all files. (Ranks
    /// that [`resume`](crate::DistributedOptimizer::resume) read their own, and agree.)
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when there is none: what is wrong with the newest, if there are any.
    pub fn latest(directory: &Path) -> Result<Checkpoint, Error> {
        let (series, mut newest) = (Series::steps(directory), None);
        for step in series.complete()?.into_iter().rev() {
            let whole = |checkpoint: Checkpoint| {
                (0..checkpoint.world()).try_for_each(|rank| checkpoint.read(rank).map(drop))?;
                checkpoint.read_common().map(|_| checkpoint)
            };
            match (Checkpoint::open(series, step).and_then(whole), &newest) {
                (Ok(checkpoint), None) => return Ok(checkpoint),
                (Ok(checkpoint), Some(problem)) => {
                    tracing::warn!("{problem}; going back to {}", series.name(step));
                    return Ok(checkpoint);
                }
                (Err(problem), _) => {
                    newest.get_or_insert(problem);
                }
            }
        }
        Err(newest.unwrap_or_else(|| series.none()))
    }

    /// Opens the checkpoint in this folder: `step-00000390` of [`save`](crate::DistributedOptimizer::save), or `epoch-00000003` of
    /// [Burn's learner](crate::DataParallel::with_checkpoints). A rank's file is checked when it is read.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when the folder has another name, or no manifest that can be trusted.
    pub fn at(path: &Path) -> Result<Checkpoint, Error> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut series = [Series::steps(directory), Series::epochs(directory)].into_iter();
        let found = series.find_map(|series| Some((series, series.number(path)?)));
        let why = "its name is none of a checkpoint's, such as step-00000390 or epoch-00000003";
        let (series, number) = found.ok_or_else(|| fail(path, why))?;
        Checkpoint::open(series, number)
    }

    /// Whether there are complete checkpoints in `directory`, damaged or not, as far as it can be listed: where it cannot, there
    /// may be.
    pub fn any(directory: &Path) -> bool {
        Series::steps(directory).complete().map_or(true, |found| !found.is_empty())
    }

    /// The complete checkpoint of this number.
    pub(crate) fn open(series: Series<'_>, number: u64) -> Result<Checkpoint, Error> {
        let path = series.path(number);
        let text = files::read(&path.join(MANIFEST)).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
        let manifest = Manifest::parse(&text).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
        if series.prefix == "step-" && manifest.step != number {
            return Err(fail(&path, format!("manifest.json is of step {}: the directory was renamed", manifest.step)));
        }
        Ok(Checkpoint { path, manifest })
    }

    /// The step to continue with.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Ranks that saved.
    pub fn world(&self) -> usize {
        self.manifest.world
    }

    /// What tells it from any other, also of the same step.
    pub(super) fn identity(&self) -> u32 {
        self.manifest.crc32.unwrap_or_default()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A note left at saving.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.manifest.notes.get(name).map(String::as_str)
    }

    /// A rank's file.
    pub(super) fn read(&self, rank: usize) -> Result<Vec<u8>, Error> {
        self.read_either(&file_name(rank), self.manifest.checksums.get(rank))
    }

    /// What is the same on every rank, by whichever it was written here; nothing in older checkpoints.
    pub(super) fn read_common(&self) -> Result<Option<Vec<u8>>, Error> {
        let is_here = |leader: usize| {
            let path = self.path.join(common_name(leader));
            path.is_file() || partial(&path).is_file()
        };
        // Of what is not here, that is all there is to say.
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            self.manifest.common.iter().partition(|(leader, _)| is_here(**leader));
        let mut problem = None;
        for (leader, checksum) in here.into_iter().chain(elsewhere) {
            match self.read_either(&common_name(*leader), Some(checksum)) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        problem.map_or(Ok(None), Err)
    }

    /// Of the files by this name and by the one it is written under, the one that the manifest is of. A process that was killed when
    /// the manifest was in place may have left the second.
    fn read_either(&self, name: &str, checksum: Option<&u32>) -> Result<Vec<u8>, Error> {
        let path = self.path.join(name);
        let is_it = |bytes: &Vec<u8>| Some(&crc32fast::hash(bytes)) == checksum;
        let found = match files::read(&path) {
            Ok(bytes) if is_it(&bytes) => return Ok(bytes),
            other => other,
        };
        if let Some(bytes) = files::read(&partial(&path)).ok().filter(is_it) {
            return Ok(bytes);
        }
        found.map_err(|e| fail(&path, e))?;
        Err(fail(&path, "damaged: its checksum is not the manifest's"))
    }
}

pub(super) fn file_name(rank: usize) -> String {
    format!("rank-{rank}.safetensors")
}

/// What is the same on every rank, as this one wrote it.
pub(super) fn common_name(leader: usize) -> String {
    format!("common-{leader}.safetensors")
}

/// Ends what a save that was killed left of a rank's files: one that a manifest is of gets its name.
pub(super) fn settle(path: &Path, rank: usize) -> Result<(), Error> {
    let manifest = || Manifest::parse(&files::read(&path.join(MANIFEST)).ok()?).ok();
    for (name, is_common) in [(file_name(rank), false), (common_name(rank), true)] {
        let file = path.join(name);
        let Ok(bytes) = files::read(&partial(&file)) else { continue };
        let checksum = manifest().and_then(|manifest| match is_common {
            true => manifest.common.get(&rank).copied(),
            false => manifest.checksums.get(rank).copied(),
        });
        if checksum == Some(crc32fast::hash(&bytes)) {
            put_in_place(&file)?;
        }
    }
    Ok(())
}

/// Leaves the newest [`KEEP`] complete checkpoints up to the one in use, and nothing of the series that is older than they are.
/// (What is newer than the one in use was passed over: it is no reason to remove what is whole.)
pub(super) fn remove_old(series: Series<'_>, used: u64) {
    let (complete, found) = match series.complete().and_then(|complete| Ok((complete, series.found()?))) {
        Ok(listed) => listed,
        Err(error) => return tracing::warn!("cannot remove the old checkpoints: {error}"),
    };
    let complete = complete.into_iter().rev().filter(|number| *number <= used);
    let Some(oldest_kept) = complete.take(KEEP).last() else { return };
    for number in found.into_iter().take_while(|number| *number < oldest_kept) {
        let path = series.path(number);
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!("cannot remove the old checkpoint {}: {error}", path.display());
        }
    }
}
