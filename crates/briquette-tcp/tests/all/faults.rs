//! Failing ranks and networks in a working world: every rank stops in time, and its error names rank, address and operation.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use briquette_core::comm::{Scope, Session, run_ranks};
use briquette_core::error::CommError;
use briquette_tcp::{Tcp, TcpBuilder};
use briquette_testkit::proxy::{Direction, Flip, Harm, Proxy, Reset};

use crate::common::{PATIENT, certificates, rank};

/// Timeout of a call in these worlds.
const DEADLINE: Duration = Duration::from_secs(4);
/// Time without a heartbeat after which a rank is dead.
const LOST_AFTER: Duration = Duration::from_millis(1500);
const BEAT: Duration = Duration::from_millis(100);

/// Three ranks with relays in front of ranks 0 and 1: every connection but one goes through the first, and the one from
/// rank 2 to rank 1 through the second. `own` is rank 2's path to rank 0: its control line and its data link.
struct World {
    ranks: Vec<Tcp>,
    /// From rank 1 to rank 0.
    first: Proxy,
    /// From rank 2 to rank 0.
    second: Proxy,
    /// From rank 2 to rank 1.
    between: Proxy,
}

fn world(edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync) -> World {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let proxy = |rank: usize| Proxy::to(addresses[rank]).unwrap();
    let (first, second, between) = (proxy(0), proxy(0), proxy(1));
    let impatient =
        |number: usize, master: SocketAddr| edit(rank(number, master).deadline(DEADLINE).heartbeat(BEAT, LOST_AFTER));
    let [zero, one] = listeners;
    let builders = [
        impatient(0, addresses[0]).listener(zero),
        impatient(1, first.address()).listener(one).advertise(between.address().to_string()),
        impatient(2, second.address()),
    ];
    let ranks = thread::scope(|threads| {
        let joining = builders.map(|rank| threads.spawn(|| rank.join().unwrap()));
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    World { ranks, first, second, between }
}

/// Lets every rank take steps until it fails. Once every rank has taken three, `harm` is applied. Returns the errors,
/// and checks that all ranks failed within `limit` after the harm.
fn fails(world: World, harm: impl FnOnce(&Proxy, &Proxy, &Proxy), limit: Duration) -> Vec<CommError> {
    let World { ranks, first, second, between } = world;
    let taken: Vec<AtomicUsize> = ranks.iter().map(|_| AtomicUsize::new(0)).collect();
    let begin = Instant::now();
    let (results, begin) = thread::scope(|threads| {
        let working = threads.spawn(|| {
            run_ranks(ranks, |mut comm: Session| -> Result<(), CommError> {
                // A harm that does none is not waited for.
                while begin.elapsed() < 2 * PATIENT {
                    let step = taken[comm.rank()].fetch_add(1, Ordering::Relaxed) as u64;
                    *comm.scope() = Scope { operation: "exchange", step, bucket: None };
                    comm.all_reduce_sum(&mut vec![1.0; 3000])?;
                    comm.all_reduce_sum_f64(&mut [1.0; 100])?;
                }
                Ok(())
            })
        });
        while taken.iter().any(|taken| taken.load(Ordering::Relaxed) < 4) && !working.is_finished() {
            assert!(begin.elapsed() < PATIENT);
            thread::sleep(Duration::from_millis(2));
        }
        harm(&first, &second, &between);
        let begin = Instant::now();
        (working.join().unwrap(), begin)
    });
    assert!(begin.elapsed() < limit, "{:?} after the harm", begin.elapsed());
    results.into_iter().map(|result| result.expect_err("they go on until they fail")).collect()
}

/// Checks that the error of a rank that receives a loss names the rank, the address, the operation and the step.
#[track_caller]
fn names(error: &CommError, rank: usize) {
    let text = error.to_string();
    assert!(text.contains(&format!("rank {rank} (127.0.0.1:")), "{text}");
    assert!(text.contains("lost during exchange at step"), "{text}");
}

/// Adds a second to the limit, for a machine with other work.
fn within(limit: Duration) -> Duration {
    // A second by the crate's own promise; the rest is for a machine that does other things as well.
    limit + Duration::from_secs(5)
}

/// A rank that is frozen, with all its sockets.
/// Threat R4.
#[test]
fn a_frozen_rank_is_named_by_the_others_before_the_deadline() {
    for harm in [Harm::frozen(), Harm::half_open()] {
        let freeze = |_: &Proxy, second: &Proxy, between: &Proxy| {
            second.set(harm);
            between.set(harm);
        };
        let errors = fails(world(|rank| rank), freeze, within(DEADLINE));
        for error in &errors[..2] {
            names(error, 2);
            assert!(error.to_string().contains("no heartbeat for"), "{error}");
        }
        // It receives nothing itself: from its view, rank 0 is lost.
        names(&errors[2], 0);
    }
}

#[test]
fn a_frozen_rank_0_is_named_by_everyone() {
    let freeze = |first: &Proxy, second: &Proxy, _: &Proxy| {
        first.set(Harm::frozen());
        second.set(Harm::frozen());
    };
    let errors = fails(world(|rank| rank), freeze, within(DEADLINE));
    errors[1..].iter().for_each(|error| names(error, 0));
}

/// One link is dead and both of its ends are alive: the deadline of the waiting rank decides.
#[test]
fn a_half_open_link_ends_with_the_deadline_and_names_who_waited_for_whom() {
    let errors = fails(world(|rank| rank), |_, _, between| between.set(Harm::half_open()), within(DEADLINE));
    for error in errors {
        let text = error.to_string();
        // Rank 0 may be the first to have waited for so long: for one of the two.
        assert!(text.contains("waited 4.0 s for rank") && text.contains("deadline passed"), "{text}");
        assert!(text.contains("exchange at step"), "{text}");
    }
}

/// Threat S7.
#[test]
fn a_link_that_is_reset_names_the_other_end() {
    let errors = fails(world(|rank| rank), |_, _, between| between.cut(), within(Duration::from_secs(1)));
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("rank 1") || text.contains("rank 2"), "{text}");
        assert!(text.contains("exchange at step") && text.contains("reset"), "{text}");
    }
}

