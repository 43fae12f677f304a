//! Goodput of simulated elastic worlds, compared with restarts from a checkpoint at the best interval.
//!
//! All worlds of a row have the same random failures. A lost machine returns after a minute.

mod restart;

use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::Result;
use briquette::sim::membership::{Change, Failures, Incident, Outcome, Schedule, World, simulate};
use briquette_cli::measure::median;
use serde::Serialize;

use crate::ranks::write_csv;
use crate::trainer;

use restart::Restart;

const SEEDS: u64 = 5;
const RANKS: usize = 64;
const STEP: f64 = 0.05;
const RETURN: f64 = 60.0;
const MIB: f64 = 1024.0 * 1024.0;
/// For 64 MiB of state: between 0.09 s for 32 MiB and 0.52 s for 128 MiB, as `checkpoints` has measured with background saving.
const CHECKPOINT: f64 = 0.24;
/// Assumed: processes start, read their data, join and load the checkpoint.
const RESTART: f64 = 5.0;
/// Name of the row in which failures are regular.
const SOAK: &str = "soak";

/// Means over the seeds of a row.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    ranks: usize,
    step_seconds: f64,
    mean_seconds_between_failures: f64,
    failure: &'static str,
    detection_seconds: f64,
    connect_timeout_seconds: f64,
    form_seconds: f64,
    return_seconds: f64,
    state_mib: f64,
    gbit_per_second: f64,
    state_goes_to: &'static str,
    simulated_seconds: f64,
    seeds: u64,
    losses: f64,
    generations: f64,
    ended_worlds: usize,
    goodput_percent: f64,
    goodput_standard_error: f64,
    stall_median_seconds: Option<f64>,
    stall_maximum_seconds: Option<f64>,
    pause_median_seconds: Option<f64>,
    checkpoint_seconds: f64,
    restart_seconds: f64,
    waiting_interval_seconds: f64,
    waiting_goodput_percent: f64,
    waiting_standard_error: f64,
    spare_interval_seconds: f64,
    spare_goodput_percent: f64,
    spare_standard_error: f64,
    wall_seconds_per_seed: f64,
    machine: String,
    cores: usize,
    date: String,
    command: &'static str,
}

/// A row's settings.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    world: World,
    mean_seconds: f64,
    vanishes: bool,
    seconds: f64,
    return_seconds: f64,
    seeds: u64,
}

/// Mean times between failures, and seconds of the simulation.
const MEANS: [(f64, f64); 4] = [(15.0, 21_600.0), (60.0, 86_400.0), (600.0, 345_600.0), (3600.0, 1e6)];

fn cases() -> Vec<Case> {
    let world = World { ranks: RANKS, step: STEP, ..World::default() };
    let all = World { broadcasts: true, ..world };
    let base = Case {
        name: "table",
        world,
        mean_seconds: 15.0,
        vanishes: false,
        seconds: 21_600.0,
        return_seconds: RETURN,
        seeds: SEEDS,
    };
    let mut cases = Vec::new();
    for world in [all, world] {
        for (vanishes, vanished) in [(false, 30.0), (true, 3.0), (true, 30.0)] {
            let world = World { vanished, ..world };
            let of = |(mean_seconds, seconds)| Case { world, mean_seconds, vanishes, seconds, ..base };
            cases.extend(MEANS.map(of));
        }
    }
    // Sensitivity: a session that takes longer, and state that takes no time.
    let sensitive = |world| Case { name: "sensitivity", world, ..base };
    cases.push(sensitive(World { form: 0.5, ..world }));
    cases.push(sensitive(World { state_bytes: 0.0, ..world }));
    let week = Case { name: "week", world, seconds: 604_800.0, seeds: 1, ..base };
    // The measured run of `elastic-soak.csv`: a median stall of 0.154 s.
    let soak = World { ranks: 4, step: 0.057, state_bytes: MIB, ..world };
    let soak = Case { name: SOAK, world: soak, mean_seconds: 5.0, seconds: 240.0, return_seconds: 1.0, ..base };
    cases.extend([week, soak]);
    cases
}

/// Simulates all rows, and writes `goodput.csv` to `csv`.
///
/// # Errors
/// If the result cannot be written.
pub fn write(csv: &Path) -> Result<()> {
    let mut rows = Vec::new();
    for case in cases() {
        let row = row(&case)?;
        println!(
            "{:11} {:6} s {:8} {:4} s, state to {:7} goodput {:5.2} +- {:.2} %, {} ended; waiting {:5.2} %, spare {:5.2} %; {:.1} s",
            row.case,
            row.mean_seconds_between_failures,
            row.failure,
            row.detection_seconds,
            row.state_goes_to,
            row.goodput_percent,
            row.goodput_standard_error,
            row.ended_worlds,
            row.waiting_goodput_percent,
            row.spare_goodput_percent,
            row.wall_seconds_per_seed,
        );
        rows.push(row);
    }
    write_csv(Some(&csv.join("goodput.csv")), &rows)
}

