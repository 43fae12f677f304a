use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use super::*;
use crate::comm::{Clock, CompressSeconds, Compute, Faulty, Local, LocalBuilder, Network, Simulated, run_ranks};

fn local(ranks: usize) -> LocalBuilder {
    Local::builder(ranks).deadline(Duration::from_secs(20))
}

fn simulated(ranks: usize, network: &str) -> Vec<Session> {
    Simulated::over(local(ranks), network.parse().unwrap(), Compute::Fixed(Duration::from_millis(100)))
}

/// Returns an all-reduce that moves its vector in and out.
fn reduce(len: usize) -> impl FnOnce(&mut Session) -> Result<Vec<f32>, CommError> + Send + 'static {
    let mut x = vec![1.0; len];
    move |comm| comm.all_reduce_sum(&mut x).map(|()| x)
}

#[test]
fn a_job_runs_beside_its_session() {
    // The job ends only after this thread has done an operation that follows its start.
    let results = run_ranks(local(3).build(), |mut comm| {
        let (meeting, own) = (Arc::new(Barrier::new(2)), comm.rank());
        let there = Arc::clone(&meeting);
        let pending = comm.start(1, move |comm| {
            there.wait();
            comm.barrier().map(|()| comm.rank())
        });
        comm.barrier()?;
        meeting.wait();
        let (rank, ended) = pending.finish(&mut comm);
        assert_eq!((rank, ended), (Ok(own), Ok(())));
        Ok::<_, CommError>(())
    });
    assert_eq!(results, vec![Ok(()); 3]);
}

#[test]
fn channels_do_not_mix_and_jobs_of_one_run_in_the_order_of_their_start() {
    let results = run_ranks(local(3).build(), |mut comm| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let job = |number: usize| {
            let order = Arc::clone(&order);
            move |comm: &mut Session| {
                order.lock().unwrap().push(number);
                let mut parts = Vec::new();
                comm.all_gather(&[number as u8], &mut parts).map(|()| parts.concat())
            }
        };
        let pending: Vec<_> = (0..20).map(|number| comm.start(1 + number % 2, job(number))).collect();
        let mut parts = Vec::new();
        comm.all_gather(&[99], &mut parts)?;
        assert_eq!(parts.concat(), [99, 99]);
        for (number, pending) in pending.into_iter().enumerate() {
            assert_eq!(pending.finish(&mut comm).0?, [number as u8; 2]);
        }
        let order = order.lock().unwrap();
        for parity in 0..2 {
            assert!(order.iter().filter(|number| *number % 2 == parity).is_sorted(), "{order:?}");
        }
        Ok::<_, CommError>(())
    });
    assert_eq!(results, vec![Ok(()); 3]);
}

#[test]
fn bytes_and_calls_of_a_job_count_once_it_is_finished() {
    let results = run_ranks(local(2).build(), |mut comm| {
        let pending = comm.start(1, reduce(5000));
        comm.barrier()?;
        assert_eq!((comm.traffic(), comm.calls()), (Traffic::default(), 2));
        let (x, ended) = pending.finish(&mut comm);
        assert_eq!((x?, ended), (vec![2.0; 5000], Ok(())));
        assert_eq!(comm.traffic(), Traffic { sent: 20_000, received: 20_000 });
        Ok::<_, CommError>(comm.calls())
    });
    assert_eq!(results, [Ok(6), Ok(6)]);
}

#[test]
fn simulated_time_is_the_later_of_both_ends() {
    // Half of 1 Mbit/s: 2 · (1 ms + 2 · 40 ms) for two chunks of 5 000 bytes.
    let exchange = 2.0 * (0.001 + 0.08);
    for (steps, expected) in [(1, 0.1 + exchange), (5, 0.6)] {
        let results = run_ranks(simulated(2, "1mbit,1ms"), |mut comm| {
            comm.begin_step(0);
            let pending = comm.start(1, reduce(2500));
            (1..=steps).for_each(|step| comm.begin_step(step));
            pending.finish(&mut comm).1?;
            Ok::<_, CommError>(comm.now())
        });
        // One step of 100 ms overlaps with part of 162 ms, five overlap with the whole exchange.
        for seconds in results {
            assert!((seconds.unwrap() - expected).abs() < 1e-9, "{steps} steps, expected {expected}");
        }
    }
}

