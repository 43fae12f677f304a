//! Checks of a disturbed run: equality with an undisturbed run, and absence of leftovers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use burn_pack::{Bytes, Reader};
use safetensors::SafeTensors;
use serde_json::Value;

/// End of a finding about older checkpoints.
pub(crate) const TOO_MANY: &str = "checkpoints are left, not 2";

/// Differences that are allowed because of the injected faults.
#[derive(Debug, Clone, Default)]
pub struct Allowances {
    /// Steps whose records were damaged on disk after they had been written.
    pub lost_records: BTreeSet<u64>,
    /// Set if evaluations took place at other steps, so the best of them may differ.
    pub other_evaluations: bool,
    /// Directories that were put among the checkpoints and must stay there.
    pub strays: BTreeSet<String>,
}

/// Returns all differences between a finished run and an undisturbed one.
///
/// # Errors
/// If the undisturbed run cannot be read.
pub fn differences(whole: &Path, run: &Path, allowed: &Allowances) -> Result<Vec<String>> {
    let mut found = records(whole, run, allowed)?;
    let summary = |run: &Path| summary(run, allowed.other_evaluations);
    let expected = summary(whole)?;
    match summary(run) {
        Ok(got) => found.extend(unequal("summary.json", &expected, &got)),
        Err(error) => found.push(format!("{error:#}")),
    }
    // A run that was stopped between two evaluations was evaluated there as well.
    let (expected, got) = (evaluations(whole)?, evaluations(run).unwrap_or_default());
    let missing = expected.iter().filter(|evaluation| !allowed.other_evaluations && !got.contains(evaluation));
    found.extend(missing.map(|evaluation| format!("evaluations.json lacks {evaluation}")));
    let newest = |run: &Path| checkpoints(run).pop_last().context("no checkpoint");
    let (step, expected) = newest(whole)?;
    match newest(run) {
        Ok((other, path)) if other == step => found.extend(parameters(&expected, &path)?),
        Ok((other, _)) => found.push(format!("the newest checkpoint is of step {other}, not {step}")),
        Err(error) => found.push(format!("{error:#}")),
    }
    found.extend(leftovers(whole, run, allowed));
    Ok(found)
}

fn unequal(what: &str, expected: &BTreeMap<String, Value>, got: &BTreeMap<String, Value>) -> Vec<String> {
    let keys: BTreeSet<&String> = expected.keys().chain(got.keys()).collect();
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    keys.into_iter()
        .filter(|key| expected.get(*key) != got.get(*key))
        .map(|key| format!("{what}: {key} is {}, not {}", shown(got.get(key)), shown(expected.get(key))))
        .collect()
}

