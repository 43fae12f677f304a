//! A run's directory: exclusive access, identity of its run, and replacement of the run by another.
//!
//! ```text
//! DIR/config.toml       the settings and the run's id; a run begins when it is renamed into place
//!     metrics.jsonl  summary.json  gradient.safetensors  checkpoints/  transfers/
//!     lock              held by rank 0's process from before anything is written until the run ends
//!     replaced-by-ID/   what an earlier run left, while run ID takes its place
//! ```
//!
//! Once every rank is ready, rank 0 alone inspects the directory and decides; the others receive its `Start`.

mod lock;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use briquette::Checkpoint;
use briquette::core::files;
use serde::{Deserialize, Serialize};

pub(crate) use self::lock::RunLock;
use crate::record::{RunFiles, StepRecord, Written};
use crate::settings::Settings;
use crate::train::{Control, Refused};

/// Settings of the run. A directory with this file contains a run.
const CONFIG: &str = "config.toml";
/// Other files of a run.
const FILES: [&str; 7] = [METRICS, EVALUATIONS, SUMMARY, GRADIENT, FRAMES, CHECKPOINTS, TRANSFERS];
pub(crate) const FRAMES: &str = "frames";
pub(crate) const METRICS: &str = "metrics.jsonl";
pub(crate) const EVALUATIONS: &str = "evaluations.json";
pub(crate) const SUMMARY: &str = "summary.json";
pub(crate) const GRADIENT: &str = "gradient.safetensors";
pub(crate) const CHECKPOINTS: &str = "checkpoints";
pub(crate) const TRANSFERS: &str = "transfers";
/// Name prefix of the place where these are kept while another run replaces them.
const REPLACED: &str = "replaced-by-";

/// Start of a run: the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Id of the run, if its config.toml has one.
    pub(crate) run: Option<String>,
    /// Set if it resumes from its newest checkpoint.
    pub(crate) resumed: bool,
}

/// A directory to which only this process may write.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    lock: RunLock,
}

/// Returns whether a directory contains anything of a run that could be lost.
pub fn holds_a_run(directory: &Path) -> bool {
    let some = |name: &str| fs::metadata(directory.join(name)).is_ok_and(|file| file.len() > 0);
    [CONFIG, SUMMARY, METRICS].into_iter().any(some)
        || Checkpoint::any(&directory.join(CHECKPOINTS))
        || replaced(directory).is_ok_and(|found| !found.is_empty())
}

