//! Ranks that are interrupted during rendezvous: they stop at once, and the others receive the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use briquette_tcp::{JoinError, TcpBuilder};

use crate::common::{PATIENT, nowhere, rank};

/// Lets ranks 0 and 1 of three wait for the third, and interrupts one of them. Returns their errors, the interrupted one's first.
fn interrupted(which: usize) -> [JoinError; 2] {
    let (cancel, master) = (Arc::new(AtomicBool::new(false)), nowhere());
    let builder = |number: usize| {
        let builder = rank(number, master).join_deadline(6 * PATIENT);
        if number == which { builder.cancel(Arc::clone(&cancel)) } else { builder }
    };
    thread::scope(|threads| {
        let [one, other] = [which, 1 - which].map(|number| {
            let builder = builder(number);
            threads.spawn(move || (builder.join().unwrap_err(), Instant::now()))
        });
        // Longer than they take to find each other.
        thread::sleep(Duration::from_millis(700));
        let begin = Instant::now();
        cancel.store(true, Ordering::Relaxed);
        let (one, at) = one.join().unwrap();
        assert!(at - begin < PATIENT, "{:?}", at - begin);
        let (other, at) = other.join().unwrap();
        assert!(at - begin < PATIENT, "{:?}", at - begin);
        [one, other]
    })
}

#[test]
fn a_rank_that_is_interrupted_stops_at_once_and_the_others_get_the_reason() {
    for which in [0, 1] {
        let [one, other] = interrupted(which);
        assert!(matches!(one, JoinError::Cancelled { rank } if rank == which), "{one}");
        let words = format!("rank {which} was interrupted before all ranks had joined");
        assert!(matches!(&other, JoinError::Stopped { reason } if *reason == words), "{other}");
    }
}

#[test]
fn a_rank_that_finds_nobody_stops_at_once() {
    for number in [0, 1] {
        let cancel = Arc::new(AtomicBool::new(false));
        let builder = TcpBuilder::new(number, 2, nowhere().to_string()).cancel(Arc::clone(&cancel));
        let joining = thread::spawn(move || (builder.join().unwrap_err(), Instant::now()));
        thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        cancel.store(true, Ordering::Relaxed);
        let (error, at) = joining.join().unwrap();
        assert!(matches!(error, JoinError::Cancelled { rank } if rank == number), "{error}");
        assert!(at - begin < PATIENT, "{:?}", at - begin);
    }
}

/// A rank that has waited for long calls rarely, and must still find a rank 0 that is interrupted soon after it started.
#[test]
fn a_rank_that_has_waited_for_long_gets_the_reason_of_a_rank_0_that_is_there_for_a_moment() {
    let moments = [0, 250, 500, 750];
    thread::scope(|threads| {
        for moment in moments {
            threads.spawn(move || {
                let (cancel, master) = (Arc::new(AtomicBool::new(false)), nowhere());
                let waiting = thread::spawn(move || rank(1, master).join_deadline(6 * PATIENT).join().unwrap_err());
                thread::sleep(Duration::from_millis(3000 + moment));
                // The waiting rank cannot reach it before it listens.
                let zero = rank(0, master).cancel(Arc::clone(&cancel));
                let zero = thread::spawn(move || zero.join().unwrap_err());
                thread::sleep(Duration::from_millis(20));
                cancel.store(true, Ordering::Relaxed);
                assert!(matches!(zero.join().unwrap(), JoinError::Cancelled { rank: 0 }));
                let begin = Instant::now();
                let text = waiting.join().unwrap().to_string();
                assert!(text.contains("rank 0 was interrupted before all ranks had joined"), "{text}");
                assert!(begin.elapsed() < PATIENT, "{:?}", begin.elapsed());
            });
        }
    });
}
