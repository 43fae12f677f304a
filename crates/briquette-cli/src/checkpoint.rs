//! `briquette checkpoint`: the contents of a run's checkpoints.
//!
//! Reads the manifest, the checksums and the headers of the files; no tensor is decoded. A checkpoint without a
//! manifest was interrupted and does not count. A resume skips a checkpoint with a damaged manifest or file.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use briquette_core::files;
use briquette_core::manifest::Manifest;
use clap::Args;
use safetensors::tensor::SafeTensors;
use serde::Serialize;

use crate::terminal::{bytes, printable, show};

const HELP: &str = "\
Example:
  briquette checkpoint runs/mine            (every checkpoint of a run)
  briquette checkpoint runs/mine/checkpoints/step-00000390 --json

Exits with 1 where a manifest is damaged, or a file of a complete checkpoint is missing or damaged.";

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

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checkpoint {
    /// Its directory.
    pub path: PathBuf,
    /// Reason for which it is incomplete; `None` with a manifest.
    pub incomplete: Option<String>,
    /// Defect found in the manifest, if any.
    pub damaged: Option<String>,
    /// Steps that the run had completed.
    pub step: Option<u64>,
    /// Number of ranks that saved it.
    pub world: Option<usize>,
    /// Notes of the training loop.
    pub notes: BTreeMap<String, String>,
    /// Run that saved it: version, configuration, seed, layout of the model.
    pub run: BTreeMap<String, String>,
    /// Files listed in the manifest.
    pub files: Vec<File>,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its length in bytes; `None` if the file is missing.
    pub bytes: Option<u64>,
    /// Defect found in the file, if any. A file that is not in this directory may be on another machine.
    pub problem: Option<String>,
    /// Number of bytes of each record, and of the algorithms' state.
    pub contents: BTreeMap<String, u64>,
}

impl Show {
    /// Prints the checkpoints, oldest first. Returns whether all manifests, and all files of the complete checkpoints, are intact.
    ///
    /// # Errors
    /// If the directory cannot be read, or holds no checkpoint.
    pub fn run(&self) -> Result<bool> {
        let found = read(&self.directory)?;
        if self.json {
            show(serde_json::to_string_pretty(&found)?)?;
        } else {
            for checkpoint in &found {
                show(printable(&text(checkpoint)))?;
            }
        }
        Ok(found.iter().all(Checkpoint::is_whole))
    }
}

impl Checkpoint {
    fn is_whole(&self) -> bool {
        self.damaged.is_none() && self.files.iter().all(|file| file.problem.is_none())
    }
}

/// Reads the checkpoints of a run's directory, of its folder `checkpoints`, or the single checkpoint that this
/// directory is; oldest first.
///
/// # Errors
/// If a directory cannot be read, or there is no checkpoint.
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

/// Parses the number of `step-00000390` and `epoch-00000002`.
fn number(path: &Path) -> Option<u64> {
    let (series, number) = path.file_name()?.to_str()?.split_once('-')?;
    ["step", "epoch"].contains(&series).then(|| number.parse().ok())?
}

