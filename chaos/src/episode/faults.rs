//! Injection of each fault into an episode's run, and its expected outcome.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use briquette_testkit::proxy::{Direction, Harm};
use nix::sys::signal::Signal;

use super::{Episode, LOOK, STOPPING};
use crate::inflict;
use crate::plan::{Damage, Fault, Target};
use crate::world::signal;

impl Episode<'_> {
    /// Injects the fault, and waits for its outcome.
    pub(super) fn inflict(&mut self, fault: Fault) -> Result<String> {
        let (before, restarts) = (self.world.ranks(), self.restarts());
        match fault {
            Fault::Kill(Target::Launcher) => {
                self.end_launcher()?;
                self.resume()?;
                return self.goes_on("resumed");
            }
            Fault::Stop(with) => return self.stop(with),
            Fault::Damage(damage) => return self.damage(damage),
            Fault::Stray => return self.stray(),
            Fault::Kill(target) => {
                self.targets(target, &before).for_each(|id| signal(id, Signal::SIGKILL));
                self.new_ranks(&before);
            }
            Fault::Pause(target, time) => {
                let targets: Vec<u32> = self.targets(target, &before).collect();
                targets.iter().for_each(|id| signal(*id, Signal::SIGSTOP));
                sleep(time);
                targets.iter().for_each(|id| signal(*id, Signal::SIGCONT));
            }
            Fault::Cut => self.proxy.cut(),
            Fault::Slow(rate, time) => self.harm(Harm::rate(rate), time),
            Fault::Late(latency, time) => self.harm(Harm::latency(latency), time),
            Fault::Frozen(time) => self.harm(Harm::frozen(), time),
            Fault::Flip(place) => self.harm(Harm::flip(Direction::ToServer, place), Duration::from_secs(3)),
            Fault::Gone => return self.gone(&before, restarts),
            Fault::Full(time) => self.full(time)?,
            Fault::Clock(seconds) => fs::write(self.around.directory.join("clock"), seconds.to_string())?,
            Fault::Strangers(count) => inflict::strangers(self.around.ports.context("has ports")?.0, count),
        }
        self.survives(restarts)
    }

    /// Waits for ranks other than those of which one was killed: the latter may take another step before they notice.
    fn new_ranks(&self, before: &[u32]) {
        let begin = Instant::now();
        let any = |ranks: Vec<u32>| ranks.iter().any(|rank| before.contains(rank));
        while !before.is_empty() && any(self.world.ranks()) && begin.elapsed() < STOPPING && !self.stopped() {
            sleep(LOOK);
        }
    }

    fn targets(&self, target: Target, ranks: &[u32]) -> impl Iterator<Item = u32> {
        let chosen: Vec<u32> = match target {
            Target::Rank(rank) => ranks.get(rank).copied().into_iter().collect(),
            Target::Ranks => ranks.to_vec(),
            Target::Launcher => vec![self.world.id()],
        };
        chosen.into_iter()
    }

    fn harm(&self, harm: Harm, time: Duration) {
        self.proxy.set(harm);
        sleep(time);
        self.proxy.set(Harm::none());
    }

    /// Ranks are lost after 30 seconds without a heartbeat.
    fn gone(&mut self, before: &[u32], restarts: usize) -> Result<String> {
        self.proxy.set(Harm::half_open());
        let begin = Instant::now();
        while self.world.ranks() == before && begin.elapsed() < Duration::from_secs(60) && !self.stopped() {
            sleep(LOOK);
        }
        self.proxy.set(Harm::none());
        self.survives(restarts)
    }

    fn full(&self, time: Duration) -> Result<()> {
        let disk = self.disk.as_ref().context("a full disk needs a small one")?;
        disk.fill()?;
        sleep(time);
        disk.empty()
    }

    pub(super) fn end_launcher(&mut self) -> Result<()> {
        signal(self.world.id(), Signal::SIGKILL);
        self.world.end_within(STOPPING)?;
        self.no_process_is_left()
    }

    /// Asks the launcher to stop. It must do so in time and with the right exit code, and the run must be resumable.
    fn stop(&mut self, with: Signal) -> Result<String> {
        signal(self.world.id(), with);
        let expected = 128 + with as i32;
        match self.world.end_within(STOPPING)? {
            Some(0) => {
                self.finished = true;
                return Ok("had finished".into());
            }
            Some(code) if code == expected => {}
            Some(code) => self.find(format!("{with} to the launcher ended it with {code}, not {expected}"))?,
            None => {
                self.find(format!("{with} to the launcher did not end it within {STOPPING:?}"))?;
                self.end_launcher()?;
            }
        }
        self.resume()?;
        self.goes_on("resumed")
    }

    fn damage(&mut self, damage: Damage) -> Result<String> {
        self.end_launcher()?;
        let done = inflict::damage(&self.home(), damage)?;
        let what = match done {
            None => "nothing to damage, resumed".to_owned(),
            Some(done) => {
                self.allowed.lost_records.extend(done.records);
                format!("{}, resumed", done.what)
            }
        };
        self.resume()?;
        self.goes_on(&what)
    }

    /// Creates directories whose names begin as a checkpoint's do, but belong to the user.
    fn stray(&mut self) -> Result<String> {
        for name in ["step-best", "step-00000001-keep-me", "step-"] {
            let directory = self.home().join("checkpoints").join(name);
            // Until there is a checkpoint there is no place for them.
            if directory.parent().is_some_and(Path::is_dir) {
                fs::create_dir_all(&directory)?;
                fs::write(directory.join("notes.txt"), "mine")?;
                self.allowed.strays.insert(name.to_owned());
            }
        }
        self.goes_on("survived")
    }
}
