//! Facts about receiving from any of several ranks.

use std::sync::Arc;
use std::time::Instant;

use briquette_core::Session;
use briquette_core::comm::Clock;
use briquette_core::error::CommError;

use super::{Launch, all_ok, every_world};

/// Frames of each rank.
const FRAMES: u8 = 8;

fn others(comm: &Session) -> Vec<usize> {
    (0..comm.world()).filter(|rank| *rank != comm.rank()).collect()
}

/// Sends numbered frames to every other rank.
fn send_to_all(comm: &mut Session) -> Result<(), CommError> {
    let own = comm.rank() as u8;
    (0..FRAMES).try_for_each(|i| others(comm).into_iter().try_for_each(|to| comm.send(to, vec![own, i])))
}

/// Receives the remaining frames of each rank, `next[rank]` being the number of its next frame.
fn receive_rest(comm: &mut Session, next: &mut [u8]) -> Result<(), CommError> {
    loop {
        let waited: Vec<_> = others(comm).into_iter().filter(|rank| next[*rank] < FRAMES).collect();
        if waited.is_empty() {
            return Ok(());
        }
        let (from, frame) = comm.recv_any(&waited)?;
        assert!(waited.contains(&from), "rank {from} is none of {waited:?}");
        assert_eq!(frame, [from as u8, next[from]], "of rank {from}");
        next[from] += 1;
    }
}

/// Every frame of every rank arrives once, and those of a rank arrive in the order in which they were sent. Bytes and
/// calls are counted; a rank receives from itself, too.
pub fn frames_of_any_rank_arrive_each_once_and_in_order<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        send_to_all(comm)?;
        receive_rest(comm, &mut vec![0; comm.world()])?;
        let frames = (comm.world() - 1) as u64 * u64::from(FRAMES);
        assert_eq!((comm.traffic().sent, comm.traffic().received), (2 * frames, 2 * frames));
        assert_eq!(comm.calls(), 2 * frames);
        let own = comm.rank();
        comm.send(own, vec![9])?;
        assert_eq!(comm.recv_any(&[own])?, (own, vec![9]));
        Ok(())
    });
}

/// Receiving from one rank and from any rank draw on the same frames.
pub fn frames_of_a_pair_stay_in_order_by_whichever_call_they_are_received<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        send_to_all(comm)?;
        let mut next = vec![0; comm.world()];
        for from in others(comm).into_iter().rev() {
            let (any, frame) = comm.recv_any(&others(comm)).map(|(any, frame)| (any, frame[1]))?;
            assert_eq!(frame, next[any], "of rank {any}");
            next[any] += 1;
            if next[from] < FRAMES {
                assert_eq!(comm.recv(from)?, [from as u8, next[from]]);
                next[from] += 1;
            }
        }
        receive_rest(comm, &mut next)
    });
}

/// In a group, this call too numbers ranks by their places.
pub fn a_group_receives_from_any_of_its_ranks_by_their_places<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let backwards: Vec<_> = (0..comm.world()).rev().collect();
        comm.within(&backwards, |group| {
            send_to_all(group)?;
            receive_rest(group, &mut vec![0; group.world()])
        })
    });
}

/// Frames that ranks sent before they left arrive, and ranks that left do not block a wait for others. When all have
/// left, they are lost.
pub fn a_wait_for_any_rank_goes_on_until_all_have_left<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| {
        let last = comm.world() - 1;
        if comm.rank() < last {
            // Rank 0 leaves first, the one before the last at the end.
            if comm.rank() > 0 {
                comm.recv(last)?;
            }
            return comm.send(last, vec![comm.rank() as u8]);
        }
        let others = others(comm);
        for expected in 0..last {
            assert_eq!(comm.recv_any(&others)?, (expected, vec![expected as u8]));
            if expected + 1 < last {
                comm.send(expected + 1, vec![])?;
            }
        }
        if last == 0 { Ok(()) } else { comm.recv_any(&others).map(drop) }
    };
    every_world(launch, body, |world, rank, result| match result {
        Ok(()) => assert!(rank + 1 < world || world == 1),
        Err(CommError::Lost { rank: who, other, .. }) => assert!(who == rank && other + 1 < world, "{who}, {other}"),
        Err(error) => panic!("rank {rank} of {world}: {error}"),
    });
}

/// An abort ends a wait for any rank, with its rank, operation and reason.
pub fn an_abort_ends_a_wait_for_any_rank<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| -> Result<(), CommError> {
        comm.begin_step(3);
        comm.barrier()?;
        if comm.rank() == 0 {
            comm.scope().operation = "thinking";
            comm.abort("had enough");
        }
        comm.recv_any(&(0..comm.world()).collect::<Vec<_>>()).map(drop)
    };
    every_world(launch, body, |_, _, result| {
        let text = "rank 0 stopped the run during thinking at step 3: had enough";
        assert_eq!(result.unwrap_err().to_string(), text);
    });
}

/// A clock that runs.
#[derive(Debug)]
pub struct Running(Instant);

impl Running {
    /// Starts a clock.
    pub fn start() -> Arc<Running> {
        Arc::new(Running(Instant::now()))
    }
}

impl Clock for Running {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// A wait until a second ends without a frame if none arrives, and the next wait receives one.
///
/// Needs worlds with a clock, of a transport that limits waits.
pub fn a_limited_wait_ends_without_a_frame<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| {
        if comm.rank() > 0 {
            comm.recv(0)?;
            return comm.send(0, vec![2]);
        }
        let until = comm.now() + 0.05;
        assert_eq!(comm.recv_any_until(&[1], until)?, None);
        assert!(comm.now() > until - 0.01, "{} instead of {until}", comm.now());
        comm.send(1, vec![1])?;
        assert_eq!(comm.recv_any_until(&[1], comm.now() + 20.0)?, Some((1, vec![2])));
        Ok(())
    };
    let Some(results) = launch.run(2, body) else { return };
    results.into_iter().for_each(|(_, result)| result.expect("no rank fails"));
}

/// A wait for any of several ranks ends at the deadline when none sends, with an error that names them all.
///
/// Needs worlds with a short deadline; see [`a_deadline_error_names_both_ranks`](super::a_deadline_error_names_both_ranks).
pub fn a_wait_for_any_rank_in_vain_names_all_of_them<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| comm.recv_any(&others(comm)).map(drop);
    let of = |rank: usize, world: usize| (0..world).filter(move |other| *other != rank);
    let check = |world: usize, rank: usize, result: Result<(), CommError>| {
        let error = result.expect_err("no rank sends anything");
        let (who, text) = match &error {
            CommError::Deadline { rank: who, others, .. } => {
                assert_eq!((*who, others.clone()), (rank, of(rank, world).collect()));
                (rank, error.to_string())
            }
            CommError::Aborted { by, reason, .. } => (*by, reason.clone()),
            other => panic!("{other}"),
        };
        let ranks = of(who, world).map(|other| other.to_string()).collect::<Vec<_>>().join(", ");
        assert!(text.contains(&format!("for any of ranks {ranks}")) && text.contains("deadline passed"), "{text}");
    };
    let Some(results) = launch.run(3, body) else { return };
    results.into_iter().for_each(|(rank, result)| check(3, rank, result));
}
