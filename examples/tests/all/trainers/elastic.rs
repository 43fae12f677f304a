//! Trainers in an elastic world: ranks are killed, the others go on.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::processes::{children, processes, records};
use crate::common::{CIFAR, Runs, launcher};

fn kill(process: u32) {
    assert!(Command::new("kill").args(["-s", "KILL", &process.to_string()]).status().unwrap().success());
}

/// Returns the step of every record.
fn steps(runs: &Runs) -> Vec<u64> {
    let metrics = runs.text("run", "metrics.jsonl");
    let step = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap();
    metrics.lines().map(step).collect()
}

/// Ranks 2 and 0 of four are killed, of 150 steps; the next rank 0 continues the records. With --elastic 3, the second loss ends the run.
#[test]
fn survivors_of_killed_ranks_end_the_run() {
    let launcher = launcher();
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        return println!("skipped: this system does not list a process's children");
    }
    for (fewest, reducer) in [
        (2, "--reducer dense"),
        (2, "--compressor topk:0.05 --feedback error"),
        (2, "--strategy diloco:5 --reducer gather:topk:0.05 --feedback error"),
        (3, "--reducer dense"),
    ] {
        let runs = Runs::default();
        let common = processes(4, 150).replace("--train-limit 64", "--train-limit 256");
        let flags = format!("{common} --lr 0.001 --epochs 5000 --checkpoint-every 7 {reducer} --out run");
        let mut running = runs
            .start(&launcher, &format!("launch --ranks 4 --elastic {fewest} -- {CIFAR} {flags}"))
            .within(Duration::from_secs(120));
        let metrics = runs.path("run/metrics.jsonl");
        running.wait_until(|| records(&metrics) > 10);
        let ranks = children(running.id());
        kill(ranks[2]);
        running.wait_until(|| records(&metrics) > 40);
        kill(ranks[0]);
        let ended = running.end();
        if fewest == 3 {
            assert_ne!(ended.code, Some(0), "{}", ended.stderr);
            assert!(ended.stderr.contains("reaches 2 of 3 members"), "{}", ended.stderr);
            continue;
        }
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(steps(&runs), (0..150).collect::<Vec<_>>(), "{}", ended.stderr);
        let said = &ended.stdout;
        assert!(said.contains("generation 1: 3 ranks go on") && said.contains("generation 2: 2 ranks go on"), "{said}");
        assert!(said.contains("[rank 1] written to"), "the next rank 0 reports: {said}");
        assert!(ended.stderr.contains("rank 0 was killed by signal 9 (SIGKILL); 2 ranks go on"), "{}", ended.stderr);
    }
}

/// Rank 2, then rank 0 are killed and started again: they join the running world, which ends with all four.
#[test]
fn lost_ranks_join_the_running_world_again() {
    let launcher = launcher();
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        return println!("skipped: this system does not list a process's children");
    }
    let runs = Runs::default();
    let common = processes(4, 20_000).replace("--train-limit 64", "--train-limit 256");
    let flags = format!(
        "{common} --lr 0.001 --epochs 50000 --checkpoint-every 50 --compressor topk:0.05 --feedback error --out run"
    );
    let launch = format!("launch --ranks 4 --elastic 2 --rejoin -- {CIFAR} {flags}");
    let mut running = runs.start(&launcher, &launch).within(Duration::from_secs(120));
    let (metrics, id) = (runs.path("run/metrics.jsonl"), running.id());
    running.wait_until(|| records(&metrics) > 10);
    kill(children(id)[2]);
    running.wait_said("generation 2 at step");
    // The new member has its state.
    let before = records(&metrics);
    running.wait_until(|| records(&metrics) > before + 3);
    kill(children(id)[0]);
    running.wait_said("generation 4 at step");
    let before = records(&metrics);
    running.wait_until(|| records(&metrics) > before + 20);
    assert!(Command::new("kill").args(["-s", "INT", &id.to_string()]).status().unwrap().success());
    let ended = running.end();
    let said = &ended.stdout;
    assert!(said.contains("generation 2: 4 ranks go on") && said.contains("generation 4: 4 ranks go on"), "{said}");
    assert!(said.contains("interrupted at step"), "{said}\n{}", ended.stderr);
    let steps = steps(&runs);
    assert_eq!(steps, (0..steps.len() as u64).collect::<Vec<_>>());
}

