//! `briquette checkpoint`: the contents of a run's checkpoints.
//!
//! Reads the manifest, the checksums and the headers of the files; no tensor is decoded. A checkpoint without a manifest was
//! interrupted and does not count; one with a damaged file is passed over by a resume.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use briquette_core::files;
use clap::Args;
use safetensors::tensor::SafeTensors;
use serde::{Deserialize, Serialize};

use crate::terminal::{bytes, printable, show};

const HELP: &str = "\
Example:
  briquette checkpoint runs/mine            (every checkpoint of a run)
  briquette checkpoint runs/mine/checkpoints/step-00000390 --json

Exits with 1 where a file of a complete checkpoint is missing or damaged.";

/// Shows the checkpoints of a run: step, ranks, notes, files and checksums.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Show {
    /// The directory of a run, its folder `checkpoints`, or one checkpoint.
    pub directory: PathBuf,
    /// Print JSON, with the whole configuration of the run, instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `manifest.json`.
#[derive(Debug, Deserialize)]
struct Manifest {
    step: u64,
    world: usize,
    checksums: Vec<u32>,
    #[serde(default)]
    common: BTreeMap<usize, u32>,
    notes: BTreeMap<String, String>,
}

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checkpoint {
    /// Its directory.
    pub path: PathBuf,
    /// Why it does not count; `None` where it is complete.
    pub incomplete: Option<String>,
    /// Steps that the run had made.
    pub step: Option<u64>,
    /// Ranks that saved it.
    pub world: Option<usize>,
    /// The training loop's notes.
    pub notes: BTreeMap<String, String>,
    /// The run that saved it: version, configuration, seed, layout of the model.
    pub run: BTreeMap<String, String>,
    /// The files that the manifest lists.
    pub files: Vec<File>,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its length in bytes; `None` where it is not there.
    pub bytes: Option<u64>,
    /// The defect found in the file, if any. A file that is not in this directory may be on another machine.
    pub problem: Option<String>,
    /// Bytes of each record and of the algorithms' state.
    pub contents: BTreeMap<String, u64>,
}

impl Show {
    /// Prints the checkpoints, oldest first; whether all files of the complete ones are whole.
    ///
    /// # Errors
    /// When the directory cannot be read, or holds no checkpoint.
    pub fn run(&self) -> Result<bool> {
        let found = read(&self.directory)?;
        if self.json {
            show(serde_json::to_string_pretty(&found)?)?;
        } else {
            for checkpoint in &found {
                show(printable(&text(checkpoint)))?;
            }
        }
        Ok(found.iter().flat_map(|checkpoint| &checkpoint.files).all(|file| file.problem.is_none()))
    }
}

/// The checkpoints of a run's directory, of its folder `checkpoints`, or the one of this directory; oldest first.
///
/// # Errors
/// When a directory cannot be read, or there is no checkpoint.
pub fn read(directory: &Path) -> Result<Vec<Checkpoint>> {
    let shown = directory.display();
    ensure!(directory.is_dir(), "{shown}: not a directory; give the directory of a run or of a checkpoint");
    if number(directory).is_some() || directory.join("manifest.json").exists() {
        return Ok(vec![open(directory)?]);
    }
    for directory in [directory.join("checkpoints"), directory.to_owned()] {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut found: Vec<PathBuf> = entries.filter(|path| path.is_dir() && number(path).is_some()).collect();
        found.sort_by_key(|path| number(path));
        if !found.is_empty() {
            return found.iter().map(|path| open(path)).collect();
        }
    }
    anyhow::bail!("{shown}: no checkpoint here: no folder step-NUMBER or epoch-NUMBER, and none in checkpoints")
}

/// Of `step-00000390` and `epoch-00000002`.
fn number(path: &Path) -> Option<u64> {
    let (series, number) = path.file_name()?.to_str()?.split_once('-')?;
    ["step", "epoch"].contains(&series).then(|| number.parse().ok())?
}