/// Returns the id of the run in a directory; `None` if there is no run, or its config.toml has no id.
fn saved_run(directory: &Path) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Config {
        run: Option<String>,
    }
    let path = directory.join(CONFIG);
    match files::read_to_string(&path) {
        Ok(text) => Ok(toml::from_str::<Config>(&text).with_context(|| format!("in {}", path.display()))?.run),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Checks whether the run in `out` may be resumed or replaced as `control` requests, without changing anything.
///
/// # Errors
/// [`Refused`]: the directory is in use, or holds a run that was neither to be continued nor to be replaced.
pub(crate) fn check(out: &Path, control: &Control) -> Result<()> {
    lock::check(out)?;
    if control.resume {
        check_saved(out)
    } else if own(out, control)? {
        Ok(())
    } else {
        check_free(out, control)
    }
}

fn check_saved(out: &Path) -> Result<()> {
    // Files that were moved aside are restored when the directory is claimed.
    if Checkpoint::any(&out.join(CHECKPOINTS)) || replaced(out).is_ok_and(|found| !found.is_empty()) {
        return Ok(());
    }
    let out = out.display();
    bail!(Refused::new(format!(
        "--resume {out}: no complete checkpoint there (one has a manifest.json); a run that saved nothing has to begin again, \
         without --resume and with --overwrite"
    )))
}

fn check_free(out: &Path, control: &Control) -> Result<()> {
    if control.overwrite || !holds_a_run(out) {
        return Ok(());
    }
    let out = out.display();
    bail!(Refused::new(format!(
        "--out {out}: there is a run already; continue it with --resume {out}, replace it with --overwrite, or choose another \
         --out"
    )))
}

/// Returns whether the run in `out` was started by the same launch that restarted this process.
fn own(out: &Path, control: &Control) -> Result<bool> {
    let again = control.place.as_ref().filter(|place| place.restart > 0);
    let launch = again.and_then(|place| place.launch.clone());
    Ok(launch.is_some() && saved_run(out)? == launch)
}

impl RunDirectory {
    /// Locks the directory for this process, completes or reverts an interrupted replacement, and decides how the run
    /// starts: from a checkpoint if requested, or if this launch already started the run and was restarted; otherwise
    /// from the beginning.
    ///
    /// # Errors
    /// As for [`check`], and if the directory cannot be created or written to.
    pub(crate) fn claim(out: &Path, control: &Control) -> Result<(RunDirectory, Start)> {
        fs::create_dir_all(out).with_context(|| format!("cannot make --out {}", out.display()))?;
        let directory = RunDirectory { path: out.to_owned(), lock: RunLock::take(out)? };
        directory.settle()?;
        let mine = own(out, control)?;
        let resumed = control.resume || (mine && Checkpoint::any(&out.join(CHECKPOINTS)));
        if resumed {
            return Ok((directory, Start { run: saved_run(out)?, resumed }));
        }
        if !mine {
            check_free(out, control)?;
        }
        let launch = control.place.as_ref().and_then(|place| place.launch.clone());
        let run = launch.map_or_else(random_id, Ok)?;
        Ok((directory, Start { run: Some(run), resumed }))
    }

    /// Locks the directory of a run whose rank 0 was lost.
    pub(crate) fn take_over(out: &Path) -> Result<RunDirectory> {
        fs::create_dir_all(out).with_context(|| format!("cannot make --out {}", out.display()))?;
        Ok(RunDirectory { path: out.to_owned(), lock: RunLock::take(out)? })
    }

    /// Creates the files of a new run, replacing an earlier run's. Whatever happens, either the earlier run stays
    /// complete or the new one has started: see [`settle`](Self::settle).
    pub(crate) fn begin(self, settings: &Settings, run: &str) -> Result<RunFiles> {
        let aside = self.path.join(format!("{REPLACED}{run}"));
        let begun = self.move_aside(&aside).and_then(|()| write_config(&self.path, settings, Some(run)));
        // Also if no run has started: then it restores everything.
        let settled = self.settle();
        begun.and(settled)?;
        let metrics = self.path.join(METRICS);
        let file = files::create(&metrics).with_context(|| format!("cannot write {}", metrics.display()))?;
        Ok(RunFiles::new(self.path, file, self.lock))
    }

    /// Opens the files of a resumed run.
    pub(crate) fn resume(
        self,
        settings: &Settings,
        run: Option<&str>,
        written: Written,
        own: &[StepRecord],
    ) -> Result<RunFiles> {
        // Of the failure after which this run is resumed.
        let _ = fs::remove_dir_all(self.path.join(TRANSFERS));
        let metrics = self.path.join(METRICS);
        let file = crate::record::keep_before(&metrics, written, own);
        let file = file.with_context(|| format!("cannot write {}", metrics.display()))?;
        write_config(&self.path, settings, run)?;
        Ok(RunFiles::new(self.path, file, self.lock))
    }

    fn move_aside(&self, aside: &Path) -> Result<()> {
        let failed = || format!("cannot move the earlier run to {}", aside.display());
        for from in FILES.map(|name| self.path.join(name)).into_iter().filter(|path| fs::symlink_metadata(path).is_ok())
        {
            fs::create_dir_all(aside).with_context(failed)?;
            let to = aside.join(from.file_name().context("a file has a name")?);
            fs::rename(from, to).with_context(failed)?;
        }
        // Before the new run starts: a loss of power must not mix the two.
        let mut moved = [aside, &self.path].into_iter().filter(|_| aside.exists());
        moved.try_for_each(sync_directory).with_context(failed)
    }

    /// Resolves the state left by a process that was killed in [`begin`](Self::begin): if the new run has started, the
    /// replaced one is deleted; otherwise it is restored.
    fn settle(&self) -> Result<()> {
        // A directory that cannot be listed may hold the only copy of a run.
        let found = replaced(&self.path).with_context(|| format!("cannot list {}", self.path.display()))?;
        for (aside, by) in found {
            let run = saved_run(&self.path)?;
            let settled =
                if Some(&by) == run.as_ref() { fs::remove_dir_all(&aside) } else { put_back(&aside, &self.path) };
            settled.with_context(|| format!("cannot settle {}", aside.display()))?;
        }
        Ok(())
    }
}

/// Writes the settings of a run to the directory of a machine other than rank 0's, so that the run can be resumed
/// there. On shared storage the directory is rank 0's and has them already.
pub(crate) fn leave_config(out: &Path, settings: &Settings, run: Option<&str>) -> Result<()> {
    if run.is_some() && saved_run(out).is_ok_and(|saved| saved.as_deref() == run) {
        return Ok(());
    }
    fs::create_dir_all(out).with_context(|| format!("cannot make --out {}", out.display()))?;
    write_config(out, settings, run)
}

fn write_config(out: &Path, settings: &Settings, run: Option<&str>) -> Result<()> {
    let run = run.map_or(String::new(), |run| format!("run = {}\n", toml::Value::from(run)));
    let path = out.join(CONFIG);
    let text = run + &toml::to_string(settings)?;
    write_whole(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the files that were moved aside, and the run for which each was moved.
fn replaced(directory: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let by = entry.file_name().to_str().and_then(|name| name.strip_prefix(REPLACED)).map(str::to_owned);
        found.extend(by.filter(|_| entry.path().is_dir()).map(|by| (entry.path(), by)));
    }
    Ok(found)
}

fn put_back(aside: &Path, directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(aside)? {
        let entry = entry?;
        fs::rename(entry.path(), directory.join(entry.file_name()))?;
    }
    fs::remove_dir(aside)
}

/// Replaces a file atomically: after a full disk or a loss of power it has either the complete new or the old contents.
pub(crate) fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let write = || {
        let mut file = files::create(&partial)?;
        file.write_all(contents)?;
        file.sync_all()?;
        files::rename(&partial, path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new(".")))
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}

/// Makes renames in a directory durable.
#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Does nothing: other systems cannot sync directories.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

fn random_id() -> Result<String> {
    let id = getrandom::u64().context("the system gives no random numbers for the run's id")?;
    Ok(format!("{id:016x}"))
}

#[cfg(test)]
mod tests;
