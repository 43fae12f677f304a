//! The ranks' lines on the terminal and in files.

use std::process::Stdio;

use nix::sys::signal::Signal;

use super::{Place, wait};

#[test]
fn lines_of_chatty_ranks_stay_whole_and_get_their_rank() {
    let place = Place::new(
        r#"i=0
        while [ $i -lt 300 ]; do
            printf 'a'; printf '%s' "$RANK-$i"; echo '-z'
            printf 'e' >&2; echo "$RANK-$i" >&2
            i=$((i+1))
        done
        printf 'no end'"#,
    );
    let left = place.launch("--ranks 2");
    assert_eq!(left.code, Some(0));
    for rank in 0..2 {
        let prefix = format!("[rank {rank}] ");
        let lines = |text: &str| -> Vec<String> {
            text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
        };
        let mut expected: Vec<String> = (0..300).map(|i| format!("a{rank}-{i}-z")).collect();
        expected.push("no end".into());
        assert_eq!(lines(&left.out), expected);
        assert_eq!(lines(&left.err), (0..300).map(|i| format!("e{rank}-{i}")).collect::<Vec<_>>());
    }
    assert_eq!((left.out.lines().count(), left.err.lines().count()), (602, 600), "and nothing else");
    assert!(left.out.ends_with('\n') && !left.out.contains('\x1b'), "no colours in a file");
}

#[test]
fn an_empty_line_and_bytes_that_are_no_text_pass_unchanged() {
    let place = Place::new(r"printf '\n\377x\r\n'");
    place.launch("--ranks 1 --log-dir logs");
    assert_eq!(std::fs::read(place.path("out")).unwrap(), b"[rank 0] \n[rank 0] \xffx\r\n");
    assert!(std::fs::read(place.path("logs/rank-0.log")).unwrap().ends_with(b"\n\n\xffx\r\n"));
}

#[test]
fn one_rank_is_shown_and_logs_have_all() {
    let place =
        Place::new("echo out-$RANK; echo err-$RANK >&2; [ $RANK = 0 ] || { echo 'error: no data' >&2; exit 3; }");
    for _ in 0..2 {
        let left = place.launch("--ranks 2 --only-rank 0 --log-dir a/logs");
        assert_eq!(left.code, Some(3));
        assert!(left.out.contains("[rank 0] out-0") && left.err.contains("[rank 0] err-0"), "{left:?}");
        assert!(!left.out.contains("out-1") && !left.err.contains("err-1"), "{left:?}");
        assert!(left.err.ends_with("error: rank 1 failed (exit code 3): no data\n"), "{left:?}");
    }
    let log = place.read("a/logs/rank-1.log");
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let once = ["[launch] rank 1 of 2, restart 0", "err-1", "error: no data", "out-1"];
    let twice: Vec<&str> = once.iter().flat_map(|line| [*line; 2]).collect();
    assert_eq!(lines, twice, "a second run appends");
}

#[test]
fn a_log_directory_that_cannot_be_made_is_an_error_before_any_rank_starts() {
    let place = Place::new("touch started");
    let left = place.launch("--ranks 1 --log-dir rank.sh/logs");
    assert_eq!(left.code, Some(1), "{left:?}");
    assert!(left.err.contains("--log-dir: rank.sh/logs cannot be written"), "{left:?}");
    assert!(!place.path("started").exists());
}

#[test]
fn a_reader_that_went_away_does_not_end_the_run() {
    let place = Place::new("i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; touch done-$RANK");
    let mut launched = place.spawn(place.command("launch --ranks 1 -- /bin/sh rank.sh").stdout(Stdio::piped()));
    drop(launched.child.stdout.take());
    assert_eq!(launched.end().code, Some(0));
    assert!(place.path("done-0").exists());
}

#[test]
fn a_launcher_whose_lines_nobody_reads_can_be_stopped() {
    let place = Place::new("echo $$ > pid-0; touch ready; while :; do echo 'again and again'; done");
    let mut launched = place.spawn(place.command("launch --ranks 1 -- /bin/sh rank.sh").stdout(Stdio::piped()));
    place.wait_for(&["ready"]);
    launched.signal(Signal::SIGINT);
    place.wait_gone("pid-0");
    // The rank's output is still waiting for its reader. Now only the launcher is left to stop.
    let mut status = None;
    wait("the launcher", || {
        launched.signal(Signal::SIGINT);
        status = launched.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
}
