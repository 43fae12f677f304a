//! One start of the world: processes, forwarded signals, and termination.

mod lost;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use briquette_tcp::names;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGQUIT};

use super::failure::{self, Blame, End, Ended, Failure};
use super::output::{Log, Output, Pipes};
use super::plan::{Plan, Start};
use super::signals::{self, Listening};
use super::{LaunchError, child};
use crate::allocator;

/// Time after the first signal within which further ones count as the same: programs between the terminal and the
/// launcher forward the signal that the launcher received, too.
const SAME: Duration = Duration::from_millis(300);
/// Environment variables that mark a process as started by torchrun.
const TORCHRUN: &[&str] =
    &["TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"];
/// Polling interval for a process that ignored a signal it should have received.
const AGAIN: Duration = Duration::from_millis(20);
/// Interval at which children are checked even if no signal arrives.
const LOOK: Duration = Duration::from_secs(1);

/// Running ranks of this machine. Those still alive on drop are killed.
#[derive(Debug)]
pub(super) struct World<'a> {
    plan: &'a Plan,
    start: Start,
    output: &'a Output,
    logs: &'a [Arc<Log>],
    ranks: Vec<Running>,
    began: Instant,
    stage: Stage,
    /// Forwarded signal, and the time at which it arrived.
    stop: Option<(i32, Instant)>,
    /// Processes that ignored the signal at that time, with their groups: the signal would have been lost. It is sent
    /// once they no longer ignore it.
    deaf: Vec<(Pid, Pid)>,
    /// Number of ranks that may be lost, if the world is elastic.
    expendable: Option<usize>,
    /// Ranks whose loss has been reported, and when they are started again.
    lost: Vec<(usize, Option<Instant>)>,
}

/// Outcome of one start of the world.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It ended without a failure, with the launcher's exit code.
    Ended(u8),
    /// It ended with a failure. `again`: no end was requested, and another attempt may end differently.
    Failed { failure: Failure, again: bool },
}

/// Process of a rank, which leads its own process group.
#[derive(Debug)]
struct Running {
    rank: usize,
    child: Child,
    pipes: Pipes,
    end: Option<(End, Duration)>,
    /// Set if the launcher ended it because of another rank.
    by_launcher: bool,
    /// Set if the process has been reaped, so that the system may reuse its number.
    reaped: bool,
    /// Number of times that the rank was lost and started again.
    joins: u32,
    /// Set if the rank joins a running world.
    enters: bool,
}

/// Stage of ending the remaining ranks after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No rank has failed.
    Running,
    /// The ranks may end by themselves until this time.
    Grace(Instant),
    /// SIGTERM was sent; the ranks have until this time.
    Terminated(Instant),
    /// SIGKILL was sent.
    Killed,
}

