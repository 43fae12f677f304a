use super::*;
use crate::aggregate::mean::Mean;
use crate::comm::{Local, Session};
use crate::compress::{Norm, qsgd::Qsgd, top_k::TopK};
use crate::control::schedule::Schedule;
use crate::reduce::{dense::Dense, gather::Gather};
use crate::seam::AgreedStep;
use crate::wrapper::{adaptive::Adaptive, error_feedback::ErrorFeedback};
use crate::{CompressionRatio, Key, Layout};
use rand_distr::{Distribution, StandardNormal};

fn top(ratio: f64) -> Gather<TopK, Mean> {
    Gather::new(TopK::ratio(CompressionRatio::new(ratio).unwrap()), Mean)
}

fn settings(momentum: f32) -> MomentumCorrectionConfig {
    MomentumCorrectionConfig { momentum, ..MomentumCorrectionConfig::default() }
}

/// Runs one exchange and returns the average.
fn exchange(reducer: &mut dyn Reducer, step: u64, input: &[f32], comm: &mut Session) -> Result<Vec<f32>, ReduceError> {
    let (layout, mut average) = (Layout::flat(input.len()), vec![0.0; input.len()]);
    let agreed_step = AgreedStep { step, ..AgreedStep::default() };
    let (key, slots) = (Key::new(3).step(step), layout.slots());
    reducer
        .exchange(Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None }, comm)?;
    Ok(average)
}

/// Returns a single rank's averages, velocities and pending values under the given gradients.
fn alone(settings: MomentumCorrectionConfig, gradients: &[[f32; 2]]) -> Vec<[Vec<f32>; 3]> {
    let mut comm = Local::world(1).remove(0);
    let mut reducer = MomentumCorrection::new(top(2.0), settings).unwrap();
    let mut step = |(step, g): (u64, &[f32; 2])| {
        let average = exchange(&mut reducer, step, g, &mut comm).unwrap();
        [average, reducer.velocity(), reducer.pending()]
    };
    (0..).zip(gradients).map(&mut step).collect()
}

#[test]
fn what_was_sent_loses_its_velocity_by_hand() {
    // Momentum 1/2, gradient (4, 1), the larger of two values is sent. u = (4, 1), v = u; then u = (0 + 4, .5 + 1),
    // v = (4, 1 + 1.5); then u = (4, .75 + 1), v = (4, 2.5 + 1.75): now the second is larger.
    let steps = alone(settings(0.5), &[[4.0, 1.0]; 3]);
    let expected = [
        [[4.0, 0.0], [0.0, 1.0], [0.0, 1.0]],
        [[4.0, 0.0], [0.0, 1.5], [0.0, 2.5]],
        [[0.0, 4.25], [4.0, 0.0], [4.0, 0.0]],
    ];
    assert_eq!(steps, expected.map(|step| step.map(|v| v.to_vec())));
}

#[test]
fn without_masking_velocity_goes_on_by_hand() {
    // u = (4, 1), (2 + 4, .5 + 1), (3 + 4, .75 + 1).
    let steps = alone(MomentumCorrectionConfig { masking: Masking::Off, ..settings(0.5) }, &[[4.0, 1.0]; 3]);
    let expected = [
        [[4.0, 0.0], [4.0, 1.0], [0.0, 1.0]],
        [[6.0, 0.0], [6.0, 1.5], [0.0, 2.5]],
        [[7.0, 0.0], [7.0, 1.75], [0.0, 4.25]],
    ];
    assert_eq!(steps, expected.map(|step| step.map(|v| v.to_vec())));
}

/// As above, but of (4, 1), (6, 2.5), (7, 4.25), 4, 6 and 7 are sent without a wait, so their velocity stays. With a gradient of (1, 1) at the end, the
/// second value, 4.25 + 1.875 with a velocity of 1.875, has waited.
#[test]
fn only_what_has_waited_loses_its_velocity_by_hand() {
    let gradients = [[4.0, 1.0], [4.0, 1.0], [4.0, 1.0], [1.0, 1.0]];
    let steps = alone(MomentumCorrectionConfig { masking: Masking::Waited, ..settings(0.5) }, &gradients);
    let expected = [
        [[4.0, 0.0], [4.0, 1.0], [0.0, 1.0]],
        [[6.0, 0.0], [6.0, 1.5], [0.0, 2.5]],
        [[7.0, 0.0], [7.0, 1.75], [0.0, 4.25]],
        [[0.0, 6.125], [4.5, 0.0], [4.5, 0.0]],
    ];
    assert_eq!(steps, expected.map(|step| step.map(|v| v.to_vec())));
}

