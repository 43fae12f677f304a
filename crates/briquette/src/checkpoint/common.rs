//! Replicated state, written once in each directory that ranks share.
//!
//! Two facts are determined by measurement. *Which parts are replicated*: each rank sends the others a fingerprint of each part.
//! The model's means are replicated; the optimizer's state is, if every rank steps with the same bits. *Which ranks share a
//! directory* (the ranks of one machine, or all ranks on shared storage): each rank writes a file there, with a name unique to
//! this save, and looks for the files of the others.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use burn::tensor::Bytes;

use super::file::make_directory;
use super::{Blobs, fail, ids};
use crate::error::Error;
use crate::synchronizer::Synchronizer;

/// Prefix of the files by which ranks find each other. The number of the save and the rank follow.
const TOKEN: &str = ".here-";

/// For every rank, the lowest rank with the same directory, which writes for all of them.
#[derive(Debug, Clone)]
pub(crate) struct Leaders {
    directory: PathBuf,
    of: Vec<usize>,
}

impl Leaders {
    pub(super) fn of(&self, rank: usize) -> usize {
        self.of.get(rank).copied().unwrap_or(rank)
    }
}

/// Returns, for every rank, the lowest rank that shares its directory. Two ranks share a directory if one of them has found
/// the other's file, because a file from another machine may appear on shared storage with a delay.
fn lead(seen: &[Vec<usize>]) -> Vec<usize> {
    let mut leaders: Vec<usize> = (0..seen.len()).collect();
    for (rank, other) in seen.iter().enumerate().flat_map(|(rank, seen)| seen.iter().map(move |other| (rank, *other))) {
        let Some(theirs) = leaders.get(other).copied() else { continue };
        let (first, second) = (theirs.min(leaders[rank]), theirs.max(leaders[rank]));
        leaders.iter_mut().filter(|leader| **leader == second).for_each(|leader| *leader = first);
    }
    leaders
}

impl Synchronizer {
    /// Returns rank 0's notes, for the manifest in every directory. If any rank saves to a new directory, all ranks
    /// determine again which of them share a directory.
    pub(super) fn agree_on_save(
        &mut self,
        directory: &Path,
        notes: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let is_known = self.leaders.as_ref().is_some_and(|leaders| leaders.directory == directory);
        let notes = if self.rank() == 0 { serde_json::to_vec(notes).unwrap_or_default() } else { Vec::new() };
        let heard = self.gather_bytes("checkpoint save", &[&[u8::from(is_known)], &notes[..]].concat())?;
        if heard.iter().any(|bytes| bytes.first() != Some(&1)) {
            self.leaders = None;
        }
        Ok(heard[0].get(1..).and_then(|notes| serde_json::from_slice(notes).ok()).unwrap_or_default())
    }

