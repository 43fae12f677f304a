//! Outcomes of failing ranks and networks: every kind of fault, during every operation, to rank 0 and to another rank.
//! The outcomes are those of the table in `outcomes.md`, which `docs/faults.md` sums up; none is "hung".
//!
//! Own binary: it starts itself as ranks, and the cases are timed, so that no other test runs at the same time.
//!
//! Each case is a world of three processes, which are this test program started again; rank 0 or 1 has proxies in front
//! of all its connections. The observed table is written to `target/tmp/faults.md`.
#![cfg(target_os = "linux")]

mod case;
mod rank;

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use case::{Case, Outcome, Seen};

/// Fault of a rank or its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    StopTenSeconds,
    StopForEver,
    Exit,
    HalfOpen,
    Flip,
    Resets,
    Slow,
}

impl Fault {
    pub(crate) const ALL: [Fault; 8] = [
        Fault::Kill,
        Fault::StopTenSeconds,
        Fault::StopForEver,
        Fault::Exit,
        Fault::HalfOpen,
        Fault::Flip,
        Fault::Resets,
        Fault::Slow,
    ];

    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "killed (SIGKILL)",
            Fault::StopTenSeconds => "stopped for 10 s (SIGSTOP)",
            Fault::StopForEver => "stopped for good (SIGSTOP)",
            Fault::Exit => "ends without a word",
            Fault::HalfOpen => "network gone, sockets open",
            Fault::Flip => "a bit flipped on the way",
            Fault::Resets => "1 % of packets reset their connection",
            Fault::Slow => "network slow (1 Mbit/s)",
        }
    }

    /// Returns the expected outcome in a fixed or an elastic world.
    fn expected(self, is_elastic: bool) -> Outcome {
        match (self, is_elastic) {
            (Fault::StopTenSeconds | Fault::Slow, _) => Outcome::Survived,
            (_, false) => Outcome::Named,
            (Fault::Kill | Fault::StopForEver | Fault::Exit, true) => Outcome::WithoutIt,
            // The ranks of a broken connection reach each other again.
            (Fault::HalfOpen | Fault::Flip | Fault::Resets, true) => Outcome::Survived,
        }
    }
}

/// Operation of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Rendezvous,
    AllGather,
    AllReduce,
    Broadcast,
    Barrier,
    CheckpointSave,
}

impl Operation {
    pub(crate) const ALL: [Operation; 6] = [
        Operation::Rendezvous,
        Operation::AllGather,
        Operation::AllReduce,
        Operation::Broadcast,
        Operation::Barrier,
        Operation::CheckpointSave,
    ];

    /// Returns its name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Rendezvous => "rendezvous",
            Operation::AllGather => "all_gather",
            Operation::AllReduce => "all_reduce",
            Operation::Broadcast => "broadcast",
            Operation::Barrier => "barrier",
            Operation::CheckpointSave => "checkpoint save",
        }
    }
}

/// Threat R4. In a process that it has started itself, it is a rank of one of the worlds.
#[test]
fn every_fault_during_every_operation_ends_as_documented() {
    if let Ok(settings) = env::var(rank::SETTINGS) {
        return rank::run(&settings);
    }
    let mut cases = Vec::new();
    for fault in Fault::ALL {
        for operation in Operation::ALL {
            // Until a world is complete, an elastic one is not different.
            let worlds = if operation == Operation::Rendezvous { &[false][..] } else { &[false, true] };
            for is_elastic in worlds {
                cases.extend([0, 1].map(|rank| Case { fault, operation, rank, is_elastic: *is_elastic }));
            }
        }
    }
    let queue: Mutex<VecDeque<(usize, Case)>> = Mutex::new(cases.iter().copied().enumerate().collect());
    let seen: Mutex<Vec<(usize, Seen)>> = Mutex::default();
    thread::scope(|threads| {
        // Worlds at the same time: they mostly wait.
        for _ in 0..(3 * thread::available_parallelism().map_or(1, usize::from)).min(16) {
            threads.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().pop_front();
                    let Some((number, case)) = next else { return };
                    let outcome = case.run(number);
                    seen.lock().unwrap().push((number, outcome));
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|(number, _)| *number);
    let rows: Vec<(Case, Seen)> = cases.into_iter().zip(seen.into_iter().map(|(_, seen)| seen)).collect();
    let table = table(&rows);
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults.md"), &table).unwrap();
    let wrong: Vec<String> = (rows.iter())
        .filter(|(case, seen)| seen.outcome != case.fault.expected(case.is_elastic))
        .map(|(case, seen)| format!("{case:?}: {:?}\n{}", seen.outcome, seen.log))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    let committed = include_str!("outcomes.md");
    for outcome in outcomes(&table) {
        assert!(
            outcomes(committed).any(|row| row == outcome),
            "not in tests/fault_matrix/outcomes.md, see target/tmp/faults.md: {outcome}"
        );
    }
    briquette_testkit::held!(
        "8 faults during 6 operations, to rank 0 and to another, in fixed and elastic worlds",
        rows.len(),
        "as the table above says; no rank hung",
        every_fault_during_every_operation_ends_as_documented
    );
}

/// Returns the rows without their last column, whose texts differ from run to run.
fn outcomes(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.rsplit_once(" | ").map(|(row, _)| row))
}

fn table(rows: &[(Case, Seen)]) -> String {
    let mut text = String::from(
        "| fault | during | to rank | outcome | in an elastic world | what another rank says, for example |\n\
         |---|---|---|---|---|---|\n",
    );
    for (case, seen) in rows.iter().filter(|(case, _)| !case.is_elastic) {
        let elastic = rows.iter().find(|(other, _)| *other == Case { is_elastic: true, ..*case });
        let elastic = elastic.map_or("the same", |(_, seen)| seen.outcome.name());
        let Case { fault, operation, rank, .. } = *case;
        let (fault, operation, outcome) = (fault.name(), operation.name(), seen.outcome.name());
        text += &format!("| {fault} | {operation} | {rank} | {outcome} | {elastic} | {} |\n", seen.said);
    }
    text
}
