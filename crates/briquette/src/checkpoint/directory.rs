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
pub(super) struct Manifest {
    pub(super) step: u64,
    pub(super) world: usize,
    /// CRC-32 of each rank's file.
    pub(super) checksums: Vec<u32>,
    /// What the training loop wants to know before it loads.
    pub(super) notes: BTreeMap<String, String>,
}

/// The newest complete checkpoint under a directory.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Finds the newest complete checkpoint in `directory` of which every rank's file is as it was saved. One that is
    /// damaged is passed over for the one before, with a warning. Every rank finds the same, as each reads all files.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when there is none: what is wrong with the newest, if there are any.
    pub fn latest(directory: &Path) -> Result<Checkpoint, Error> {
        let mut newest = None;
        for path in complete(directory).into_iter().rev() {
            let whole = |checkpoint: Checkpoint| {
                (0..checkpoint.world()).try_for_each(|rank| checkpoint.read(rank).map(drop)).map(|()| checkpoint)
            };
            match (Checkpoint::open(path).and_then(whole), &newest) {
                (Ok(checkpoint), None) => return Ok(checkpoint),
                (Ok(checkpoint), Some(problem)) => {
                    tracing::warn!("{problem}; going back to step {}", checkpoint.step());
                    return Ok(checkpoint);
                }
                (Err(problem), _) => {
                    newest.get_or_insert(problem);
                }
            }
        }
        let none = "no complete checkpoint here (one has a manifest.json); give the directory of a run";
        Err(newest.unwrap_or_else(|| fail(directory, none)))
    }

    /// Whether there are complete checkpoints in `directory`, damaged or not.
    pub fn any(directory: &Path) -> bool {
        !complete(directory).is_empty()
    }

    /// The complete checkpoint at `path`.
    pub(crate) fn open(path: PathBuf) -> Result<Checkpoint, Error> {
        let text = fs::read_to_string(path.join(MANIFEST)).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
        let manifest = serde_json::from_str(&text).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
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

/// Checkpoints, complete ones and others, oldest first.
fn found(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")))
        .collect();
    paths.sort();
    paths.into_iter()
}

/// Those that are complete.
fn complete(directory: &Path) -> Vec<PathBuf> {
    found(directory).filter(|p| p.join(MANIFEST).is_file()).collect()
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

/// Leaves the newest [`KEEP`] complete checkpoints, and nothing that is older than they are.
pub(super) fn remove_old(directory: &Path) {
    let Some(oldest_kept) = complete(directory).into_iter().rev().take(KEEP).next_back() else { return };
    for path in found(directory).take_while(|path| *path < oldest_kept) {
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!("cannot remove the old checkpoint {}: {error}", path.display());
        }
    }
}
