//! Ranks that are processes over TCP: bitwise the same results as threads, and the state left when one is killed.
//!
//! They are started by `briquette launch`, which `cargo test --workspace` builds next to the trainers.
#![cfg(unix)]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use briquette::core::comm::run_ranks;
use briquette::core::error::CommError;
use briquette::{DistributedConfig, DistributedOptimizer};
use briquette_examples::record::{SecondsAre, StepRecord};
use briquette_tcp::frame::HEADER;
use briquette_tcp::{SocketBytes, SocketMeter, Tcp};
use burn::nn::LinearConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};

use super::GRAVAC;
use crate::common::{CIFAR, Runs, SMALL, launcher};

/// Returns the flags of a small run that processes support, too: no network is simulated.
pub(crate) fn processes(ranks: usize, steps: u64) -> String {
    let flags = SMALL.replace("--ranks 2", "").replace("--network 100mbit,1ms", "");
    flags.replace("--steps 6", &format!("--steps {steps}")) + &format!(" --ranks {ranks}")
}

#[test]
fn processes_over_tcp_train_to_the_bits_of_threads() {
    let launcher = launcher();
    for flags in [
        "--reducer dense",
        "--compressor topk:0.05 --feedback error --controller gravac:window=2,epsilon=0.3,min=4x,max=20x",
        GRAVAC,
        "--reducer dense --set during_backward=true --set bucket_values=20000",
        "--compressor topk:0.05 --feedback error --set during_backward=true --set bucket_values=20000",
    ] {
        let runs = Runs::default();
        let flags = format!("{} {flags}", processes(4, 6));
        runs.run(CIFAR, &format!("{flags} --out threads")).succeeds();
        let launch = format!("launch --ranks 4 -- {CIFAR} {flags} --out processes");
        let said = runs.run(&launcher, &launch).succeeds().stdout;
        assert!(said.contains("[rank 0]") && !said.contains("[rank 1]"), "one rank speaks: {said}");
        assert_eq!(runs.text("threads", "metrics.jsonl"), runs.text("processes", "metrics.jsonl"), "{flags}");
        // The test loss depends on all weights and running statistics.
        assert_eq!(runs.summary("threads"), runs.summary("processes"), "{flags}");
    }
}

/// Each of two machines has a directory and one rank.
#[test]
fn a_run_with_a_directory_on_each_machine_is_resumed_on_both() {
    let machines = [Runs::default(), Runs::default()];
    let run = |flags: &str| {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let start = |(rank, runs): (usize, &Runs)| {
            let place = [("RANK", rank.to_string()), ("LOCAL_RANK", "0".into()), ("LOCAL_WORLD_SIZE", "1".into())];
            let world =
                [("WORLD_SIZE", "2".into()), ("MASTER_ADDR", "127.0.0.1".into()), ("MASTER_PORT", port.clone())];
            runs.start_with(CIFAR, flags, &[&place[..], &world[..]].concat())
        };
        let running: Vec<_> = machines.iter().enumerate().map(start).collect();
        running.into_iter().for_each(|rank| drop(rank.end().succeeds()));
    };
    let flags = processes(2, 3);
    run(&format!("{flags} --out run"));
    run("--resume run --steps 5 --plain");
    machines[0].run(CIFAR, &format!("{} --out whole", processes(2, 5))).succeeds();
    assert_eq!(machines[0].text("run", "metrics.jsonl"), machines[0].text("whole", "metrics.jsonl"));
    // The second run in the directories is another one.
    run(&format!("{flags} --lr 0.05 --out run --overwrite"));
    let [first, second] = [0, 1].map(|rank| machines[rank].text("run", "config.toml"));
    assert!(second.contains("lr = 0.05") && first == second, "{first}\n{second}");
}

/// The transport adds a header to each frame, which is the only difference.
#[test]
fn bytes_of_metrics_are_those_counted_at_the_sockets() {
    let world = briquette_tcp::loopback(3, |rank| rank).unwrap();
    let meters: Vec<SocketMeter> = world.iter().map(Tcp::meter).collect();
    let results = run_ranks(world, |comm| {
        let meter = &meters[comm.rank()];
        let config = "strategy = \"every-step\"\nfeedback = \"error\"\nreducer = { kind = \"gather\", compressor = \"topk:0.3\" }";
        let config: DistributedConfig = toml::from_str(config).unwrap();
        let (rank, device) = (comm.rank(), Device::default().autodiff());
        let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), comm, config, 1);
        let mut model = optim.join(LinearConfig::new(40, 30).init(&device)).unwrap();
        let payload = |socket: SocketBytes| socket.written - HEADER as u64 * socket.frames_sent;
        for step in 0..5 {
            let before = payload(meter.read());
            let input = Tensor::<2>::full([4, 40], 0.1 * (rank + step + 1) as f64, &device);
            let grads = GradientsParams::from_grads(model.forward(input).powf_scalar(2.0).mean().backward(), &model);
            model = optim.step(0.1, model, grads).unwrap();
            let record = StepRecord::new(optim.report(), 0, 0.1, SecondsAre::Measured);
            assert_eq!(record.bytes_sent, payload(meter.read()) - before, "step {step} of rank {rank}");
            assert!(record.bytes_sent > 0);
        }
        Ok::<_, CommError>(())
    });
    assert_eq!(results, vec![Ok(()); 3]);
}

