//! Runs the trainers as built, and reads their results.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use briquette::Checkpoint;
use briquette_examples::record::{GIT_REVISION, Summary};

/// File next to a run that identifies it.
pub const FLAGS: &str = "flags.txt";
/// Output of the trainer.
pub const LOG: &str = "log.txt";
/// Revision of the sources by which a run was begun.
const REVISION: &str = "revision.txt";
/// Exit code of a trainer that refuses its settings.
const REFUSED: i32 = 2;

/// Trains from the start. Runs a trainer from this program's directory, on one thread, with its output in `out/log.txt`. `key` identifies the
/// finished run: its flags, for instance. Replaces the contents of `out`.
///
/// # Errors
/// If it cannot be run, or neither succeeds nor [diverges](diverged).
pub fn run(trainer: &str, flags: &str, key: &str, data: Option<&Path>, out: &Path) -> Result<()> {
    // Nothing of another run may be taken for this one's.
    for name in ["summary.json", FLAGS] {
        remove(fs::remove_file(out.join(name)))?;
    }
    remove(fs::remove_dir_all(out.join("checkpoints")))?;
    fs::create_dir_all(out)?;
    fs::write(out.join(REVISION), GIT_REVISION)?;
    fs::write(out.join(FLAGS), key)?;
    let log = fs::File::create(out.join(LOG))?;
    let mut command = command(trainer, data, log)?;
    command.args(flags.split_whitespace()).arg("--out").arg(out).arg("--overwrite");
    let status = command.status()?;
    if !status.success() && !diverged(out, key) {
        bail!("{trainer} {flags}: {status}; see {}", out.join(LOG).display());
    }
    Ok(())
}

/// As [`run`], from the last checkpoint if the run with this key was interrupted and these sources began it.
///
/// # Errors
/// As for [`run`].
pub fn run_or_resume(trainer: &str, flags: &str, key: &str, data: Option<&Path>, out: &Path) -> Result<()> {
    if !can_resume(out, key) {
        return run(trainer, flags, key, data, out);
    }
    let log = fs::OpenOptions::new().append(true).create(true).open(out.join(LOG))?;
    let mut command = command(trainer, data, log)?;
    let status = command.arg("--resume").arg(out).arg("--plain").status()?;
    if status.code() == Some(REFUSED) {
        return run(trainer, flags, key, data, out);
    }
    if !status.success() && !diverged(out, key) {
        bail!("{trainer} --resume {}: {status}; see {LOG} there", out.display());
    }
    Ok(())
}

/// Returns whether these sources began the run with this key, and it left a checkpoint.
fn can_resume(out: &Path, key: &str) -> bool {
    let revision = fs::read_to_string(out.join(REVISION));
    has_key(out, key) && revision.is_ok_and(|own| own == GIT_REVISION) && Checkpoint::any(&out.join("checkpoints"))
}

fn command(trainer: &str, data: Option<&Path>, log: fs::File) -> Result<Command> {
    let exe = std::env::current_exe()?.with_file_name(trainer);
    if !exe.with_extension(std::env::consts::EXE_EXTENSION).exists() {
        bail!("no {}: build the trainers in release mode first", exe.display());
    }
    let mut command = Command::new(&exe);
    command.env("RAYON_NUM_THREADS", "1").env("OMP_NUM_THREADS", "1");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    if let Some(data) = data {
        command.arg("--data").arg(data);
    }
    Ok(command)
}

fn remove(removed: std::io::Result<()>) -> std::io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn has_key(out: &Path, key: &str) -> bool {
    fs::read_to_string(out.join(FLAGS)).is_ok_and(|own| own == key)
}