/// One of four ranks with batches of 4 is killed: three ranks share 16 samples of a step, or step at three quarters of the rate.
#[test]
fn the_samples_of_a_step_or_the_rate_follow_the_size_of_the_world() {
    let launcher = launcher();
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        return println!("skipped: this system does not list a process's children");
    }
    for (flag, is_constant, rate) in [("batch", false, 0.001), ("rate", false, 0.00075), ("step", true, 0.001)] {
        let runs = Runs::default();
        let common = processes(4, 40);
        let flags = format!("{common} --lr 0.001 --epochs 5000 --reducer dense --resize {flag} --out run");
        let launch = format!("launch --ranks 4 --elastic 2 -- {CIFAR} {flags}");
        let mut running = runs.start(&launcher, &launch).within(Duration::from_secs(120));
        let metrics = runs.path("run/metrics.jsonl");
        running.wait_until(|| records(&metrics) > 5);
        kill(children(running.id())[2]);
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let steps = runs.metrics("run");
        assert_eq!([steps[0].lr, steps[39].lr], [0.001, rate], "{flag}");
        // 64 samples are four steps of 16, or six of 12.
        assert_eq!(steps[39].epoch == 9, is_constant, "{flag}: epoch {}", steps[39].epoch);
    }
}

/// Rank 0 has a directory of its own, as on another machine. When it is killed, the next rank 0 begins a record in its directory, and says which steps
/// that lacks.
#[test]
fn a_new_first_rank_that_does_not_see_the_directory_begins_its_own() {
    let launcher = launcher();
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        return println!("skipped: this system does not list a process's children");
    }
    let runs = Runs::default();
    fs::create_dir(runs.path("other")).unwrap();
    let script = format!("#!/bin/sh\n[ \"$RANK\" = 0 ] || cd other\nexec {CIFAR} \"$@\"\n");
    fs::write(runs.path("rank"), script).unwrap();
    fs::set_permissions(runs.path("rank"), fs::Permissions::from_mode(0o755)).unwrap();
    let flags = format!("{} --lr 0.001 --epochs 5000 --checkpoint-every 7 --reducer dense --out run", processes(3, 60));
    let mut running = runs
        .start(&launcher, &format!("launch --ranks 3 --elastic 2 -- ./rank {flags}"))
        .within(Duration::from_secs(120));
    let metrics = runs.path("run/metrics.jsonl");
    running.wait_until(|| records(&metrics) > 20);
    kill(children(running.id())[0]);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(said.contains("metrics.jsonl was missing") && said.contains("steps have no record any more"), "{said}");
    let steps: Vec<u64> = runs.metrics("other/run").iter().map(|step| step.step).collect();
    assert!(steps.last() == Some(&59) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1), "{steps:?}");
    assert!(
        steps.len() < 60 && runs.path("other/run/summary.json").exists() && !runs.path("run/summary.json").exists()
    );
}

/// Returns a free port that `more` free ports follow.
fn free_ports(more: u16) -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).ok();
    loop {
        let first = free(0).unwrap().local_addr().unwrap().port();
        let others = (1..=more).map(|next| first.checked_add(next).and_then(free));
        if others.collect::<Vec<_>>().iter().all(Option::is_some) {
            return first;
        }
    }
}

