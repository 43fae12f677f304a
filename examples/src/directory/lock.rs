//! Lock that admits one process at a time to a run's directory.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use briquette::core::files;
use indicatif::HumanDuration;
use serde::{Deserialize, Serialize};

use crate::train::Refused;

/// Name of the file in the directory. It stays there, and is empty if its holder ended properly.
const LOCK: &str = "lock";

/// Time for which an occupied lock is retried. It may be held briefly without a run: by a process that checks it, or by
/// the ranks of a killed launcher, which are about to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// The lock, held until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

/// Holder of the lock: the contents of the file, for people and for file systems without locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    user: String,
    host: String,
    process: u32,
}

/// State of an earlier owner that did not release the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Earlier {
    Gone,
    /// The lock is free, but locks may not be visible across hosts.
    Elsewhere,
    /// Locks are not supported here, and nothing shows that the owner is gone.
    Unknown,
}

/// Checks that no process holds the lock, retrying for up to [`PATIENCE`]; changes nothing.
pub(super) fn check(directory: &Path) -> Result<()> {
    let path = directory.join(LOCK);
    // An error here is reported when the lock is taken.
    let Ok(file) = files::open(&path) else { return Ok(()) };
    match patiently(|| file.try_lock_shared()) {
        Err(TryLockError::WouldBlock) => bail!(in_use(&path, &file)),
        Err(TryLockError::Error(_)) => Ok(()),
        Ok(()) => file.unlock().with_context(|| format!("cannot unlock {}", path.display())),
    }
}

impl RunLock {
    /// # Errors
    /// [`Refused`] if another process holds it, which is named; another error if the file cannot be written.
    pub(super) fn take(directory: &Path) -> Result<RunLock> {
        let path = directory.join(LOCK);
        let failed = || format!("cannot write {}", path.display());
        let file = files::open_or_create(&path).or_else(|error| match files::is_irregular(&error) {
            true => set_aside(directory, &path).and_then(|()| files::open_or_create(&path)),
            false => Err(error),
        });
        let file = file.with_context(failed)?;
        let locked = match patiently(|| file.try_lock()) {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => bail!(in_use(&path, &file)),
            Err(TryLockError::Error(_)) => false,
        };
        if let Some(owner) = Owner::read(&file) {
            owner.give_way(locked, &path)?;
        }
        let mut lock = RunLock { file };
        lock.write(&toml::to_string(&Owner::this())?).with_context(failed)?;
        Ok(lock)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Leftover contents are recognized as stale.
        let _ = self.file.set_len(0);
        // Closing the file is not enough: a process that is being started may have inherited it briefly.
        let _ = self.file.unlock();
    }
}

/// Moves aside anything but a regular file that has the lock's name. Processes that find it so take turns, so none
/// moves a file that another has created since.
fn set_aside(directory: &Path, path: &Path) -> io::Result<()> {
    let turn = File::open(directory)?;
    // If directories cannot be locked, processes do not take turns.
    let _ = patiently(|| turn.try_lock());
    let Err(error) = files::open(path) else { return Ok(()) };
    if files::is_irregular(&error) {
        let aside = files::set_aside(path)?;
        tracing::warn!("{}: {error}: moved to {}, and a new lock made", path.display(), aside.display());
    }
    Ok(())
}

/// Retries while another process has the lock.
fn patiently(lock: impl Fn() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    let begin = Instant::now();
    loop {
        match lock() {
            Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 50),
            done => return done,
        }
    }
}

fn in_use(path: &Path, file: &File) -> Refused {
    let out = path.parent().map(Path::to_path_buf).unwrap_or_default();
    // Its holder may be writing it.
    let owner = Owner::read(file).map_or("another process".to_owned(), |owner| owner.to_string());
    let since = file.metadata().and_then(|file| file.modified()).ok().and_then(|time| time.elapsed().ok());
    let since = since.map_or(String::new(), |time| format!(" for {}", HumanDuration(whole_seconds(time))));
    Refused::new(format!(
        "--out {}: in use{since} by {owner}; wait until that run has ended, end it (Ctrl-C leaves a checkpoint), or choose \
         another --out",
        out.display()
    ))
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {} on {}", self.process, self.user, self.host)
    }
}