#[test]
fn the_link_is_shared_while_a_job_is_unfinished_and_whole_before_and_after() {
    let results = run_ranks(simulated(2, "1mbit"), |mut comm| {
        let mut taken = Vec::new();
        let mut gather = |comm: &mut Session| {
            let before = comm.now();
            comm.all_gather(&[0; 1250], &mut Vec::new())?;
            taken.push(((comm.now() - before) * 1e3).round());
            Ok::<_, CommError>(())
        };
        gather(&mut comm)?;
        let pending = comm.start(1, |_| ());
        gather(&mut comm)?;
        pending.finish(&mut comm).1?;
        gather(&mut comm)?;
        let pending = comm.start_on_free_link(1, reduce(5000));
        gather(&mut comm)?;
        pending.finish(&mut comm).1?;
        Ok::<_, CommError>(taken)
    });
    assert_eq!(results, vec![Ok(vec![10.0, 20.0, 10.0, 10.0]); 2]);
}

#[test]
fn a_job_that_is_abandoned_or_forgotten_gives_its_share_of_the_link_back() {
    let results = run_ranks(simulated(2, "1mbit"), |mut comm| {
        let mut taken = Vec::new();
        let mut gather = |comm: &mut Session| {
            let before = comm.now();
            comm.all_gather(&[0; 1250], &mut Vec::new())?;
            taken.push(((comm.now() - before) * 1e3).round());
            Ok::<_, CommError>(())
        };
        let pending = comm.start(1, reduce(5000));
        gather(&mut comm)?;
        pending.abandon()?;
        gather(&mut comm)?;
        drop(comm.start(1, |_| ()));
        gather(&mut comm)?;
        Ok::<_, CommError>(taken)
    });
    assert_eq!(results, vec![Ok(vec![20.0, 10.0, 10.0]); 2]);
}

#[test]
fn a_clock_that_was_set_back_is_that_of_the_next_job() {
    let results = run_ranks(simulated(2, "1mbit"), |mut comm| {
        comm.start(1, reduce(2500)).finish(&mut comm).1?;
        comm.set_clock(0.0);
        comm.start(1, reduce(2500)).finish(&mut comm).1?;
        Ok::<_, CommError>((comm.now() * 1e3).round())
    });
    assert_eq!(results, [Ok(160.0), Ok(160.0)]);
}

#[test]
fn simulated_seconds_and_bits_are_the_same_in_every_run() {
    let once = || {
        let results = run_ranks(simulated(3, "7mbit,130us"), |mut comm| {
            let mut bits = Vec::new();
            for step in 0..20 {
                comm.begin_step(step);
                let (first, second) = (comm.start(1, reduce(3000)), comm.start(2, reduce(100 + step as usize)));
                comm.all_gather(&vec![0; 50 * comm.rank()], &mut Vec::new())?;
                second.finish(&mut comm).1?;
                first.finish(&mut comm).1?;
                bits.push(comm.now().to_bits());
            }
            Ok::<_, CommError>((bits, comm.traffic()))
        });
        results.into_iter().collect::<Result<Vec<_>, _>>().unwrap()
    };
    let first = once();
    (0..20).for_each(|_| assert_eq!(once(), first));
}

#[test]
fn a_job_takes_over_the_seconds_of_compressing_and_the_network_of_the_session_that_starts_it() {
    fn compress(comm: &mut Session) -> Result<(), CommError> {
        comm.all_gather(&[0; 1250], &mut Vec::new())?;
        comm.compressed(|| None);
        Ok(())
    }
    let results = run_ranks(simulated(2, "1mbit"), |mut comm| {
        // The channel is open before either is set.
        comm.open(1)?;
        let taken = |comm: &mut Session| {
            let before = comm.now();
            comm.start(1, compress).finish(comm).0?;
            Ok::<_, CommError>(((comm.now() - before) * 1e3).round())
        };
        let first = taken(&mut comm)?;
        comm.set_compress_seconds(CompressSeconds::new(&[(1.0, 0.007)]).unwrap());
        let second = taken(&mut comm)?;
        comm.set_network("10mbit".parse().unwrap());
        Ok::<_, CommError>([first, second, taken(&mut comm)?])
    });
    // Half of the link: 1250 bytes at 0.5 Mbit/s, then at 5 Mbit/s.
    assert_eq!(results, vec![Ok([20.0, 27.0, 9.0]); 2]);
    let mut comm = local(1).build().remove(0).stepped(Duration::from_secs(1));
    comm.set_compress_seconds(CompressSeconds::new(&[(1.0, 0.5)]).unwrap());
    comm.start(1, compress).finish(&mut comm).1.unwrap();
    assert_eq!(comm.now(), 0.5);
}

/// A constant clock.
struct Noon;

impl Clock for Noon {
    fn seconds(&self) -> f64 {
        43_200.0
    }
}

