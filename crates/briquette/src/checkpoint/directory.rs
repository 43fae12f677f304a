//! Checkpoint directory layout and completeness checks.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use briquette_core::files;
use briquette_core::manifest::Manifest;

use super::fail;
use super::file::{partial, put_in_place};
use crate::error::Error;

/// Name of the file that makes a checkpoint complete.
pub(super) const MANIFEST: &str = "manifest.json";

/// The number of complete checkpoints to keep.
const KEEP: usize = 2;

/// Series of checkpoint directories in one directory. Their names are `PREFIX` and a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Series<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) prefix: &'static str,
}

impl<'a> Series<'a> {
    /// The series of [`DistributedOptimizer::save`](crate::DistributedOptimizer::save).
    pub(crate) fn steps(directory: &'a Path) -> Series<'a> {
        Series { directory, prefix: "step-" }
    }

    /// The series of [`DataParallel::with_checkpoints`](crate::DataParallel::with_checkpoints).
    pub(crate) fn epochs(directory: &'a Path) -> Series<'a> {
        Series { directory, prefix: "epoch-" }
    }

    pub(crate) fn path(self, number: u64) -> PathBuf {
        self.directory.join(format!("{}{number:08}", self.prefix))
    }

    /// A readable name: "step 390".
    pub(crate) fn name(self, number: u64) -> String {
        format!("{} {number}", self.prefix.trim_end_matches('-'))
    }

    /// Parses the number of a directory name: `step-00000390` is 390. Directories with names that [`path`](Self::path) does
    /// not generate are never read or removed.
    fn number(self, path: &Path) -> Option<u64> {
        let number = path.file_name()?.to_str()?.strip_prefix(self.prefix)?.parse().ok()?;
        (path == self.path(number)).then_some(number)
    }

    /// Returns complete and incomplete checkpoints, oldest first; none if the directory does not exist. It is an error if the
    /// directory cannot be read, because it may contain checkpoints.
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

    /// Returns complete checkpoints, damaged or not, oldest first. A checkpoint whose manifest is not a regular file
    /// counts as damaged.
    pub(crate) fn complete(self) -> Result<Vec<u64>, Error> {
        let complete = |number: &u64| fs::symlink_metadata(self.path(*number).join(MANIFEST)).is_ok();
        Ok(self.found()?.into_iter().filter(complete).collect())
    }

    /// The error if no checkpoint is complete.
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
    /// Finds the newest complete checkpoint in `directory` whose rank files are all intact. Skips a damaged checkpoint, with a
    /// warning. Each rank reads all files, so every rank finds the same checkpoint. (Ranks that
    /// [`resume`](crate::DistributedOptimizer::resume) read only their own files, and agree.)
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when there is no such checkpoint. If there are damaged ones, the error describes the
    /// newest.
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

    /// Opens the checkpoint in this directory: `step-00000390` of [`save`](crate::DistributedOptimizer::save), or
    /// `epoch-00000003` of [`DataParallel`](crate::DataParallel::with_checkpoints). A rank's file is checked when it is read.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when the directory has another name, or no valid manifest.
    pub fn at(path: &Path) -> Result<Checkpoint, Error> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut series = [Series::steps(directory), Series::epochs(directory)].into_iter();
        let found = series.find_map(|series| Some((series, series.number(path)?)));
        let why = "its name is none of a checkpoint's, such as step-00000390 or epoch-00000003";
        let (series, number) = found.ok_or_else(|| fail(path, why))?;
        Checkpoint::open(series, number)
    }

    /// Returns whether `directory` contains complete checkpoints, damaged or not. Also `true` if it cannot be listed, because
    /// it may then contain some.
    pub fn any(directory: &Path) -> bool {
        Series::steps(directory).complete().map_or(true, |found| !found.is_empty())
    }

    /// Opens the complete checkpoint with this number.
    pub(crate) fn open(series: Series<'_>, number: u64) -> Result<Checkpoint, Error> {
        let path = series.path(number);
        let text = files::read(&path.join(MANIFEST)).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
        let manifest = Manifest::parse(&text).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
        if series.prefix == "step-" && manifest.step != number {
            return Err(fail(&path, format!("manifest.json is of step {}: the directory was renamed", manifest.step)));
        }
        Ok(Checkpoint { path, manifest })
    }

    /// The step at which training resumes.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// The number of ranks that saved.
    pub fn world(&self) -> usize {
        self.manifest.world
    }

    /// Returns a checksum that distinguishes this save from every other, including saves of the same step.
    pub(super) fn identity(&self) -> u32 {
        self.manifest.crc32.unwrap_or_default()
    }

    /// The checkpoint's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a note that was saved with the checkpoint.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.manifest.notes.get(name).map(String::as_str)
    }

    /// Reads a rank's file.
    pub(super) fn read(&self, rank: usize) -> Result<Vec<u8>, Error> {
        self.read_either(&file_name(rank), self.manifest.checksums.get(rank))
    }

    /// Reads the replicated state from any `common` file available here. In a world of one rank it is in the rank's file.
    pub(super) fn read_common(&self) -> Result<Option<Vec<u8>>, Error> {
        let is_here = |leader: usize| {
            let path = self.path.join(common_name(leader));
            path.is_file() || partial(&path).is_file()
        };
        // Missing files are tried last, so that their error is reported only if there is no other.
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

    /// Reads the file that matches the manifest's checksum, under its final or its temporary name. A process that was killed
    /// after the manifest was written may have left the file under its temporary name.
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

/// The file name of the replicated state written by `leader`.
pub(super) fn common_name(leader: usize) -> String {
    format!("common-{leader}.safetensors")
}

/// Completes an interrupted save of this rank: renames files that match the manifest to their final names.
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

/// Removes old checkpoints of the series. Keeps the newest [`KEEP`] complete ones up to the one in use, and everything newer.
/// (Checkpoints newer than the one in use were skipped, but may be intact.)
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
