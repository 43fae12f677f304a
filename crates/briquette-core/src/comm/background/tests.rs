use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use super::*;
use crate::comm::{Faulty, Local, LocalBuilder, run_ranks};

fn local(ranks: usize) -> LocalBuilder {
    Local::builder(ranks).deadline(Duration::from_secs(20))
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
