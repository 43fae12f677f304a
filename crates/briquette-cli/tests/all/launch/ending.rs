//! Failures, signals, restarts, and the absence of leftover processes.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::Place;

/// A rank that reports its start and then runs until something ends it.
const FOREVER: &str = "echo $$ > pid-$RANK; touch ready-$RANK; while :; do sleep 0.05; done";

#[test]
fn the_first_rank_to_fail_gives_exit_code_and_reason() {
    let place = Place::new(
        "[ $RANK = 1 ] && { echo 'warning' >&2; echo 'error: no data in d/' >&2; echo 'bye' >&2; exit 3; }
        while :; do sleep 0.05; done",
    );
    let left = place.launch("--ranks 3 --grace 50ms");
    assert_eq!(left.code, Some(3), "{left:?}");
    assert!(left.err.ends_with("error: rank 1 failed (exit code 3): no data in d/\n"), "{left:?}");
    assert!(left.err.contains("[launch] rank 1 failed (exit code 3); 50ms for 2 ranks to end"), "{left:?}");
}

#[test]
fn without_an_error_line_the_last_five_lines_are_the_reason() {
    let place = Place::new("for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 9");
    let left = place.launch("--ranks 1");
    assert_eq!(left.code, Some(9));
    let end = "error: rank 0 failed (exit code 9); the last it wrote to stderr:\n    line 3\n    line 4\n    line 5\n    line 6\n    line 7\n";
    assert!(left.err.ends_with(end), "{left:?}");
}

#[test]
fn a_rank_that_lost_another_is_not_blamed() {
    let place = Place::new(
        "[ $RANK = 1 ] && { echo 'error: disk full' >&2; exit 4; }
        until grep -q 'rank 1 failed' err; do sleep 0.01; done
        echo \"error: step 3: rank 1 (127.0.0.1:4000) lost during the exchange\" >&2; exit 1",
    );
    let left = place.launch("--ranks 3");
    assert_eq!(left.code, Some(4), "{left:?}");
    assert!(left.err.ends_with("error: rank 1 failed (exit code 4): disk full\n"), "{left:?}");
}

#[test]
fn a_rank_killed_by_a_signal_gives_128_and_its_number() {
    let place = Place::new("[ $RANK = 1 ] && kill -9 $$; while :; do sleep 0.05; done");
    let left = place.launch("--ranks 2 --grace 50ms");
    assert_eq!(left.code, Some(137), "{left:?}");
    assert!(left.err.contains("error: rank 1 was killed by signal 9 (SIGKILL)"), "{left:?}");
}

#[test]
fn ctrl_c_is_passed_on_once_and_every_rank_may_end_by_itself() {
    let place = Place::new(
        "trap 'echo caught >> caught-$RANK' INT; echo $$ > pid-$RANK; touch ready-$RANK
        while [ ! -e caught-$RANK ]; do sleep 0.02; done
        sleep 0.5; sleep 0.1; echo saved; exit 0",
    );
    let launched = place.start("--ranks 2 --restart 3");
    place.wait_for(&["ready-0", "ready-1"]);
    launched.signal(Signal::SIGINT);
    let left = launched.end();
    assert_eq!(left.code, Some(0), "{left:?}");
    for rank in 0..2 {
        assert_eq!(place.read(&format!("caught-{rank}")), "caught\n");
        assert!(left.out.contains(&format!("[rank {rank}] saved")), "{left:?}");
        place.wait_gone(&format!("pid-{rank}"));
    }
    assert!(left.err.contains("Ctrl-C is passed on to 2 ranks"), "{left:?}");
}

/// A shell starts background processes with SIGINT ignored. A signal sent before the process installs its handler is
/// discarded by the system.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_reaches_a_rank_that_does_not_listen_yet_once_it_does_and_only_once() {
    let place = Place::new(
        "trap '' INT; touch ready-$RANK; while [ ! -e go ]; do sleep 0.02; done
        trap 'echo caught >> caught-$RANK' INT
        while [ ! -e caught-$RANK ]; do sleep 0.02; done; sleep 0.3; sleep 0.2",
    );
    let launched = place.start("--ranks 2");
    place.wait_for(&["ready-0", "ready-1"]);
    launched.signal(Signal::SIGINT);
    launched.wait_said("passed on");
    std::fs::write(place.path("go"), "").unwrap();
    let left = launched.end();
    assert_eq!(left.code, Some(0), "{left:?}");
    assert_eq!([place.read("caught-0"), place.read("caught-1")], ["caught\n", "caught\n"]);
}

#[test]
fn ranks_that_a_signal_ends_give_the_launchers_exit_code() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGQUIT, 131)] {
        let place = Place::new(FOREVER);
        let launched = place.start("--ranks 2 --restart 3");
        place.wait_for(&["ready-0", "ready-1"]);
        launched.signal(signal);
        let left = launched.end();
        assert_eq!(left.code, Some(code), "{left:?}");
        assert!(!left.err.contains("error:") && !left.err.contains("restarting"), "{left:?}");
        place.wait_gone("pid-0");
        place.wait_gone("pid-1");
    }
}

