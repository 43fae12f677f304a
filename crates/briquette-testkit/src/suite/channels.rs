//! Facts about channels, that is, exchanges in the background, for transports with two of them.

use std::sync::mpsc;
use std::time::Duration;

use briquette_core::Session;
use briquette_core::error::CommError;

use super::{Launch, all_ok, every_world, values};

/// Gathers `own` from each rank, and returns the numbers and values of the other ranks.
fn gathered(comm: &mut Session, own: u8) -> Result<Vec<u8>, CommError> {
    let mut parts = Vec::new();
    comm.all_gather(&[comm.rank() as u8, own], &mut parts)?;
    Ok(parts.concat())
}

/// Frames of a channel are received on that channel alone, regardless of the other channels.
pub fn frames_of_channels_do_not_mix<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let expected = |comm: &Session, own: u8| -> Vec<u8> {
            (0..comm.world()).filter(|from| *from != comm.rank()).flat_map(|from| [from as u8, own]).collect()
        };
        for round in 0..20 {
            let jobs =
                [1, 2].map(|channel| comm.start(channel, move |comm| gathered(comm, 10 * channel as u8 + round)));
            assert_eq!(gathered(comm, round)?, expected(comm, round));
            for (channel, job) in jobs.into_iter().enumerate() {
                let (parts, ended) = job.finish(comm);
                ended?;
                assert_eq!(parts?, expected(comm, 10 * (channel as u8 + 1) + round));
            }
        }
        Ok(())
    });
}

/// A job gives the bits of the same exchange in the foreground, and its bytes count once it is finished.
pub fn a_job_gives_the_bits_and_counts_the_bytes_of_the_foreground<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        for len in [100, 70_000] {
            let mut expected = values(comm.rank(), len);
            let before = comm.traffic();
            comm.all_reduce_sum(&mut expected)?;
            let middle = comm.traffic();
            let mut x = values(comm.rank(), len);
            let job = comm.start(1, move |comm| comm.all_reduce_sum(&mut x).map(|()| x));
            let (x, ended) = job.finish(comm);
            ended?;
            assert!(x?.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{len} values");
            assert_eq!(comm.traffic() - middle, middle - before, "{len} values");
        }
        Ok(())
    });
}

/// A job of many frames completes although its session makes no call meanwhile.
pub fn a_job_needs_no_call_of_its_session<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (done, is_done) = mpsc::channel();
        let mut x = values(comm.rank(), 300_000);
        let job = comm.start(1, move |comm| {
            let result = comm.all_reduce_sum(&mut x);
            done.send(()).expect("the session waits");
            result
        });
        // Where ranks take turns to compute, waiting elsewhere would keep this rank's turn.
        if comm.timeline().progress().is_none() {
            is_done.recv_timeout(Duration::from_secs(20)).expect("the job ends by itself");
        }
        let (result, ended) = job.finish(comm);
        result.and(ended)
    });
}

/// A job receives what the others sent on its channel, in order of arrival from any rank.
pub fn a_job_receives_from_any_rank_on_its_channel<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let job = |comm: &mut Session| {
            let others: Vec<_> = (0..comm.world()).filter(|rank| *rank != comm.rank()).collect();
            others.iter().try_for_each(|to| comm.send(*to, vec![1]))?;
            let mut seen = Vec::new();
            while seen.len() < others.len() {
                let (from, frame) = comm.recv_any(&others)?;
                assert_eq!(frame, [1]);
                seen.push(from);
            }
            seen.sort_unstable();
            Ok::<_, CommError>(seen == others)
        };
        let job = comm.start(1, job);
        gathered(comm, 7)?;
        let (all, ended) = job.finish(comm);
        ended.map(|()| assert_eq!(all, Ok(true)))
    });
}

/// An abort in a job ends the calls of every rank on every channel, with its rank, operation and reason.
pub fn an_abort_in_a_job_stops_every_channel_of_every_rank<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| -> Result<(), CommError> {
        let last = comm.world() - 1;
        comm.begin_step(3);
        comm.barrier()?;
        if comm.rank() == last {
            let aborts = |comm: &mut Session| {
                comm.scope().operation = "thinking";
                comm.abort("had enough");
            };
            let ((), ended) = comm.start(1, aborts).finish(comm);
            return ended.and_then(|()| comm.send(0, vec![1]));
        }
        let jobs = [1, 2].map(|channel| comm.start(channel, move |comm| comm.recv(last).map(drop)));
        let front = comm.recv(last).map(drop);
        for job in jobs {
            let (result, ended) = job.finish(comm);
            assert_eq!((&result, &ended), (&front, &front));
        }
        front
    };
    every_world(launch, body, |world, _, result| {
        let text = format!("rank {} stopped the run during thinking at step 3: had enough", world - 1);
        assert_eq!(result.unwrap_err().to_string(), text);
    });
}

/// A session that is dropped lets its jobs end first, so that the other ranks' jobs end too.
pub fn a_rank_that_leaves_ends_its_jobs_first<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let mut x = values(comm.rank(), 70_000);
        let job = comm.start(1, move |comm| comm.all_reduce_sum(&mut x));
        if comm.rank() == 0 {
            // Nothing waits for the job but the end of the session.
            drop(job);
            return Ok(());
        }
        let (result, ended) = job.finish(comm);
        result.and(ended)
    });
}