fn open(path: &Path) -> Result<Checkpoint> {
    let mut checkpoint = Checkpoint {
        path: path.to_owned(),
        incomplete: None,
        step: None,
        world: None,
        notes: BTreeMap::new(),
        run: BTreeMap::new(),
        files: Vec::new(),
    };
    let manifest = path.join("manifest.json");
    let read = |path: &Path| -> Result<Manifest> { Ok(serde_json::from_slice(&read_file(path)?)?) };
    let manifest = match read(&manifest) {
        Ok(manifest) => manifest,
        Err(error) => {
            let interrupted = !manifest.exists();
            checkpoint.incomplete = Some(if interrupted {
                "no manifest.json: the save was interrupted".into()
            } else {
                format!("manifest.json: {error:#}")
            });
            return Ok(checkpoint);
        }
    };
    let common = manifest.common.iter().map(|(leader, sum)| (format!("common-{leader}.safetensors"), *sum));
    let ranks = manifest.checksums.iter().enumerate().map(|(rank, sum)| (format!("rank-{rank}.safetensors"), *sum));
    for (name, checksum) in common.chain(ranks) {
        let (file, run) = inspect(path, name, checksum);
        checkpoint.files.push(file);
        if checkpoint.run.is_empty() {
            checkpoint.run = run;
        }
    }
    (checkpoint.step, checkpoint.world, checkpoint.notes) = (Some(manifest.step), Some(manifest.world), manifest.notes);
    Ok(checkpoint)
}

/// The bytes of a regular file.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    files::read(path).context("cannot be read")
}

/// A file that the manifest lists, and the identity of its run. The file of an interrupted rename has its temporary name.
fn inspect(directory: &Path, name: String, checksum: u32) -> (File, BTreeMap<String, String>) {
    let candidates = [directory.join(&name), directory.join(format!(".partial-{name}"))];
    let read: Vec<Vec<u8>> = candidates.iter().filter_map(|path| read_file(path).ok()).collect();
    let whole = read.iter().find(|bytes| crc32fast::hash(bytes) == checksum);
    let mut file = File { name, bytes: None, problem: None, contents: BTreeMap::new() };
    let Some(data) = whole.or(read.first()) else {
        file.problem = Some(match fs::metadata(&candidates[0]) {
            Ok(_) => "not a regular file that can be read".to_owned(),
            Err(error) => error.to_string(),
        });
        return (file, BTreeMap::new());
    };
    file.bytes = Some(data.len() as u64);
    if whole.is_none() {
        file.problem = Some("damaged: its checksum is not the manifest's".to_owned());
    }
    let Ok(tensors) = SafeTensors::deserialize(data) else { return (file, BTreeMap::new()) };
    for (tensor, view) in tensors.tensors() {
        let part = tensor.split_once('/').map_or(tensor.as_str(), |(part, _)| part);
        *file.contents.entry(part.to_owned()).or_default() += view.data().len() as u64;
    }
    let header = SafeTensors::read_metadata(data).ok().and_then(|(_, header)| header.metadata().clone());
    let run = header.into_iter().flatten().filter(|(key, _)| key != "rank" && key != "world").collect();
    (file, run)
}

/// Longer values are cut in the text.
const WIDTH: usize = 100;

