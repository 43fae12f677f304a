//! A rank that is killed under any strategy, two levels or a server is named by the others.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use briquette::core::comm::{Record, culprits};
use briquette::core::config::{ServerConfig, StrategyConfig};

use super::processes::{children, processes, records};
use crate::common::{CIFAR, Runs, launcher};

/// Flags, and the rank that is killed: the first one leads, serves, or is the first of its machine.
const CASES: [(&str, usize); 33] = [
    ("--strategy every-step --reducer dense", 1),
    ("--strategy local-sgd:3", 1),
    ("--strategy slowmo:3", 0),
    ("--strategy bmuf:3", 1),
    ("--strategy diloco:3", 0),
    ("--strategy sparse-loco:3,ratio=8", 1),
    ("--strategy sparta:20", 0),
    ("--strategy no-loco:3", 1),
    ("--strategy des-loc:2", 0),
    ("--strategy eager-diloco:3", 0),
    ("--strategy streaming-diloco:6,fragments=2,overlap=1", 1),
    ("--strategy easgd:2", 1),
    // Whichever leads: with two more ranks one of these does.
    ("--strategy lsgd:2,local=1", 0),
    ("--strategy lsgd:2,local=1", 1),
    ("--strategy sgp", 1),
    ("--strategy sgp:exponential,staleness=2", 0),
    ("--strategy overlap-local-sgd:2", 1),
    ("--strategy cocod:2", 0),
    ("--strategy minibatch:2", 1),
    ("--strategy parle:2", 0),
    ("--strategy delayed", 1),
    ("--strategy demo:16 --momentum 0", 0),
    ("--strategy two-level:(local-sgd:3),group=2", 3),
    ("--strategy two-level:(sgp),group=2", 0),
    ("--reducer hierarchical:dense,group=2", 0),
    ("--server async-sgd --checkpoint-every 9", 0),
    ("--server async-local-sgd:2 --checkpoint-every 9", 2),
    ("--server decoupled-diloco:2 --checkpoint-every 9", 3),
    ("--server backup:2,spare=1 --checkpoint-every 9", 1),
    ("--server picky:0.5 --checkpoint-every 9", 0),
    ("--server synthesis:4,delay=2 --augment none --checkpoint-every 9", 1),
    ("--server async-lsgd:2 --checkpoint-every 9", 1),
    ("--server qsvrg:4 --augment none --checkpoint-every 9", 2),
];

#[test]
fn a_rank_that_is_killed_is_named_by_another_under_everything() {
    let launcher = launcher();
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        return println!("skipped: this system does not list a process's children");
    }
    let families = [("--strategy", StrategyConfig::help()), ("--server", ServerConfig::help())];
    for (flag, (syntax, _)) in families.iter().flat_map(|(flag, all)| all.iter().map(move |one| (flag, one))) {
        let name = syntax.split([':', ' ', '[']).next().expect("a name");
        let is_of =
            |flags: &str| flags.split([' ', ':']).collect::<Vec<_>>().windows(2).any(|two| two == [*flag, name]);
        assert!(CASES.iter().any(|(flags, _)| is_of(flags)), "no case of {flag} {name}");
    }
    for (flags, rank) in CASES {
        let runs = Runs::default();
        let never = if flags.contains("--checkpoint-every") { "" } else { "--checkpoint-every 0" };
        let common = processes(4, 3000).replace("--train-limit 64", "--train-limit 256");
        // A rate at which none diverges before a rank is killed: a server's workers may be late by any number of updates.
        let launch = format!("launch --ranks 4 -- {CIFAR} {common} --lr 0.001 --epochs 5000 {never} {flags} --out run");
        let mut running = runs.start(&launcher, &launch).within(Duration::from_secs(60));
        let id = running.id();
        let metrics = runs.path("run/metrics.jsonl");
        running.wait_until(|| records(&metrics) > 2);
        let killed = children(id)[rank].to_string();
        assert!(Command::new("kill").args(["-s", "KILL", &killed]).status().unwrap().success());
        let ended = running.end();
        assert!(ended.code != Some(0), "{flags}");
        let others = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with("[rank ") && !line.starts_with(&format!("[rank {rank}]")));
        let named = others.filter(|line| line.contains(&format!("rank {rank} "))).count();
        assert!(named > 0, "{flags}, rank {rank} killed: {}", ended.stderr);
        let records = std::fs::read_dir(runs.path("run/transfers")).expect("a record of each survivor");
        let read = |path: &Path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let records: Vec<Record> = records.map(|file| read(&file.unwrap().path())).collect();
        let culprits: Vec<usize> = culprits(&records).into_iter().map(|(culprit, _)| culprit).collect();
        assert_eq!(culprits, [rank], "{flags}: {records:?}");
    }
}

/// A process that receives SIGUSR1 writes the transfers of its ranks, and goes on.
#[test]
fn a_request_writes_the_last_transfers_and_training_goes_on() {
    let runs = Runs::default();
    let flags = format!("{} --epochs 5000 --checkpoint-every 0 --out run", processes(2, 3000));
    let mut running = runs.start(CIFAR, &flags).within(Duration::from_secs(120));
    let metrics = runs.path("run/metrics.jsonl");
    running.wait_until(|| records(&metrics) > 2);
    running.signal("USR1");
    let files = [0, 1].map(|rank| runs.path(&format!("run/transfers/rank-{rank}.json")));
    running.wait_until(|| files.iter().all(|file| file.exists()));
    let before = records(&metrics);
    running.wait_until(|| records(&metrics) > before + 1);
    running.signal("INT");
    assert_eq!(running.end().code, Some(130));
    for (rank, file) in files.iter().enumerate() {
        let record: Record = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!((record.rank, record.world, record.failure), (rank, 2, None));
        assert!(record.transfers.iter().any(|transfer| transfer.peer != rank && transfer.bytes > 0));
    }
}
