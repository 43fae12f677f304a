//! Arrival order of frames in a simulated world.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use briquette_core::comm::{Clock, Local, Session, run_ranks};
use briquette_core::error::CommError;
use briquette_sim::{Compute, Network, Paces, Simulated};

fn world(network: &str, milliseconds: &[u64]) -> Vec<Session> {
    let each: Vec<_> = milliseconds.iter().copied().map(Duration::from_millis).collect();
    let compute = Compute::Paced(Paces::constant(&each).unwrap());
    let local = Local::builder(milliseconds.len()).deadline(Duration::from_secs(20));
    Simulated::over(local, network.parse().unwrap(), compute)
}

/// Rank 0 receives one frame of every other rank. Returns the senders in order of arrival, and its milliseconds after
/// each.
fn order(world: Vec<Session>, lengths: &[usize]) -> Vec<(usize, f64)> {
    let results = run_ranks(world, |mut comm| {
        comm.begin_step(0);
        if comm.rank() > 0 {
            // On the real clock of this machine, later ranks send sooner.
            thread::sleep(Duration::from_millis(5 * (4 - comm.rank() as u64)));
            return comm.send(0, vec![0; lengths[comm.rank()]]).map(|()| Vec::new());
        }
        let mut left: Vec<_> = (1..comm.world()).collect();
        let mut seen = Vec::new();
        while !left.is_empty() {
            let (from, frame) = comm.recv_any(&left)?;
            assert_eq!(frame.len(), lengths[from]);
            left.retain(|rank| *rank != from);
            seen.push((from, (comm.now() * 1e6).round() / 1e3));
        }
        Ok::<_, CommError>(seen)
    });
    results.into_iter().next().unwrap().unwrap()
}

#[test]
fn the_first_frame_is_that_of_the_earliest_simulated_second_whichever_thread_was_first() {
    // At 1 Mbit/s 125 bytes take 1 ms. Rank 2 departs at 10 ms, rank 1 at 20 ms, rank 3 at 30 ms.
    let seen = order(world("1mbit,2ms", &[0, 20, 10, 30]), &[0, 125, 125, 125]);
    assert_eq!(seen, [(2, 13.0), (1, 23.0), (3, 33.0)]);
    // The longest frame arrives last although it departs first: 10 + 2 + 40 ms; the link is busy until 33 ms.
    let seen = order(world("1mbit,2ms", &[0, 20, 10, 30]), &[0, 125, 5000, 125]);
    assert_eq!(seen, [(1, 23.0), (3, 33.0), (2, 73.0)]);
}

#[test]
fn of_frames_that_arrive_together_that_of_the_lowest_rank_is_first() {
    assert_eq!(order(world("unlimited", &[0, 7, 7, 7]), &[0, 9, 9, 9]), [(1, 7.0), (2, 7.0), (3, 7.0)]);
    // Frames inside a machine do not wait for the link.
    let seen = order(world("1mbit,1ms,2", &[0, 7, 7, 7]), &[0, 125, 125, 125]);
    assert_eq!(seen, [(1, 7.0), (2, 10.0), (3, 12.0)]);
}

/// Runs ten rounds of a server that continues with the first two of three workers, and returns its sums.
fn backup_workers() -> Vec<(u64, u64)> {
    let results = run_ranks(world("3mbit,130us", &[0, 9, 11, 10]), |mut comm| {
        let (mut sum, mut late) = (0.0f64, [0; 4]);
        for round in 0..10u8 {
            (0..comm.rank() * usize::from(round) % 7).for_each(|_| thread::yield_now());
            comm.begin_step(u64::from(round));
            // A frame of an earlier round is accepted in this one.
            comm.scope().step = 0;
            if comm.rank() > 0 {
                comm.send(0, vec![round; 300 + 50 * (comm.rank() * usize::from(round) % 5)])?;
                sum += f64::from(comm.recv(0)?[0]);
                continue;
            }
            let mut taken = Vec::new();
            while taken.len() < 2 {
                let (from, frame) = comm.recv_any(&[1, 2, 3])?;
                // The frames left of an earlier round come too late.
                if frame[0] < round {
                    late[from] += 1;
                } else {
                    taken.push(from);
                    sum = sum * 1.000_1 + (from * frame.len()) as f64;
                }
            }
            (1..4).try_for_each(|to| comm.send(to, vec![taken[0] as u8]))?;
        }
        assert!(comm.rank() > 0 || late.iter().sum::<usize>() > 3, "{late:?}");
        Ok::<_, CommError>((sum.to_bits(), comm.now().to_bits()))
    });
    results.into_iter().map(Result::unwrap).collect()
}