/// The reason may be in transit, for example from a rank that stopped the run. Only the minimum time is checked, so
/// that a slow machine does not affect the result.
#[test]
fn a_broken_link_is_not_reported_before_there_was_time_for_a_better_reason() {
    let mut begin = None;
    let cut = |_: &Proxy, _: &Proxy, between: &Proxy| {
        begin = Some(Instant::now());
        between.cut();
    };
    fails(world(|rank| rank), cut, within(Duration::from_secs(1)));
    let took = begin.unwrap().elapsed();
    assert!(took >= Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_rank_whose_connections_are_all_reset_is_named() {
    let cut = |_: &Proxy, second: &Proxy, between: &Proxy| {
        second.cut();
        between.cut();
    };
    let errors = fails(world(|rank| rank), cut, within(Duration::from_secs(1)));
    errors[..2].iter().for_each(|error| names(error, 2));
}

/// Bytes after which each connection through a relay carries work: after the handshake and the roster.
const BEFORE: u64 = 20_000;

/// Threat S7.
#[test]
fn a_flipped_bit_in_a_frame_is_named() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let flip = Harm { flip: Some(Flip { direction, offset: BEFORE }), ..Harm::none() };
        let world = world(|rank| rank);
        world.between.set(flip);
        let errors = fails(world, |_, _, _| (), PATIENT);
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("is damaged (CRC-32") && text.contains("exchange at step"), "{text}");
        }
    }
}

/// Threat S7.
#[test]
fn a_flipped_bit_under_tls_is_noticed() {
    let certificates = certificates();
    let flip = Harm::flip(Direction::ToServer, BEFORE);
    let world = world(|rank| rank.certificates(certificates.clone()).checksums(false));
    world.between.set(flip);
    for error in fails(world, |_, _, _| (), 3 * PATIENT) {
        let text = error.to_string();
        // In what is encrypted, or in the header before it. A length that has become longer waits for bytes that do not come.
        let noticed = ["decrypt", "corrupt message", "deadline passed"].iter().any(|word| text.contains(word));
        assert!(noticed && text.contains("exchange at step"), "{text}");
    }
}

