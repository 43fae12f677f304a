//! A parameter server and its workers over sockets: every policy finishes, and a lost rank is named.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use briquette_core::Key;
use briquette_core::comm::{Session, run_ranks};
use briquette_core::compress::{dense::Dense, top_k::TopK};
use briquette_core::config::ServerConfig;
use briquette_core::error::{CommError, ReduceError};
use briquette_core::server::{Batch, Computed, Server, Trainer, Uplink, serve, work};

use crate::common::{PATIENT, world};

const WORKERS: usize = 3;

/// `½‖x − c‖²`, with a different center on each rank.
struct Quadratic {
    rank: usize,
}

impl Trainer for Quadratic {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        out.clear();
        out.extend(x.iter().map(|x| x - self.rank as f32));
        let batches = if batch == Batch::All { 4 } else { 1 };
        Ok(Computed { samples: 8, loss: f64::from(x[0]), batches })
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
        x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= 0.1 * g);
        Ok(())
    }
}

/// One rank of a world whose rank 0 serves.
struct Rank {
    trainer: Quadratic,
    server: Server,
    uplink: Uplink,
    x: Vec<f32>,
    batch: u64,
}

impl Rank {
    fn new(rank: usize, policy: &ServerConfig, len: usize) -> Rank {
        let x = vec![10.0; len];
        let uplink = match policy.get().allows_residual() {
            true => Uplink::new(TopK::fraction(0.5).unwrap(), true),
            false => Uplink::new(Dense, false),
        };
        let policy = policy.get().build(WORKERS).unwrap();
        Rank { trainer: Quadratic { rank }, server: Server::new(policy, x.clone(), WORKERS), uplink, x, batch: 0 }
    }

    /// Trains until `updates`, and returns the final number of updates.
    fn until(&mut self, updates: u64, comm: &mut Session) -> Result<u64, ReduceError> {
        let Rank { trainer, server, uplink, x, batch } = self;
        if comm.rank() > 0 {
            return work(uplink, trainer, (0, batch), (Key::new(1), x), comm);
        }
        serve(server, trainer, updates, comm)?;
        x.clear();
        x.extend_from_slice(server.model());
        Ok(server.version())
    }
}

/// Trains with a pause, followed by an average and a barrier among the ranks.
fn trains(policy: &ServerConfig, len: usize, updates: u64) {
    let runs = run_ranks(world(WORKERS + 1, |rank| rank), |mut comm| {
        let mut rank = Rank::new(comm.rank(), policy, len);
        let mut counts = Vec::new();
        for until in [updates / 2, updates] {
            counts.push(rank.until(until, &mut comm)?);
            let mut ones = [1.0];
            comm.all_reduce_sum(&mut ones)?;
            assert_eq!(ones, [4.0]);
        }
        comm.barrier()?;
        Ok::<_, ReduceError>((counts, rank.x))
    });
    for (rank, run) in runs.iter().enumerate() {
        let (counts, x) = run.as_ref().unwrap_or_else(|error| panic!("{policy}, rank {rank}: {error}"));
        assert_eq!(*counts, [updates / 2, updates], "{policy}, rank {rank}");
        // A policy with outer momentum may overshoot, by an amount that depends on the order of arrival.
        let is_trained =
            if policy.name().contains("diloco") { x[0].abs() < 100.0 && x[0] != 10.0 } else { x[0] < 10.0 };
        assert!(*x == runs[0].as_ref().unwrap().1 && is_trained, "{policy}, rank {rank}: {x:?}");
    }
}

#[test]
fn every_policy_trains_over_sockets() {
    briquette_zoo::install();
    let mut trained = 0;
    for policy in ServerConfig::all() {
        if policy.get().build(WORKERS).is_ok() {
            trains(&policy, 100, 12);
            trained += 1;
        }
    }
    assert!(trained > 5, "{trained} policies");
}

/// Assignments of 2 MB do not fit into a socket's buffers: the server does not wait until they are sent.
#[test]
fn models_that_are_longer_than_a_sockets_buffers_get_through() {
    trains(&"async-sgd".parse().unwrap(), 500_000, 8);
}

