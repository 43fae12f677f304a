//! Worlds that end leave no descriptor and no thread. The test has a process of its own, since it counts what the
//! whole process has.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use briquette_tcp::{Certificates, TcpBuilder};
use briquette_testkit::alone::passes_alone;

use crate::common::{PATIENT, adds_up, certificates, stranger::Source, world};

fn count(what: &str) -> usize {
    fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

/// Runs a world that works, one that fails, and one that is stopped.
fn three_worlds(certificates: &Certificates) {
    adds_up(world(3, |rank| rank.certificates(certificates.clone())));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let door = listener.local_addr().unwrap();
    let silent = Source::new().connect(door);
    let soon = Duration::from_millis(50);
    let failing = TcpBuilder::new(0, 3, door.to_string()).listener(listener).join_deadline(soon);
    failing.join().unwrap_err();
    drop(silent);
    let mut stopped = world(2, |rank| rank);
    briquette_core::comm::Transport::abort(&mut stopped[0], Default::default(), "a test");
}

#[test]
fn worlds_leave_no_descriptors_and_no_threads() {
    if passes_alone(&worlds_leave_no_descriptors_and_no_threads) {
        return;
    }
    let certificates = certificates();
    three_worlds(&certificates);
    let (descriptors, threads) = (count("fd"), count("task"));
    (0..10).for_each(|_| three_worlds(&certificates));
    let begin = Instant::now();
    while count("fd") > descriptors || count("task") > threads {
        let now = (count("fd"), count("task"));
        assert!(begin.elapsed() < PATIENT, "{now:?} in place of {:?}", (descriptors, threads));
        thread::sleep(Duration::from_millis(10));
    }
}