impl<'a> World<'a> {
    /// Starts the ranks. Their output goes to `output`, and each rank's to its log if there are logs.
    pub(super) fn start(
        plan: &'a Plan,
        start: &Start,
        (output, logs): (&'a Output, &'a [Arc<Log>]),
    ) -> Result<World<'a>, LaunchError> {
        let mut world = World {
            plan,
            start: start.clone(),
            output,
            logs,
            ranks: vec![],
            began: Instant::now(),
            stage: Stage::Running,
            stop: None,
            deaf: vec![],
            expendable: plan.expendable(),
            lost: vec![],
        };
        for rank in plan.ranks() {
            let running = world.spawn(rank, 0)?;
            world.ranks.push(running);
        }
        Ok(world)
    }

    /// Starts a rank. `joins` is the number of times that it was lost.
    fn spawn(&self, rank: usize, joins: u32) -> Result<Running, LaunchError> {
        let enters = joins > 0 || self.plan.joins();
        let environment = self.plan.environment(rank, &self.start, enters);
        let log = self.logs.get(rank - self.plan.ranks().start).cloned();
        if let Some(log) = &log {
            let (world, restart) = (environment.world, environment.restart);
            log.write(format!("[launch] rank {rank} of {world}, restart {restart}").as_bytes());
        }
        let (program, arguments) = self.plan.command();
        let mut command = child::command(program, arguments);
        // Variables set by a launcher around this one are not for its ranks.
        let elastic = [names::ELASTIC, names::MEMBERS, names::JOIN];
        for name in [names::TOKEN, names::TOKEN_FILE, names::TLS].iter().chain(&elastic).chain(TORCHRUN) {
            command.env_remove(name);
        }
        command.envs(allocator::settings().iter().copied()).envs(environment.variables());
        // Keys pressed on the terminal are for the launcher, which forwards their signals.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |source| LaunchError::Start { rank, program: program.to_string_lossy().into_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both were asked for")
        };
        let pipes = self.output.read(rank, log, (out, err));
        Ok(Running { rank, child, pipes, end: None, by_launcher: false, reaped: false, joins, enters })
    }

    /// Waits until every rank has ended. Forwards stop signals, and ends all ranks after one has failed.
    pub(super) fn watch(&mut self, signals: &Listening, grace: Duration) -> Outcome {
        while self.living() > 0 || self.starts_again() {
            let limit = match self.stage {
                Stage::Grace(until) | Stage::Terminated(until) => until.saturating_duration_since(Instant::now()),
                Stage::Running | Stage::Killed => LOOK,
            };
            let limit = if self.deaf.is_empty() { limit } else { limit.min(AGAIN) };
            let limit =
                if self.lost.iter().any(|(_, again)| again.is_some()) { limit.min(lost::PAUSE / 4) } else { limit };
            if let Some(signal) = signals.wait(limit.min(LOOK)) {
                self.asked_to_stop(signal);
            }
            self.repeat();
            self.look();
            self.escalate(grace);
        }
        signals.while_idle(|| self.drain());
        self.outcome()
    }

    fn living(&self) -> usize {
        self.ranks.iter().filter(|rank| rank.end.is_none()).count()
    }

    /// Records the ranks that have ended.
    fn look(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            rank.end = rank.ended().map(|end| (end, self.began.elapsed()));
        }
    }

    /// Forwards the first signal; kills all ranks at the second, and at SIGQUIT.
    fn asked_to_stop(&mut self, signal: i32) {
        let name = signals::name(signal);
        match self.stop {
            None if signal != SIGQUIT => {
                self.stop = Some((signal, Instant::now()));
                self.pass_on(signal);
                let shown = if signal == SIGINT { "Ctrl-C" } else { name };
                self.output.say(format!("{shown} is passed on to {}; a second one kills them", ranks(self.living())));
            }
            Some((_, at)) if signal != SIGQUIT && at.elapsed() < SAME => {}
            _ => {
                self.stop.get_or_insert((signal, Instant::now()));
                self.output.say(format!("{name}: {} killed", ranks(self.living())));
                self.kill();
            }
        }
    }

    /// Forwards a signal to every living rank's group. A process that ignores it may not have installed its handler
    /// yet, for example because a shell started it in the background. The system would discard the signal.
    fn pass_on(&mut self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        for rank in self.ranks.iter().filter(|rank| rank.end.is_none()) {
            let members = rank.group().map(members).unwrap_or_default();
            let (deaf, hearing): (Vec<_>, Vec<_>) = members.into_iter().partition(|process| ignores(*process, signal));
            if deaf.is_empty() {
                rank.signal(signal);
                continue;
            }
            // Some may have ended.
            for process in hearing {
                let _ = kill(process, signal);
            }
            self.deaf
                .extend(rank.group().into_iter().flat_map(|group| deaf.iter().map(move |process| (group, *process))));
        }
    }

    /// Sends the signal to processes that ignored it and no longer do.
    fn repeat(&mut self) {
        let Some(signal) = self.stop.and_then(|(signal, _)| Signal::try_from(signal).ok()) else { return };
        self.deaf.retain(|(group, process)| {
            let is_there = group_of(*process) == Some(*group);
            let is_deaf = ignores(*process, signal);
            if is_there && !is_deaf {
                // It may have ended.
                let _ = kill(*process, signal);
            }
            is_there && is_deaf
        });
    }

    /// After a failure, proceeds to the next stage of ending the other ranks when the current one times out.
    fn escalate(&mut self, grace: Duration) {
        let (now, living) = (Instant::now(), self.living());
        match self.stage {
            _ if living == 0 => {
                if self.plan.joins() && self.stage == Stage::Running {
                    self.goes_on(now, grace);
                }
            }
            Stage::Running => {
                if self.goes_on(now, grace) {
                    return;
                }
                let has_failed = |rank: &&Running| rank.end.is_some_and(|(end, _)| self.is_failure(end));
                let failed: Vec<_> = self.ranks.iter().filter(has_failed).collect();
                // A rank that states an error has sent it to the others.
                let own = failed.iter().find(|rank| self.expendable.is_some() && !rank.is_lost());
                let failed = own.or(failed.first());
                if let Some((rank, (end, _))) = failed.and_then(|rank| Some((rank.rank, rank.end?))) {
                    let time = humantime::format_duration(grace);
                    self.output.say(format!("rank {rank} {end}; {time} for {} to end", ranks(living)));
                    self.stage = Stage::Grace(now + grace);
                }
            }
            Stage::Grace(until) if now >= until => {
                self.output.say(format!("SIGTERM to {} that did not end", ranks(living)));
                self.send(Signal::SIGTERM as i32, true);
                self.stage = Stage::Terminated(now + grace);
            }
            Stage::Terminated(until) if now >= until => {
                self.output.say(format!("SIGKILL to {} that did not end", ranks(living)));
                self.kill();
            }
            Stage::Grace(_) | Stage::Terminated(_) | Stage::Killed => {}
        }
    }

    /// Returns whether `end` was not requested.
    fn is_failure(&self, end: End) -> bool {
        let asked = self.stop.is_some_and(|(signal, _)| end == End::Signal(signal) || end.stopped());
        end.failed() && !asked
    }

    fn kill(&mut self) {
        self.send(Signal::SIGKILL as i32, true);
        self.stage = Stage::Killed;
    }

    /// Sends `signal` to every living rank's group. With `by_launcher`, their exit is attributed to the launcher.
    fn send(&mut self, signal: i32, by_launcher: bool) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            rank.by_launcher |= by_launcher;
            rank.signal(signal);
        }
    }

    /// Reads the remaining output of the ranks. Processes that they started and left behind are killed if they keep a pipe open.
    fn drain(&self) {
        let open: Vec<_> = self.ranks.iter().filter(|rank| !rank.pipes.drain()).collect();
        open.iter().for_each(|rank| rank.signal(Signal::SIGKILL));
        for rank in open {
            rank.pipes.drain();
        }
    }

    fn outcome(&self) -> Outcome {
        let ended = self.ranks.iter().filter_map(|rank| {
            let (end, at) = rank.end?;
            Some(Ended { rank: rank.rank, end, at, by_launcher: rank.by_launcher, words: rank.pipes.words() })
        });
        let ended: Vec<Ended> = ended.collect();
        let failed: Vec<_> = ended.iter().filter(|end| end.end.failed()).collect();
        let is_lost = |end: &&Ended| self.ranks.iter().any(|rank| rank.rank == end.rank && rank.is_lost());
        let all_lost = failed.iter().all(is_lost);
        let went_on =
            all_lost && failed.len() < ended.len() && self.expendable.is_some_and(|most| failed.len() <= most);
        let Some((signal, _)) = self.stop else {
            return match failure::first(ended.iter()).filter(|_| !went_on) {
                None => Outcome::Ended(0),
                // The run was stopped elsewhere: by a launcher on another machine, or by the rank's own process.
                Some(first) if first.blame() == Blame::Stopped => {
                    let code = first.end.exit_code();
                    self.output.say(format!("rank {} was stopped from outside (exit code {code})", first.rank));
                    Outcome::Ended(code)
                }
                Some(first) => Outcome::Failed { failure: first.failure(), again: !first.end.refused() },
            };
        };
        match failure::first(ended.iter().filter(|e| self.is_failure(e.end))) {
            Some(first) if first.blame() < Blame::Stopped => Outcome::Failed { failure: first.failure(), again: false },
            _ if ended.iter().all(|e| !e.end.failed()) => Outcome::Ended(0),
            _ => Outcome::Ended(signals::exit_code(signal)),
        }
    }
}