/// Two slots with `‖v‖²` of 1 and 3, next to `‖u‖²` of 1 and 1.5, then of 0.5 and 1.
#[test]
fn all_that_is_sent_is_masked_while_most_of_the_vector_waits() {
    assert_eq!(Masking::Waited.mask(&[[1.0, 1.0], [3.0, 1.5]]), Some(Mask::WAITED));
    assert_eq!(Masking::Waited.mask(&[[1.0, 0.5], [3.0, 1.0]]), Some(Mask::SENT));
    assert_eq!(Masking::Sent.mask(&[[1.0, 1.0]]), Some(Mask::SENT));
    assert_eq!(Masking::Off.mask(&[[3.0, 1.0]]), None);
}

/// Momentum 1/2, one of eight values is sent: the first, without a wait, of (10, 6, …) and (12, 6, …). At the second step `u` is (17, 9, …) and `v`
/// (17, 15, …): `‖v‖²` is 1864 and `‖u‖²` 856, so that the first value is masked. With 4 in place of 6, they are 989 and 541.
#[test]
fn a_value_without_a_wait_is_masked_only_while_most_of_the_vector_waits_by_hand() {
    for (others, velocity) in [(6.0, 0.0), (4.0, 17.0)] {
        let settings = MomentumCorrectionConfig { masking: Masking::Waited, ..settings(0.5) };
        let mut comm = Local::world(1).remove(0);
        let mut reducer = MomentumCorrection::new(top(8.0), settings).unwrap();
        for (step, first) in [(0, 10.0), (1, 12.0)] {
            let mut gradient = [others; 8];
            gradient[0] = first;
            let average = exchange(&mut reducer, step, &gradient, &mut comm).unwrap();
            assert_eq!(average[1..], [0.0; 7], "only the first value is sent");
        }
        assert_eq!((reducer.velocity()[0], reducer.velocity()[1]), (velocity, 1.5 * others));
    }
}

#[test]
fn a_mask_of_what_has_waited_does_not_go_with_nesterov() {
    let settings = MomentumCorrectionConfig { nesterov: true, masking: Masking::Waited, ..settings(0.5) };
    let error = MomentumCorrection::new(Dense, settings).map(drop).unwrap_err().to_string();
    assert!(error.contains("use masking sent or off"), "{error}");
}

#[test]
fn nesterov_by_hand() {
    // Momentum 1/2, gradient 1. u = ½·(0 + 1), v = .5 + 1; u = ½·(.5 + 1), v = .75 + 1; u = ½·(.75 + 1), v = .875 + 1.
    let mut comm = Local::world(1).remove(0);
    let mut reducer =
        MomentumCorrection::new(Dense, MomentumCorrectionConfig { nesterov: true, ..settings(0.5) }).unwrap();
    let sent: Vec<f32> = (0..3).map(|step| exchange(&mut reducer, step, &[1.0], &mut comm).unwrap()[0]).collect();
    assert_eq!(sent, [1.5, 1.75, 1.875]);
    assert_eq!((reducer.velocity(), reducer.pending()), (vec![0.875], vec![0.0]));
}

#[test]
fn velocity_and_pending_are_zero_where_something_was_sent() {
    for world in [1, 2, 3] {
        let ranks = Local::run(world, |mut comm| {
            let mut reducer = MomentumCorrection::new(top(4.0), settings(0.9)).unwrap();
            let (layout, mut masked) = (Layout::flat(40), 0);
            for step in 0..10 {
                let input = noise(comm.rank(), step, 40);
                let (mut average, mut sent) = (vec![0.0; 40], vec![0.0; 40]);
                let agreed_step = AgreedStep::default();
                let (key, slots) = (Key::new(0), layout.slots());
                let (out, own) = (&mut average, Some(&mut sent[..]));
                reducer.exchange(
                    Round { key, slots, agreed_step: &agreed_step, input: &input, average: out, sent: own },
                    &mut comm,
                )?;
                for (i, sent) in sent.iter().enumerate() {
                    let kept = [reducer.velocity()[i], reducer.pending()[i]];
                    assert_eq!(*sent != 0.0, kept == [0.0, 0.0], "step {step}, value {i}: {sent}, {kept:?}");
                    masked += usize::from(*sent != 0.0);
                }
            }
            Ok::<_, ReduceError>(masked)
        });
        ranks.into_iter().for_each(|masked| assert_eq!(masked.unwrap(), 100));
    }
}

