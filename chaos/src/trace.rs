//! Runs a command under ptrace and observes every system call on the files of one directory; kills the process at one
//! of them, or makes one fail.
//!
//! ptrace sees raw system calls too, which matters because several libraries here do not go through libc. x86-64 only,
//! as it reads registers.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc::{self, c_long, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Fault at the call with the given number, counted from 0 over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injection {
    /// No fault.
    None,
    /// The process is killed before the call takes effect.
    KillBefore(usize),
    /// The process is killed after the call.
    KillAfter(usize),
    /// The call has no effect and returns this error.
    Fail(usize, Errno),
}

/// A system call on a file of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// Path relative to the directory.
    pub path: String,
}

/// Observations of a command.
#[derive(Debug, Clone, Default)]
pub struct Traced {
    /// All calls, up to the end.
    pub calls: Vec<Call>,
    /// Exit code of the command; 128 and more for a signal.
    pub code: i32,
    /// Set if it did not end in time and was killed.
    pub late: bool,
}

/// Location of the path in a call's arguments.
#[derive(Debug, Clone, Copy)]
enum Where {
    /// A descriptor in this argument.
    Descriptor(usize),
    /// A path in this argument.
    Path(usize),
    /// A directory's descriptor in this argument, and a path in the next.
    At(usize),
}

/// Calls that change or read files.
const CALLS: [(c_long, &str, Where); 25] = [
    (libc::SYS_open, "open", Where::Path(0)),
    (libc::SYS_openat, "open", Where::At(0)),
    (libc::SYS_creat, "open", Where::Path(0)),
    (libc::SYS_read, "read", Where::Descriptor(0)),
    (libc::SYS_write, "write", Where::Descriptor(0)),
    (libc::SYS_pwrite64, "write", Where::Descriptor(0)),
    (libc::SYS_writev, "write", Where::Descriptor(0)),
    (libc::SYS_copy_file_range, "write", Where::Descriptor(2)),
    (libc::SYS_fsync, "fsync", Where::Descriptor(0)),
    (libc::SYS_fdatasync, "fsync", Where::Descriptor(0)),
    (libc::SYS_ftruncate, "ftruncate", Where::Descriptor(0)),
    (libc::SYS_truncate, "ftruncate", Where::Path(0)),
    (libc::SYS_flock, "flock", Where::Descriptor(0)),
    (libc::SYS_mkdir, "mkdir", Where::Path(0)),
    (libc::SYS_mkdirat, "mkdir", Where::At(0)),
    (libc::SYS_rmdir, "rmdir", Where::Path(0)),
    (libc::SYS_unlink, "unlink", Where::Path(0)),
    (libc::SYS_unlinkat, "unlink", Where::At(0)),
    (libc::SYS_rename, "rename", Where::Path(0)),
    (libc::SYS_renameat, "rename", Where::At(0)),
    (libc::SYS_renameat2, "rename", Where::At(0)),
    (libc::SYS_link, "link", Where::Path(0)),
    (libc::SYS_linkat, "link", Where::At(0)),
    (libc::SYS_symlinkat, "link", Where::At(1)),
    (libc::SYS_chmod, "chmod", Where::Path(0)),
];

/// State of a thread between the two stops of a call.
#[derive(Debug, Clone, Copy, Default)]
struct Entered {
    kill: bool,
    fail: Option<Errno>,
}

struct Tracer<'a> {
    inside: &'a Path,
    injection: Injection,
    entered: HashMap<Pid, Entered>,
    traced: Traced,
}

/// Error of [`run`] if tracing is not possible.
pub const REFUSED: &str = "this system does not let processes be traced";

/// Stops itself, so that it can be seized before it does anything.
const WAITING: &str = r#"kill -STOP $$; exec "$@""#;

/// Runs `command` until it and everything it started have ended. All its output goes to `log`.
///
/// # Errors
/// If it cannot be started or traced.
pub fn run(command: &[String], directory: &Path, inside: &Path, injection: Injection) -> Result<Traced> {
    let log = File::create(directory.join("log"))?;
    let child = Command::new("sh")
        .args(["-c", WAITING, "sh"])
        .args(command)
        .current_dir(directory)
        .envs([("RAYON_NUM_THREADS", "1"), ("XDG_CACHE_HOME", "/nonexistent")])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let main = Pid::from_raw(i32::try_from(child.id())?);
    waitpid(main, Some(WaitPidFlag::WUNTRACED))?;
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    if let Err(error) = ptrace::seize(main, options) {
        kill(main, Signal::SIGKILL)?;
        return Err(error).context(REFUSED);
    }
    kill(main, Signal::SIGCONT)?;
    let mut tracer = Tracer { inside, injection, entered: HashMap::new(), traced: Traced::default() };
    tracer.follow(main)?;
    Ok(tracer.traced)
}

