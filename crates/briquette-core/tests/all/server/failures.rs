//! Tests of ranks that fail, hang, leave, stop, or send unexpected messages.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use briquette_core::comm::{Local, Scope, run_ranks};
use briquette_core::compress::dense::Dense;
use briquette_core::config::ServerConfig;
use briquette_core::error::{CommError, ReduceError};
use briquette_core::server::{
    Batch, Computed, PolicySettings, Server, Trainer, Uplink, async_sgd::AsyncSgd, serve, work,
};
use briquette_core::{Frame, Key, Session};
use briquette_testkit::server::{Noisy, Recording, one};
use briquette_zoo::server::{backup::Backup, synthesis::Synthesis};

/// Receives an assignment manually.
fn assigned(comm: &mut Session) -> Result<Frame, CommError> {
    *comm.scope() = Scope { operation: "assignment by the server", step: 0, bucket: None };
    comm.recv(0)
}

/// Sends a contribution of one value to version 0 manually, as `docs/wire.md` describes it.
fn contribute(comm: &mut Session, value: f32) -> Result<(), CommError> {
    let contribution = one(0, value, 1);
    let mut frame = Frame::new();
    frame.extend(contribution.version.to_le_bytes());
    frame.extend(contribution.samples.to_le_bytes());
    frame.extend(contribution.loss.to_le_bytes());
    frame.extend(contribution.gradients.to_le_bytes());
    frame.push(u8::from(contribution.stops));
    contribution.message.encode_into(&mut frame);
    *comm.scope() = Scope { operation: "contribution to the server", step: 0, bucket: None };
    comm.send(0, frame)
}

/// A rank's failure after two successful updates.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fails {
    Aborts,
    Leaves,
    Hangs,
}

/// Returns the error messages of the other ranks when one rank fails during a run.
fn errors(config: &dyn PolicySettings, workers: usize, failing: usize, how: Fails) -> Vec<String> {
    let (alive, others_end) = channel::<()>();
    let (alive, others_end) = (Mutex::new(vec![alive; workers + 1]), Mutex::new(others_end));
    let deadline = if how == Fails::Hangs { 1 } else { 20 };
    let world = Local::builder(workers + 1).deadline(Duration::from_secs(deadline)).build();
    let errors = run_ranks(world, |mut comm| {
        let (rank, noisy) = (comm.rank(), Noisy::default());
        let alive = alive.lock().unwrap().pop();
        let mut plain = Recording::new(&noisy, rank);
        let mut server = Server::new(config.build(workers).unwrap(), noisy.start(), workers);
        let (mut x, mut uplink, mut batch) = (noisy.start(), Uplink::new(Dense, false), 0);
        let mut until = |version, comm: &mut Session| match rank {
            0 => serve(&mut server, &mut plain, version, comm),
            _ => work(&mut uplink, &mut plain, (0, &mut batch), (Key::new(1), &mut x), comm).map(|_| ()),
        };
        // If a rank fails after the end, the others may not have been notified of the end yet.
        let well = until(2, &mut comm);
        if rank != failing {
            let error = well.and_then(|()| until(300, &mut comm)).expect_err("a rank fails");
            return Ok::<_, CommError>(Some(error.to_string()));
        }
        well.expect("all ranks are well");
        match how {
            Fails::Aborts => comm.abort("out of memory"),
            // Leaves after receiving an assignment: sending to a rank that has left fails at once.
            Fails::Leaves if rank != 0 => drop(assigned(&mut comm)),
            Fails::Leaves => {}
            // Hangs until every other rank has ended, which drops its sender.
            Fails::Hangs => {
                drop(alive);
                let _ended = others_end.lock().unwrap().recv_timeout(Duration::from_secs(60));
            }
        }
        Ok(None)
    });
    errors.into_iter().filter_map(Result::unwrap).collect()
}

/// The server or a worker aborts, leaves silently, or hangs, both where one contribution makes an update and where all are
/// needed.
#[test]
fn who_fails_is_named_everywhere() {
    let (backup, synthesis) = (Backup { ranks: 3, spare: 0 }, Synthesis { epoch: 4, delay: 2 });
    for config in [ServerConfig::from(AsyncSgd), backup.into(), synthesis.into()] {
        for failing in [0, 2] {
            for how in [Fails::Aborts, Fails::Leaves, Fails::Hangs] {
                // Slow, and the others' timeouts are the same.
                if how == Fails::Hangs && !config.is::<Backup>() {
                    continue;
                }
                let errors = errors(config.get(), 3, failing, how);
                let named = format!("rank {failing}");
                let all = errors.len() == 3 && errors.iter().all(|error| error.contains(&named));
                assert!(all, "{config}, rank {failing} {how:?}: {errors:#?}");
                let told =
                    errors.iter().any(|error| error.contains("to the server") || error.contains("by the server"));
                assert!(told || how == Fails::Aborts, "what was going on: {errors:#?}");
            }
        }
    }
}

/// With a spare the absence of a worker is noticed only when all workers must be idle.
#[test]
fn a_spare_that_leaves_is_missed_at_the_pause() {
    let errors = errors(&Backup { ranks: 2, spare: 1 }, 3, 2, Fails::Leaves);
    assert!(errors.len() == 3 && errors.iter().all(|error| error.contains("rank 2")), "{errors:#?}");
    assert!(
        errors[0].contains("rank 2 lost") && errors[0].contains("at step 300"),
        "the others got there: {errors:#?}"
    );
}

