//! `briquette launch` as a user runs it, with shell scripts as ranks.
#![cfg(unix)]

mod ending;
mod output;
mod starting;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes on the slowest machine. Only a failing test waits that long.
const LIMIT: Duration = Duration::from_secs(120);

/// A directory with a script, in which the launcher and its ranks run.
struct Place {
    directory: tempfile::TempDir,
}

/// A running launcher. It is killed if the test gives up on it.
struct Launched {
    child: Child,
    place: PathBuf,
}

/// Results of a launcher.
#[derive(Debug)]
struct Left {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Place {
    /// Creates a directory with `script`, which each rank runs.
    fn new(script: &str) -> Place {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("rank.sh"), script).unwrap();
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Starts the script with the options `options`, separated by spaces.
    fn start(&self, options: &str) -> Launched {
        self.start_command(&format!("{options} -- /bin/sh rank.sh"))
    }

    fn start_command(&self, arguments: &str) -> Launched {
        self.spawn(&mut self.command(&format!("launch {arguments}")))
    }

    /// Builds the command with these arguments, separated by spaces, writing to files.
    fn command(&self, arguments: &str) -> Command {
        let file = |name| std::fs::File::create(self.path(name)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
        command.args(arguments.split_whitespace()).current_dir(self.directory.path());
        // It would ask for colours in files.
        command.env_remove("CLICOLOR_FORCE");
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        command
    }

    fn spawn(&self, command: &mut Command) -> Launched {
        Launched { child: command.spawn().unwrap(), place: self.directory.path().to_owned() }
    }

    /// Runs the script to its end.
    fn launch(&self, options: &str) -> Left {
        self.start(options).end()
    }

    /// Waits until all of these files exist.
    fn wait_for(&self, names: &[&str]) {
        wait("files of the ranks", || names.iter().all(|name| self.path(name).exists()));
    }

    /// Waits until the process whose number is in this file has ended.
    fn wait_gone(&self, name: &str) {
        let pid: i32 = self.read(name).trim().parse().unwrap();
        wait("the end of a process", || gone(pid));
    }
}

impl Launched {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until the launcher has written `text` to stderr.
    fn wait_said(&self, text: &str) {
        wait(text, || std::fs::read_to_string(self.place.join("err")).unwrap().contains(text));
    }

    fn end(mut self) -> Left {
        let mut status: Option<ExitStatus> = None;
        wait("the launcher", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let read = |name| String::from_utf8_lossy(&std::fs::read(self.place.join(name)).unwrap()).into_owned();
        Left { code: status.unwrap().code(), out: read("out"), err: read("err") }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // Nothing to do for one that has ended; ranks die with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "waited for {what} for {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether a process has ended, reaped by its parent or not.
fn gone(pid: i32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        return stat.is_err() || stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().trim().starts_with('Z'));
    }
    kill(Pid::from_raw(pid), None).is_err()
}
