//! Where checkpoints lie, and which of them are complete.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::fail;
use crate::error::Error;

/// What makes a checkpoint complete.
pub(super) const MANIFEST: &str = "manifest.json";

/// Checkpoints kept when a new one is complete.
const KEEP: usize = 2;

/// Written when every rank's file is in place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) step: u64,
    pub(super) world: usize,
    /// CRC-32 of each rank's file.
    pub(super) checksums: Vec<u32>,
    /// What the training loop wants to know before it loads.
    pub(super) notes: BTreeMap<String, String>,
    /// CRC-32 of all of the above, as JSON without white space; absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) crc32: Option<u32>,
}

impl Manifest {
    fn checksum(&self) -> serde_json::Result<u32> {
        serde_json::to_vec(&Manifest { crc32: None, ..self.clone() }).map(|bytes| crc32fast::hash(&bytes))
    }

    /// With its checksum, as it is written.
    pub(super) fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&Manifest { crc32: Some(self.checksum()?), ..self.clone() })
    }

    fn parse(text: &[u8]) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        let sum = manifest.checksum().map_err(|e| e.to_string())?;
        match manifest.crc32 {
            Some(written) if written != sum => Err("damaged: its checksum is not that of what it says".to_owned()),
            _ => Ok(manifest),
        }
    }
}

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

    /// Complete ones and others, oldest first.
    fn found(self) -> Vec<u64> {
        let entries = fs::read_dir(self.directory).into_iter().flatten().flatten();
        let mut numbers: Vec<u64> = entries.filter_map(|entry| self.number(&entry.path())).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Those that are complete, damaged or not, oldest first.
    pub(crate) fn complete(self) -> Vec<u64> {
        self.found().into_iter().filter(|number| self.path(*number).join(MANIFEST).is_file()).collect()
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
        for step in series.complete().into_iter().rev() {
            let whole = |checkpoint: Checkpoint| {
                (0..checkpoint.world()).try_for_each(|rank| checkpoint.read(rank).map(drop)).map(|()| checkpoint)
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

    /// Whether there are complete checkpoints in `directory`, damaged or not.
    pub fn any(directory: &Path) -> bool {
        !Series::steps(directory).complete().is_empty()
    }

    /// The complete checkpoint of this number.
    pub(crate) fn open(series: Series<'_>, number: u64) -> Result<Checkpoint, Error> {
        let path = series.path(number);
        let text = fs::read(path.join(MANIFEST)).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A note left at saving.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.manifest.notes.get(name).map(String::as_str)
    }

    pub(super) fn read(&self, rank: usize) -> Result<Vec<u8>, Error> {
        let path = self.path.join(file_name(rank));
        let bytes = fs::read(&path).map_err(|e| fail(&path, e))?;
        if Some(&crc32fast::hash(&bytes)) != self.manifest.checksums.get(rank) {
            return Err(fail(&path, "damaged: its checksum is not the manifest's"));
        }
        Ok(bytes)
    }
}

pub(super) fn file_name(rank: usize) -> String {
    format!("rank-{rank}.safetensors")
}

/// Every rank does; one of them is first.
pub(super) fn forget_manifest(path: &Path) -> std::io::Result<()> {
    let manifest = path.join(MANIFEST);
    match fs::remove_file(&manifest) {
        Err(error) if manifest.is_file() => Err(error),
        _ => Ok(()),
    }
}

/// Leaves the newest [`KEEP`] complete checkpoints, and nothing of the series that is older than they are.
pub(super) fn remove_old(series: Series<'_>) {
    let Some(oldest_kept) = series.complete().into_iter().rev().take(KEEP).next_back() else { return };
    for number in series.found().into_iter().take_while(|number| *number < oldest_kept) {
        let path = series.path(number);
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!("cannot remove the old checkpoint {}: {error}", path.display());
        }
    }
}