/// Runs jobs in order, several at a time.
///
/// # Errors
/// The error of a job. The worker that ran it takes no other job; the other workers finish the queue.
pub fn each<T: Send>(jobs: Vec<T>, at_a_time: usize, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let queue = Mutex::new(jobs.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || -> Result<()> {
        while let Some(job) = next() {
            work(job)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

/// Returns whether a run with this key ended because a gradient was not finite: its learning rate was too high.
pub fn diverged(out: &Path, key: &str) -> bool {
    has_key(out, key) && fs::read_to_string(out.join(LOG)).unwrap_or_default().contains("non-finite value")
}

/// Returns the summary of a run that finished with this key; `None` otherwise.
pub fn finished(out: &Path, key: &str) -> Option<Summary> {
    let summary: Summary = serde_json::from_str(&fs::read_to_string(out.join("summary.json")).ok()?).ok()?;
    let whole = !summary.interrupted && summary.final_test_accuracy.is_finite();
    (whole && has_key(out, key)).then_some(summary)
}

/// Returns the date of a time, as `2026-11-22`.
///
/// # Errors
/// For a time outside the calendar's range.
pub fn day(moment: SystemTime) -> Result<String> {
    let text = humantime::format_rfc3339_seconds(moment).to_string();
    Ok(text.split('T').next().context("a day")?.to_owned())
}

/// Returns the processor's name and its number of hardware threads, for committed results.
pub fn machine() -> (String, usize) {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = model.map_or("unknown", |(_, name)| name).trim().to_owned();
    (name, std::thread::available_parallelism().map_or(0, std::num::NonZero::get))
}

#[cfg(test)]
mod tests {
    use briquette::core::error::SyncError;

    use super::*;

    #[test]
    fn a_moment_has_a_day() {
        let moment = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(86_400 * 365 + 5);
        assert_eq!(day(moment).unwrap(), "1971-01-01");
    }

    #[test]
    fn jobs_are_done_once_and_an_error_is_seen() {
        let done = Mutex::new(Vec::new());
        let work = |job: usize| {
            done.lock().unwrap().push(job);
            if job == 5 { bail!("five") } else { Ok(()) }
        };
        assert_eq!(each((0..9).collect(), 3, work).unwrap_err().to_string(), "five");
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn a_run_diverged_where_its_gradient_was_not_finite() {
        let (out, flags) = (tempfile::tempdir().unwrap(), "--lr 9");
        let log = |text: &str| fs::write(out.path().join(LOG), text).unwrap();
        let error = SyncError::NonFinite { step: 3, rank: 1, slot: "head".into() };
        log(&format!("error: stopped before step 3: {error}"));
        assert!(!diverged(out.path(), flags));
        fs::write(out.path().join(FLAGS), flags).unwrap();
        assert!(diverged(out.path(), flags) && !diverged(out.path(), "--lr 8"));
        log("error: rank 1 has gone");
        assert!(!diverged(out.path(), flags));
    }

    #[test]
    fn only_a_run_of_the_same_key_and_sources_resumes() {
        let out = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(out.path().join(name), text).unwrap();
        fs::create_dir_all(out.path().join("checkpoints/step-00000003")).unwrap();
        write(FLAGS, "a");
        write(REVISION, GIT_REVISION);
        assert!(!can_resume(out.path(), "a"), "half a checkpoint");
        write("checkpoints/step-00000003/manifest.json", "{}");
        assert!(can_resume(out.path(), "a") && !can_resume(out.path(), "b"));
        write(REVISION, "another");
        assert!(!can_resume(out.path(), "a"));
    }

    #[test]
    fn only_a_run_that_came_to_its_end_with_the_row_s_flags_counts() {
        let out = tempfile::tempdir().unwrap();
        let flags = "--ranks 4 --seed 3";
        fs::write(out.path().join(FLAGS), flags).unwrap();
        let summary = r#"{"final_test_accuracy": 0.5, "best_test_accuracy": 0.5, "final_test_loss": 1.0, "steps": 3,
            "bytes_sent": 1, "bytes_received": 1, "bytes_dense": 1, "wall_seconds": 1.0, "simulated_seconds": null,
            "compute_seconds": 1.0, "compress_seconds": 0.0, "exchange_seconds": 0.0, "interrupted": false,
            "git_revision": "unknown", "version": "0.1.0", "burn_version": "0.22"}"#;
        let with = |text: &str| {
            fs::write(out.path().join("summary.json"), text).unwrap();
            finished(out.path(), flags).is_some()
        };
        assert!(with(summary));
        assert!(!with(&summary.replace("false", "true")), "interrupted");
        assert!(!with(&summary.replace("\"final_test_accuracy\": 0.5", "\"final_test_accuracy\": null")));
        assert!(finished(out.path(), "--ranks 4 --seed 4").is_none(), "another row's");
    }
}