#[test]
fn measured_turns_pass_between_a_session_and_its_jobs() {
    let world = Simulated::over(local(3), Network::unlimited(), Compute::Measured(Arc::new(Noon)));
    let results = run_ranks(world, |mut comm| {
        for step in 0..50 {
            comm.begin_step(step);
            let pending = comm.start(1, reduce(2000));
            comm.all_reduce_sum(&mut vec![1.0; 2000])?;
            let queued = comm.start(1, reduce(10));
            assert_eq!(pending.finish(&mut comm).0?, vec![3.0; 2000]);
            assert_eq!(queued.finish(&mut comm).0?, vec![3.0; 10]);
        }
        Ok::<_, CommError>(comm.now())
    });
    assert_eq!(results, vec![Ok(0.0); 3]);
}

#[test]
fn what_a_job_owns_comes_back_after_a_failure_at_every_call() {
    let run = |mut comm: Session| {
        *comm.scope() = Scope { step: 7, ..Scope::default() };
        let owned = vec![comm.rank(); 3];
        let pending = comm.start(1, |comm| {
            let result = comm.all_reduce_sum(&mut vec![1.0; 3000]);
            (owned, result)
        });
        let front = comm.all_gather(&[1], &mut Vec::new());
        let ((owned, job), ended) = pending.finish(&mut comm);
        assert_eq!(owned, vec![comm.rank(); 3]);
        assert_eq!(ended.is_err(), job.is_err(), "{ended:?} and {job:?}");
        // A rank may be done before another one fails; its next call then reports the failure.
        front.and(job).and(ended).and_then(|()| comm.barrier()).map(|()| comm.calls())
    };
    let calls = run_ranks(local(3).build(), run);
    // Four of the gather, eight of the ring, four of the barrier.
    assert!(calls.iter().all(|calls| *calls == Ok(16)), "{calls:?}");
    for (rank, call) in (0..3).flat_map(|rank| (0..12).map(move |call| (rank, call))) {
        for result in run_ranks(Faulty::world(local(3).endpoints(), rank, call), run) {
            let Err(CommError::Aborted { by, during, reason }) = result else { panic!("{result:?}") };
            assert_eq!((by, during.step, reason), (rank, 7, format!("injected failure at call {call}")));
        }
    }
}

#[test]
fn an_error_of_a_job_names_what_the_job_did_and_is_that_of_later_calls() {
    let mut world = Local::builder(2).deadline(Duration::from_millis(30)).build();
    let comm = &mut world[0];
    *comm.scope() = Scope { operation: "averaging", step: 3, bucket: Some(1) };
    let (received, ended) = comm.start(1, |comm| comm.recv(1)).finish(comm);
    let error = received.unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 0 waited 0.0 s for rank 1 during averaging of bucket 1 at step 3: deadline passed"
    );
    assert_eq!((ended, comm.barrier()), (Err(error.clone()), Err(error)));
}

#[test]
fn a_panic_of_a_job_is_that_of_finish_and_stops_the_world() {
    let mut results = run_ranks(local(2).build(), |mut comm| {
        if comm.rank() == 1 {
            let pending = comm.start(1, |_| panic!("out of luck"));
            let (): () = pending.finish(&mut comm).0;
        }
        comm.recv(1).map(drop)
    });
    let (second, first) = (results.pop().unwrap(), results.pop().unwrap());
    assert!(matches!(first, Err(CommError::Aborted { by: 1, .. })), "{first:?}");
    assert!(second.unwrap_err().to_string().ends_with("panicked: out of luck"));
}

#[test]
fn a_session_that_goes_ends_its_jobs_first() {
    let results = run_ranks(local(2).build(), |mut comm| {
        let pending = comm.start(1, reduce(5000));
        drop(comm);
        // The job has run, together with the other rank's.
        Ok::<_, CommError>(pending.result.recv().unwrap().0.unwrap()?[0])
    });
    assert_eq!(results, [Ok(2.0), Ok(2.0)]);
}

/// A transport without channels.
struct Bare(Local);

impl Transport for Bare {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.0.send(to, frame, call)
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.0.recv_any(from, call)
    }
    fn abort(&mut self, during: Scope, reason: &str) {
        self.0.abort(during, reason);
    }
}

#[test]
fn without_channels_opening_one_is_an_error_and_a_job_comes_back_with_it() {
    let mut comm = Session::from(Bare(local(1).endpoints().remove(0)));
    let error = comm.open(1).unwrap_err();
    assert_eq!(error.to_string(), "rank 0 cannot exchange on channel 1: this transport has no background channels");
    assert_eq!(comm.barrier(), Ok(()), "nothing has failed");
    let owned = vec![1, 2, 3];
    let pending = comm.start(1, move |comm| (owned, comm.send(0, vec![])));
    let ((owned, sent), ended) = pending.finish(&mut comm);
    assert_eq!((owned, sent, ended), (vec![1, 2, 3], Err(error.clone()), Err(error)));
}
