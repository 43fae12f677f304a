//! Background jobs in simulated time.

use std::sync::Arc;
use std::time::Duration;

use briquette_core::comm::{Clock, Local, LocalBuilder, Session, run_ranks};
use briquette_core::error::CommError;
use briquette_sim::{CompressSeconds, Compute, Network, SessionExt, Simulated};

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
        comm.timeline_mut().compressed(&|| None);
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