/// Parses the step of `step-00000390` only: the name of an epoch's directory does not contain the step.
fn step(path: &Path) -> Option<u64> {
    number(path).filter(|_| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")))
}

fn open(path: &Path) -> Result<Checkpoint> {
    let mut checkpoint = Checkpoint {
        path: path.to_owned(),
        incomplete: None,
        damaged: None,
        step: None,
        world: None,
        notes: BTreeMap::new(),
        run: BTreeMap::new(),
        files: Vec::new(),
    };
    let manifest = path.join("manifest.json");
    // Checked as a resume does: a dangling name is damage.
    if fs::symlink_metadata(&manifest).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        checkpoint.incomplete = Some("no manifest.json: the save was interrupted".into());
        return Ok(checkpoint);
    }
    let manifest = match parse(path, &manifest) {
        Ok(manifest) => manifest,
        Err(problem) => {
            checkpoint.damaged = Some(format!("manifest.json: {problem}"));
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

/// Parses the manifest of this directory, or returns the reason why a resume rejects it.
fn parse(directory: &Path, file: &Path) -> Result<Manifest, String> {
    let text = files::read(file).map_err(|error| error.to_string())?;
    let manifest = Manifest::parse(&text)?;
    match step(directory).filter(|step| *step != manifest.step) {
        Some(_) => Err(format!("it is of step {}: the directory was renamed", manifest.step)),
        None => Ok(manifest),
    }
}

/// Reads the bytes of a regular file.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    files::read(path).context("cannot be read")
}

/// Inspects a file listed in the manifest, and returns the identity of its run. The file of an interrupted rename has
/// its temporary name.
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

/// Width in characters at which values are cut in the text.
const WIDTH: usize = 100;

fn text(checkpoint: &Checkpoint) -> String {
    let mut lines = vec![format!("{}", checkpoint.path.display())];
    if let Some(why) = &checkpoint.incomplete {
        lines.push(format!("  incomplete: {why}"));
        return lines.join("\n");
    }
    if let Some(problem) = &checkpoint.damaged {
        lines.push(format!("  damaged: {problem}"));
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

    /// Saves a checkpoint of one rank with a common file, as a run of two steps does.
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
        let manifest = Manifest {
            step: 2,
            world: 1,
            checksums: vec![rank],
            common: BTreeMap::from([(0, common)]),
            notes: BTreeMap::from([("epoch".into(), "1".into())]),
            crc32: None,
        };
        fs::write(path.join("manifest.json"), manifest.to_text().unwrap()).unwrap();
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
    fn a_manifest_that_a_resume_does_not_trust_is_damage() {
        let directory = tempfile::tempdir().unwrap();
        let path = save(directory.path());
        let show = |directory: &Path| Show { directory: directory.to_owned(), json: false }.run().unwrap();
        assert!(show(&path));
        let file = path.join("manifest.json");
        let text = fs::read_to_string(&file).unwrap();
        for (wrong, words) in [
            (text.replace("\"epoch\": \"1\"", "\"epoch\": \"2\""), "checksum"),
            (text.replacen("\"step\"", "\"more\": 1, \"step\"", 1), "unknown field `more`"),
            (text[..text.len() / 2].to_owned(), "EOF"),
            // Of another program.
            ("{}".to_owned(), "missing field `step`"),
        ] {
            fs::write(&file, wrong).unwrap();
            let found = &read(&path).unwrap()[0];
            assert!(found.damaged.as_ref().is_some_and(|problem| problem.contains(words)), "{words}: {found:?}");
            assert_eq!((&found.incomplete, found.step), (&None, None));
            assert!(self::text(found).contains("damaged: manifest.json"), "{found:?}");
            assert!(!show(&path), "{words}");
        }
        // A name that is no regular file is damage, not an interrupted save.
        fs::remove_file(&file).unwrap();
        let damaged = || read(&path).unwrap()[0].damaged.clone().unwrap_or_default();
        fs::create_dir(&file).unwrap();
        assert_eq!(damaged(), "manifest.json: it is a directory, not a regular file");
        fs::remove_dir(&file).unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("absent", &file).unwrap();
            assert!(damaged().contains("No such file"), "a link to nothing: {:?}", read(&path));
            fs::remove_file(&file).unwrap();
        }
        fs::write(&file, text).unwrap();
        let renamed = path.with_file_name("step-00000003");
        fs::rename(&path, &renamed).unwrap();
        let found = &read(&renamed).unwrap()[0];
        assert_eq!(found.damaged.as_deref(), Some("manifest.json: it is of step 2: the directory was renamed"));
        let epoch = path.with_file_name("epoch-00000003");
        fs::rename(&renamed, &epoch).unwrap();
        assert!(show(&epoch), "an epoch's number is not a step");
        fs::remove_file(epoch.join("manifest.json")).unwrap();
        assert!(show(&epoch), "an interrupted save is no damage");
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