#[test]
fn a_second_ctrl_c_kills_ranks_that_ignore_the_first() {
    let place = Place::new(&format!("trap '' INT TERM; {FOREVER}"));
    let launched = place.start("--ranks 2");
    place.wait_for(&["ready-0", "ready-1"]);
    launched.signal(Signal::SIGINT);
    launched.wait_said("passed on");
    // Two signals in quick succession count as one, for example if a program around the launcher forwards it too.
    std::thread::sleep(Duration::from_millis(500));
    launched.signal(Signal::SIGINT);
    let left = launched.end();
    assert_eq!(left.code, Some(130), "{left:?}");
    place.wait_gone("pid-0");
    place.wait_gone("pid-1");
}

#[test]
fn a_failure_after_ctrl_c_is_reported_and_not_started_again() {
    let place = Place::new(&format!("echo start >> starts; trap 'echo error: cannot save >&2; exit 7' INT; {FOREVER}"));
    let launched = place.start("--ranks 1 --restart 3");
    place.wait_for(&["ready-0"]);
    launched.signal(Signal::SIGINT);
    let left = launched.end();
    assert_eq!(left.code, Some(7), "{left:?}");
    assert!(left.err.ends_with("error: rank 0 failed (exit code 7): cannot save\n"), "{left:?}");
    assert_eq!(place.read("starts"), "start\n");
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_after_its_grace() {
    let place = Place::new(&format!(
        "[ $RANK = 1 ] && {{ while [ ! -e ready-0 ]; do sleep 0.02; done; exit 5; }}
        trap '' TERM; {FOREVER}"
    ));
    let left = place.launch("--ranks 2 --grace 100ms");
    assert_eq!(left.code, Some(5), "{left:?}");
    assert!(left.err.contains("SIGTERM to 1 rank that"), "{left:?}");
    assert!(left.err.contains("SIGKILL to 1 rank that"), "{left:?}");
    place.wait_gone("pid-0");
}

#[test]
fn a_world_that_failed_is_started_again_with_a_new_secret() {
    let place = Place::new(
        "echo $BRIQUETTE_TOKEN > token-$RANK-$BRIQUETTE_RESTART
        [ $BRIQUETTE_RESTART = 0 ] && [ $RANK = 1 ] && kill -9 $$
        [ $BRIQUETTE_RESTART = 0 ] && while :; do sleep 0.05; done
        echo second; exit 0",
    );
    let left = place.launch("--ranks 2 --restart 3 --grace 50ms --log-dir logs");
    assert_eq!(left.code, Some(0), "{left:?}");
    assert!(left.err.contains("restarting (1 of 3): rank 1 was killed by signal 9"), "{left:?}");
    assert!(left.out.contains("[rank 0] second") && left.out.contains("[rank 1] second"), "{left:?}");
    assert_ne!(place.read("token-1-0"), place.read("token-1-1"));
    assert_eq!(
        place.read("logs/rank-1.log"),
        "[launch] rank 1 of 2, restart 0\n[launch] rank 1 of 2, restart 1\nsecond\n"
    );
}

#[test]
fn a_world_that_fails_every_time_is_given_up() {
    let place = Place::new("echo $BRIQUETTE_RESTART >> starts; exit 3");
    let left = place.launch("--ranks 1 --restart 2");
    assert_eq!(left.code, Some(3), "{left:?}");
    assert_eq!(place.read("starts"), "0\n1\n2\n");
}

#[test]
fn a_program_that_refuses_what_was_asked_is_not_started_again() {
    let place = Place::new("echo start >> starts; echo 'error: there is a run already' >&2; exit 2");
    let left = place.launch("--ranks 1 --restart 2");
    assert_eq!(left.code, Some(2), "{left:?}");
    assert_eq!(place.read("starts"), "start\n");
    assert!(left.err.contains("there is a run already"), "{left:?}");
}

#[test]
fn a_run_that_was_stopped_elsewhere_is_not_started_again() {
    let place = Place::new("echo start >> starts-$RANK; exit 130");
    let left = place.launch("--ranks 2 --restart 2");
    assert_eq!(left.code, Some(130), "{left:?}");
    assert_eq!(place.read("starts-1"), "start\n");
    assert!(left.err.contains("was stopped from outside (exit code 130)"), "{left:?}");
    assert!(!left.err.contains("error:"), "{left:?}");
}

/// Threat L2.
#[test]
#[cfg(target_os = "linux")]
fn what_a_rank_left_behind_ends_with_the_world() {
    // One holds the rank's pipes open, the other does not.
    for pipes in ["", "> /dev/null 2>&1"] {
        let place = Place::new(&format!("sleep 1000 {pipes} & echo $! > pid; echo done"));
        let left = place.launch("--ranks 1");
        assert_eq!(left.code, Some(0), "{left:?}");
        assert_eq!(left.out, "[rank 0] done\n");
        place.wait_gone("pid");
    }
}

/// Threat L2.
#[test]
#[cfg(target_os = "linux")]
fn ranks_die_with_a_launcher_that_is_killed() {
    let place = Place::new("echo $$ > pid-$RANK; touch ready-$RANK; exec sleep 1000");
    let launched = place.start("--ranks 2");
    place.wait_for(&["ready-0", "ready-1"]);
    launched.signal(Signal::SIGKILL);
    assert_eq!(launched.end().code, None);
    place.wait_gone("pid-0");
    place.wait_gone("pid-1");
}
