//! Golden traces of GraVAC that need more than its controller: the actual top-k, error feedback, and ranks that communicate.
//! Traces of the controller alone are next to it.

mod published;

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::{Local, Session};
use briquette_core::compress::{Compressor, dense::Dense as Identity, top_k::TopK};
use briquette_core::config::{Config, Exchange, Feedback, ReducerConfig};
use briquette_core::control::{Agreed, Controller};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Reducer, Round, gather::Gather};
use briquette_core::report::Report;
use briquette_core::step::Driver;
use briquette_core::sync::Header;
use briquette_core::wrapper::{adaptive::Adaptive, error_feedback::ErrorFeedback};
use briquette_core::{CompressionRatio, Key, Layout, Message};
use briquette_zoo::control::gravac::{GraVac, GraVacConfig, Policy};
use rand_distr::{Distribution, Exp1, StandardNormal};

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

fn norm2(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v).powi(2)).sum()
}

/// Returns the gains of the messages of `x` at these ratios, each message refined from the previous one, as probing does.
fn gains(x: &[f32], ratios: &[f64]) -> Vec<f64> {
    let (mut coarse, mut message) = (Message::default(), Message::default());
    let mut gains = Vec::new();
    for (i, &c) in ratios.iter().enumerate() {
        let mut top_k = TopK::ratio(ratio(c));
        match i {
            0 => top_k.compress_into(x, Key::new(0), &mut message),
            _ => top_k.refine_into(x, &coarse, Key::new(0), &mut message),
        }
        gains.push(message.kept_energy(x) / norm2(x));
        std::mem::swap(&mut coarse, &mut message);
    }
    gains
}

#[test]
fn golden_1_top_k_keeps_these_shares_of_gaussian_and_laplace_vectors() {
    let mut rng = Key::new(1).block(0);
    let gauss: Vec<f32> = (0..1_000_000).map(|_| StandardNormal.sample(&mut rng)).collect();
    let laplace: Vec<f32> = (0..1_000_000).map(|_| Exp1.sample(&mut rng)).collect();
    for (x, want) in [(gauss, [0.440, 0.0847, 0.0128]), (laplace, [0.5955, 0.1623, 0.0316])] {
        let got = gains(&x, &[10.0, 100.0, 1000.0]);
        for (got, want) in got.into_iter().zip(want) {
            assert!((got / want - 1.0).abs() < 0.02, "{got} against {want}");
        }
    }
}

#[test]
fn golden_1_a_gain_is_1_for_the_identity_and_falls_with_the_ratio() {
    let mut rng = Key::new(2).block(0);
    let x: Vec<f32> = (0..10_000).map(|_| StandardNormal.sample(&mut rng)).collect();
    let mut message = Message::default();
    Identity.compress_into(&x, Key::new(0), &mut message);
    assert_eq!(message.kept_energy(&x), norm2_in_lanes(&x));
    let falling = gains(&x, &[1.0, 1.5, 2.0, 4.0, 10.0, 100.0, 1000.0, 10_000.0]);
    assert!((falling[0] - 1.0).abs() < 1e-12);
    assert!(falling.windows(2).all(|pair| pair[0] > pair[1]) && falling[7] > 0.0, "{falling:?}");
}

/// Sums in the same order as the crate.
fn norm2_in_lanes(x: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    x.iter().enumerate().for_each(|(i, v)| lanes[i % 8] += f64::from(*v).powi(2));
    lanes.iter().sum()
}

type Fed = ErrorFeedback<Adaptive<Gather<TopK, Mean>, GraVac>>;

/// Top-k under GraVAC under error feedback, safe at 2x and bold at 4x, without averaging over steps.
fn fed(epsilon: f64, world: usize) -> Fed {
    let policy = Policy::Geometric { growth: 2.0 };
    let (min, max, smoothing) = (ratio(2.0), ratio(4.0), Some(1.0));
    let config = GraVacConfig { min, max, policy, epsilon, smoothing, ..GraVacConfig::default() };
    ErrorFeedback::new(Adaptive::new(Gather::new(TopK::ratio(min), Mean), config.build(world).unwrap()).unwrap())
}