/// The data link and the control line go through the same relay; only the line is written to while no rank sends data.
#[test]
fn a_flipped_bit_on_a_control_line_is_named() {
    let World { ranks, first, second, between } = world(|rank| rank.deadline(PATIENT));
    let flip = Harm::flip(Direction::ToServer, 3000);
    second.set(flip);
    let begin = Instant::now();
    let results = run_ranks(ranks, |mut comm: Session| {
        *comm.scope() = Scope { operation: "barrier", step: 7, bucket: None };
        // Nobody comes to this barrier but rank 0 and 1.
        if comm.rank() == 2 { comm.recv(0).map(drop) } else { comm.recv(1 - comm.rank()).map(drop) }
    });
    assert!(begin.elapsed() < PATIENT, "{:?}", begin.elapsed());
    for result in &results[..2] {
        let text = result.as_ref().unwrap_err().to_string();
        assert!(text.contains("rank 2 (127.0.0.1:") && text.contains("barrier at step 7"), "{text}");
        assert!(text.contains("damaged") || text.contains("no heartbeat"), "{text}");
    }
    drop((first, between));
}

#[test]
fn a_rank_that_only_computes_for_longer_than_a_death_takes_is_alive() {
    let World { ranks, first: _first, second: _second, between: _between } = world(|rank| rank.deadline(PATIENT));
    let results = run_ranks(ranks, |mut comm: Session| {
        if comm.rank() != 1 {
            // Without a single call, and so without its data sockets being looked at.
            thread::sleep(2 * LOST_AFTER);
        }
        comm.barrier()
    });
    assert_eq!(results, vec![Ok(()); 3]);
}

/// Threat S7.
#[test]
fn a_long_and_slow_network_is_none_that_is_dead() {
    let World { ranks, first, second, between } = world(|rank| rank.deadline(PATIENT));
    for proxy in [&first, &second, &between] {
        proxy.set(Harm { latency: Duration::from_millis(30), ..Harm::split_writes() });
    }
    let results = run_ranks(ranks, |mut comm: Session| {
        let mut x = vec![1.0; 3000];
        comm.all_reduce_sum(&mut x).map(|()| x == vec![3.0; 3000])
    });
    assert_eq!(results, vec![Ok(true); 3]);
}

#[test]
fn a_rank_that_leaves_early_is_named_by_those_who_wait_for_it() {
    let World { ranks, first: _first, second: _second, between: _between } = world(|rank| rank);
    let results = run_ranks(ranks, |mut comm: Session| {
        *comm.scope() = Scope { operation: "exchange", step: 5, bucket: None };
        if comm.rank() == 2 {
            return Ok(());
        }
        comm.barrier()
    });
    assert_eq!(results[2], Ok(()));
    for result in &results[..2] {
        let text = result.as_ref().unwrap_err().to_string();
        assert!(text.contains("rank 2 (127.0.0.1:") && text.contains("it left the run"), "{text}");
        assert!(text.contains("at step 5"), "{text}");
    }
}

#[test]
fn resets_while_the_world_comes_together_end_it_in_time() {
    for bytes in [1, 60, 120, 180] {
        let begin = Instant::now();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = listener.local_addr().unwrap();
        let proxy = Proxy::to(master).unwrap();
        proxy.set(Harm { reset: Some(Reset::After(bytes)), ..Harm::none() });
        let soon = Duration::from_secs(1);
        let texts = thread::scope(|threads| {
            let join = |rank: TcpBuilder| {
                threads.spawn(move || rank.join_deadline(soon).join().map(drop).map_err(|e| e.to_string()))
            };
            let ranks =
                [join(rank(0, master).listener(listener)), join(rank(1, master)), join(rank(2, proxy.address()))];
            ranks.map(|rank| rank.join().unwrap())
        });
        assert!(begin.elapsed() < soon + Duration::from_secs(8));
        if let [Ok(()), Ok(()), Ok(())] = texts {
            panic!("it came together through a relay that resets after {bytes} bytes");
        }
        assert!(
            texts
                .iter()
                .flat_map(|text| text.as_ref().err())
                .any(|text| text.contains("rank 2") || text.contains("missing: 2")),
            "{texts:?}"
        );
    }
}