fn text(checkpoint: &Checkpoint) -> String {
    let mut lines = vec![format!("{}", checkpoint.path.display())];
    if let Some(why) = &checkpoint.incomplete {
        lines.push(format!("  incomplete: {why}"));
        return lines.join("\n");
    }
    let total: u64 = checkpoint.files.iter().filter_map(|file| file.bytes).sum();
    let (step, world) = (checkpoint.step.unwrap_or_default(), checkpoint.world.unwrap_or_default());
    let ranks = if world == 1 { "1 rank".to_owned() } else { format!("{world} ranks") };
    lines.push(format!("  step {step}, {ranks}, {}", bytes(total)));
    for (kind, entries) in [("note", &checkpoint.notes), ("run", &checkpoint.run)] {
        for (key, value) in entries {
            let short: String = value.chars().take(WIDTH).collect();
            let more = if short.len() < value.len() { "… (--json shows all)" } else { "" };
            lines.push(format!("  {kind} {key}: {short}{more}"));
        }
    }
    for file in &checkpoint.files {
        let size = file.bytes.map_or("-".to_owned(), bytes);
        let contents: Vec<String> = file.contents.iter().map(|(part, len)| format!("{part} {}", bytes(*len))).collect();
        let state = file.problem.as_deref().unwrap_or("whole");
        lines.push(format!("  {:<24} {size:>10}  {state}; {}", file.name, contents.join(", ")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};
    use std::collections::HashMap;

    /// A checkpoint of one rank with a common file, as a run of two steps saves it.
    fn save(directory: &Path) -> PathBuf {
        let path = directory.join("checkpoints/step-00000002");
        fs::create_dir_all(&path).unwrap();
        let write = |name: &str, tensors: &[(&str, &[u8])]| {
            let views =
                tensors.iter().map(|(name, data)| (*name, TensorView::new(Dtype::U8, vec![data.len()], data).unwrap()));
            let metadata = HashMap::from([("seed".to_owned(), "7".to_owned()), ("rank".to_owned(), "0".to_owned())]);
            let bytes = safetensors::serialize(views, Some(metadata)).unwrap();
            fs::write(path.join(name), &bytes).unwrap();
            crc32fast::hash(&bytes)
        };
        let common = write("common-0.safetensors", &[("model", &[1; 12]), ("optimizer", &[2; 5])]);
        let rank =
            write("rank-0.safetensors", &[("buffers", &[3; 4]), ("state/residual", &[4; 8]), ("state/step", &[5; 8])]);
        let manifest = serde_json::json!({
            "step": 2, "world": 1, "checksums": [rank], "common": {"0": common}, "notes": {"epoch": "1"}, "crc32": 0
        });
        fs::write(path.join("manifest.json"), manifest.to_string()).unwrap();
        path
    }

    #[test]
    fn a_checkpoint_is_shown_with_notes_contents_and_checksums() {
        let directory = tempfile::tempdir().unwrap();
        let path = save(directory.path());
        for given in [directory.path(), &directory.path().join("checkpoints"), &path] {
            let found = read(given).unwrap();
            assert_eq!(found.len(), 1);
            let [common, rank] = &found[0].files[..] else { panic!("{found:?}") };
            assert_eq!((found[0].step, found[0].world), (Some(2), Some(1)));
            assert_eq!(found[0].run, BTreeMap::from([("seed".into(), "7".into())]));
            assert_eq!(common.contents, BTreeMap::from([("model".into(), 12), ("optimizer".into(), 5)]));
            assert_eq!(rank.contents, BTreeMap::from([("buffers".into(), 4), ("state".into(), 16)]));
            assert!(found[0].files.iter().all(|file| file.problem.is_none()));
        }
        let shown = text(&read(&path).unwrap()[0]);
        for part in ["step 2, 1 rank", "note epoch: 1", "run seed: 7", "model 12 bytes", "whole"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn missing_damaged_and_interrupted_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = save(directory.path());
        let problem = |index: usize| read(&path).unwrap()[0].files[index].problem.clone().unwrap_or_default();
        let file = path.join("common-0.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert!(problem(0).contains("damaged"), "{}", problem(0));
        fs::remove_file(&file).unwrap();
        assert!(problem(0).contains("No such file"), "{}", problem(0));
        fs::create_dir(&file).unwrap();
        assert!(problem(0).contains("not a regular file"), "{}", problem(0));
        fs::remove_file(path.join("manifest.json")).unwrap();
        assert_eq!(read(&path).unwrap()[0].incomplete.as_deref(), Some("no manifest.json: the save was interrupted"));
        let empty = tempfile::tempdir().unwrap();
        assert!(read(empty.path()).unwrap_err().to_string().contains("no checkpoint here"));
    }
}