/// Sparse and dense messages, of which one masks the velocity.
#[test]
fn a_request_for_what_was_sent_changes_no_bit() {
    let reducers: [fn() -> Box<dyn Reducer>; 2] =
        [|| Box::new(top(4.0)), || Box::new(Gather::new(Qsgd::new(4, 8, Norm::Max).unwrap(), Mean))];
    let all = reducers.into_iter().flat_map(|make| [Masking::Sent, Masking::Waited].map(|masking| (make, masking)));
    for (make, masking) in all {
        let run = |with_sent: bool| {
            let settings = MomentumCorrectionConfig { masking, ..settings(0.9) };
            let mut reducer = MomentumCorrection::new(make(), settings).unwrap();
            let (layout, agreed_step, mut comm) = (Layout::flat(40), AgreedStep::default(), Local::world(1).remove(0));
            let steps = (0..5).map(|step| {
                let (input, mut average, mut sent) = (noise(0, step, 40), vec![0.0; 40], vec![0.0; 40]);
                let (key, slots) = (Key::new(0).step(step), layout.slots());
                let (average_out, sent) = (&mut average[..], with_sent.then_some(&mut sent[..]));
                let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: average_out, sent };
                reducer.exchange(round, &mut comm).unwrap();
                [average, reducer.velocity(), reducer.pending()]
            });
            steps.collect::<Vec<_>>()
        };
        assert_eq!(run(true), run(false));
    }
}

/// Returns the averages of a dense exchange of `gradient(rank)` on every rank, clipped.
fn clipped(world: usize, clip: f64, gradient: impl Fn(usize) -> Vec<f32> + Sync) -> Vec<f32> {
    let mut ranks = Local::run(world, |mut comm| {
        let mut reducer =
            MomentumCorrection::new(Dense, MomentumCorrectionConfig { clip: Some(clip), ..settings(0.5) }).unwrap();
        exchange(&mut reducer, 0, &gradient(comm.rank()), &mut comm)
    });
    ranks.swap_remove(0).unwrap()
}

