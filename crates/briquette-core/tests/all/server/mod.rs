//! Tests that every policy of core and of the zoo must pass, on a simulated network and in threads.

mod failures;
mod golden;

use briquette_core::Key;
use briquette_core::comm::{Local, run_ranks};
use briquette_core::compress::{dense::Dense, top_k::TopK};
use briquette_core::error::{ReduceError, WireError};
use briquette_core::server::{PolicySettings, Reply, Served, Server, Task, Uplink, Verdict, serve, work};
use briquette_core::state::State;
use briquette_testkit::server::{Finite, Leg, Noisy, Recording, Run, all, one, simulate, simulated, train};
use briquette_zoo::server::{backup::Backup, synthesis::Synthesis};

/// Two of three workers, rate 1: from 10, the mean of 1 (one sample) and 4 (two samples) is 3, which leaves 7. The third is
/// late.
#[test]
fn a_server_by_hand() {
    let policy = Backup { ranks: 2, spare: 1 }.build(3).unwrap();
    let mut server = Server::new(policy, vec![10.0], 3);
    let step = |x: &mut Vec<f32>, mean: &[f32], _: u64| {
        x[0] -= mean[0];
        Ok::<_, WireError>(())
    };
    let replies = |replies: Vec<Reply>| {
        replies.into_iter().map(|Reply { worker, verdict, task, .. }| (worker, verdict, task)).collect::<Vec<_>>()
    };
    let gradient = Some(Task::Gradient);
    assert_eq!(replies(server.begin(2)), [0, 1, 2].map(|worker| (worker, None, gradient)));
    assert_eq!(replies(server.arrived(2, one(0, 4.0, 2), step).unwrap()), [], "it waits for another");
    let accepted = Some(Verdict::Accepted);
    let both = [(0, accepted, gradient), (2, accepted, gradient)];
    assert_eq!(replies(server.arrived(0, one(0, 1.0, 1), step).unwrap()), both);
    assert_eq!((server.model(), server.model_before(), server.version()), (&[7.0][..], &[10.0][..], 1));
    assert_eq!(replies(server.arrived(1, one(0, 99.0, 1), step).unwrap()), [(1, Some(Verdict::Late), gradient)]);
    assert_eq!(replies(server.arrived(1, one(1, 2.0, 1), step).unwrap()), []);
    // The last update: workers in it stop, and so do those whose contributions arrive later.
    let stops = [(1, accepted, None), (2, accepted, None)];
    assert_eq!(replies(server.arrived(2, one(1, 2.0, 1), step).unwrap()), stops);
    assert_eq!(replies(server.arrived(0, one(1, 2.0, 1), step).unwrap()), [(0, Some(Verdict::Late), None)]);
    assert_eq!((server.model(), server.computing().count()), (&[5.0][..], 0));
    let mut served = Served::default();
    (served.accepted, served.late, served.gradients, served.loss) = (4, 2, 6, 2.0);
    assert_eq!(*server.served(), served);
}

/// A contribution of a version that its worker does not have, and one of a worker without a task.
#[test]
fn what_nobody_asked_for_is_refused() {
    let step = |_: &mut Vec<f32>, _: &[f32], _: u64| Ok::<_, WireError>(());
    let mut server = Server::new(Backup { ranks: 2, spare: 0 }.build(2).unwrap(), vec![10.0], 2);
    assert!(server.arrived(0, one(0, 1.0, 1), step).is_err(), "it has not begun");
    server.begin(5);
    let error = server.arrived(0, one(1, 1.0, 1), step).unwrap_err().to_string();
    assert!(error.contains("version of a contribution is 1"), "{error}");
    assert_eq!(server.arrived(0, one(0, 1.0, 1), step).unwrap(), []);
    let error = server.arrived(0, one(0, 1.0, 1), step).unwrap_err().to_string();
    assert!(error.contains("without a task"), "{error}");
    let mut served = Served::default();
    (served.accepted, served.gradients) = (1, 1);
    assert_eq!(*server.served(), served);
}

/// Frames held by each rank's pool and the number of allocations are the same after 2 000 more updates, apart from frames in
/// flight.
#[test]
fn a_long_run_of_a_server_holds_and_allocates_no_more_frames() {
    for config in all(3) {
        let held = run_ranks(Local::world(4), |mut comm| {
            let (rank, noisy) = (comm.rank(), Noisy::default());
            let mut trainer = Recording::new(&noisy, rank);
            let mut server = Server::new(config.get().build(3).unwrap(), noisy.start(), 3);
            let (mut x, mut uplink, mut batch) = (noisy.start(), Uplink::new(Dense, false), 0);
            let mut held = Vec::new();
            for until in [200, 2200] {
                match rank {
                    0 => serve(&mut server, &mut trainer, until, &mut comm)?,
                    _ => {
                        work(&mut uplink, &mut trainer, (0, &mut batch), (Key::new(1), &mut x), &mut comm).map(drop)?
                    }
                }
                held.push((comm.pool().frames(), comm.pool().allocations()));
            }
            Ok::<_, ReduceError>(held)
        });
        for (rank, held) in held.into_iter().map(Result::unwrap).enumerate() {
            let ((frames, allocations), (frames_then, allocations_then)) = (held[0], held[1]);
            assert!(frames_then <= frames + 8, "{config}, rank {rank}: {frames_then} frames held, {frames} before");
            assert!(allocations_then <= allocations + 16, "{config}, rank {rank}: {held:?}");
        }
    }
}

