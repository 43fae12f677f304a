use std::time::Duration;

use super::*;
use briquette_core::comm::{Local, run_ranks};
use briquette_core::laws::train::{Sgd, mean, train};
use briquette_core::reduce::AgreedStep;
use briquette_core::state::Stateful;
use briquette_core::{Key, Layout};
use briquette_testkit::simulation::{Simulation, simulate};

const STILL: Sgd = Sgd { rate: 0.0, momentum: 0.0, steps: 0 };

fn sgp(graph: &str, world: usize) -> Sgp {
    Sgp::new(graph.parse().unwrap(), world).unwrap()
}

/// Only mixes, from rank-dependent starts. Returns each rank's `z`, and its weight.
fn mixed(graph: &str, starts: &[Vec<f32>], steps: u64) -> Vec<(Vec<f32>, f32)> {
    mixed_late(graph, 0, starts, steps).into_iter().map(|(z, w, _)| (z, w)).collect()
}

/// Does the same with messages in flight for some steps, and returns also the mass that each rank counts as its own.
fn mixed_late(graph: &str, staleness: usize, starts: &[Vec<f32>], steps: u64) -> Vec<(Vec<f32>, f32, Vec<f32>)> {
    let world = starts.len();
    let ranks = run_ranks(Local::world(world), |mut comm| {
        let (mut sgp, mut z) = (sgp(graph, world).with_staleness(staleness), starts[comm.rank()].clone());
        let layout = Layout::flat(z.len());
        sgp.begin(&z);
        for step in 0..steps {
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
            sgp.after_step(&mut z, &cx, &mut comm).unwrap();
            sgp.commit();
            sgp.after_commit(&cx, &mut comm);
        }
        sgp.settle(&mut comm).unwrap();
        let conserved = sgp.conserved(&z).unwrap();
        Ok::<_, CommError>((z, sgp.weight(), conserved))
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

fn starts(world: usize) -> Vec<Vec<f32>> {
    (0..world).map(|rank| vec![rank as f32, 64.0 * (rank * rank) as f32]).collect()
}

#[test]
fn one_step_by_hand() {
    // Hop 1 among three ranks: each keeps a half and receives a half from the rank before it.
    let ranks = mixed("exponential", &[vec![0.0], vec![4.0], vec![8.0]], 1);
    assert_eq!(ranks, [(vec![4.0], 1.0), (vec![2.0], 1.0), (vec![6.0], 1.0)]);
    // Rank 0 keeps a third and sends two thirds, the others keep a half. x = (0 + 2 + 4, 0 + 2, 0 + 4), w = (1/3 + 1, 1/3 +
    // 1/2, …).
    let ranks = mixed("0>1;0>2;1>0;2>0", &[vec![0.0], vec![4.0], vec![8.0]], 1);
    let expected = [(6.0 / (4.0 / 3.0), 4.0 / 3.0), (2.0 / (5.0 / 6.0), 5.0 / 6.0), (4.0 / (5.0 / 6.0), 5.0 / 6.0)];
    for ((z, w), (expected, weight)) in ranks.iter().zip(expected) {
        assert!((z[0] - expected).abs() < 1e-6 && (w - weight).abs() < 1e-6, "{z:?} {w}");
    }
}

#[test]
fn a_power_of_two_many_ranks_agree_exactly_after_its_logarithm() {
    for (world, steps) in [(2, 1), (4, 2), (8, 3)] {
        let expected = mean(&starts(world));
        for (z, w) in mixed("exponential", &starts(world), steps) {
            assert_eq!((z.iter().map(|z| f64::from(*z)).collect::<Vec<_>>(), w), (expected.clone(), 1.0), "{world}");
        }
        assert_ne!(mixed("exponential", &starts(world), steps - 1)[0].0[1], expected[1] as f32);
    }
}

#[test]
fn where_ranks_send_to_different_numbers_of_ranks_the_weight_makes_the_mean_right() {
    // Claim: z reaches the mean on any connected graph; x alone does not.
    let (graph, starts) = ("0>1;0>2;0>3;0>4;1>0;2>0;3>0;4>0;1>2", starts(5));
    let (expected, ranks) = (mean(&starts), mixed(graph, &starts, 60));
    for (z, w) in &ranks {
        let off = (0..2).map(|i| (f64::from(z[i]) - expected[i]).abs() / expected[i]).fold(0.0, f64::max);
        assert!(off < 1e-5, "off by {off}");
        let without = f64::from(z[0] * w) - expected[0];
        assert!(without.abs() > 0.1 * expected[0], "x is off by {without} only");
    }
    let weights: f32 = ranks.iter().map(|(_, w)| w).sum();
    assert!((weights - 5.0).abs() < 1e-5);
}

#[test]
fn a_complete_graph_is_local_sgd_that_averages_every_step() {
    // Every rank sends to every other: x is their mean. Dyadic, so exact.
    let gradient = |rank: usize, step: u64, x: &[f32]| vec![x[0] - (rank as f32) + step as f32 * 0.25];
    let sgd = Sgd { rate: 0.25, steps: 4, ..STILL };
    let gossip = train(4, || sgp("complete", 4), &[1.0], (sgd, &gradient));
    let local = train(4, || briquette_core::sync::periodic::Periodic::new(1).unwrap(), &[1.0], (sgd, &gradient));
    assert_eq!(gossip, local);
}

#[test]
fn the_mean_of_the_views_moves_by_the_mean_gradient_on_any_graph() {
    // Constant gradients: after n steps, the mean has moved by n times their mean, whatever the mixing.
    let gradient = |rank: usize, _: u64, _: &[f32]| vec![rank as f32];
    for graph in ["exponential", "0>1;1>2;2>0;0>2"] {
        let sgd = Sgd { rate: 0.5, steps: 7, ..STILL };
        let moved = mean(&train(3, || sgp(graph, 3), &[10.0], (sgd, &gradient)))[0];
        assert!((moved - (10.0 - 7.0 * 0.5)).abs() < 1e-5, "{graph}: {moved}");
    }
}

#[test]
fn a_frame_of_another_size_names_its_sender() {
    let mut ends = Local::world(2);
    let (mut other, mut comm) = (ends.pop().unwrap(), ends.pop().unwrap());
    other.scope().operation = "push to neighbours";
    other.send(0, vec![0; 7]).unwrap();
    let (layout, agreed_step) = (Layout::flat(1), AgreedStep::default());
    let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
    let (mut gossip, mut z) = (sgp("exponential", 2), vec![1.0]);
    let error = gossip.after_step(&mut z, &cx, &mut comm).unwrap_err().to_string();
    assert!(error.contains("7 bytes from rank 1") && error.contains("expected 8"), "{error}");
    assert_eq!(z, [1.0]);
}

/// Claim, with one rank of eight that computes ten times as long: the mean of the replicas follows the trajectory of an exact
/// mean, and each of its steps waits for one message instead of a ring that passes all ranks twice.
#[test]
fn beside_a_slow_rank_it_reaches_the_same_loss_sooner_than_the_ring() {
    let gradient = |rank: usize, _: u64, x: &[f32]| x.iter().map(|x| x - rank as f32).collect::<Vec<_>>();
    let sgd = Sgd { rate: 0.125, steps: 30, ..STILL };
    let ring = || briquette_core::sync::every_step::EveryStep::new(briquette_core::reduce::dense::Dense);
    let start = vec![20.0; 20_000];
    let ends = [
        mean(&train(8, || sgp("exponential", 8), &start[..2], (sgd, &gradient))),
        mean(&train(8, ring, &start[..2], (sgd, &gradient))),
    ];
    assert!((ends[0][0] - ends[1][0]).abs() < 1e-4, "{ends:?}");
    let milliseconds = |slow: u64| [slow, 50].map(Duration::from_millis).to_vec();
    let world = |slow| Simulation { world: 8, network: "100mbit,10ms".parse().unwrap(), compute: milliseconds(slow) };
    let seconds = |slow| {
        let gossip = simulate(world(slow), || sgp("exponential", 8), &start, (sgd, &gradient));
        [gossip, simulate(world(slow), ring, &start, (sgd, &gradient))]
    };
    let [gossip, all] = seconds(500);
    assert!(gossip < 0.85 * all, "{gossip} s against {all} s");
    // If all ranks are equally fast, the ring is not hidden.
    let [gossip, all] = seconds(50);
    assert!(gossip < 0.4 * all, "{gossip} s against {all} s");
}

#[test]
fn values_that_are_not_finite_are_those_of_the_rank_that_has_them() {
    let ranks = run_ranks(Local::builder(3).deadline(Duration::from_secs(20)).build(), |mut comm| {
        let (mut sgp, layout) = (sgp("0>1;0>2;1>0;2>0", 3), Layout::flat(1));
        let mut results = Vec::new();
        for step in 0..2 {
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
            // Weights differ after the first step: `z − shown` of rank 2 exceeds the largest number at the second.
            let sign = if step == 1 && comm.rank() == 2 { -1.0 } else { 1.0 };
            results.push(sgp.after_step(&mut vec![sign * 0.6 * f32::MAX], &cx, &mut comm));
            sgp.commit();
        }
        Ok::<_, CommError>(results)
    });
    for (rank, results) in ranks.into_iter().map(Result::unwrap).enumerate() {
        assert_eq!(results[0], Ok(Momenta::Keep));
        // Rank 1 does not receive from rank 2.
        let slot = Layout::flat(1).slots()[0].path().to_owned();
        let expected = if rank == 1 { Ok(Momenta::Keep) } else { Err(SyncError::Diverged { step: 1, rank, slot }) };
        assert_eq!(results[1], expected, "rank {rank}");
    }
}

#[test]
fn late_messages_by_hand() {
    // Two ranks, 0 and 4, a step late. Step 0: each subtracts a third of its value, which returns at this step, keeps half of
    // the rest and sends the other: 4/3 and back 4/3, of weight 1/3 + 1/3. Step 1: keeps half of that, and receives what was
    // sent at step 0: 0 + 4/3 and 4/3 + 0.
    let starts = [vec![0.0], vec![4.0]];
    let at =
        |steps| mixed_late("exponential", 1, &starts, steps).into_iter().map(|(z, w, _)| (z[0], w)).collect::<Vec<_>>();
    for (steps, expected) in [(1, [0.0, 4.0]), (2, [2.0, 2.0]), (3, [3.0, 1.0])] {
        let seen = at(steps);
        let fits = |((z, w), x): (&(f32, f32), f32)| (z - x).abs() < 1e-6 && (w - 2.0 / 3.0).abs() < 1e-6;
        assert!(seen.iter().zip(expected).all(fits), "{steps} steps: {seen:?}");
    }
}

/// Nothing is missing at the start: weights have their final value from the first step, and no step of the optimizer counts for
/// more.
#[test]
fn a_run_with_late_messages_begins_without_a_transient() {
    let centre = |rank: usize| rank as f32 / 4.0;
    for (graph, staleness, weight) in [("exponential", 8, 0.2), ("complete", 8, 0.125), ("complete", 4, 2.0 / 9.0)] {
        let ranks = run_ranks(Local::world(8), |mut comm| {
            let (mut sgp, mut z) = (sgp(graph, 8).with_staleness(staleness), vec![4.0]);
            let (layout, mut seen) = (Layout::flat(1), Vec::new());
            sgp.begin(&z);
            for step in 0..300 {
                let agreed_step = AgreedStep { step, ..AgreedStep::default() };
                let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
                // Curvature 1, and a rank-dependent minimum; their mean is at 7/8.
                z[0] -= 0.05 * (z[0] - centre(comm.rank()));
                sgp.after_step(&mut z, &cx, &mut comm).unwrap();
                sgp.commit();
                sgp.after_commit(&cx, &mut comm);
                seen.push((z[0], sgp.weight()));
            }
            sgp.settle(&mut comm).unwrap();
            Ok::<_, CommError>(seen)
        });
        for seen in ranks.into_iter().map(Result::unwrap) {
            let (largest, last) = (seen.iter().map(|(z, _)| z.abs()).fold(0.0, f32::max), seen[299].0);
            assert!(largest <= 4.0 && (last - 0.875).abs() < 0.4, "{graph}, {staleness} late: {largest}, then {last}");
            let off = seen.iter().map(|(_, w)| (w - weight).abs()).fold(0.0, f32::max);
            assert!(off < 1e-5, "{graph}, {staleness} late: weights off by {off}");
        }
    }
}

/// Claim (the paper's section 3.2 and its ablation): delayed messages still lead every rank to the mean with the weights, but
/// not without them.
#[test]
fn late_messages_still_reach_the_mean_and_their_mass_is_conserved_in_flight() {
    let starts = starts(5);
    let expected = mean(&starts);
    for (graph, staleness) in [("exponential", 1), ("exponential", 3), ("0>1;0>2;0>3;0>4;1>0;2>0;3>0;4>0;1>2", 2)] {
        for steps in [1, 2, 3, 4, 7] {
            let ranks = mixed_late(graph, staleness, &starts, steps);
            let mass = mean(&ranks.into_iter().map(|(_, _, mass)| mass).collect::<Vec<_>>());
            assert!(mass.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4 * b), "{graph}: {mass:?}");
        }
        for (z, w, _) in mixed_late(graph, staleness, &starts, 150) {
            let off = (0..2).map(|i| (f64::from(z[i]) - expected[i]).abs() / expected[i]).fold(0.0, f64::max);
            let without = f64::from(z[0] * w) / expected[0] - 1.0;
            assert!(off < 1e-4 && without.abs() > 0.1, "{graph}, {staleness} late: off by {off}, x by {without}");
        }
    }
}

/// Claim: messages in flight cost no time, and the delay of stragglers is waited for only some steps later.
#[test]
fn messages_travel_while_ranks_compute() {
    let gradient = |rank: usize, _: u64, x: &[f32]| x.iter().map(|x| x - rank as f32).collect::<Vec<_>>();
    let sgd = Sgd { rate: 0.05, steps: 60, ..STILL };
    let start = vec![4.0; 20_000];
    let world =
        Simulation { world: 8, network: "20mbit,5ms".parse().unwrap(), compute: vec![Duration::from_millis(50)] };
    // 37 ms for a message, and 50 for computing.
    let seconds = [0, 1]
        .map(|late| simulate(world.clone(), || sgp("exponential", 8).with_staleness(late), &start, (sgd, &gradient)));
    assert!(seconds[0] > 60.0 * 0.085 && seconds[1] < 60.0 * 0.053, "{seconds:?}");
    let ends = [0, 2]
        .map(|late| mean(&train(8, || sgp("exponential", 8).with_staleness(late), &start[..1], (sgd, &gradient)))[0]);
    assert!((ends[0] - ends[1]).abs() < 0.05, "{ends:?}");
}