#[test]
fn a_launched_run_that_is_interrupted_leaves_a_checkpoint_and_goes_on_to_the_bit() {
    let launcher = launcher();
    let runs = Runs::default();
    let flags = format!("{} --epochs 500", processes(2, 400));
    let launch = format!("launch --ranks 2 -- {CIFAR} {flags} --out broken");
    let mut running = runs.start(&launcher, &launch);
    let metrics = runs.path("broken/metrics.jsonl");
    running.wait_until(|| records(&metrics) >= 3);
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let stopped = runs.summary("broken");
    assert!(stopped.interrupted && runs.checkpoints("broken").last() == Some(&stopped.steps));

    let steps = stopped.steps + 3;
    let launch = format!("launch --ranks 2 -- {CIFAR} --resume broken --steps {steps} --plain");
    runs.run(&launcher, &launch).succeeds();
    let whole = flags.replace("--steps 400", &format!("--steps {steps}"));
    runs.run(CIFAR, &format!("{whole} --out whole")).succeeds();
    assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"));
}

#[test]
fn a_launched_run_leaves_another_run_in_its_directory_alone_and_is_not_tried_again() {
    let launcher = launcher();
    let runs = Runs::default();
    runs.cifar("run", "").succeeds();
    let before = runs.contents("run");
    let launch = format!("launch --ranks 2 --restart 3 -- {CIFAR} {} --out run", processes(2, 6));
    let ended = runs.run(&launcher, &launch);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("there is a run already") && !ended.stderr.contains("restarting"),
        "{}",
        ended.stderr
    );
    assert_eq!(runs.contents("run"), before);
}

/// Trains on two machines, which are network namespaces, at a rate or on a link trace, and checks the bits against threads.
#[cfg(target_os = "linux")]
fn machines_train_to_the_bits_of_threads(runs: &Runs, rate: &str) {
    launcher();
    let flags = format!("{} --compressor topk:0.05 --feedback error", processes(2, 6));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/two-machines.sh");
    let ended = runs.run("bash", &format!("{script} {rate} {CIFAR} {flags} --out machines"));
    // No namespaces, or no tools for them.
    if ended.code == Some(77) {
        return println!("{}", ended.stdout);
    }
    ended.succeeds();
    runs.run(CIFAR, &format!("{flags} --out threads")).succeeds();
    assert_eq!(runs.text("threads", "metrics.jsonl"), runs.text("machines", "metrics.jsonl"));
    assert_eq!(runs.summary("threads"), runs.summary("machines"));
}

#[cfg(target_os = "linux")]
#[test]
fn two_machines_at_a_hundred_megabits_train_to_the_bits_of_threads() {
    machines_train_to_the_bits_of_threads(&Runs::default(), "100mbit");
}

