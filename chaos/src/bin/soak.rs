//! Random faults on runs of processes over TCP and TLS, for hours: `scripts/soak.sh`.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    soak::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: the soak needs Linux: it reads /proc and mounts small disks");
    ExitCode::from(2)
}

#[cfg(target_os = "linux")]
mod soak {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Command, ExitCode};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant, SystemTime};

    use anyhow::{Context, Result, ensure};
    use briquette_chaos::episode::{self, Outcome, Soak};
    use briquette_chaos::inflict::Disk;
    use briquette_chaos::plan::{Abilities, Plan};
    use briquette_chaos::record::Record;
    use briquette_chaos::world::Programs;
    use clap::Parser;

    /// Disturbs runs at random and asserts that each ends with the bits of one that was left alone.
    #[derive(Debug, Parser)]
    struct Arguments {
        /// Duration in hours; the episode under way is brought to its end
        #[arg(value_name = "HOURS")]
        hours: f64,
        /// Seed from which episodes are drawn; the time of day if absent. An episode has a seed of its own, which is printed
        seed: Option<u64>,
        /// Only the episode with this seed
        #[arg(long, value_name = "SEED")]
        episode: Option<u64>,
        /// Do not end at a finding
        #[arg(long)]
        keep_going: bool,
        /// Events an episode has
        #[arg(long, default_value_t = 6)]
        events: usize,
        /// Directory of briquette, cifar and ag-news; that of this program if absent
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
        /// Directory for runs and the record
        #[arg(long, value_name = "DIR", default_value = "soak")]
        out: PathBuf,
        /// Revision under test, for the record
        #[arg(long, default_value = "unknown")]
        revision: String,
    }

    pub(super) fn main() -> ExitCode {
        match run(&Arguments::parse()) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(2)
            }
        }
    }

    fn prepare(arguments: &Arguments, out: &Path) -> Result<Arc<Soak>> {
        let own = std::env::current_exe()?;
        let beside = own.parent().context("a program is in a directory")?;
        let programs = Programs::in_directory(arguments.programs.as_deref().unwrap_or(beside))?;
        let certificates = out.join("certificates");
        let mut cert = Command::new(programs.path("briquette"));
        let made = cert.args(["cert", "--force", "--out"]).arg(&certificates).output()?;
        ensure!(made.status.success(), "briquette cert: {}", String::from_utf8_lossy(&made.stderr));
        let shim = out.join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("shim/clock.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(source).arg("-ldl").status();
        let shim = built.is_ok_and(|status| status.success()).then_some(shim);
        let soak = Arc::new(Soak { programs, certificates, shim, stop: AtomicBool::new(false) });
        let stop = Arc::clone(&soak);
        ctrlc::set_handler(move || stop.stop.store(true, Ordering::Relaxed))?;
        Ok(soak)
    }

    /// Totals over all episodes.
    #[derive(Default)]
    struct Totals {
        episodes: usize,
        events: usize,
        restarts: usize,
        findings: usize,
        kinds: BTreeMap<&'static str, usize>,
    }

    impl Totals {
        fn add(&mut self, plan: &Plan, outcome: &Outcome) {
            self.episodes += 1;
            self.events += outcome.events;
            self.restarts += outcome.restarts + outcome.resumed;
            self.findings += outcome.findings.len();
            for event in plan.events.iter().take(outcome.events) {
                *self.kinds.entry(event.fault.name()).or_default() += 1;
            }
        }
    }

    fn run(arguments: &Arguments) -> Result<bool> {
        fs::create_dir_all(&arguments.out)?;
        let out = fs::canonicalize(&arguments.out)?;
        let soak = prepare(arguments, &out)?;
        let abilities = Abilities { disks: Disk::mount(&out.join("disk"), 1).is_ok(), clocks: soak.shim.is_some() };
        println!("full disks: {} (needs mount); clock jumps: {} (needs cc)", abilities.disks, abilities.clocks);
        let mut record = Record::open(&out.join("soak.csv"), arguments.revision.clone())?;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let first = arguments.seed.unwrap_or(time);
        let limit = Duration::from_secs_f64(arguments.hours * 3600.0);
        let (begin, mut totals) = (Instant::now(), Totals::default());
        for number in 1.. {
            // Far enough apart, since each episode has a separate generator.
            let seed = arguments.episode.unwrap_or(first.wrapping_mul(1000).wrapping_add(number as u64));
            let plan = Plan::draw(seed, arguments.events, seed.is_multiple_of(8), abilities);
            record.episode = (number, seed);
            let outcome = episode(&soak, &plan, &mut record, &out.join(format!("episode-{seed}")))?;
            totals.add(&plan, &outcome);
            let found = !outcome.findings.is_empty() && !arguments.keep_going;
            if found || soak.stop.load(Ordering::Relaxed) || arguments.episode.is_some() || begin.elapsed() > limit {
                break;
            }
        }
        let Totals { episodes, events, restarts, findings, kinds } = totals;
        let hours = begin.elapsed().as_secs_f64() / 3600.0;
        println!(
            "{episodes} episodes, {events} events {kinds:?}, {restarts} restarts, {findings} findings, {hours:.2} h"
        );
        Ok(findings == 0)
    }

    /// Runs an episode in a separate directory, which is kept if something was found.
    fn episode(soak: &Soak, plan: &Plan, record: &mut Record, directory: &Path) -> Result<Outcome> {
        let _ = fs::remove_dir_all(directory);
        let outcome = episode::run(soak, plan, record, directory)?;
        if outcome.findings.is_empty() {
            fs::remove_dir_all(directory)?;
        } else {
            println!("FINDING in the episode with seed {}; kept: {}", plan.seed, directory.display());
        }
        Ok(outcome)
    }
}
