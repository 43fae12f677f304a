//! Kills a trainer at every system call on its files, and injects a failure into each call.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;

use crate::check::{self, Allowances};
use crate::trace::{self, Call, Injection, Traced};
use crate::world::Programs;

/// Operation during which the call occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// A run in a new directory: begins, appends records, saves, removes old checkpoints, writes its summary.
    Begin,
    /// A killed run is resumed: reads, truncates its records, saves.
    Resume,
    /// A run replaces another.
    Overwrite,
}

/// Form of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ranks {
    /// Two threads of one process.
    Threads,
    /// Two processes under `briquette launch --restart 3`.
    Processes,
}

/// Fault at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// SIGKILL before it.
    Before,
    /// SIGKILL after it.
    After,
    /// The call returns that the disk is full.
    Full,
    /// The call returns a device error.
    Broken,
}

/// Way in which a run finished after the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// By itself.
    Itself,
    /// By `--resume`.
    Resumed,
    /// By the command itself, since the run had not begun, or had saved nothing yet.
    Begun,
    /// The same, with `--overwrite`.
    Overwritten,
    /// Not at all, or with different bits.
    Lost,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 3] = [Scenario::Begin, Scenario::Resume, Scenario::Overwrite];
}

impl Ranks {
    /// Both.
    pub const ALL: [Ranks; 2] = [Ranks::Threads, Ranks::Processes];
}

impl Harm {
    /// All of them.
    pub const ALL: [Harm; 4] = [Harm::Before, Harm::After, Harm::Full, Harm::Broken];

    fn at(self, call: usize) -> Injection {
        match self {
            Harm::Before => Injection::KillBefore(call),
            Harm::After => Injection::KillAfter(call),
            Harm::Full => Injection::Fail(call, Errno::ENOSPC),
            Harm::Broken => Injection::Fail(call, Errno::EIO),
        }
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Harm::Before => "killed before",
            Harm::After => "killed after",
            Harm::Full => "ENOSPC",
            Harm::Broken => "EIO",
        })
    }
}

/// One fault at one call, and its outcome.
#[derive(Debug, Clone)]
pub struct Case {
    /// The call.
    pub call: Call,
    /// Fault injected there.
    pub harm: Harm,
    /// End of the run.
    pub end: End,
    /// Violations that were found.
    pub findings: Vec<String>,
}

/// A scenario with its directories.
#[derive(Debug)]
pub struct Bench {
    programs: Programs,
    directory: PathBuf,
    scenario: Scenario,
    ranks: Ranks,
    whole: PathBuf,
    old: PathBuf,
    before: PathBuf,
}

/// Flags of a small run with state between steps. Saving at every step removes an old checkpoint at the third.
const FLAGS: &str = "--dataset generated --train-limit 16 --test-limit 4 --batch 1 --epochs 100 --schedule constant \
                     --clock fixed:50ms --compressor topk:0.05 --checkpoint-every 1 --eval-every 100 --plain";
const OLD: &str = "--seed 5 --steps 2";

impl Bench {
    /// Prepares the runs to compare with, and the state from which the scenario begins.
    ///
    /// # Errors
    /// If those runs fail.
    pub fn new(programs: &Programs, directory: &Path, scenario: Scenario, ranks: Ranks) -> Result<Bench> {
        let directory = directory.join(format!("{scenario:?}-{ranks:?}").to_lowercase());
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        let directory = fs::canonicalize(directory)?;
        let at = |name: &str| directory.join(name);
        let bench = Bench {
            programs: programs.clone(),
            scenario,
            ranks,
            whole: at("whole"),
            old: at("old"),
            before: at("before"),
            directory,
        };
        let new = bench.new_run();
        bench.succeed(&format!("{new} --out whole"))?;
        bench.succeed(&format!("{FLAGS} {OLD} --out old"))?;
        match scenario {
            Scenario::Begin => {}
            Scenario::Resume => bench.interrupted(&new)?,
            Scenario::Overwrite => copy(&bench.old, &bench.before)?,
        }
        Ok(bench)
    }

    fn new_run(&self) -> String {
        let steps = if self.scenario == Scenario::Overwrite { 1 } else { 3 };
        format!("{FLAGS} --seed 3 --steps {steps}")
    }

    /// Creates a run that was killed after its second checkpoint, with half a record.
    fn interrupted(&self, new: &str) -> Result<()> {
        let short = new.replace("--steps 3", "--steps 2");
        self.succeed(&format!("{short} --out before"))?;
        let config = self.before.join("config.toml");
        fs::write(&config, fs::read_to_string(&config)?.replace("steps = 2", "steps = 3"))?;
        fs::remove_file(self.before.join("summary.json"))?;
        let metrics = self.before.join("metrics.jsonl");
        let text = fs::read_to_string(&metrics)?;
        let half = text.lines().last().and_then(|line| line.get(..20)).context("a record")?;
        Ok(fs::write(&metrics, format!("{text}{half}"))?)
    }

