//! One case: starts the ranks, injects the fault, waits for the end.

use std::env;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use briquette_tcp::Environment;
use briquette_testkit::proxy::{Direction, Harm, Proxy};
use tempfile::TempDir;

use crate::rank::{GO, JOINING, REGROUPED, RUNNING, RankSettings, SETTINGS};
use crate::{Fault, Operation};

const WORLD: usize = 3;
/// Longer than any case should take: a case that is not over by then hangs.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) fault: Fault,
    pub(crate) operation: Operation,
    pub(crate) rank: usize,
    pub(crate) is_elastic: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All ranks finished.
    Survived,
    /// Every other rank finished.
    WithoutIt,
    /// Every other rank ended with an error that names the rank, its address and the operation.
    Named,
    /// Some rank ended with an error that does not.
    Vague,
    /// Some rank did not end.
    Hung,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Survived => "survived",
            Outcome::WithoutIt => "the others continue",
            Outcome::Named => "all ranks end, with an error that names it",
            Outcome::Vague => "some rank ends with another error",
            Outcome::Hung => "hung",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) outcome: Outcome,
    /// Error of an unaffected rank.
    pub(crate) said: String,
    pub(crate) log: String,
}

/// Process of a rank, killed on drop.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Rank {
    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

/// Waits for an event that must occur.
fn wait_for(what: &str, directory: &Path, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "waited for {what}\n{}", errors(directory).join(""));
        sleep(Duration::from_millis(5));
    }
}

/// Returns each rank's output on standard error.
fn errors(directory: &Path) -> Vec<String> {
    let read = |rank: usize| fs::read_to_string(directory.join(format!("stderr-{rank}"))).unwrap_or_default();
    (0..WORLD).map(read).collect()
}

impl Case {
    /// Runs the case; `number` is unique to it.
    pub(crate) fn run(self, number: usize) -> Seen {
        let directory = TempDir::new().unwrap();
        // Loopback addresses that no other process uses, so that no port can be taken.
        let [master, here] = [1, 2].map(|last| SocketAddr::from(([127, 77, number as u8, last], 29500)));
        let before = if self.fault == Fault::Flip { self.flip() } else { Harm::none() };
        // In front of rank 0's only address; or on rank 1's way to rank 0, and in front of its own address.
        let (way, door) = (Proxy::to(master).unwrap(), Proxy::to(here).unwrap());
        way.set(before);
        door.set(before);
        let start = |rank: usize| {
            let through = if self.rank == 0 { rank != 0 } else { rank == 1 };
            let place = Environment {
                rank,
                world: WORLD,
                local_rank: rank,
                local_world: 1,
                node: None,
                master: if through { way.address() } else { master }.ip().to_string(),
                port: Some(if through { way.address() } else { master }.port()),
                world_name: None,
                ports: None,
                join_deadline: None,
                deadline: None,
                token: Some("sesame-opens-for-47".into()),
                token_file: None,
                tls: None,
                launch: None,
                restart: 0,
                elastic: None,
            };
            let (deadline, lost_after) = self.times();
            let listen = (self.rank == 1 && rank == 1).then(|| (here.to_string(), door.address().to_string()));
            let exits = self.fault == Fault::Exit && rank == self.rank;
            let directory = directory.path().to_owned();
            let patience = self.is_elastic.then(|| self.patience());
            let settings =
                RankSettings { operation: self.operation, exits, deadline, lost_after, listen, directory, patience };
            spawn(&place, &settings)
        };
        let set = |harm: Harm| [&way, &door].iter().for_each(|proxy| proxy.set(harm));
        let at = |name: String| directory.path().join(name).exists();
        let rendezvous = self.operation == Operation::Rendezvous;
        let mut ranks = vec![start(0)];
        // The proxies would take calls for a rank 0 that is not there yet.
        wait_for("rank 0 to listen", directory.path(), || TcpStream::connect(master).is_ok());
        ranks.extend((1..if rendezvous { 2 } else { 3 }).map(start));
        let all = |mark: &str| (0..ranks.len()).all(|rank| at(format!("{mark}{rank}")));
        // A flip waits in the proxies from the beginning, and may hit before the ranks are at work.
        if rendezvous {
            wait_for("ranks that join", directory.path(), || all(JOINING) && way.accepted() > 0);
            sleep(Duration::from_millis(200));
        } else if self.fault != Fault::Flip {
            wait_for(&format!("{self:?}: ranks at work"), directory.path(), || all(RUNNING));
        }
        match self.fault {
            Fault::Kill => ranks[self.rank].signal("KILL"),
            Fault::StopTenSeconds => {
                ranks[self.rank].signal("STOP");
                sleep(Duration::from_secs(10));
                ranks[self.rank].signal("CONT");
            }
            Fault::StopForEver => ranks[self.rank].signal("STOP"),
            Fault::HalfOpen => set(Harm::half_open()),
            Fault::Resets => set(Harm::reset_by_chance(0.01, 7)),
            Fault::Slow => set(Harm::rate(125_000)),
            Fault::Exit | Fault::Flip => {}
        }
        let go = || drop(File::create(directory.path().join(GO)).unwrap());
        // Where the harm is in the traffic, the ranks go on until it hits.
        let hits = matches!(self.fault, Fault::Flip | Fault::Resets);
        if hits && self.is_elastic {
            wait_for(&format!("{self:?}: a new generation"), directory.path(), || at(REGROUPED.to_owned()));
        }
        if !hits || self.is_elastic {
            go();
        }
        if rendezvous {
            sleep(Duration::from_millis(200));
            ranks.push(start(2));
        }
        self.end(&mut ranks, directory.path())
    }