/// The link between the machines changes its bandwidth, and is down for half a second of every two.
#[cfg(target_os = "linux")]
#[test]
fn two_machines_on_a_link_trace_train_to_the_bits_of_threads() {
    let (runs, script) = (Runs::default(), concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/two-machines.sh"));
    let rows = "# A remark.\nseconds,mbit,ms\n0,100,0\n0.5,10,0\n1,0,0\n1.5,1000,0\n2,,\n";
    std::fs::write(runs.path("link.csv"), rows).unwrap();
    machines_train_to_the_bits_of_threads(&runs, "trace:link.csv");
    std::fs::write(runs.path("paths.csv"), "seconds,mbit,ms,path\n0,100,0,\n3,,,\n").unwrap();
    let refused = runs.run("bash", &format!("{script} trace:paths.csv {CIFAR}"));
    assert!([Some(2), Some(77)].contains(&refused.code), "{}", refused.stderr);
}

/// Two ranks on each machine: if the machines exchange one message each, the link carries a quarter of the bytes that
/// it carries if all ranks send theirs.
#[cfg(target_os = "linux")]
#[test]
fn two_machines_of_two_ranks_train_to_the_bits_of_threads_and_spare_the_link() {
    launcher();
    let (runs, script) = (Runs::default(), concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/two-machines.sh"));
    let mut on_the_link = Vec::new();
    for (at, strategy) in
        ["local-sgd:2", "two-level:(local-sgd:2)", "two-level:(local-sgd:2),group=2"].iter().enumerate()
    {
        let flags = format!("{} --reducer gather:dense --strategy {strategy}", processes(4, 6));
        let ended =
            runs.run("env", &format!("RANKS_PER_MACHINE=2 bash {script} 100mbit {CIFAR} {flags} --out machines-{at}"));
        if ended.code == Some(77) {
            return println!("{}", ended.stdout);
        }
        let said = ended.succeeds().stderr;
        let there =
            said.split("between the machines: ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        on_the_link.push(there.unwrap_or_else(|| panic!("no bytes: {said}")));
        if at == 2 {
            runs.run(CIFAR, &format!("{flags} --out threads")).succeeds();
        }
    }
    // Without `group` the launcher says which ranks are on one machine.
    for machines in ["machines-1", "machines-2"] {
        assert_eq!(runs.text("threads", "metrics.jsonl"), runs.text(machines, "metrics.jsonl"));
        assert_eq!(runs.summary("threads"), runs.summary(machines));
    }
    let [flat, found, grouped] = on_the_link[..] else { panic!("{on_the_link:?}") };
    // With the first broadcast and what is evaluated, which both have.
    assert!(flat > 2 * found && flat > 2 * grouped, "{on_the_link:?}");
}

/// Kills ranks twenty times, during any operation: starting, joining, computing, exchanging, saving.
#[cfg(target_os = "linux")]
#[test]
fn a_run_whose_ranks_are_killed_twenty_times_ends_with_the_bits_of_one_that_was_not() {
    let launcher = launcher();
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        return println!("skipped: this system does not list a process's children");
    }
    let runs = Runs::default();
    let flags = format!("{} --epochs 500 --checkpoint-every 2 --eval-every 500 {GRAVAC}", processes(2, 300));
    let launch = format!("launch --ranks 2 --restart 20 -- {CIFAR} {flags} --out broken");
    let mut running = runs.start(&launcher, &launch).within(Duration::from_secs(500));
    let (mut killed, mut earlier, mut steps) = (0, Vec::new(), Vec::new());
    while killed < 20 {
        let launcher = running.id();
        let fresh = || {
            let ranks = children(launcher);
            if ranks.len() == 2 && ranks.iter().all(|rank| !earlier.contains(rank)) { Some(ranks) } else { None }
        };
        running.wait_until(|| fresh().is_some());
        let ranks = fresh().expect("waited for");
        // So many steps further than ever before; at once, in every fourth life, and before long in a slow one.
        let metrics = runs.path("broken/metrics.jsonl");
        let (before, begin) = (records(&metrics), Instant::now());
        let further = if killed % 4 == 0 { 0 } else { killed as usize * 7 % 12 };
        running.wait_until(|| records(&metrics) >= before + further || begin.elapsed() > Duration::from_secs(8));
        steps.push(records(&metrics));
        let rank = ranks[killed as usize % 2].to_string();
        assert!(Command::new("kill").args(["-s", "KILL", &rank]).status().unwrap().success(), "{steps:?}");
        earlier.extend(ranks);
        killed += 1;
    }
    let ended = running.end().succeeds();
    assert_eq!(ended.stderr.matches("restarting (").count(), 20, "{}", ended.stderr);
    println!("killed after {steps:?} steps");
    // One that is saved at other steps: saving changes nothing.
    let seldom = flags.replace("--checkpoint-every 2", "--checkpoint-every 7");
    let whole = runs.start(CIFAR, &format!("{seldom} --out whole")).within(Duration::from_secs(500));
    whole.end().succeeds();
    assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"));
    // The test loss depends on all weights and running statistics.
    assert_eq!(runs.summary("whole"), runs.summary("broken"));
    briquette_testkit::held!(
        "a rank killed (SIGKILL) under `--restart`",
        killed,
        "the bits of a run that was not",
        a_run_whose_ranks_are_killed_twenty_times_ends_with_the_bits_of_one_that_was_not
    );
}

/// Buckets are sent while the backward pass computes the next ones, so that one is in transit during most of a step.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_is_killed_while_its_buckets_are_on_the_way_is_named_by_the_other() {
    let launcher = launcher();
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        return println!("skipped: this system does not list a process's children");
    }
    for steps in [0, 4] {
        let runs = Runs::default();
        let flags =
            format!("{} --epochs 500 --checkpoint-every 0 --reducer dense --overlap backward", processes(2, 300));
        let launch = format!("launch --ranks 2 -- {CIFAR} {flags} --out broken");
        let mut running = runs.start(&launcher, &launch).within(Duration::from_secs(60));
        let id = running.id();
        running.wait_until(|| children(id).len() == 2);
        let metrics = runs.path("broken/metrics.jsonl");
        running.wait_until(|| records(&metrics) > steps);
        let rank_1 = children(id)[1].to_string();
        assert!(Command::new("kill").args(["-s", "KILL", &rank_1]).status().unwrap().success());
        let ended = running.end();
        assert!(ended.code != Some(0), "{steps} steps");
        let told = ended.stderr.lines().find(|line| line.contains("[rank 0]") && line.contains("rank 1"));
        assert!(told.is_some(), "{steps} steps: {}", ended.stderr);
    }
}

/// Returns the processes that a process has started.
#[cfg(target_os = "linux")]
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns the number of whole lines of a run's record.
pub(crate) fn records(metrics: &Path) -> usize {
    fs::read_to_string(metrics).map_or(0, |text| text.matches('\n').count())
}