/// Time limit: longer than any of these commands takes.
const LIMIT: Duration = Duration::from_secs(120);

impl Tracer<'_> {
    fn follow(&mut self, main: Pid) -> Result<()> {
        let begin = Instant::now();
        loop {
            if begin.elapsed() > LIMIT && !self.traced.late {
                self.traced.late = true;
                let _ = kill(main, Signal::SIGKILL);
            }
            let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Err(Errno::ECHILD) => return Ok(()),
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            match status {
                WaitStatus::Exited(pid, code) if pid == main => self.traced.code = code,
                WaitStatus::Signaled(pid, signal, _) if pid == main => self.traced.code = 128 + signal as i32,
                WaitStatus::PtraceSyscall(pid) => {
                    self.stopped(pid);
                    go_on(pid, None);
                }
                WaitStatus::PtraceEvent(pid, ..) => go_on(pid, None),
                // A stop of a group of processes is none of theirs: nothing here stops them.
                WaitStatus::Stopped(pid, Signal::SIGSTOP | Signal::SIGTRAP) => go_on(pid, None),
                WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal)),
                _ => {}
            }
        }
    }

    /// Handles a thread that is stopped before or after a call.
    fn stopped(&mut self, pid: Pid) {
        let Ok(mut registers) = ptrace::getregs(pid) else { return };
        if let Some(Entered { kill: killed, fail }) = self.entered.remove(&pid) {
            if let Some(error) = fail {
                registers.rax = (-(error as i64)) as u64;
                let _ = ptrace::setregs(pid, registers);
            }
            if killed {
                let _ = kill(pid, Signal::SIGKILL);
            }
            return;
        }
        // The kernel stores this value at the entry of a call; any other value is the exit of a call whose entry was not seen.
        if registers.rax as i64 != -(libc::ENOSYS as i64) {
            return;
        }
        let mut entered = Entered::default();
        if let Some(call) = self.call(pid, &registers) {
            let number = self.traced.calls.len();
            self.traced.calls.push(call);
            match self.injection {
                Injection::KillBefore(at) if at == number => drop(kill(pid, Signal::SIGKILL)),
                Injection::KillAfter(at) if at == number => entered.kill = true,
                Injection::Fail(at, error) if at == number => {
                    // An invalid call number: the kernel does nothing.
                    registers.orig_rax = u64::MAX;
                    let _ = ptrace::setregs(pid, registers);
                    entered.fail = Some(error);
                }
                _ => {}
            }
        }
        self.entered.insert(pid, entered);
    }

    /// Returns the call, if it is one on a file of the directory.
    fn call(&self, pid: Pid, registers: &user_regs_struct) -> Option<Call> {
        let (_, name, place) = CALLS.iter().find(|(number, ..)| *number as u64 == registers.orig_rax)?;
        let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
        let link = |what: String| fs::read_link(format!("/proc/{pid}/{what}")).ok();
        let path = match *place {
            Where::Descriptor(at) => link(format!("fd/{}", arguments[at] as i32))?,
            Where::Path(at) => link("cwd".into())?.join(text(pid, arguments[at])?),
            Where::At(at) => {
                let base = arguments[at] as i32;
                let base = if base == libc::AT_FDCWD { "cwd".into() } else { format!("fd/{base}") };
                link(base)?.join(text(pid, arguments[at + 1])?)
            }
        };
        let path = path.strip_prefix(self.inside).ok()?.to_string_lossy().into_owned();
        Some(Call { name, path })
    }
}

/// Resumes a thread. Fails only if the process has ended.
fn go_on(pid: Pid, signal: Option<Signal>) {
    let _ = ptrace::syscall(pid, signal);
}

/// Reads a path from another process's memory.
fn text(pid: Pid, address: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = vec![0; 4096];
    let read = memory.read_at(&mut bytes, address).ok()?;
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    Some(PathBuf::from(String::from_utf8(bytes[..end].to_vec()).ok()?))
}