    /// Returns the deadline of calls and of joining, and the time after which a silent rank is dead.
    fn times(self) -> (Duration, Duration) {
        match self.fault {
            Fault::StopTenSeconds | Fault::Slow => (Duration::from_secs(40), Duration::from_secs(20)),
            _ => (Duration::from_secs(8), Duration::from_secs(3)),
        }
    }

    /// Returns how long survivors wait for a rank that can be reached and does not report.
    fn patience(self) -> Duration {
        Duration::from_secs(if self.fault == Fault::StopForEver { 4 } else { 30 })
    }

    fn flip(self) -> Harm {
        let offset = if self.operation == Operation::Rendezvous { 60 } else { 6000 };
        Harm::flip(Direction::ToServer, offset)
    }

    /// Waits for all ranks but one that was stopped permanently.
    fn end(self, ranks: &mut [Rank], directory: &Path) -> Seen {
        let begin = Instant::now();
        let stopped = matches!(self.fault, Fault::StopForEver);
        let mut codes = vec![None; ranks.len()];
        let others = |rank: usize| !(stopped && rank == self.rank);
        while (0..ranks.len()).any(|rank| others(rank) && codes[rank].is_none()) && begin.elapsed() < PATIENCE {
            for (rank, child) in ranks.iter_mut().enumerate() {
                codes[rank] = codes[rank].or(child.0.try_wait().unwrap());
            }
            sleep(Duration::from_millis(5));
        }
        let texts: Vec<String> = (0..ranks.len())
            .map(|rank| fs::read_to_string(directory.join(format!("stderr-{rank}"))).unwrap())
            .collect();
        let errors: Vec<Option<&str>> =
            texts.iter().map(|text| text.lines().find_map(|line| line.strip_prefix("error: "))).collect();
        let log =
            texts.iter().enumerate().map(|(rank, text)| format!("  rank {rank}: {:?} {text}", codes[rank])).collect();
        let witness = if self.rank == 0 { 1 } else { 0 };
        let hung = (0..ranks.len()).any(|rank| others(rank) && codes[rank].is_none());
        let outcome = if hung {
            Outcome::Hung
        } else if codes.iter().all(|code| code.is_some_and(|code| code.success())) {
            Outcome::Survived
        } else if (0..ranks.len()).all(|rank| rank == self.rank || codes[rank].is_some_and(|code| code.success())) {
            Outcome::WithoutIt
        } else if (0..ranks.len()).all(|rank| rank == self.rank || errors[rank].is_some_and(|text| self.names(text))) {
            Outcome::Named
        } else {
            Outcome::Vague
        };
        let said = errors[witness].map_or(String::new(), without_numbers);
        Seen { outcome, said, log }
    }

    /// Returns whether an error names the rank and the operation. A link that breaks has two ends, and each may report
    /// the other as lost.
    fn names(self, text: &str) -> bool {
        let link =
            matches!(self.fault, Fault::Flip | Fault::Resets) && (text.contains(" lost ") || text.contains("damaged"));
        let rank = text.contains(&format!("rank {}", self.rank)) || text.contains(&format!("missing: {}", self.rank));
        let during = self.operation == Operation::Rendezvous;
        (link || rank) && (during || text.contains(&format!("{} at step", self.operation.name())))
    }
}

fn spawn(place: &Environment, settings: &RankSettings) -> Rank {
    let file = |stream: &str| File::create(settings.directory.join(format!("{stream}-{}", place.rank))).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "every_fault_during_every_operation_ends_as_documented", "--nocapture"])
        .envs(place.variables())
        .env(SETTINGS, settings.to_text())
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn();
    Rank(child.unwrap())
}

/// Removes from an error everything that differs from run to run: ports, seconds, steps.
fn without_numbers(text: &str) -> String {
    let words = text.split(' ').scan("", |before, word| {
        let digits = word.trim_matches(|c: char| !c.is_ascii_digit());
        let keep = *before == "rank" || *before == "ranks" || digits.is_empty() || !word.contains(digits);
        *before = word;
        Some(if keep { word.to_owned() } else { word.replace(digits, "…") })
    });
    words.collect::<Vec<_>>().join(" ")
}
