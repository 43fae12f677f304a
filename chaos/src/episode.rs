//! Executes a plan: the undisturbed run, the disturbed one, and the comparison of the two.

mod faults;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use briquette_testkit::proxy::Proxy;
use nix::sys::signal::Signal;

use crate::check::{self, Allowances, checkpoints};
use crate::inflict::Disk;
use crate::plan::{Event, Fault, Plan};
use crate::record::{Line, Record};
use crate::watch::{Seen, Watch};
use crate::world::{Programs, Surroundings, World, free_port, signal};

/// Longer than anything should take: a run that is not over by then hangs.
const PATIENCE: Duration = Duration::from_secs(100);
/// Time that a launcher may take to stop on request.
const STOPPING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);
/// More restarts than the faults can use up.
const RESTARTS: u32 = 2000;
/// Disk size in MiB: room for two checkpoints of three ranks, and one that is being written.
const DISK: usize = 24;

/// State shared by all episodes.
#[derive(Debug)]
pub struct Soak {
    /// The programs under test.
    pub programs: Programs,
    /// Directory made by `briquette cert`.
    pub certificates: PathBuf,
    /// Library that shifts clocks, if it could be built.
    pub shim: Option<PathBuf>,
    /// Set by Ctrl-C.
    pub stop: AtomicBool,
}

/// Outcome of an episode.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Violations that were found.
    pub findings: Vec<String>,
    /// Number of injected faults.
    pub events: usize,
    /// Number of restarts of the world by the launcher.
    pub restarts: usize,
    /// Number of resumes of the run by the soak.
    pub resumed: usize,
}

/// A running episode.
struct Episode<'a> {
    soak: &'a Soak,
    plan: &'a Plan,
    record: &'a mut Record,
    around: Surroundings,
    proxy: Proxy,
    disk: Option<Disk>,
    watch: Watch,
    world: World,
    finished: bool,
    allowed: Allowances,
    outcome: Outcome,
}

/// Runs an episode in `directory`, which must be empty.
///
/// # Errors
/// If the soak itself cannot continue; defects of the run are in the [`Outcome`].
pub fn run(soak: &Soak, plan: &Plan, record: &mut Record, directory: &Path) -> Result<Outcome> {
    let around = Surroundings {
        programs: soak.programs.clone(),
        directory: directory.to_owned(),
        certificates: soak.certificates.clone(),
        ranks: plan.ranks,
        ports: None,
        clock: None,
    };
    let mut whole = around.start(plan.trainer, &plan.arguments("whole", plan.reference), 0)?;
    // No time limit, since the machine may be slow.
    while whole.end_within(LOOK)?.is_none() && !soak.stop.load(Ordering::Relaxed) {}
    if soak.stop.load(Ordering::Relaxed) {
        return Ok(Outcome::default());
    }
    let code = whole.ended()?;
    ensure!(code == Some(0), "the undisturbed run ended with {code:?}: {}", around.last_words());
    let outcome = Episode::begin(soak, plan, record, around)?.play()?;
    Ok(outcome)
}

impl<'a> Episode<'a> {
    fn begin(soak: &'a Soak, plan: &'a Plan, record: &'a mut Record, mut around: Surroundings) -> Result<Self> {
        let port = free_port(plan.seed as u16)?;
        let proxy = Proxy::to(([127, 0, 0, 1], port).into())?;
        around.ports = Some((port, proxy.address().port()));
        let offset = around.directory.join("clock");
        fs::write(&offset, "0")?;
        around.clock = soak.shim.clone().map(|shim| (shim, offset));
        let home = around.directory.join("disk");
        let small = plan.events.iter().any(|event| matches!(event.fault, Fault::Full(_)));
        let disk = small.then(|| Disk::mount(&home, DISK)).transpose()?;
        fs::create_dir_all(&home)?;
        let world = around.start(plan.trainer, &plan.arguments("disk/run", plan.cadence), RESTARTS)?;
        let watch = Watch::start();
        watch.follow(world.id());
        let allowed = Allowances { other_evaluations: !plan.same_evaluations(), ..Allowances::default() };
        let outcome = Outcome::default();
        Ok(Episode { soak, plan, record, around, proxy, disk, watch, world, finished: false, allowed, outcome })
    }