#[test]
fn a_world_that_receives_from_any_rank_gives_the_same_bits_in_every_run() {
    let first = backup_workers();
    (0..200).for_each(|_| assert_eq!(backup_workers(), first));
}

#[test]
fn jobs_receive_from_any_rank_while_their_sessions_wait_for_them() {
    let results = run_ranks(world("1mbit", &[0, 20, 10]), |mut comm| {
        comm.begin_step(0);
        let job = |comm: &mut Session| {
            if comm.rank() > 0 {
                return comm.send(0, vec![0; 125]).map(|()| Vec::new());
            }
            (0..2).map(|_| comm.recv_any(&[1, 2]).map(|(from, _)| from)).collect()
        };
        let first = comm.start(1, job);
        let second = comm.start(1, job);
        let (seen, ended) = first.finish(&mut comm);
        ended?;
        Ok::<_, CommError>((seen?, second.abandon()?))
    });
    // Half of the link: the frames of rank 2 arrive at 12 and 14 ms, those of rank 1 at 22 and 24.
    assert_eq!(results[0], Ok((vec![2, 2], vec![1, 1])));
}

#[test]
fn ranks_that_left_are_passed_over_and_are_lost_when_all_have() {
    let results = run_ranks(world("1mbit", &[0, 1, 2]), |mut comm| {
        comm.begin_step(0);
        if comm.rank() > 0 {
            return if comm.rank() == 1 { Ok(()) } else { comm.send(0, vec![2]) };
        }
        assert_eq!(comm.recv_any(&[1, 2])?, (2, vec![2]));
        comm.recv_any(&[1, 2]).map(drop)
    });
    assert!(matches!(results[0], Err(CommError::Lost { rank: 0, other: 1 | 2, .. })), "{results:?}");
}

#[test]
fn a_frame_is_not_received_while_a_rank_may_still_send_an_earlier_one() {
    // Rank 1 has not begun to wait: its session is here.
    let local = Local::builder(2).deadline(Duration::from_millis(50));
    let mut world = Simulated::over(local, Network::unlimited(), Compute::Fixed(Duration::ZERO));
    world[1].send(0, vec![1]).unwrap();
    let error = world[0].recv_any(&[0, 1]).unwrap_err();
    assert_eq!(error.to_string(), "rank 0 waited 0.1 s for any of ranks 0, 1 during idle at step 0: deadline passed");
    let error = world[1].barrier().unwrap_err().to_string();
    assert!(error.ends_with("waited 0.1 s for any of ranks 0, 1: deadline passed"), "{error}");
}

#[test]
fn an_abort_and_a_panic_end_a_wait_for_any_rank() {
    for panics in [false, true] {
        let results = run_ranks(world("unlimited", &[0, 0, 0]), |mut comm| match comm.rank() {
            2 if panics => panic!("out of luck"),
            2 => {
                comm.abort("had enough");
                comm.barrier()
            }
            rank => comm.recv_any(&[1 - rank, 2]).map(drop),
        });
        assert!(results.iter().all(|result| matches!(result, Err(CommError::Aborted { by: 2, .. }))), "{results:?}");
    }
}

/// A constant clock.
struct Noon;

impl Clock for Noon {
    fn seconds(&self) -> f64 {
        43_200.0
    }
}

#[test]
fn measured_ranks_give_their_turn_away_while_they_wait_for_any() {
    let local = Local::builder(3).deadline(Duration::from_secs(20));
    let world = Simulated::over(local, Network::unlimited(), Compute::Measured(Arc::new(Noon)));
    let results = run_ranks(world, |mut comm| {
        let others: Vec<_> = (0..3).filter(|rank| *rank != comm.rank()).collect();
        let mut seen = [0; 3];
        for step in 0..20 {
            comm.begin_step(step);
            comm.scope().step = 0;
            others.iter().try_for_each(|to| comm.send(*to, vec![0]))?;
            for _ in 0..2 {
                seen[comm.recv_any(&others)?.0] += 1;
            }
        }
        seen[comm.rank()] = 20;
        Ok::<_, CommError>(seen.iter().sum::<usize>())
    });
    assert_eq!(results, vec![Ok(60); 3]);
}
