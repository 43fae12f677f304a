//! Ends of a trainer that is stopped or refused: exit codes, output, and the launcher's reaction.
#![cfg(unix)]

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use crate::common::{CIFAR, Runs, SMALL, launcher};
use briquette_cli::signals::hangup_is_ignored;

#[test]
fn a_signal_to_stop_while_a_world_comes_together_ends_it_at_once_and_nothing_is_written() {
    // Where the tests themselves are under nohup, so are the trainers.
    let signals = if hangup_is_ignored() { &["INT", "TERM"][..] } else { &["INT", "TERM", "HUP"] };
    for signal in signals {
        let runs = Runs::default();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let world = format!("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}");
        let flags = "--dataset generated --train-limit 8 --test-limit 8 --out run";
        let mut running = runs.start("env", &format!("{world} {CIFAR} {flags}"));
        running.wait_said("rank 0 of 2 handles signals");
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{signal}: {}", ended.stderr);
        assert!(ended.stderr.contains("error: rank 0 was interrupted before all ranks had joined"), "{}", ended.stderr);
        assert!(!runs.path("run").exists());
    }
    briquette_testkit::held!(
        "SIGINT and SIGTERM while a world comes together",
        2,
        "exit code 130 at once, nothing written",
        a_signal_to_stop_while_a_world_comes_together_ends_it_at_once_and_nothing_is_written
    );
}

/// A script starts background processes with SIGINT ignored: the system discards a signal that is sent before the
/// handler is installed.
#[test]
fn a_rank_in_the_background_of_a_script_loses_no_signal_once_it_says_that_it_handles_them() {
    for round in 0..3 {
        let runs = Runs::default();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let world = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1";
        let flags = "--dataset generated --train-limit 8 --test-limit 8 --out run";
        fs::write(runs.path("background"), format!("trap '' INT; {world} exec {CIFAR} {flags}")).unwrap();
        let mut running = runs.start("sh", &format!("background {port}"));
        running.wait_said("rank 1 of 2 handles signals, and joins the others at 127.0.0.1");
        running.signal("INT");
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{round}: {}", ended.stderr);
    }
}

#[test]
fn a_rank_that_waits_for_one_that_is_interrupted_gets_the_reason() {
    let runs = Runs::default();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank: usize| {
        let world = format!("RANK={rank} WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}");
        runs.start("env", &format!("{world} {CIFAR} --dataset generated --train-limit 8 --test-limit 8 --out run"))
    };
    let (mut zero, mut one) = (rank(0), rank(1));
    zero.wait_said("rank 0 of 3 handles signals");
    one.wait_said("rank 1 of 3 handles signals");
    // Until it has joined; if it has not, it is rank 0 that says less.
    std::thread::sleep(Duration::from_secs(2));
    one.signal("TERM");
    assert_eq!(one.end().code, Some(130));
    let zero = zero.end();
    assert_eq!(zero.code, Some(1), "{}", zero.stderr);
    zero.says(&["rank 1 was interrupted before all ranks had joined"]);
    assert!(!runs.path("run").exists());
}

/// Threat L2.
#[test]
fn a_trainer_under_nohup_outlives_its_terminal_and_others_do_not() {
    for (nohup, flags) in [(true, "nohup"), (false, "env")] {
        if !nohup && hangup_is_ignored() {
            continue;
        }
        let runs = Runs::default();
        let long =
            SMALL.replace("--steps 6", "--steps 100000 --epochs 100000 --checkpoint-every 0 --eval-every 100000");
        let mut running = runs.start(flags, &format!("{CIFAR} {long} --out run"));
        let metrics = runs.path("run/metrics.jsonl");
        let records = || fs::read_to_string(&metrics).map_or(0, |text| text.matches('\n').count());
        running.wait_until(|| records() >= 2);
        running.signal("HUP");
        if nohup {
            let before = records();
            running.wait_until(|| records() >= before + 5);
            running.signal("INT");
        }
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{}", ended.stderr);
        assert!(runs.summary("run").interrupted);
    }
    briquette_testkit::held!(
        "SIGHUP under `nohup` and without",
        2,
        "ignored; a checkpoint and an end",
        a_trainer_under_nohup_outlives_its_terminal_and_others_do_not
    );
}

#[test]
fn what_cannot_be_done_is_refused_with_exit_code_2_and_not_tried_again() {
    let launcher = launcher();
    for (flags, words) in [
        ("--dataset generated --model nosuch", "nosuch"),
        ("--dataset nosuch", "unknown --dataset `nosuch`"),
        ("--dataset generated --train-limit 1 --test-limit 8", "a world of 2 ranks does not go with 1 samples"),
        ("--data nosuch", "--data nosuch: there is no such directory"),
        ("--dataset generated --train-limit 8 --test-limit 8 --record-gradient 10", "--record-gradient 10"),
        ("--dataset generated --train-limit 8 --test-limit 8 --rules nosuch*=dense", "nosuch"),
        ("--dataset generated --train-limit 8 --test-limit 8 --resume nosuch", "--resume nosuch"),
    ] {
        let runs = Runs::default();
        let ended = runs.run(&launcher, &format!("launch --ranks 2 --restart 3 -- {CIFAR} {flags}"));
        assert_eq!(ended.code, Some(2), "{flags}: {}", ended.stderr);
        assert!(ended.stderr.contains(words) && !ended.stderr.contains("restarting"), "{flags}: {}", ended.stderr);
        assert!(!runs.path("runs").exists(), "{flags}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn too_few_descriptors_for_the_world_are_said_at_once_and_not_tried_again() {
    let runs = Runs::default();
    let flags = "--dataset generated --train-limit 128 --test-limit 8 --out run";
    let world = "RANK=0 WORLD_SIZE=64 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1";
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    fs::write(runs.path("limited"), format!("ulimit -n 64; {world} exec {CIFAR} {flags}")).unwrap();
    let begin = std::time::Instant::now();
    let ended = runs.run("sh", &format!("limited {port}"));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let words = "rank 0 of 64 cannot open its connections: too many open files. It needs 134 more; ";
    ended.refused(&[words, "and the limit is 64", "`ulimit -n 1024`"]);
    assert!(!runs.path("run").exists());
    briquette_testkit::held!(
        "too few file descriptors",
        1,
        "named at once, not tried again",
        too_few_descriptors_for_the_world_are_said_at_once_and_not_tried_again
    );
}
