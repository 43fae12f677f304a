//! Failure detection over TCP: elastic worlds judge by the history of heartbeats, fixed worlds and step 0 by a constant.

use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use briquette_core::Session;
use briquette_core::comm::Scope;
use briquette_core::error::CommError;
use briquette_core::membership::{Policy, Regroup, Standing, is_loss};
use briquette_tcp::{Members, TcpBuilder};
use briquette_testkit::proxy::{Harm, Proxy};

use crate::common::{PATIENT, rank};

const BEAT: Duration = Duration::from_millis(100);
/// The constant, which is also the upper limit of the history.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// Time in which more heartbeats than the history needs arrive.
const WARM: Duration = Duration::from_secs(4);
/// Longer than the limit by the history of a quiet link, 2 s at this interval.
const PAUSE: Duration = Duration::from_secs(6);
/// Longer than the constant, so that no call ends a wait before it.
const DEADLINE: Duration = Duration::from_secs(90);
const POLICY: Policy = Policy { fewest: 1, patience: 20.0 };

/// Three ranks. `last` is rank 2's path to rank 0: its control line and its data link.
struct World {
    ranks: Vec<(Session, Option<Members>)>,
    last: Proxy,
}

impl World {
    fn new(is_elastic: bool) -> World {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = listener.local_addr().unwrap();
        let last = Proxy::to(master).unwrap();
        let builder =
            |number: usize, master: SocketAddr| rank(number, master).deadline(DEADLINE).heartbeat(BEAT, LOST_AFTER);
        let builders = [builder(0, master).listener(listener), builder(1, master), builder(2, last.address())];
        let join = |builder: TcpBuilder| {
            if is_elastic {
                let (session, members) = builder.join_elastic(POLICY).unwrap();
                return (session, Some(members));
            }
            (builder.join().unwrap().into(), None)
        };
        let ranks = thread::scope(|threads| {
            let joining = builders.map(|builder| threads.spawn(move || join(builder)));
            joining.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        World { ranks, last }
    }
}

/// Takes steps, each with a vote, from `first` until `is_over` on rank 0, or an error. Returns the standing after them.
fn train(comm: &mut Session, first: u64, is_over: impl Fn() -> bool) -> (Standing, Option<CommError>) {
    let mut step = first;
    loop {
        let standing = |in_doubt| Standing { step, in_doubt, is_new: false };
        *comm.scope() = Scope { operation: "exchange", step, bucket: None };
        let mut ends = [f64::from(u8::from(comm.rank() == 0 && is_over()))];
        if let Err(error) = comm.all_reduce_sum_f64(&mut ends) {
            return (standing(false), Some(error));
        }
        if let Err(error) = comm.barrier() {
            return (standing(true), Some(error));
        }
        if ends[0] > 0.0 {
            return (standing(false), None);
        }
        // Tests with step 0 stay there.
        step += u64::from(first > 0);
        thread::sleep(Duration::from_millis(5));
    }
}

/// End of a rank: the error that ended its first generation, the time from the harm to it, and the world of its next generation.
#[derive(Debug)]
struct Ended {
    cause: String,
    after: Duration,
    next: usize,
}

/// An elastic world whose rank 2 falls silent: it `vanishes`, and takes no calls either, or its link carries nothing for a while.
fn falls_silent(vanishes: bool) -> Vec<Ended> {
    let harm = if vanishes { Harm::half_open() } else { Harm::frozen() };
    let World { ranks, last } = World::new(true);
    let (harmed, is_done) = (Mutex::new(None::<Instant>), AtomicBool::new(false));
    thread::scope(|threads| {
        let start = |(mut comm, members): (Session, Option<Members>)| {
            let (harmed, is_done) = (&harmed, &is_done);
            threads.spawn(move || {
                let is_lost = vanishes && comm.rank() == 2;
                let mut members = members.filter(|_| !is_lost);
                let is_too_late = || harmed.lock().unwrap().is_some_and(|begin| begin.elapsed() > 2 * LOST_AFTER);
                let (standing, error) = train(&mut comm, 1, is_too_late);
                let error = error.expect("an alarm");
                let after = harmed.lock().unwrap().map(|begin| begin.elapsed()).unwrap_or_else(|| panic!("{error}"));
                assert!(is_loss(&error), "{error}");
                let next = members.as_mut().map(|members| {
                    let mut next = members.regroup(standing, false).unwrap();
                    next.session.barrier().unwrap();
                    next.session.world()
                });
                while is_lost && !is_done.load(Ordering::Relaxed) {
                    // A machine that vanishes closes no connection.
                    thread::sleep(BEAT);
                }
                Ended { cause: error.to_string(), after, next: next.unwrap_or_default() }
            })
        };
        let mut running: Vec<_> = ranks.into_iter().map(start).collect();
        thread::sleep(WARM);
        let mut begin = harmed.lock().unwrap();
        last.set(harm);
        *begin = Some(Instant::now());
        drop(begin);
        if !vanishes {
            thread::sleep(PAUSE);
            last.set(Harm::none());
        }
        let lost = running.pop().unwrap();
        let mut ended: Vec<_> = running.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        is_done.store(true, Ordering::Relaxed);
        ended.push(lost.join().expect("no panic"));
        ended
    })
}

/// The constant would take 30 s. The limit of this test is that of a machine with much other work.
#[test]
fn a_member_of_an_elastic_world_that_vanishes_is_found_by_its_history() {
    let ended = falls_silent(true);
    for rank in &ended[..2] {
        assert!(rank.cause.contains("rank 2 (127.0.0.1:") && rank.cause.contains("no heartbeat for"), "{rank:?}");
        assert!(rank.after < PATIENT && rank.next == 2, "{rank:?}");
    }
    println!("found after {:?} and {:?}", ended[0].after, ended[1].after);
}

/// A member that is alive, behind a link that carries nothing for a while.
#[test]
fn a_false_alarm_in_an_elastic_world_costs_an_election_and_no_member() {
    for rank in falls_silent(false) {
        println!("{rank:?}");
        assert!(rank.after < PATIENT && rank.next == 3, "{rank:?}");
    }
}

/// Rank 1 is busy for longer than the limit, without a call. Its heartbeats go on.
#[test]
fn a_slow_member_of_an_elastic_world_is_not_lost() {
    let World { ranks, last: _last } = World::new(true);
    let begin = Instant::now();
    thread::scope(|threads| {
        let work = |(mut comm, _members): (Session, Option<Members>)| {
            threads.spawn(move || {
                let (Standing { step, .. }, error) = train(&mut comm, 1, || begin.elapsed() > WARM);
                assert_eq!(error, None);
                *comm.scope() = Scope { operation: "exchange", step, bucket: None };
                let (busy, mut sum) = (Instant::now(), 0.0);
                while comm.rank() == 1 && busy.elapsed() < PAUSE {
                    sum += f64::from(step as u32).sqrt();
                }
                assert!(comm.rank() != 1 || sum > 0.0);
                comm.barrier()
            })
        };
        let running: Vec<_> = ranks.into_iter().map(work).collect();
        for rank in running {
            assert_eq!(rank.join().expect("no panic"), Ok(()));
        }
    });
}

/// A link that carries nothing for longer than the limit by history, and then everything.
#[track_caller]
fn waits_out_a_pause(is_elastic: bool, first: u64) {
    let World { ranks, last } = World::new(is_elastic);
    let (is_over, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|threads| {
        let work = |(mut comm, _members): (Session, Option<Members>)| {
            let (is_over, taken) = (&is_over, &taken);
            threads.spawn(move || {
                let is_over = || taken.fetch_add(1, Ordering::Relaxed) > 0 && is_over.load(Ordering::Relaxed);
                train(&mut comm, first, is_over).1
            })
        };
        let running: Vec<_> = ranks.into_iter().map(work).collect();
        thread::sleep(WARM);
        last.set(Harm::frozen());
        thread::sleep(PAUSE);
        last.set(Harm::none());
        is_over.store(true, Ordering::Relaxed);
        for rank in running {
            assert_eq!(rank.join().expect("no panic"), None);
        }
    });
    assert!(taken.into_inner() > 3);
}

#[test]
fn a_fixed_world_keeps_its_constant() {
    waits_out_a_pause(false, 1);
}

/// A loss there would end the run.
#[test]
fn an_elastic_world_keeps_its_constant_at_step_0() {
    waits_out_a_pause(true, 0);
}