    fn command(&self, flags: &str) -> Vec<String> {
        let path = |name: &str| self.programs.path(name).display().to_string();
        let ranks = match self.ranks {
            Ranks::Threads => format!("{} --ranks 2", path("cifar")),
            Ranks::Processes => {
                format!("{} launch --grace 2s --ranks 2 --restart 3 -- {}", path("briquette"), path("cifar"))
            }
        };
        format!("{ranks} {flags}").split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the command that the scenario disturbs.
    fn disturbed(&self) -> String {
        match self.scenario {
            Scenario::Begin => format!("{} --out run", self.new_run()),
            Scenario::Resume => "--resume run --plain".into(),
            Scenario::Overwrite => format!("{} --out run --overwrite", self.new_run()),
        }
    }

    /// Runs a trainer and returns its exit code.
    fn run(&self, flags: &str) -> Result<Option<i32>> {
        let command = self.command(flags);
        let log = fs::File::options().create(true).append(true).open(self.directory.join("recovery"))?;
        let mut child = Command::new(&command[0]);
        child.args(&command[1..]).current_dir(&self.directory).stdin(Stdio::null());
        child.env("RAYON_NUM_THREADS", "1").stdout(log.try_clone()?).stderr(log);
        Ok(child.status()?.code())
    }

    fn succeed(&self, flags: &str) -> Result<()> {
        let code = self.run(flags)?;
        ensure!(code == Some(0), "`{flags}` ended with {code:?}: see {}", self.directory.join("recovery").display());
        Ok(())
    }

    fn home(&self) -> PathBuf {
        self.directory.join("run")
    }

    fn reset(&self) -> Result<()> {
        let _ = fs::remove_dir_all(self.home());
        if self.before.exists() { copy(&self.before, &self.home()) } else { Ok(()) }
    }

    fn trace(&self, injection: Injection) -> Result<Traced> {
        self.reset()?;
        trace::run(&self.command(&self.disturbed()), &self.directory, &self.home(), injection)
    }

    /// Returns the calls of an undisturbed run.
    ///
    /// # Errors
    /// If the run fails.
    pub fn calls(&self) -> Result<Vec<Call>> {
        let traced = self.trace(Injection::None)?;
        let log = fs::read_to_string(self.directory.join("log"))?;
        ensure!(traced.code == 0, "traced and otherwise undisturbed, it ended with {}: {log}", traced.code);
        let found = self.compare(&self.whole)?;
        ensure!(found.is_empty(), "traced and otherwise undisturbed: {found:?}");
        Ok(traced.calls)
    }

    fn compare(&self, whole: &Path) -> Result<Vec<String>> {
        check::differences(whole, &self.home(), &Allowances::default())
    }

    /// Injects one fault at one call; returns `None` if the run had no such call this time.
    ///
    /// # Errors
    /// If the run cannot be traced.
    pub fn case(&self, number: usize, harm: Harm) -> Result<Option<Case>> {
        let traced = self.trace(harm.at(number))?;
        let Some(call) = traced.calls.get(number).cloned() else { return Ok(None) };
        let mut findings = Vec::new();
        let log = String::from_utf8_lossy(&fs::read(self.directory.join("log"))?).into_owned();
        if log.contains("panicked") {
            findings.push(format!("panicked: {}", last_line(&log)));
        }
        if traced.late {
            findings.push(format!("did not end: {}", last_line(&log)));
        }
        let end = if traced.code == 0 { End::Itself } else { self.recover(&mut findings)? };
        if end != End::Lost {
            let mut differ = self.compare(&self.whole)?;
            // If an old checkpoint could not be removed, it stays, and the run has reported it.
            if log.contains("cannot remove the old checkpoint") {
                differ.retain(|found| !found.ends_with(check::TOO_MANY));
            }
            findings.extend(differ);
        }
        Ok(Some(Case { call, harm, end, findings }))
    }

    /// Recovers as a user would: resumes, or restarts from the beginning if nothing was saved.
    fn recover(&self, findings: &mut Vec<String>) -> Result<End> {
        let saved = !check::checkpoints(&self.home()).is_empty();
        if self.run("--resume run --plain")? == Some(0) {
            if self.scenario != Scenario::Overwrite || self.compare(&self.whole)?.is_empty() {
                return Ok(End::Resumed);
            }
            // The old run was still there, and must be whole.
            findings.extend(self.compare(&self.old)?.into_iter().map(|found| format!("the old run: {found}")));
        } else if saved || self.scenario == Scenario::Resume {
            findings.push("there is a checkpoint, but --resume fails".into());
        } else if self.scenario == Scenario::Overwrite && !self.has_begun() {
            findings.push("the old run is lost, and the new one has not begun".into());
        }
        let again = format!("{} --out run", self.new_run());
        if self.run(&again)? == Some(0) {
            return Ok(End::Begun);
        }
        if self.run(&format!("{again} --overwrite"))? == Some(0) {
            return Ok(End::Overwritten);
        }
        findings.push("can be neither resumed nor begun again".into());
        Ok(End::Lost)
    }

    /// Returns whether the new run's settings are in place.
    fn has_begun(&self) -> bool {
        fs::read_to_string(self.home().join("config.toml")).is_ok_and(|text| text.contains("seed = 3"))
    }
}

fn last_line(log: &str) -> &str {
    log.lines().last().unwrap_or_default()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let done = Command::new("cp").arg("-a").args([from, to]).status()?;
    ensure!(done.success(), "cannot copy {} to {}", from.display(), to.display());
    Ok(())
}