    fn home(&self) -> PathBuf {
        self.around.directory.join("disk/run")
    }

    /// Returns the number of whole lines of the record.
    fn steps(&self) -> u64 {
        fs::read(self.home().join("metrics.jsonl"))
            .map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count() as u64)
    }

    fn stopped(&self) -> bool {
        self.soak.stop.load(Ordering::Relaxed)
    }

    fn play(mut self) -> Result<Outcome> {
        for event in &self.plan.events {
            self.await_moment(*event)?;
            if self.finished || self.stopped() {
                break;
            }
            let (begin, step) = (Instant::now(), self.steps());
            let outcome = self.inflict(event.fault)?;
            let (event, target) = (event.fault.name().to_owned(), event.fault.target());
            self.record.write(&Line { event, target, step, outcome, seconds: begin.elapsed().as_secs_f64() })?;
            self.outcome.events += 1;
        }
        self.finish()
    }

    /// Waits until the event is due, or the run is over.
    fn await_moment(&mut self, event: Event) -> Result<()> {
        let (begin, due) = (Instant::now(), self.steps() + event.steps as u64);
        while !self.stopped() && begin.elapsed() < event.patience && self.steps() < due {
            self.look()?;
            if self.finished {
                break;
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// Checks whether the launcher has ended. Any end but a successful one is reported as a finding, and the run is
    /// restarted from its beginning.
    fn look(&mut self) -> Result<()> {
        match self.world.ended()? {
            None => {}
            Some(0) => self.finished = true,
            Some(code) => {
                let words = self.around.last_words();
                self.find(format!("the launcher ended with {code}: {words}"))?;
                self.begin_again()?;
            }
        }
        Ok(())
    }

    fn find(&mut self, finding: String) -> Result<()> {
        let line = Line { event: "FINDING".into(), step: self.steps(), outcome: finding.clone(), ..Line::default() };
        self.outcome.findings.push(finding);
        self.record.write(&line)
    }

    fn follow(&mut self, world: World) {
        self.watch.follow(world.id());
        self.world = world;
    }

    /// Restarts the same run from its beginning, if it cannot be resumed.
    fn begin_again(&mut self) -> Result<()> {
        let mut arguments = self.plan.arguments("disk/run", self.plan.cadence);
        arguments.push("--overwrite".into());
        self.allowed.lost_records.clear();
        let world = self.around.start(self.plan.trainer, &arguments, RESTARTS)?;
        self.follow(world);
        Ok(())
    }

    /// Resumes as a user would: from the newest checkpoint, or from the beginning if there is none.
    fn resume(&mut self) -> Result<()> {
        self.outcome.resumed += 1;
        self.no_process_is_left()?;
        if checkpoints(&self.home()).is_empty() {
            return self.begin_again();
        }
        let arguments = ["--resume", "disk/run", "--plain"].map(str::to_owned);
        let world = self.around.start(self.plan.trainer, &arguments, RESTARTS)?;
        self.follow(world);
        Ok(())
    }

    /// Checks that all processes end with their launcher.
    fn no_process_is_left(&mut self) -> Result<()> {
        let directory = self.around.directory.display().to_string();
        let begin = Instant::now();
        loop {
            let left = check::processes(&directory);
            if left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > Duration::from_secs(10) {
                self.find(format!("processes outlive their launcher: {left:?}"))?;
                left.into_iter().for_each(|id| signal(id, Signal::SIGKILL));
                return Ok(());
            }
            sleep(LOOK);
        }
    }

    /// Returns the number of restarts by this launcher and those before.
    fn restarts(&self) -> usize {
        fs::read_to_string(self.around.directory.join("stderr")).map_or(0, |text| text.matches("restarting (").count())
    }

    /// Waits until the run continues, and returns the outcome: `restarted` if the launcher restarted the world since
    /// the count was `restarts`, else `survived`.
    fn survives(&mut self, restarts: usize) -> Result<String> {
        let outcome = self.goes_on("survived")?;
        let again = self.restarts() > restarts;
        Ok(if again { outcome.replace("survived", "restarted") } else { outcome })
    }

    /// Returns the bytes of the records of its steps.
    fn recorded(&self) -> u64 {
        fs::metadata(self.home().join("metrics.jsonl")).map_or(0, |file| file.len())
    }

    /// Waits until the run has taken another step, and returns `came` as the outcome.
    fn goes_on(&mut self, came: &str) -> Result<String> {
        let (begin, mut last) = (Instant::now(), self.recorded());
        loop {
            self.look()?;
            if self.finished {
                return Ok(format!("{came}, finished"));
            }
            let now = self.recorded();
            if now > last {
                return Ok(came.to_owned());
            }
            if self.stopped() {
                return Ok("not waited for".into());
            }
            if begin.elapsed() > PATIENCE {
                self.find(format!("no step within {PATIENCE:?}: {}", self.around.last_words()))?;
                self.end_launcher()?;
                self.begin_again()?;
                return Ok("hung".into());
            }
            last = now;
            sleep(LOOK);
        }
    }

    /// Runs the rest undisturbed, and compares. A run that takes steps has no time limit: the machine may be busy.
    fn finish(mut self) -> Result<Outcome> {
        let begin = Instant::now();
        let (mut since, mut last) = (begin, self.recorded());
        while !self.finished && !self.stopped() {
            self.look()?;
            let now = self.recorded();
            if now != last {
                (since, last) = (Instant::now(), now);
            }
            if since.elapsed() > PATIENCE * 2 {
                self.find(format!("did not finish: {}", self.around.last_words()))?;
                break;
            }
            sleep(LOOK);
        }
        if !self.stopped() {
            self.compare(begin)?;
        }
        Ok(self.outcome)
    }

    /// Checks that the run equals the undisturbed run, and that nothing is left over.
    fn compare(&mut self, begin: Instant) -> Result<()> {
        let directory = self.around.directory.clone();
        let (whole, run) = (directory.join("whole"), self.home());
        let seen = self.watch.end();
        let mut findings = check::differences(&whole, &run, &self.allowed)?;
        findings.extend(seen.growth.iter().cloned());
        let left = check::processes(&directory.display().to_string());
        if !left.is_empty() {
            findings.push(format!("left over: processes {left:?}"));
        }
        if self.around.ports.is_some_and(|(port, _)| check::listens(port)) {
            findings.push("left over: a socket that listens".into());
        }
        self.outcome.restarts = self.restarts();
        self.outcome.findings.extend(findings);
        let findings = &self.outcome.findings;
        if !findings.is_empty() && self.disk.is_some() {
            keep(&run, &directory.join("run"))?;
        }
        let outcome = match findings.is_empty() {
            true => "bits equal, nothing left over".to_owned(),
            false => format!("FINDING: {}", findings.join("; ")),
        };
        let (target, seconds) = (self.summary(&seen), begin.elapsed().as_secs_f64());
        self.record.write(&Line { event: "episode".into(), target, step: self.plan.steps, outcome, seconds })
    }

    fn summary(&self, seen: &Seen) -> String {
        let (Plan { trainer, ranks, steps, flags, reference, cadence, .. }, outcome) = (self.plan, &self.outcome);
        let Outcome { events, restarts, resumed, .. } = outcome;
        let (megabytes, Seen { processes, most_descriptors, longest, .. }) = (seen.most_kb / 1000, seen);
        format!(
            "{events} events, {restarts} restarts, {resumed} resumed; {processes} processes to {megabytes} MB, \
             {most_descriptors} descriptors; longest {longest:.0} s; {trainer} --ranks {ranks} --steps {steps} {flags} saves \
             {reference:?} and {cadence:?}"
        )
    }
}

/// Copies the contents of a small disk, which would be lost with it.
fn keep(from: &Path, to: &Path) -> Result<()> {
    let done = std::process::Command::new("cp").arg("-a").args([from, to]).status()?;
    if !done.success() {
        bail!("cannot copy {} to {}", from.display(), to.display());
    }
    Ok(())
}