fn ranks(number: usize) -> String {
    if number == 1 { "1 rank".into() } else { format!("{number} ranks") }
}

impl Drop for World<'_> {
    /// Leaves no process behind: kills the rest of each rank's group, and reaps the rank.
    fn drop(&mut self) {
        self.ranks.iter().for_each(|rank| rank.signal(Signal::SIGKILL));
        for rank in &mut self.ranks {
            // Fails only if it was reaped already.
            let _ = rank.child.wait();
        }
    }
}

/// Returns the processes of a group, if the system lists them.
fn members(group: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw));
    processes.filter(|process| group_of(*process) == Some(group)).collect()
}

fn group_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // After the program's name, which may hold anything: state, parent, group.
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(2)?.parse().ok().map(Pid::from_raw)
}

fn ignores(process: Pid, signal: Signal) -> bool {
    crate::signals::is_ignored_by(&process.to_string(), signal as i32).unwrap_or(false)
}

impl Running {
    /// Returns the process group that the rank leads, while the number is still its own.
    fn group(&self) -> Option<Pid> {
        let id = i32::try_from(self.child.id()).ok()?;
        (!self.reaped).then(|| Pid::from_raw(id))
    }

    /// Sends `signal` to the rank and everything it started, as a terminal would.
    fn signal(&self, signal: Signal) {
        if !self.reaped
            && let Ok(id) = i32::try_from(self.child.id())
        {
            // The group is empty: all processes to be ended have ended.
            let _ = killpg(Pid::from_raw(id), signal);
        }
    }

    /// Returns how the rank ended, if it has. On Linux it stays unreaped, so that the number of its group is not reused
    /// and the processes it started can be ended with it.
    fn ended(&mut self) -> Option<End> {
        #[cfg(target_os = "linux")]
        {
            use nix::sys::wait::{Id, WaitPidFlag as Flag, WaitStatus, waitid};
            let id = Pid::from_raw(i32::try_from(self.child.id()).ok()?);
            match waitid(Id::Pid(id), Flag::WEXITED | Flag::WNOHANG | Flag::WNOWAIT) {
                Ok(WaitStatus::Exited(_, code)) => return Some(End::Exit(code)),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Some(End::Signal(signal as i32)),
                Ok(_) => return None,
                // A signal without a name in the library: the standard library knows its number.
                Err(_) => {}
            }
        }
        let status = self.child.try_wait().ok()??;
        self.reaped = true;
        Some(status.signal().map_or_else(|| End::Exit(status.code().unwrap_or(1)), End::Signal))
    }
}
