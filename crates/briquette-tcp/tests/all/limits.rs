//! Ranks whose open-file limit is too low for their world. Each runs in a process with a separate limit.
#![cfg(target_os = "linux")]

use std::env;
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use briquette_tcp::{JoinError, TcpBuilder};
use briquette_testkit::alone::name_of;

use crate::common::{PATIENT, nowhere};

/// Variable set in a test process that runs under a limit.
const LIMITED: &str = "LIMITED";

/// Reruns the test in a process with a limit of `limit` open files, unless this is that process.
fn under<Test>(limit: usize, test: &Test) -> Option<Output> {
    if env::var_os(LIMITED).is_some() {
        return None;
    }
    let program = env::current_exe().unwrap();
    let script = format!("ulimit -n {limit} && exec {} --exact {} --nocapture", program.display(), name_of(test));
    Some(Command::new("sh").args(["-c", &script]).env(LIMITED, "").output().unwrap())
}

#[track_caller]
fn passes(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn rank(number: usize, world: usize, master: SocketAddr) -> TcpBuilder {
    TcpBuilder::new(number, world, master.to_string()).join_deadline(PATIENT * 6)
}

/// Both fail long before their deadline: rank 0 because it may not open 998 connections, rank 1 with that reason.
#[test]
fn too_few_descriptors_for_the_world_are_named_at_once_and_to_the_others() {
    if let Some(output) = under(256, &too_few_descriptors_for_the_world_are_named_at_once_and_to_the_others) {
        return passes(&output);
    }
    for limited in [0, 1] {
        let (begin, master) = (Instant::now(), nowhere());
        // Rank 1 needs one for each other rank, rank 0 two: worlds in which one of them has enough.
        let world = if limited == 0 { 200 } else { 400 };
        let texts = thread::scope(|threads| {
            let ranks = [0, 1].map(|number| threads.spawn(move || rank(number, world, master).join()));
            ranks.map(|rank| rank.join().unwrap().unwrap_err())
        });
        assert!(begin.elapsed() < PATIENT / 2, "{:?}", begin.elapsed());
        let JoinError::Descriptors { needed, advice, .. } = &texts[0] else { panic!("{texts:?}") };
        assert!(*needed == 2 * (world - 1) + 8 && advice > needed, "{texts:?}");
        let text = texts[0].to_string();
        for words in ["rank 0 of", "too many open files", "are open, and the limit is 256", "`ulimit -n "] {
            assert!(text.contains(words), "no `{words}` in: {text}");
        }
        let other = texts[1].to_string();
        assert!(other.contains("rank 0 of") || other.contains("rank 1 of"), "{other}");
        assert!(other.contains("too many open files"), "{other}");
    }
}

/// A rank that has joined but may not open the links to the others ends the attempt for all.
#[test]
fn a_rank_that_joined_and_has_too_few_descriptors_ends_the_attempt_for_all() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    if env::var_os(LIMITED).is_some() {
        let master: SocketAddr = env::var("MASTER").unwrap().parse().unwrap();
        println!("{}", rank(1, 100, master).join().unwrap_err());
        return;
    }
    let begin = Instant::now();
    let zero = thread::spawn(move || rank(0, 100, master).listener(listener).join().unwrap_err().to_string());
    let script = "ulimit -n 64 && exec $0 --exact $1 --nocapture";
    let name = name_of(&a_rank_that_joined_and_has_too_few_descriptors_ends_the_attempt_for_all);
    let mut one = Command::new("sh");
    one.args(["-c", script]).arg(env::current_exe().unwrap()).arg(name);
    let one = one.env(LIMITED, "").env("MASTER", master.to_string()).output().unwrap();
    let (zero, one) = (zero.join().unwrap(), String::from_utf8_lossy(&one.stdout).into_owned());
    assert!(begin.elapsed() < PATIENT / 2, "{:?}", begin.elapsed());
    let words = "rank 1 of 100 cannot open its connections: too many open files. It needs 107 more";
    assert!(zero.contains(words) && one.contains(words), "{zero}\n{one}");
    assert!(zero.starts_with("process group failed to initialize"), "{zero}");
}

/// Descriptors run out after the ranks began to join, which is detected when the next call cannot be accepted.
#[test]
fn calls_that_cannot_be_taken_for_want_of_descriptors_end_the_attempt() {
    if let Some(output) = under(128, &calls_that_cannot_be_taken_for_want_of_descriptors_end_the_attempt) {
        return passes(&output);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    let begin = Instant::now();
    let zero = thread::spawn(move || rank(0, 3, master).listener(listener).join().unwrap_err().to_string());
    thread::sleep(Duration::from_millis(300));
    let mut held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    held.pop();
    let caller = TcpStream::connect(master).unwrap();
    let text = zero.join().unwrap();
    assert!(begin.elapsed() < PATIENT / 2, "{:?}", begin.elapsed());
    assert!(text.contains("rank 0 of 3") && text.contains("Too many open files"), "{text}");
    drop((held, caller));
}

/// Strangers may hold the last descriptors of a rank for a while: a call that finds none is repeated.
#[test]
fn descriptors_that_are_free_again_soon_do_not_end_the_attempt() {
    if let Some(output) = under(128, &descriptors_that_are_free_again_soon_do_not_end_the_attempt) {
        return passes(&output);
    }
    let master = nowhere();
    let one = thread::spawn(move || rank(1, 2, master).join().map(drop));
    thread::sleep(Duration::from_millis(300));
    let held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // Pauses between calls are no longer than a second: one of them finds none.
    thread::sleep(Duration::from_millis(1500));
    assert!(!one.is_finished(), "{:?}", one.join().unwrap());
    drop(held);
    rank(0, 2, master).join().map(drop).unwrap();
    one.join().unwrap().unwrap();
}