/// Frames held by each rank's pool, and the number of allocations: unchanged after 2 000 more updates, except for
/// frames in transit.
#[test]
fn a_long_run_of_a_server_over_sockets_holds_and_allocates_no_more_frames() {
    let held = run_ranks(world(WORKERS + 1, |rank| rank), |mut comm| {
        let mut rank = Rank::new(comm.rank(), &"async-sgd".parse().unwrap(), 1000);
        let mut held = Vec::new();
        for until in [200, 2200] {
            rank.until(until, &mut comm)?;
            held.push((comm.pool().frames(), comm.pool().allocations()));
        }
        Ok::<_, ReduceError>(held)
    });
    for (rank, held) in held.into_iter().map(Result::unwrap).enumerate() {
        let ((frames, allocations), (frames_then, allocations_then)) = (held[0], held[1]);
        assert!(frames_then <= frames + 8, "rank {rank}: {frames_then} frames held, {frames} before");
        assert!(allocations_then <= allocations + 16, "rank {rank}: {held:?}");
    }
}

/// End of a rank, after a successful update.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    Leaves,
    Aborts,
    Hangs,
}

/// Returns the errors of the other ranks.
fn errors(policy: &str, ending: usize, how: Ends) -> Vec<String> {
    let policy: ServerConfig = policy.parse().unwrap();
    let (alive, others_end) = channel::<()>();
    let (alive, others_end) = (Mutex::new(vec![alive; WORKERS + 1]), Mutex::new(others_end));
    let deadline = if how == Ends::Hangs { Duration::from_secs(2) } else { PATIENT };
    let errors = run_ranks(world(WORKERS + 1, |rank| rank.deadline(deadline)), |mut comm| {
        let alive = alive.lock().unwrap().pop();
        let mut rank = Rank::new(comm.rank(), &policy, 10);
        // The others may not have received its end when a rank ends after it.
        let well = rank.until(1, &mut comm);
        if comm.rank() != ending {
            let error = well.and_then(|_| rank.until(1_000_000, &mut comm)).expect_err("a rank ends");
            return Ok::<_, CommError>(Some(error.to_string()));
        }
        well.expect("all ranks are well");
        match how {
            Ends::Leaves => {}
            Ends::Aborts => comm.abort("out of memory"),
            // Until the others have ended, which drops their senders.
            Ends::Hangs => {
                drop(alive);
                let _ended = others_end.lock().unwrap().recv_timeout(PATIENT);
            }
        }
        Ok(None)
    });
    errors.into_iter().filter_map(Result::unwrap).collect()
}

fn is_named(policy: &str, ending: usize, how: Ends) {
    let errors = errors(policy, ending, how);
    let all = errors.len() == WORKERS && errors.iter().all(|error| error.contains(&format!("rank {ending}")));
    assert!(all, "{policy}, rank {ending} {how:?}: {errors:#?}");
}

#[test]
fn a_server_that_is_gone_is_named() {
    is_named("async-sgd", 0, Ends::Leaves);
    is_named("async-sgd", 0, Ends::Aborts);
}

/// Covers every place at which a contribution is awaited.
#[test]
fn a_worker_that_is_gone_is_named() {
    briquette_zoo::install();
    is_named("backup:3,spare=0", 2, Ends::Leaves);
    is_named("synthesis:2,delay=1", 2, Ends::Leaves);
    is_named("async-sgd", 2, Ends::Aborts);
}

/// Rank 1 waits for the server, which waits for rank 2: all ranks name rank 2.
#[test]
fn a_worker_that_hangs_is_named_and_not_the_server() {
    briquette_zoo::install();
    let errors = errors("backup:3,spare=0", 2, Ends::Hangs);
    let named = |error: &String| error.contains("for rank 2") && error.contains("contribution to the server");
    assert!(errors.len() == WORKERS && errors.iter().all(named), "{errors:#?}");
}