#[test]
fn a_rank_clips_to_its_part_of_the_norm() {
    // (6, 8) has norm 10. A limit of 4 is 4 for one rank, 4·√4 = 8 for each of four, and 4·√9 = 12 for each of nine.
    for (world, expected) in [(1, [2.4, 3.2]), (4, [4.8, 6.4]), (9, [6.0, 8.0])] {
        let average = clipped(world, 4.0, |_| vec![6.0, 8.0]);
        assert!(average.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{world} ranks: {average:?}");
    }
}

/// Purpose of the limit: if ranks are independent, clipping at the norm of their mean changes nothing, and clipping at half of it halves
/// the mean, for any number of ranks.
#[test]
fn independent_ranks_are_clipped_where_their_mean_would_be() {
    let len = 4096;
    for world in [1, 4, 16] {
        let mean = clipped(world, 1e9, |rank| noise(rank, 0, len));
        let norm = norm2(&mean).sqrt();
        for (share, expected) in [(1.1, 1.0), (0.5, 0.5)] {
            let left = norm2(&clipped(world, share * norm, |rank| noise(rank, 0, len))).sqrt() / norm;
            assert!((left - expected).abs() < 0.03, "{world} ranks: {left} of the norm is left at {share} of it");
        }
    }
}

fn noise(rank: usize, step: u64, len: usize) -> Vec<f32> {
    let mut rng = Key::new(8).step(step).rank(rank).block(0);
    (0..len).map(|_| StandardNormal.sample(&mut rng)).collect()
}

/// Returns this rank's gradient: the distance to a rank-local target, plus noise.
fn gradient(rank: usize, step: u64, parameters: &[f32]) -> Vec<f32> {
    let noise = noise(rank, step, parameters.len());
    parameters.iter().zip(noise).map(|(p, noise)| p - rank as f32 + noise).collect()
}

const LEN: usize = 30;
const RATE: f32 = 0.05;

/// Returns the parameters after each of 20 steps of `inner` under `make`, then plain SGD.
fn train<R: Reducer>(world: usize, make: impl Fn() -> R + Sync) -> Vec<Vec<f32>> {
    let mut ranks = Local::run(world, |mut comm| {
        let (mut reducer, mut parameters, mut path) = (make(), vec![0.0; LEN], Vec::new());
        for step in 0..20 {
            let input = gradient(comm.rank(), step, &parameters);
            let average = exchange(&mut reducer, step, &input, &mut comm)?;
            parameters.iter_mut().zip(average).for_each(|(p, v)| *p -= RATE * v);
            path.push(parameters.clone());
        }
        Ok::<_, ReduceError>(path)
    });
    ranks.swap_remove(0).unwrap()
}

/// Runs momentum SGD as in optimizers, in one process, on the mean gradient.
fn momentum_sgd(world: usize, settings: MomentumCorrectionConfig) -> Vec<Vec<f32>> {
    let (mut parameters, mut buffer, mut path) = (vec![0.0; LEN], vec![0.0_f32; LEN], Vec::new());
    for step in 0..20 {
        let mut mean = vec![0.0; LEN];
        for rank in 0..world {
            mean.iter_mut().zip(gradient(rank, step, &parameters)).for_each(|(m, g)| *m += g);
        }
        for ((p, buffer), g) in parameters.iter_mut().zip(&mut buffer).zip(mean) {
            let g = g / world as f32;
            *buffer = settings.momentum * *buffer + g;
            *p -= RATE * if settings.nesterov { settings.momentum * *buffer + g } else { *buffer };
        }
        path.push(parameters.clone());
    }
    path
}

fn furthest(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn with_every_exchange_dense_it_is_momentum_sgd() {
    for nesterov in [false, true] {
        let settings = MomentumCorrectionConfig { nesterov, ..settings(0.9) };
        for world in [1, 2, 3, 5] {
            let plain = momentum_sgd(world, settings);
            let dense = train(world, || MomentumCorrection::new(Dense, settings).unwrap());
            let controlled = train(world, || {
                let adaptive = Adaptive::new(top(10.0), Schedule::constant(CompressionRatio::DENSE)).unwrap();
                MomentumCorrection::new(adaptive, settings).unwrap()
            });
            assert_eq!(dense, controlled, "{world} ranks");
            if world == 1 {
                assert_eq!(dense, plain, "nesterov {nesterov}");
            }
            // The mean of velocities is the velocity of the mean, up to rounding.
            assert!(furthest(&dense, &plain) < 1e-5, "{world} ranks: {}", furthest(&dense, &plain));
        }
    }
}

#[test]
fn without_the_correction_it_is_not_momentum_sgd() {
    for world in [1, 3] {
        let plain = momentum_sgd(world, settings(0.9));
        assert!(furthest(&train(world, || ErrorFeedback::new(Dense)), &plain) > 0.1);
    }
    // The same holds if the optimizer has the momentum. Gradients (4, 1), (4, 1), (0, 1) and momentum 1/2: the second value is sent at the
    // third step, and should then have moved by 1 + 1.5 + 1.75 = 4.25.
    let gradients = [[4.0, 1.0], [4.0, 1.0], [0.0, 1.0]];
    let corrected = alone(settings(0.5), &gradients);
    assert_eq!(corrected.iter().map(|[average, ..]| average[1]).sum::<f32>(), 4.25);
    let mut comm = Local::world(1).remove(0);
    let mut fed = ErrorFeedback::new(top(2.0));
    let (mut buffer, mut gone) = (0.0, 0.0);
    for (step, g) in (0..).zip(&gradients) {
        buffer = 0.5 * buffer + exchange(&mut fed, step, g, &mut comm).unwrap()[1];
        gone += buffer;
    }
    assert_eq!(gone, 3.0);
}