/// A second launcher adds a rank to the world of another. One that states another size of that world is refused, and the others go on.
#[test]
fn another_machine_joins_the_running_world() {
    let (launcher, runs, port) = (launcher(), Runs::default(), free_ports(3));
    let token = runs.run(&launcher, "token").succeeds().stdout;
    fs::write(runs.path("token"), token).unwrap();
    fs::set_permissions(runs.path("token"), fs::Permissions::from_mode(0o600)).unwrap();
    let common = processes(3, 20_000).replace("--train-limit 64", "--train-limit 256").replace("--ranks 3", "");
    let flags = format!("{common} --lr 0.001 --epochs 50000 --reducer dense --out run");
    let of_world = "--world one --elastic 2 --rejoin --token-file token";
    let launch = format!("launch --ranks 3 --port {port} {of_world} -- {CIFAR} {flags}");
    let mut running = runs.start(&launcher, &launch).within(Duration::from_secs(120));
    let metrics = runs.path("run/metrics.jsonl");
    running.wait_until(|| records(&metrics) > 3);
    let members = format!("127.0.0.1:{},127.0.0.1:{}", port + 1, port + 2);
    let join = |size: usize| {
        let of_world = of_world.replace("--rejoin", "");
        format!("launch --join {members} --world-size {size} --ranks 1 {of_world} -- {CIFAR} {flags}")
    };
    let refused = runs.run(&launcher, &join(2));
    assert!(refused.code != Some(0) && refused.stderr.contains("launch with --world-size 3"), "{}", refused.stderr);
    let joined = runs.start(&launcher, &join(3)).within(Duration::from_secs(120));
    running.wait_said("generation 3 at step");
    let before = records(&metrics);
    running.wait_until(|| records(&metrics) > before + 5);
    assert!(Command::new("kill").args(["-s", "INT", &running.id().to_string()]).status().unwrap().success());
    let (ended, joined) = (running.end(), joined.end());
    let said = &ended.stdout;
    assert!(said.contains("generation 3: 4 ranks go on"), "{said}\n{}", ended.stderr);
    assert!(said.contains("generations       3: 1 ranks lost, 2 new"), "{said}");
    assert!(ended.stderr.contains(&format!("--join 127.0.0.1:{}", port + 1)), "{}", ended.stderr);
    assert!(matches!(joined.code, Some(0 | 130)), "{}", joined.stderr);
}

/// Nothing changes where no rank is lost: the same bits as in a fixed world.
#[test]
fn an_elastic_run_without_a_loss_has_the_bits_of_a_fixed_one() {
    let (launcher, runs) = (launcher(), Runs::default());
    let flags = format!("{} --compressor topk:0.05 --feedback error", processes(3, 6));
    for (world, out) in [("", "fixed"), ("--elastic 1", "elastic")] {
        runs.run(&launcher, &format!("launch --ranks 3 {world} -- {CIFAR} {flags} --out {out}")).succeeds();
    }
    assert_eq!(runs.text("fixed", "metrics.jsonl"), runs.text("elastic", "metrics.jsonl"));
    assert_eq!(runs.summary("fixed"), runs.summary("elastic"));
}

#[test]
fn what_an_elastic_world_cannot_keep_is_refused() {
    let launcher = launcher();
    for (flags, said) in [
        ("--strategy local-sgd:3,momenta=average", "use momenta=keep"),
        ("--strategy sgp", "use every-step, local-sgd or diloco"),
        ("--server async-sgd", "--server does not go with an elastic world"),
        ("--non-iid 0.5", "--non-iid does not go with an elastic world"),
    ] {
        let runs = Runs::default();
        let launch = format!("launch --ranks 3 --elastic 2 -- {CIFAR} {} {flags} --out run", processes(3, 6));
        let ended = runs.run(&launcher, &launch);
        assert!(ended.code != Some(0) && ended.stderr.contains(said), "{flags}: {}", ended.stderr);
    }
    for (options, said) in [
        ("--ranks 3 --elastic 4", "--elastic 4: the world has 3 ranks"),
        ("--ranks 1 --join host1:29501", "--world-size <N>"),
        (
            "--ranks 1 --join host1 --world w --world-size 2 --elastic 1 --token-file t",
            "an address is written as host1:29501",
        ),
    ] {
        let ended = Runs::default().run(&launcher, &format!("launch {options} -- {CIFAR}"));
        assert!(ended.code == Some(2) && ended.stderr.contains(said), "{options}: {}", ended.stderr);
    }
}
