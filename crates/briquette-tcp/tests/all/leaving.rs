//! Delivery of sent data, whatever the sender does next.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use briquette_core::comm::{Session, run_ranks};
use briquette_core::error::CommError;
use briquette_tcp::TcpBuilder;
use briquette_testkit::proxy::{Harm, Proxy};

use crate::common::{PATIENT, certificates, world};

const FRAMES: usize = 24;
const BYTES: usize = 300_000;

/// Rank 0 sends more than the system's buffers hold, and then does `next`. Rank 1 receives late, and does `done` once
/// it has everything.
fn sends_much(
    edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync,
    next: impl Fn(Session) -> Result<(), CommError> + Sync,
    done: impl Fn() + Sync,
) {
    let results = run_ranks(world(2, edit), |mut comm| {
        if comm.rank() == 0 {
            (0..FRAMES).try_for_each(|number| comm.send(1, vec![number as u8; BYTES]))?;
            return next(comm);
        }
        thread::sleep(Duration::from_millis(300));
        for number in 0..FRAMES {
            assert_eq!(comm.recv(0)?, vec![number as u8; BYTES]);
        }
        done();
        Ok(())
    });
    assert_eq!(results, [Ok(()), Ok(())]);
}

fn leave(comm: Session) -> Result<(), CommError> {
    drop(comm);
    Ok(())
}

/// Rank 0 flushes and then only computes: its data must arrive meanwhile.
fn flushes_and_computes(edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync) {
    let (sender, receiver) = mpsc::channel();
    let (sender, receiver) = (Mutex::new(sender), Mutex::new(receiver));
    let next = |mut comm: Session| {
        comm.flush()?;
        receiver.lock().unwrap().recv_timeout(PATIENT / 2).expect("rank 1 should have everything by now");
        Ok(())
    };
    sends_much(edit, next, || sender.lock().unwrap().send(()).unwrap());
}

#[test]
fn a_reason_of_any_length_is_passed_on() {
    let reason = "\u{1}".repeat(3_000_000);
    let results = run_ranks(world(3, |rank| rank), |mut comm| {
        if comm.rank() == 2 {
            comm.abort(&reason);
        }
        comm.recv(2 * usize::from(comm.rank() == 0)).map(drop)
    });
    for result in results {
        let CommError::Aborted { by: 2, reason, .. } = result.unwrap_err() else { panic!("rank 2 stopped them") };
        assert!(reason.len() >= 1000);
    }
}

#[test]
fn a_rank_that_leaves_is_heard_to_its_end() {
    sends_much(|rank| rank, leave, || ());
}

#[test]
fn a_rank_that_leaves_is_heard_to_its_end_under_tls() {
    let certificates = certificates();
    sends_much(|rank| rank.certificates(certificates.clone()), leave, || ());
}

#[test]
fn what_is_flushed_arrives_while_the_sender_computes() {
    flushes_and_computes(|rank| rank);
}

#[test]
fn what_is_flushed_arrives_while_the_sender_computes_under_tls() {
    let certificates = certificates();
    flushes_and_computes(|rank| rank.certificates(certificates.clone()));
}

/// A program that exited right after leaving would lose its goodbye. Only the minimum time is checked, so that a slow
/// machine does not affect the result.
#[test]
fn a_rank_that_leaves_waits_a_second_for_its_goodbye_to_be_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    let relay = Proxy::to(master).unwrap();
    let rank = |rank: usize, master: SocketAddr| {
        TcpBuilder::new(rank, 2, master.to_string()).deadline(PATIENT).join_deadline(PATIENT)
    };
    let (stays, leaves) = thread::scope(|threads| {
        let zero = threads.spawn(|| rank(0, master).listener(listener).join().unwrap());
        let one = rank(1, relay.address()).join().unwrap();
        (zero.join().unwrap(), one)
    });
    relay.set(Harm::frozen());
    let begin = Instant::now();
    drop(leaves);
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    drop(stays);
}