#[test]
fn what_is_not_finite_is_named_everywhere() {
    let errors = run_ranks(Local::world(3), |mut comm| {
        let (rank, noisy) = (comm.rank(), Noisy { rate: 0.1, noise: f32::NAN });
        let mut plain = Recording::new(&noisy, rank);
        if rank == 0 {
            let mut server = Server::new(AsyncSgd.build(2).unwrap(), noisy.start(), 2);
            return Ok::<_, CommError>(serve(&mut server, &mut plain, 10, &mut comm).unwrap_err().to_string());
        }
        let (mut x, mut uplink) = (noisy.start(), Uplink::new(Dense, true));
        Ok(work(&mut uplink, &mut plain, (0, &mut 0), (Key::new(1), &mut x), &mut comm).unwrap_err().to_string())
    });
    assert!(errors.iter().flatten().all(|error| error.contains("not finite")), "{errors:?}");
}

#[test]
fn frames_of_another_size_are_refused_on_both_sides() {
    let lengths = |worker: Vec<f32>| {
        let results = run_ranks(Local::world(2), |mut comm| {
            let noisy = Noisy::default();
            let mut plain = Recording::new(&noisy, comm.rank());
            let mut x = worker.clone();
            let error = match comm.rank() {
                0 => {
                    let mut server = Server::new(AsyncSgd.build(1).unwrap(), noisy.start(), 1);
                    serve(&mut server, &mut plain, 10, &mut comm).unwrap_err()
                }
                // Takes the model as is, and sends a message of another length.
                _ if worker.is_empty() => {
                    assigned(&mut comm)?;
                    contribute(&mut comm, 1.0)?;
                    assigned(&mut comm).map(drop).map_err(ReduceError::from).unwrap_err()
                }
                _ => work(&mut Uplink::new(Dense, true), &mut plain, (0, &mut 0), (Key::new(1), &mut x), &mut comm)
                    .unwrap_err(),
            };
            Ok::<_, CommError>(error.to_string())
        });
        results.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    for error in lengths(vec![0.0; 9]) {
        assert!(error.contains("rank 1 got 40 bytes from rank 0") && error.contains("expected 36"), "{error}");
    }
    for error in lengths(Vec::new()) {
        assert!(error.contains("contribution of rank 1: message is for 1 values, expected 10"), "{error}");
    }
}

fn last_word(comm: &mut Session) -> String {
    loop {
        if let Err(error) = assigned(comm) {
            return error.to_string();
        }
    }
}

/// A worker that sends every contribution twice: the second one arrives when the worker has another task.
#[test]
fn a_worker_that_answers_twice_is_named() {
    let errors = run_ranks(Local::world(3), |mut comm| {
        let (rank, noisy) = (comm.rank(), Noisy::default());
        let mut plain = Recording::new(&noisy, rank);
        let error = match rank {
            0 => {
                let mut server = Server::new(AsyncSgd.build(2).unwrap(), vec![1.0], 2);
                serve(&mut server, &mut plain, 10_000, &mut comm).unwrap_err().to_string()
            }
            1 => {
                assigned(&mut comm)?;
                for _ in 0..2 {
                    contribute(&mut comm, 0.0)?;
                }
                last_word(&mut comm)
            }
            _ => last_word(&mut comm),
        };
        Ok::<_, CommError>(error)
    });
    for error in errors.into_iter().map(Result::unwrap) {
        assert!(error.contains("contribution of rank 1: message invalid: version of a contribution is 0"), "{error}");
    }
}

/// Asks to stop after this many gradients, or steps.
struct Stopping<'a>(Recording<'a>, Option<u64>);

impl Trainer for Stopping<'_> {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        self.1 = self.1.map(|left| left.saturating_sub(1));
        self.0.gradient(x, batch, out)
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], version: u64) -> Result<(), ReduceError> {
        self.1 = self.1.map(|left| left.saturating_sub(1));
        self.0.step(x, gradient, version)
    }

    fn stops(&self) -> bool {
        self.1 == Some(0)
    }
}

/// A stop request of any rank counts: the update in progress is the last, and no worker is left waiting.
#[test]
fn a_stop_request_of_any_rank_ends_the_run_at_the_next_update() {
    for config in [ServerConfig::from(AsyncSgd), Backup { ranks: 3, spare: 0 }.into()] {
        for asks in 0..=3 {
            let runs = run_ranks(Local::world(4), |mut comm| {
                let (rank, noisy) = (comm.rank(), Noisy::default());
                let recording = Recording::new(&noisy, rank);
                let mut stopping = Stopping(recording, (rank == asks).then_some(4));
                let (mut x, mut uplink) = (noisy.start(), Uplink::new(Dense, true));
                if rank > 0 {
                    let version = work(&mut uplink, &mut stopping, (0, &mut 0), (Key::new(1), &mut x), &mut comm)?;
                    return Ok::<_, ReduceError>((version, x));
                }
                let mut server = Server::new(config.get().build(3).unwrap(), x, 3);
                serve(&mut server, &mut stopping, 1_000_000, &mut comm)?;
                Ok((server.version(), server.model().to_vec()))
            });
            let runs: Vec<_> = runs.into_iter().map(Result::unwrap).collect();
            assert!(runs.iter().all(|run| *run == runs[0]), "{config}: {runs:?}");
            assert!((1..100_000).contains(&runs[0].0), "{config}, rank {asks}: {}", runs[0].0);
            if config != ServerConfig::from(AsyncSgd) && asks > 0 {
                assert_eq!(runs[0].0, 4, "its fourth gradient asks, and is in the fourth update");
            }
        }
    }
}
