//! One suite for every transport: `suite!(name, make)` makes a module of tests out of a way to make a world.

use super::{Communicator, Frame, Local, SMALL_ALL_REDUCE, all_reduce_traffic, run_ranks};
use crate::error::CommError;
use crate::traffic::Traffic;
use std::time::Duration;

pub(crate) type World = Vec<Box<dyn Communicator>>;
type Make = fn(usize) -> World;

const WORLDS: [usize; 4] = [1, 2, 3, 5];
/// Below, at and above the length at which an all-reduce changes its method.
const LENGTHS: [usize; 6] = [0, 1, 7, SMALL_ALL_REDUCE, SMALL_ALL_REDUCE + 1, 5003];

/// A world whose tests fail, rather than hang, when a rank waits in vain.
pub(crate) fn local(ranks: usize) -> Vec<Local> {
    Local::builder(ranks).deadline(Duration::from_secs(20)).build()
}

macro_rules! suite {
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;
            use $crate::comm::suite as facts;

            fn make(ranks: usize) -> facts::World {
                let make: fn(usize) -> facts::World = $make;
                make(ranks)
            }
            $crate::comm::suite::suite!(@tests
                all_gather_gives_everyone_everyone_elses_bytes
                all_reduce_equals_the_naive_sum_and_agrees_to_the_bit
                all_reduce_of_f64_sums_in_rank_order
                broadcast_works_from_every_root
                barrier_waits_for_every_rank
                frames_of_a_pair_stay_in_order
                traffic_equals_the_formulas
                abort_reaches_pending_and_later_calls_of_every_rank
                panic_of_a_rank_stops_the_others_and_names_it
                vectors_of_different_lengths_stop_every_rank
                frames_of_a_rank_that_left_arrive_before_the_news
                a_rank_outside_the_world_is_an_error
            );
        }
    };
    (@tests $($fact:ident)*) => { $(#[test] fn $fact() { facts::$fact(make) })* };
}
pub(crate) use suite;

/// Runs `body` in worlds of every size and hands the ranks' results to `check`.
fn every_world<T: Send>(
    make: Make,
    body: impl Fn(&mut dyn Communicator) -> Result<T, CommError> + Sync,
    mut check: impl FnMut(usize, Vec<Result<T, CommError>>),
) {
    for world in WORLDS {
        check(world, run_ranks(make(world), |mut comm| body(&mut comm)));
    }
}

fn all_ok<T: Send>(make: Make, body: impl Fn(&mut dyn Communicator) -> Result<T, CommError> + Sync) -> Vec<Vec<T>> {
    let mut worlds = Vec::new();
    every_world(make, body, |_, results| worlds.push(results.into_iter().map(Result::unwrap).collect()));
    worlds
}

/// Values that do not sum exactly, so that the order shows.
fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + rank * 104_729) % 1000) as f32 * 0.37 - 100.0 / (rank + 3) as f32).collect()
}

/// The sum of value `i`: in rank order, or in ring order from the rank whose chunk it is in.
fn naive_sum(i: usize, len: usize, world: usize) -> f32 {
    let ring = (0..world).find(|c| i < (c + 1) * len / world).expect("chunks tile the vector");
    let first = if len <= SMALL_ALL_REDUCE { 0 } else { ring };
    let order = (0..world).map(|ahead| (first + ahead) % world);
    order.map(|rank| values(rank, len)[i]).reduce(|sum, value| sum + value).expect("a rank")
}

pub(crate) fn all_gather_gives_everyone_everyone_elses_bytes(make: Make) {
    let mine = |rank: usize, round: usize| vec![rank as u8 + 1; rank * 100 * round];
    all_ok(make, |comm| {
        let mut parts = vec![vec![9; 9]; 7];
        for round in 0..4 {
            comm.all_gather(&mine(comm.rank(), round), &mut parts)?;
            let expect = |from: usize| if from == comm.rank() { Frame::new() } else { mine(from, round) };
            assert_eq!(parts, (0..comm.world()).map(expect).collect::<Vec<_>>());
        }
        Ok(())
    });
}

pub(crate) fn all_reduce_equals_the_naive_sum_and_agrees_to_the_bit(make: Make) {
    for len in LENGTHS {
        let worlds = all_ok(make, |comm| {
            let mut x = values(comm.rank(), len);
            comm.all_reduce_sum(&mut x)?;
            Ok(x.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
        });
        for ranks in worlds {
            let stride = (len / 20).max(1);
            for i in (0..len).step_by(stride) {
                assert_eq!(f32::from_bits(ranks[0][i]), naive_sum(i, len, ranks.len()), "{i} of {len}");
            }
            assert!(ranks.iter().all(|bits| *bits == ranks[0]));
        }
    }
}

pub(crate) fn all_reduce_of_f64_sums_in_rank_order(make: Make) {
    let worlds = all_ok(make, |comm| {
        let mut x = [0.1 * (comm.rank() + 1) as f64, 1e16 * (comm.rank() % 2) as f64, -0.0];
        comm.all_reduce_sum_f64(&mut x)?;
        comm.all_reduce_sum_f64(&mut [])?;
        Ok(x.map(f64::to_bits))
    });
    for ranks in worlds {
        let expected = (1..ranks.len()).fold(0.1, |sum, rank| sum + 0.1 * (rank + 1) as f64);
        assert_eq!(f64::from_bits(ranks[0][0]), expected);
        assert!(ranks.iter().all(|bits| *bits == ranks[0]));
    }
}

pub(crate) fn broadcast_works_from_every_root(make: Make) {
    all_ok(make, |comm| {
        for root in 0..comm.world() {
            for len in [0, 1, 1000] {
                let mut bytes = vec![comm.rank() as u8; if comm.rank() == root { len } else { 3 }];
                comm.broadcast(root, &mut bytes)?;
                assert_eq!(bytes, vec![root as u8; len]);
            }
        }
        Ok(())
    });
}

pub(crate) fn barrier_waits_for_every_rank(make: Make) {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for world in WORLDS {
        let arrived = AtomicUsize::new(0);
        let results = run_ranks(make(world), |mut comm| {
            for round in 1..=20 {
                arrived.fetch_add(1, Ordering::SeqCst);
                comm.barrier()?;
                assert!(arrived.load(Ordering::SeqCst) >= round * world);
            }
            Ok::<_, CommError>(())
        });
        assert_eq!(results, vec![Ok(()); world]);
    }
}

pub(crate) fn frames_of_a_pair_stay_in_order(make: Make) {
    all_ok(make, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        for i in 0..10 {
            comm.send((rank + 1) % world, vec![rank as u8, i])?;
        }
        let from = (rank + world - 1) % world;
        for i in 0..10 {
            assert_eq!(comm.recv(from)?, [from as u8, i]);
        }
        Ok(())
    });
}

