//! A run of a trainer as processes over TCP and TLS, started by `briquette launch`.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Polling interval of waits.
const LOOK: Duration = Duration::from_millis(10);

/// Paths of `briquette`, `cifar` and `ag-news`.
#[derive(Debug, Clone)]
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// Finds all programs in one directory.
    ///
    /// # Errors
    /// Names the missing program.
    pub fn in_directory(directory: &Path) -> Result<Programs> {
        let programs = Programs { directory: fs::canonicalize(directory)? };
        for name in ["briquette", "cifar", "ag-news"] {
            let path = programs.path(name);
            ensure!(path.is_file(), "no {}: build it with `cargo build --workspace`", path.display());
        }
        Ok(programs)
    }

    /// Returns the path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Surroundings of a run that stay the same when it is restarted.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Programs.
    pub programs: Programs,
    /// The working directory; `stdout`, `stderr` and the ranks' logs go there.
    pub directory: PathBuf,
    /// Directory made by `briquette cert`.
    pub certificates: PathBuf,
    /// Number of ranks.
    pub ranks: usize,
    /// Port of rank 0, and the one at which the others reach it.
    pub ports: Option<(u16, u16)>,
    /// Library that shifts clocks, and the file with the seconds.
    pub clock: Option<(PathBuf, PathBuf)>,
}

/// Points ranks other than 0 at the proxy, and enables clock shifts on all ranks.
const RANK: &str = r#"
if [ -n "$CHAOS_PORT" ] && [ "$RANK" != 0 ]; then export MASTER_PORT="$CHAOS_PORT"; fi
if [ -n "$CHAOS_SHIM" ]; then export LD_PRELOAD="$CHAOS_SHIM"; fi
exec "$@""#;

/// A launcher and its ranks. Those still alive on drop are killed.
#[derive(Debug)]
pub struct World {
    launcher: Child,
    code: Option<i32>,
}

impl Surroundings {
    /// Starts a trainer with these arguments, with up to `restarts` restarts.
    ///
    /// # Errors
    /// If the launcher cannot be started.
    pub fn start(&self, trainer: &str, arguments: &[String], restarts: u32) -> Result<World> {
        fs::create_dir_all(&self.directory)?;
        let log = |name: &str| File::options().create(true).append(true).open(self.directory.join(name));
        let mut command = Command::new(self.programs.path("briquette"));
        command.args(["launch", "--grace", "2s", "--ranks", &self.ranks.to_string()]);
        command.arg("--tls").arg(&self.certificates).args(["--restart", &restarts.to_string()]);
        if let Some((port, proxy)) = self.ports {
            command.args(["--port", &port.to_string()]).env("CHAOS_PORT", proxy.to_string());
        }
        if let Some((shim, offset)) = &self.clock {
            command.env("CHAOS_SHIM", shim).env("CHAOS_CLOCK", offset);
        }
        command.args(["--", "sh", "-c", RANK, "rank"]).arg(self.programs.path(trainer)).args(arguments);
        command.current_dir(&self.directory).env("RAYON_NUM_THREADS", "1").env("XDG_CACHE_HOME", &self.directory);
        // Ctrl-C on the terminal is for the soak, which ends its runs itself.
        command.process_group(0).stdin(Stdio::null()).stdout(log("stdout")?).stderr(log("stderr")?);
        let launcher = command.spawn().context("briquette launch cannot be started")?;
        Ok(World { launcher, code: None })
    }

    /// Returns the last lines that launcher and ranks wrote to standard error.
    pub fn last_words(&self) -> String {
        let text = fs::read(self.directory.join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(4).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl World {
    /// Returns the launcher's process number.
    pub fn id(&self) -> u32 {
        self.launcher.id()
    }

    /// Returns the ranks' process numbers.
    pub fn ranks(&self) -> Vec<u32> {
        children(self.id())
    }

    /// Returns the launcher's exit code if it has ended; 128 and more for a signal.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn ended(&mut self) -> Result<Option<i32>> {
        use std::os::unix::process::ExitStatusExt;
        if self.code.is_none()
            && let Some(status) = self.launcher.try_wait()?
        {
            self.code = Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()));
        }
        Ok(self.code)
    }

    /// Waits for the end; returns `None` if `limit` passes first.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn end_within(&mut self, limit: Duration) -> Result<Option<i32>> {
        let begin = Instant::now();
        while self.ended()?.is_none() && begin.elapsed() < limit {
            sleep(LOOK);
        }
        self.ended()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let ranks = self.ranks();
        // Fails only where it has ended already.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        ranks.into_iter().for_each(|rank| signal(rank, Signal::SIGKILL));
    }
}

/// Sends a signal to a process; does nothing if it has ended.
pub fn signal(process: u32, signal: Signal) {
    if let Ok(id) = i32::try_from(process) {
        let _ = kill(Pid::from_raw(id), signal);
    }
}

/// Returns the processes that a process has started.
pub fn children(parent: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Returns a free port outside of the ephemeral range.
///
/// # Errors
/// If there is none.
pub fn free_port(begin: u16) -> Result<u16> {
    let ports = (0..20_000_u16).map(|i| 10_000 + (begin % 20_000 + i) % 20_000);
    let free = |port: &u16| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).is_ok();
    ports.into_iter().find(free).context("no free port from 10000 to 29999")
}