fn schedules(case: &Case) -> Result<Vec<Schedule>> {
    let draw = |seed| {
        if case.name == SOAK {
            return regular(case, seed);
        }
        let failures = Failures {
            ranks: case.world.ranks,
            mean_seconds: case.mean_seconds,
            back_after: case.return_seconds,
            vanished_share: f64::from(u8::from(case.vanishes)),
            seconds: case.seconds,
            seed,
        };
        Ok(Schedule::drawn(&failures)?)
    };
    (1..=case.seeds).map(draw).collect()
}

/// Returns a loss at constant intervals, of one machine after another.
fn regular(case: &Case, seed: u64) -> Result<Schedule> {
    let mut incidents = Vec::new();
    for loss in 1..(case.seconds / case.mean_seconds) as usize {
        let machine = (loss + seed as usize) % case.world.ranks;
        // The seed moves the losses within a step.
        let seconds = loss as f64 * case.mean_seconds + seed as f64 * 0.01;
        incidents.push(Incident { seconds, change: Change::Lost(machine) });
        incidents.push(Incident { seconds: seconds + case.return_seconds, change: Change::Joins(machine) });
    }
    Ok(Schedule::new(incidents)?)
}

fn row(case: &Case) -> Result<Row> {
    let schedules = schedules(case)?;
    let begin = Instant::now();
    let outcomes = (1..).zip(&schedules).map(|(seed, schedule)| {
        let world = World { seed, ..case.world };
        Ok(simulate(&world, schedule, case.seconds)?)
    });
    let outcomes: Vec<Outcome> = outcomes.collect::<Result<_>>()?;
    let wall = begin.elapsed().as_secs_f64() / case.seeds as f64;
    let World { ranks, step, killed, vanished, unreachable, form, state_bytes, bandwidth, broadcasts, .. } = case.world;
    let restart =
        Restart { checkpoint: CHECKPOINT, interval: 1.0, restart: RESTART, detection: [killed, vanished], waits: true };
    let (waiting, of_waiting) = restart.best(&schedules, case.seconds);
    let (spare, of_spare) = Restart { waits: false, ..restart }.best(&schedules, case.seconds);
    let [goodput, of_waiting, of_spare] = [outcomes.iter().map(Outcome::goodput).collect(), of_waiting, of_spare]
        .map(|shares: Vec<f64>| percent(&shares));
    let all = |of: fn(&Outcome) -> &Vec<f64>| outcomes.iter().flat_map(of).copied().collect::<Vec<f64>>();
    let (stalls, pauses) = (all(|outcome| &outcome.stalls), all(|outcome| &outcome.pauses));
    let mean = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>() as f64 / case.seeds as f64;
    let (machine, cores) = trainer::machine();
    Ok(Row {
        case: case.name,
        ranks,
        step_seconds: step,
        mean_seconds_between_failures: case.mean_seconds,
        failure: if case.vanishes { "vanished" } else { "killed" },
        detection_seconds: if case.vanishes { vanished } else { killed },
        connect_timeout_seconds: unreachable,
        form_seconds: form,
        return_seconds: case.return_seconds,
        state_mib: state_bytes / MIB,
        gbit_per_second: bandwidth / 1e9,
        state_goes_to: if broadcasts { "all" } else { "the new" },
        simulated_seconds: case.seconds,
        seeds: case.seeds,
        losses: mean(|outcome| outcome.losses),
        generations: mean(|outcome| outcome.generations),
        ended_worlds: outcomes.iter().filter(|outcome| outcome.end.is_some()).count(),
        goodput_percent: goodput.0,
        goodput_standard_error: goodput.1,
        stall_maximum_seconds: stalls.iter().copied().reduce(f64::max).map(rounded),
        stall_median_seconds: (!stalls.is_empty()).then(|| rounded(median(stalls))),
        pause_median_seconds: (!pauses.is_empty()).then(|| rounded(median(pauses))),
        checkpoint_seconds: CHECKPOINT,
        restart_seconds: RESTART,
        waiting_interval_seconds: rounded(waiting.interval),
        waiting_goodput_percent: of_waiting.0,
        waiting_standard_error: of_waiting.1,
        spare_interval_seconds: rounded(spare.interval),
        spare_goodput_percent: of_spare.0,
        spare_standard_error: of_spare.1,
        wall_seconds_per_seed: rounded(wall),
        machine,
        cores,
        date: trainer::day(SystemTime::now())?,
        command: "tables goodput",
    })
}

fn rounded(value: f64) -> f64 {
    (1e3 * value).round() / 1e3
}

/// Returns the mean and its standard error in percent; 0 for a single share.
fn percent(shares: &[f64]) -> (f64, f64) {
    let count = shares.len() as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let square = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (rounded(100.0 * mean), rounded(100.0 * (square / count).sqrt()))
}