impl Owner {
    fn read(mut file: &File) -> Option<Owner> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(1 << 12).read_to_string(&mut text).ok()?;
        toml::from_str(&text).ok()
    }

    #[cfg(unix)]
    fn this() -> Owner {
        use nix::unistd::{Uid, User, gethostname};
        let uid = Uid::current();
        let user = User::from_uid(uid).ok().flatten().map_or_else(|| format!("user {uid}"), |user| user.name);
        let host = gethostname().map_or("an unnamed host".into(), |host| host.to_string_lossy().into_owned());
        Owner { user, host, process: std::process::id() }
    }

    #[cfg(not(unix))]
    fn this() -> Owner {
        let name = |variable: &str| std::env::var(variable).unwrap_or_else(|_| "unknown".into());
        Owner { user: name("USERNAME"), host: name("COMPUTERNAME"), process: std::process::id() }
    }

    #[cfg(unix)]
    fn is_running(&self) -> bool {
        let process = i32::try_from(self.process).map(nix::unistd::Pid::from_raw);
        process.is_ok_and(|process| nix::sys::signal::kill(process, None) != Err(nix::errno::Errno::ESRCH))
    }

    #[cfg(not(unix))]
    fn is_running(&self) -> bool {
        true
    }

    /// Handles an owner that did not release a lock which this process now holds (`locked`), or which cannot be locked.
    fn give_way(&self, locked: bool, path: &Path) -> Result<()> {
        match self.earlier(locked, &Owner::this()) {
            Earlier::Gone => {}
            Earlier::Elsewhere => tracing::warn!(
                "{} is free, but {self} did not end properly: where locks of this file system do not reach other hosts, see \
                 that it is not running any more",
                path.display()
            ),
            Earlier::Unknown => bail!(Refused::new(format!(
                "{}: this file system has no locks, and {self} may still be running here; if it is not, remove this file",
                path.display()
            ))),
        }
        Ok(())
    }

    fn earlier(&self, locked: bool, this: &Owner) -> Earlier {
        match (self.host == this.host, locked) {
            (true, true) => Earlier::Gone,
            (true, false) if self.process == this.process || !self.is_running() => Earlier::Gone,
            (false, true) => Earlier::Elsewhere,
            (_, false) => Earlier::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_lock_is_one_processs_until_dropped_and_says_whose() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join(LOCK);
        assert!(check(directory.path()).is_ok() && !path.exists(), "looking makes no file");
        let held = RunLock::take(directory.path()).unwrap();
        for error in [check(directory.path()).unwrap_err(), RunLock::take(directory.path()).unwrap_err()] {
            let Owner { user, host, process } = Owner::this();
            let text = error.to_string();
            let words = [user, host, format!("process {process}"), "another --out".into()];
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(error.is::<Refused>());
        }
        drop(held);
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert!(check(directory.path()).is_ok() && RunLock::take(directory.path()).is_ok());
    }

    #[test]
    fn a_lock_that_is_let_go_in_time_is_waited_for() {
        let directory = tempfile::TempDir::new().unwrap();
        let held = RunLock::take(directory.path()).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(PATIENCE / 20);
            drop(held);
        });
        let taken = RunLock::take(directory.path());
        other.join().unwrap();
        assert!(taken.is_ok(), "{taken:?}");
    }

    #[test]
    fn a_file_that_a_child_inherited_does_not_keep_the_lock() {
        let directory = tempfile::TempDir::new().unwrap();
        let held = RunLock::take(directory.path()).unwrap();
        let _inherited = held.file.try_clone().unwrap();
        drop(held);
        assert!(check(directory.path()).is_ok() && RunLock::take(directory.path()).is_ok());
    }

    #[test]
    fn what_a_killed_process_left_is_stale() {
        let directory = tempfile::TempDir::new().unwrap();
        for process in ["user = \"a\"\nhost = \"b\"\nprocess = 1\n", "not a lock"] {
            fs::write(directory.path().join(LOCK), process).unwrap();
            let lock = RunLock::take(directory.path()).unwrap();
            assert_eq!(Owner::read(&lock.file), Some(Owner::this()));
        }
    }

    #[cfg(unix)]
    #[test]
    fn without_locks_an_owner_gives_way_only_when_it_is_seen_to_be_gone() {
        let this = Owner::this();
        let running = Owner { process: std::os::unix::process::parent_id(), ..this.clone() };
        // Above what Linux gives out.
        let ended = Owner { process: 1 << 30, ..this.clone() };
        let elsewhere = Owner { host: "another host".into(), ..ended.clone() };
        for (owner, locked, expected) in [
            (&running, true, Earlier::Gone),
            (&running, false, Earlier::Unknown),
            (&ended, false, Earlier::Gone),
            (&elsewhere, true, Earlier::Elsewhere),
            (&elsewhere, false, Earlier::Unknown),
        ] {
            assert_eq!(owner.earlier(locked, &this), expected, "{owner}, locked: {locked}");
        }
        let refusal = elsewhere.give_way(false, Path::new("run/lock")).unwrap_err().to_string();
        assert!(
            refusal.contains("another host") && refusal.contains("run/lock") && refusal.contains("remove"),
            "{refusal}"
        );
    }
}