/// Exchanges once. Returns the average, this rank's sent vector, and the ratio.
fn exchange(
    reducer: &mut Fed,
    step: u64,
    input: &[f32],
    comm: &mut Session,
) -> Result<(Vec<f32>, Vec<f32>, f64), ReduceError> {
    let layout = Layout::flat(input.len());
    let (mut average, mut sent) = (vec![0.0; input.len()], vec![0.0; input.len()]);
    reducer.exchange(
        Round {
            key: Key::new(0).step(step),
            slots: layout.slots(),
            agreed_step: &AgreedStep { step, ..AgreedStep::default() },
            input,
            average: &mut average,
            sent: Some(&mut sent),
        },
        comm,
    )?;
    let mut report = Report::default();
    reducer.report(&mut report);
    Ok((average, sent, report.ratio.expect("an adaptive layer knows it").get()))
}

#[test]
fn golden_3_and_4_each_branch_conserves_and_dense_flushes_the_residual() {
    // With ε = 0.8. Bold keeps 2 of 8 values, safe 4. The residuals by hand:
    let steps: [([f32; 8], f64, [f32; 8]); 5] = [
        // 2 keeps 200 of 202: bold.
        ([10.0, 10.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], 4.0, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
        // With the residual 4, 4, 4, 4, 1: of 65 two keep 32 = .49, and four keep 64 = .98: safe.
        ([4.0, 4.0, 3.0, 3.0, 1.0, 0.0, 0.0, 0.0], 2.0, [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
        // 2 eight times: four keep half: dense.
        ([2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0], 1.0, [0.0; 8]),
        // 100, 100, 0, 1: bold again.
        ([0.0, 0.0, -10.0, 10.0, 0.0, 0.0, 0.0, 1.0], 4.0, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
        // 3, 3, 3, 1 and the previous 1, now twice as large: of 31 four keep 31, and two keep 18: safe.
        ([3.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 1.0], 2.0, [0.0; 8]),
    ];
    for world in [1, 2, 3] {
        let ranks = Local::run(world, |mut comm| {
            let mut reducer = fed(0.8, world);
            for (step, (input, ratio, left)) in (0..).zip(&steps) {
                let before = reducer.residual().to_vec();
                let (average, sent, used) = exchange(&mut reducer, step, input, &mut comm)?;
                assert_eq!(used, *ratio, "step {step}");
                assert_eq!(reducer.residual(), left, "step {step}");
                for i in 0..8 {
                    let owed = before.get(i).unwrap_or(&0.0) + input[i];
                    assert_eq!(owed, sent[i] + reducer.residual()[i], "step {step}, value {i}");
                    // All ranks have the same vector, so each one's part is the mean, up to the rounding of 1/3.
                    assert!((average[i] - sent[i]).abs() <= 1e-6 * sent[i].abs(), "step {step}, value {i}");
                }
            }
            Ok::<_, ReduceError>(())
        });
        ranks.into_iter().for_each(|rank| rank.unwrap());
    }
}

#[test]
fn gains_outside_of_0_to_1_are_clamped_before_they_are_averaged() {
    // Smoothing ½, ε = .7. −4 counts as 0, then twice 1: 0, .5, .75. 3 counts as 1, then twice .5: 1, .75, .625. Unclamped
    // the averages would be −4, −1.5, −.25 and 3, 1.75, 1.125.
    for (gains, ratios) in [([-4.0, 1.0, 1.0], [1.0, 1.0, 4.0]), ([3.0, 0.5, 0.5], [4.0, 4.0, 1.0])] {
        let (policy, smoothing) = (Policy::Geometric { growth: 2.0 }, Some(0.5));
        let (min, max) = (ratio(2.0), ratio(4.0));
        let mut controller =
            GraVacConfig { min, max, policy, smoothing, epsilon: 0.7, ..GraVacConfig::default() }.build(1).unwrap();
        let agreed_step = AgreedStep::default();
        let mut decide = |gain| {
            let gains = [gain; 2];
            let mut agreed = Agreed::new(&agreed_step, &[]);
            (agreed.norm2, agreed.gains) = (1.0, &gains);
            controller.decide(&agreed).ratio().expect("one for the whole vector").get()
        };
        assert_eq!(gains.map(&mut decide), ratios, "{gains:?}");
    }
}

/// Returns gradients that no exchange makes equal: noise that depends on rank and step, and the distance to this rank's target.
fn pull(rank: usize, step: u64, parameters: &[f32]) -> Vec<f32> {
    let mut rng = Key::new(3).rank(rank).step(step).block(0);
    let mut noise = || -> f32 { StandardNormal.sample(&mut rng) };
    parameters.iter().map(|p| p - (rank + 1) as f32 + noise()).collect()
}

/// Returns the parameters of every rank after plain SGD under `config`.
fn train(config: &Config, world: usize, steps: u64) -> Vec<Vec<f32>> {
    let layout = Layout::new([("weight", vec![40, 50]), ("bias", vec![50])]);
    let ranks = Local::run(world, |mut comm| {
        let mut driver = Driver::new(Key::new(0));
        driver.drive(config.build(&layout, world).expect("valid settings"), layout.clone());
        let mut parameters = vec![0.0; layout.len()];
        for step in 0..steps {
            let mut gradient = pull(comm.rank(), step, &parameters);
            let optimize = |p: &mut [f32], g: &[f32]| p.iter_mut().zip(g).for_each(|(p, g)| *p -= 0.1 * g);
            let header = Header { samples: 1, ..Header::default() };
            driver
                .take_step(header, (&mut gradient, &mut parameters), optimize, &mut comm)
                .expect("nothing fails here");
        }
        Ok::<_, ReduceError>(parameters)
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

#[test]
fn golden_3_above_1_epsilon_is_plain_sgd_to_the_bit() {
    briquette_zoo::install();
    let gravac = |epsilon| GraVacConfig { epsilon, window: 3, ..GraVacConfig::default() };
    let plain = |world| train(&Config::dense(), world, 12);
    for (values, feedback) in
        [("topk:10x", Feedback::error()), ("topk:10x:q8", Feedback::error()), ("topk:10x", Feedback::none())]
    {
        let config = |epsilon| {
            let reducer = ReducerConfig::gather(values.parse().unwrap());
            let (feedback, controller) = (feedback.clone(), gravac(epsilon).into());
            Config::every_step(Exchange { reducer, feedback, controller, ..Exchange::default() })
        };
        for world in [1, 2, 3] {
            let bits = |runs: Vec<Vec<f32>>| runs.concat().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(train(&config(1.01), world, 12)), bits(plain(world)), "{values}, {world} ranks");
            assert_ne!(bits(train(&config(0.0), world, 12)), bits(plain(world)), "{values}, {world} ranks");
        }
    }
    assert_ne!(plain(2), plain(3));
}

#[test]
fn golden_9_ranks_on_both_sides_of_epsilon_decide_alike() {
    // Gains of 8 values at 2x and 4x: of a lone 4, 1 and 1; of eight times 2, 1/2 and 1/4. Both norms are known, so the
    // sums are: of one each, (16 + 16) / (16 + 32) = .67 and (16 + 8) / 48 = .5; of two lone ones and one flat, 48/64 = .75
    // and 40/64 = .625.
    let (lone, flat) = ([4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [2.0; 8]);
    for (world, epsilon, agreed) in
        [(2, 0.6, 2.0), (2, 0.45, 4.0), (2, 0.7, 1.0), (3, 0.7, 2.0), (3, 0.6, 4.0), (3, 0.8, 1.0)]
    {
        let ranks = Local::run(world, |mut comm| {
            // The flat one alone would send dense or safe, the others bold.
            let input = if comm.rank() == 1 { flat } else { lone };
            let mut seen = Vec::new();
            for other_first in [false, true] {
                // The result does not depend on which rank has which vector.
                let swapped = if comm.rank() == 0 { flat } else { lone };
                let input = if other_first { swapped } else { input };
                let (average, _, ratio) = exchange(&mut fed(epsilon, world), 0, &input, &mut comm)?;
                seen.push((ratio, average.iter().map(|v| v.to_bits()).collect::<Vec<_>>()));
            }
            Ok::<_, ReduceError>(seen)
        });
        let ranks: Vec<_> = ranks.into_iter().map(Result::unwrap).collect();
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{world} ranks, epsilon {epsilon}");
        assert!(ranks[0].iter().all(|(ratio, _)| *ratio == agreed), "{world} ranks, epsilon {epsilon}: {ranks:?}");
        let alone = |input: [f32; 8]| {
            let mut comm = Local::world(1).remove(0);
            exchange(&mut fed(epsilon, 1), 0, &input, &mut comm).unwrap().2
        };
        assert_eq!(alone(lone), 4.0);
        assert!(alone(flat) < 4.0, "epsilon {epsilon}");
    }
}
