//! Process between launcher and rank: ties the rank's lifetime to the launcher's, then executes the rank's program.
//!
//! On request, Linux sends a process a signal when its parent dies, and keeps the request across `exec`. Only the
//! process itself can make it. The launcher therefore starts its own program file with the hidden command `run-rank`,
//! which makes the request and then executes the program: same process, same output. Processes that the program starts
//! in turn are not tied.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::Args;

/// This process's own program file, even if it has been replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Becomes a program that dies with its launcher.
#[derive(Debug, Clone, Args)]
pub struct RunRank {
    /// The launcher's process.
    #[arg(long)]
    pub launcher: i32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

impl RunRank {
    /// Executes the program. Returns only on failure: 127 if there is no such program, else 126, as shells do.
    pub fn run(&self) -> u8 {
        #[cfg(target_os = "linux")]
        {
            use nix::sys::{prctl, signal::Signal};
            // If this is refused, the rank would outlive a launcher killed by SIGKILL, which is no reason not to run.
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            // The request came too late: the launcher is gone, so this rank must not run.
            if nix::unistd::getppid().as_raw() != self.launcher {
                return 126;
            }
        }
        let program = &self.command[0];
        let error = Command::new(program).args(&self.command[1..]).exec();
        crate::terminal::complain(format_args!("error: `{}` cannot be started: {error}", program.to_string_lossy()));
        if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// Builds the command that runs `program` as a rank, through [`RunRank`] on systems that support it.
pub(super) fn command(program: &OsStr, arguments: &[OsString]) -> Command {
    let tied = cfg!(target_os = "linux") && Path::new(OWN_PROGRAM).exists();
    let mut command = if tied {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("briquette").arg("run-rank").arg(format!("--launcher={}", std::process::id()));
        command.arg("--").arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(arguments);
    command
}