/// Reads the summary, without the wall time.
fn summary(run: &Path, other_evaluations: bool) -> Result<BTreeMap<String, Value>> {
    let path = run.join("summary.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut values: BTreeMap<String, Value> = serde_json::from_str(&text).context("summary.json")?;
    values.remove("wall_seconds");
    if other_evaluations {
        values.remove("best_test_accuracy");
    }
    Ok(values)
}

fn evaluations(run: &Path) -> Result<Vec<Value>> {
    let path = run.join("evaluations.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).context("evaluations.json")
}

/// Reads the lines of the record.
fn lines(run: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(run.join("metrics.jsonl")).with_context(|| format!("metrics.jsonl of {}", run.display()))?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// Checks that every record is present, except for damaged ones; of a damaged one, at most two lines are left.
fn records(whole: &Path, run: &Path, allowed: &Allowances) -> Result<Vec<String>> {
    let step = |line: &str| serde_json::from_str::<Value>(line).ok()?.get("step")?.as_u64();
    let lost = |line: &String| step(line).is_some_and(|step| allowed.lost_records.contains(&step));
    let expected: Vec<String> = lines(whole)?.into_iter().filter(|line| !lost(line)).collect();
    let got = match lines(run) {
        Ok(lines) => lines,
        Err(error) => return Ok(vec![format!("{error:#}")]),
    };
    let mut rest = got.iter();
    if let Some(missing) = expected.iter().find(|line| !rest.any(|other| other == *line)) {
        let other = got.iter().find(|line| step(line) == step(missing)).map_or("absent", String::as_str);
        return Ok(vec![format!("metrics.jsonl: a record is {}, not {}", short(other), short(missing))]);
    }
    let more = got.len() - expected.len();
    let most = 2 * allowed.lost_records.len();
    Ok(if more > most { vec![format!("metrics.jsonl has {more} lines too many")] } else { vec![] })
}

fn short(text: &str) -> &str {
    text.get(..120).unwrap_or(text)
}

/// Returns the complete checkpoints by step.
pub fn checkpoints(run: &Path) -> BTreeMap<u64, PathBuf> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let step = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
        path.join("manifest.json").is_file().then_some((step, path))
    };
    entries.filter_map(|entry| step(entry.path())).collect()
}

/// Returns the tensors in which two checkpoints differ.
fn parameters(whole: &Path, run: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for rank in 0.. {
        let name = format!("rank-{rank}.safetensors");
        if !whole.join(&name).exists() {
            break;
        }
        let expected = tensors(&whole.join(&name))?;
        let got = match tensors(&run.join(&name)) {
            Ok(got) => got,
            Err(error) => {
                found.push(format!("{error:#}"));
                continue;
            }
        };
        let names: BTreeSet<&String> = expected.keys().chain(got.keys()).collect();
        let differ: Vec<_> = names.into_iter().filter(|name| expected.get(*name) != got.get(*name)).cloned().collect();
        if !differ.is_empty() {
            found.push(format!("rank {rank}: {} tensors differ: {}", differ.len(), short(&differ.join(", "))));
        }
    }
    Ok(found)
}

/// Returns every tensor of a rank: Briquette's state, the model's, the optimizer's; from the rank's file and from the
/// one with the replicated state.
fn tensors(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut all = BTreeMap::new();
    let mut names = BTreeMap::new();
    let (mut model, mut optimizer) = (None, None);
    let common = path.with_file_name("common-0.safetensors");
    for path in [common.as_path(), path].into_iter().filter(|path| path.exists() || *path != common) {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let file = SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
        for (name, view) in file.tensors() {
            match name.as_str() {
                "model" => model = Some(view.data().to_vec()),
                "optimizer" => optimizer = Some(view.data().to_vec()),
                _ => drop(all.insert(name, view.data().to_vec())),
            }
        }
    }
    let reader =
        |bytes: Option<Vec<u8>>| anyhow::Ok(Reader::from_bytes(Bytes::from_bytes_vec(bytes.context("no blob")?))?);
    for tensor in reader(model)?.into_tensors()? {
        names.insert(tensor.param_id.map_or(String::new(), |id| id.to_string()), tensor.name.clone());
        all.insert(format!("model/{}", tensor.name), tensor.to_bytes()?.to_vec());
    }
    // Ids differ between processes; the optimizer's names begin with them.
    let named = |name: &str| {
        let (id, rest) = name.split_once('.').unwrap_or((name, ""));
        format!("optimizer/{} {rest}", names.get(id).map_or(id, String::as_str))
    };
    let optimizer = reader(optimizer)?;
    for (name, value) in optimizer.scalars().clone() {
        all.insert(named(&name), format!("{value:?}").into_bytes());
    }
    for tensor in optimizer.into_tensors()? {
        all.insert(named(&tensor.name), tensor.to_bytes()?.to_vec());
    }
    Ok(all)
}

/// Finds files of kinds that an undisturbed run does not leave, and checkpoints that should have been removed.
fn leftovers(whole: &Path, run: &Path, allowed: &Allowances) -> Vec<String> {
    let known: BTreeSet<String> = paths(whole).iter().map(|path| without_step(path)).collect();
    let stray = |path: &String| allowed.strays.iter().any(|stray| path.starts_with(&format!("checkpoints/{stray}")));
    let paths = paths(run);
    let mut found: Vec<String> = paths
        .iter()
        .filter(|path| !stray(path) && !known.contains(&without_step(path)))
        .map(|path| format!("left over: {path}"))
        .collect();
    let missing = allowed.strays.iter().filter(|stray| !run.join("checkpoints").join(stray).is_dir());
    found.extend(missing.map(|stray| format!("checkpoints/{stray} was removed, which is no checkpoint")));
    let kept = checkpoints(run).len();
    if kept > 2 {
        found.push(format!("{kept} {TOO_MANY}"));
    }
    found
}

/// Returns every file and directory of a run.
fn paths(run: &Path) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), vec![run.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if let Ok(inside) = path.strip_prefix(run) {
                found.push(inside.to_string_lossy().into_owned());
            }
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    found
}

fn without_step(path: &str) -> String {
    let parts = path.split('/').map(|part| match part.strip_prefix("step-") {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => "step-N",
        _ => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Returns the processes that work in a directory with this text in its name, or have it in their command line. A
/// killed process counts until its last thread has ended, since until then it keeps its files and any lock on them.
pub fn processes(text: &str) -> Vec<u32> {
    let ids = |directory: String| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    let thread = |process: u32, id: u32| {
        let line = fs::read(format!("/proc/{process}/task/{id}/cmdline")).unwrap_or_default();
        let cwd = fs::read_link(format!("/proc/{process}/task/{id}/cwd")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text) || cwd.to_string_lossy().contains(text)
    };
    let others = ids("/proc".into()).into_iter().filter(|id| *id != std::process::id());
    others.filter(|id| ids(format!("/proc/{id}/task")).into_iter().any(|task| thread(*id, task))).collect()
}

/// Returns whether a process listens on a port.
pub fn listens(port: u16) -> bool {
    let lines = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| fs::read_to_string(file).unwrap_or_default());
    let end = format!(":{port:04X}");
    let listening = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some("0A")
    };
    lines.iter().any(|text| text.lines().any(listening))
}