const PACES: &str = "0ms,50ms;lognormal=0.4;slow=0.1x10";

fn compressed() -> Uplink {
    Uplink::new(TopK::fraction(0.5).unwrap(), true)
}

fn forgetful() -> Uplink {
    Uplink::new(TopK::fraction(0.5).unwrap(), false)
}

fn same(a: &Run, b: &Run) -> bool {
    (&a.model, a.served) == (&b.model, b.served)
}

/// With 1, 2, 3 and 5 workers, with stragglers.
#[test]
fn on_a_simulated_network_every_policy_is_reproducible_to_the_bit() {
    for workers in [1, 2, 3, 5] {
        for config in all(workers) {
            let run = || simulate(config.get(), workers, PACES, &Finite::default(), 20);
            let (a, b) = (run(), run());
            assert!(same(&a, &b) && (a.seconds, a.bytes) == (b.seconds, b.bytes), "{config}: {a:?} {b:?}");
        }
    }
}

/// Pauses at version 9, saves, and loads into new objects: the result is that of the pause alone.
#[test]
fn resuming_is_pausing_to_the_bit() {
    for config in all(3) {
        let run = |resumed, uplink: fn() -> Uplink| {
            let legs = [Leg { until: 9, resumed: false }, Leg { until: 20, resumed }];
            train(simulated(3, PACES), config.get(), &Finite::default(), &legs, uplink)
        };
        let [uplink, another]: [fn() -> Uplink; 2] = match config.get().allows_residual() {
            true => [compressed, forgetful],
            false => [forgetful, compressed],
        };
        assert!(same(&run(true, uplink), &run(false, uplink)), "{config}");
        assert!(!same(&run(true, uplink), &run(true, another)), "{config}: the residual counts");
    }
}

/// In threads, whose order is not deterministic, every policy reaches its version, and learns.
#[test]
fn in_threads_every_policy_ends() {
    for config in all(3) {
        let finite = Finite::default();
        let legs = [Leg { until: 40, resumed: false }];
        let run = train(Local::world(4), config.get(), &finite, &legs, || Uplink::new(Dense, false));
        assert!(run.model.iter().all(|value| value.is_finite()), "{config}: {run:?}");
        // A worker that the machine kept waiting for a quarter of the run contributes the gradient of a model long gone.
        let is_fair = run.served.longest_delay <= 10;
        let has_learned = finite.norm(&run.model, 3) < 0.9 * finite.norm(&finite.start(), 3);
        assert!(has_learned || !is_fair, "{config}: {run:?}");
    }
}

/// Rejected contributions are put back: at the end all gradients are in the model or in a residual.
#[test]
fn no_gradient_is_lost_with_a_memory() {
    let noisy = Noisy { rate: 0.01, ..Noisy::default() };
    let world = simulated(3, "0ms,50ms,50ms,120ms");
    let config = Backup { ranks: 2, spare: 1 };
    let runs = run_ranks(world, |mut comm| {
        let rank = comm.rank();
        let mut recording = Recording::new(&noisy, rank);
        let mut x = noisy.start();
        if rank == 0 {
            let mut server = Server::new(config.build(3).unwrap(), x, 3);
            serve(&mut server, &mut recording, 12, &mut comm)?;
            // The sum of the means, times two.
            return Ok(recording.sum.iter().map(|sum| 2.0 * sum).collect());
        }
        let mut uplink = compressed();
        work(&mut uplink, &mut recording, (0, &mut 0), (Key::new(1), &mut x), &mut comm)?;
        Ok::<Vec<f32>, ReduceError>(recording.sum.iter().zip(uplink.residual()).map(|(sum, e)| sum - e).collect())
    });
    let runs: Vec<Vec<f32>> = runs.into_iter().map(Result::unwrap).collect();
    for (i, applied) in runs[0].iter().enumerate() {
        let sent: f32 = runs[1..].iter().map(|run| run[i]).sum();
        assert!((applied - sent).abs() < 1e-3 * (1.0 + sent.abs()), "{applied} applied of {sent}");
    }
}

#[test]
fn saved_state_of_another_shape_is_refused_and_changes_nothing() {
    let config = Synthesis { epoch: 4, delay: 2 };
    let new = || Server::new(config.build(2).unwrap(), vec![0.0; 3], 2).at_version(7);
    let with = |before: usize, memory: usize, served: usize| {
        let mut state = State::default();
        state.put("version", 3_u64);
        state.put("before", vec![1.0_f32; before]);
        state.put("memory", vec![1.0_f32; memory]);
        state.put("served", vec![1.0_f64; served]);
        state
    };
    for (state, named) in [(with(2, 3, 7), "before"), (with(3, 2, 7), "memory"), (with(3, 3, 6), "served")] {
        let mut server = new();
        let error = server.load(&state).unwrap_err();
        assert!(error.to_string().contains(&format!("`{named}`")), "{error}");
        assert_eq!(Server::check(&state, 3), Err(error));
        assert_eq!((server.version(), *server.served()), (7, Served::default()));
    }
    let mut server = new();
    server.load(&with(3, 0, 7)).unwrap();
    assert_eq!((server.version(), server.model_before()), (3, &[1.0; 3][..]));
    assert_eq!(Server::check(&with(0, 3, 7), 3), Ok(()));
}