pub(crate) fn traffic_equals_the_formulas(make: Make) {
    all_ok(make, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        let others = world as u64 - 1;
        let mut before = comm.traffic();
        assert_eq!(before, Traffic::default());
        let mut moved = |comm: &mut dyn Communicator| {
            let moved = comm.traffic() - before;
            before = comm.traffic();
            moved
        };
        for len in LENGTHS {
            comm.all_reduce_sum(&mut values(rank, len))?;
            assert_eq!(moved(comm), all_reduce_traffic(len, world, rank), "{len} values");
        }
        comm.all_reduce_sum_f64(&mut [0.0; 3])?;
        assert_eq!(moved(comm), Traffic { sent: 24 * others, received: 24 * others });
        comm.all_gather(&vec![0; 10 * rank], &mut Vec::new())?;
        let received = (0..world).filter(|from| *from != rank).map(|from| 10 * from as u64).sum();
        assert_eq!(moved(comm), Traffic { sent: 10 * rank as u64 * others, received });
        comm.broadcast(0, &mut vec![0; 50])?;
        let (sent, received) = if rank == 0 { (50 * others, 0) } else { (0, 50) };
        assert_eq!(moved(comm), Traffic { sent, received });
        comm.barrier()?;
        assert_eq!(moved(comm), Traffic::default());
        Ok(())
    });
}

pub(crate) fn abort_reaches_pending_and_later_calls_of_every_rank(make: Make) {
    let body = |comm: &mut dyn Communicator| {
        let last = comm.world() - 1;
        comm.begin_step(3);
        comm.barrier()?;
        if comm.rank() == last {
            comm.scope().operation = "thinking";
            comm.abort("had enough");
            comm.abort("not the first reason");
        } else {
            comm.recv(last).expect_err("nothing was sent");
        }
        comm.send(0, vec![1])?;
        Ok(())
    };
    every_world(make, body, |world, results| {
        for result in results {
            let text = format!("rank {} stopped the run during thinking at step 3: had enough", world - 1);
            assert_eq!(result.unwrap_err().to_string(), text);
        }
    });
}

pub(crate) fn panic_of_a_rank_stops_the_others_and_names_it(make: Make) {
    let body = |comm: &mut dyn Communicator| {
        comm.barrier()?;
        assert!(comm.rank() + 1 < comm.world(), "the last rank falls over");
        (0..1000).try_for_each(|_| comm.barrier())
    };
    every_world(make, body, |world, mut results| {
        for result in &results {
            let Err(CommError::Aborted { by, reason, .. }) = result else { panic!("{result:?}") };
            assert_eq!((*by, reason.starts_with("panicked")), (world - 1, true));
        }
        let last = results.pop().expect("a rank").unwrap_err().to_string();
        assert!(last.ends_with("panicked: the last rank falls over"), "{last}");
    });
}

pub(crate) fn vectors_of_different_lengths_stop_every_rank(make: Make) {
    for len in [10, 3000] {
        let body = |comm: &mut dyn Communicator| {
            let longer = usize::from(comm.rank() + 1 == comm.world());
            comm.all_reduce_sum(&mut vec![1.0; len + longer])?;
            comm.barrier()
        };
        every_world(make, body, |world, results| {
            let sizes = results.iter().filter(|result| matches!(result, Err(CommError::Size { .. }))).count();
            assert_eq!(sizes > 0, world > 1);
            assert!(world == 1 || results.iter().all(Result::is_err), "{results:?}");
        });
    }
}

pub(crate) fn frames_of_a_rank_that_left_arrive_before_the_news(make: Make) {
    let body = |comm: &mut dyn Communicator| {
        let last = comm.world() - 1;
        if comm.rank() == last {
            return (0..last).try_for_each(|to| comm.send(to, vec![7]));
        }
        assert_eq!(comm.recv(last)?, [7]);
        comm.recv(last).map(drop)
    };
    every_world(make, body, |world, results| {
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(()) => assert_eq!(rank, world - 1),
                // The first to notice stops the others.
                Err(CommError::Lost { other, .. }) => assert_eq!(other, world - 1),
                Err(error) => assert!(error.to_string().contains(&format!("lost rank {}", world - 1)), "{error}"),
            }
        }
    });
}

pub(crate) fn a_rank_outside_the_world_is_an_error(make: Make) {
    let body = |comm: &mut dyn Communicator| comm.send(comm.world(), vec![1]);
    every_world(make, body, |_, results| assert!(results.iter().all(Result::is_err)));
}