    /// Returns the leaders of the ranks that share `directory`. They are determined at the first save to it.
    pub(super) fn leaders(&mut self, directory: &Path) -> Result<Leaders, Error> {
        if let Some(leaders) = &self.leaders {
            return Ok(leaders.clone());
        }
        let (rank, world) = (self.rank(), self.world());
        let own = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let heard =
            self.gather_bytes("checkpoint directory", &(own ^ u64::from(std::process::id()) << 32).to_le_bytes())?;
        let number = heard[0].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let token = |rank: usize| directory.join(format!("{TOKEN}{number:016x}-{rank}"));
        let left = make_directory(directory).and_then(|()| fs::write(token(rank), []));
        let all = self.gather_bytes("checkpoint directory", if left.is_ok() { &[1] } else { &[] })?;
        let seen: Vec<u8> =
            (0..world).filter(|other| token(*other).is_file()).flat_map(|r| (r as u64).to_le_bytes()).collect();
        let heard = self.gather_bytes("checkpoint directory", &seen)?;
        let _ = fs::remove_file(token(rank));
        remove_tokens(directory, number);
        left.map_err(|e| fail(directory, e))?;
        if let Some(rank) = all.iter().position(Vec::is_empty) {
            return Err(fail(directory, format!("rank {rank} cannot write here; the checkpoint before is untouched")));
        }
        let ranks = |bytes: &Vec<u8>| bytes.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b) as usize).collect();
        let leaders =
            Leaders { directory: directory.to_owned(), of: lead(&heard.iter().map(ranks).collect::<Vec<_>>()) };
        self.leaders = Some(leaders.clone());
        Ok(leaders)
    }

    /// Divides the records into replicated and rank-local parts.
    ///
    /// # Errors
    /// Those of the transport; [`SyncError::Replicas`](briquette_core::error::SyncError::Replicas) if replicas must be equal and
    /// are not.
    pub(super) fn divide(&mut self, blobs: Blobs) -> Result<(Blobs, Blobs), Error> {
        let blobs = numbered(blobs);
        let mine: BTreeMap<&str, u64> = blobs.iter().map(|(name, bytes)| (*name, fingerprint(bytes))).collect();
        let heard = self.gather_bytes("checkpoint save", &serde_json::to_vec(&mine).unwrap_or_default())?;
        let theirs = heard.iter().map(|text| serde_json::from_slice(text).unwrap_or_default());
        let theirs: Vec<BTreeMap<String, u64>> = theirs.collect();
        let alike = |name: &str| theirs.iter().all(|other| other.get(name) == mine.get(name));
        self.check_replicas(&blobs, ["model", "optimizer"].map(|name| !alike(name)))?;
        Ok(blobs.into_iter().partition(|(name, _)| theirs.len() > 1 && alike(name)))
    }
}

/// Removes the files of ranks that were killed before they removed them.
fn remove_tokens(directory: &Path, current: u64) {
    let is_old = |name: &str| {
        let parts = name.strip_prefix(TOKEN).and_then(|rest| rest.split_once('-'));
        let parts =
            parts.and_then(|(number, rank)| Some((u64::from_str_radix(number, 16).ok()?, rank.parse::<usize>().ok()?)));
        parts.is_some_and(|(number, _)| number != current)
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_old) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Replaces parameter ids in Burn's records by numbers. Ids are random in each process. With numbers, records of equal values
/// have equal bytes, and one rank's optimizer state matches another rank's model.
fn numbered(blobs: Blobs) -> Blobs {
    let blobs: Blobs = blobs.into_iter().map(|(name, bytes)| (name, bytes.shared())).collect();
    let model = blobs.iter().find(|(name, _)| *name == "model");
    let Some(numbers) = model.and_then(|(_, model)| ids::numbers(model.clone()).ok()) else { return blobs };
    let renamed = |(name, bytes): &(&'static str, Bytes)| {
        let bytes = bytes.clone();
        Ok((
            *name,
            match *name {
                "model" => ids::rename_model(bytes, &numbers)?,
                "optimizer" => ids::rename(bytes, &numbers)?,
                _ => bytes,
            },
        ))
    };
    // Both records are renamed, or neither: the optimizer's ids refer to those of the model.
    let renamed: Result<Blobs, burn_pack::Error> = blobs.iter().map(renamed).collect();
    renamed.unwrap_or(blobs)
}

fn fingerprint(bytes: &Bytes) -> u64 {
    let mut hash = DefaultHasher::new();
    hash.write(bytes);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_seen_leads() {
        let all = vec![0, 1, 2];
        assert_eq!(lead(&[all.clone(), all.clone(), all]), [0, 0, 0]);
        assert_eq!(lead(&[vec![0, 1], vec![0, 1], vec![2, 3], vec![2, 3]]), [0, 0, 2, 2]);
        assert_eq!(lead(&[vec![0], vec![1], vec![2]]), [0, 1, 2]);
        // Delayed visibility: one of two has seen the other's file; or neither has, but a third rank has seen both.
        assert_eq!(lead(&[vec![], vec![0, 1], vec![1, 2]]), [0, 0, 0]);
        assert_eq!(lead(&[vec![0], vec![1], vec![0, 1, 2], vec![3, 9]]), [0, 0, 0, 3]);
    }
}
