//! Identities: where two algorithms are equivalent, both give the same numbers. These tests are cheap, and detect any
//! difference in scaling, keys or order.
//!
//! | if | then | checked by |
//! |---|---|---|
//! | local SGD, `H` = 1, plain SGD | minibatch SGD with the mean gradient | `local_sgd_that_averages_every_step_is_minibatch_sgd` |
//! | error feedback, EF21 or DIANA with the identity | SGD | `memories_around_the_identity_change_nothing` |
//! | DIANA, `h` = 0 and `α` → 0 | compressed gradient descent | `diana_whose_memory_stands_still_is_compressed_descent` |
//! | QSGD, one level, largest magnitude | TernGrad without clipping | `tern_grad_has_its_closed_variance_and_qsgds_draws`, `tern_grad::tests` |
//! | natural dithering, as many levels as there are | natural compression of `x/‖x‖`, rescaled | `dithering_to_all_powers_of_two_is_natural_compression_rescaled` |
//! | top-k after top-k', `k` ≤ `k'` | top-k | `top_k_after_a_larger_top_k_is_top_k` |
//! | `R` rounds of top-k | one top-(Rk) | `rounds_of_top_k_with_feedback_are_one_top_k`, `multi_step::tests` |
//! | NEOLITHIC, `R` = 1 | the plain compressed step, same feedback | `one_round_of_neolithic_is_the_plain_step`, `multi_step::tests` |
//! | PowerSGD, as many columns as the mean matrix has ranks | the exact gradient | `power_sgd_of_as_many_columns_as_the_mean_has_ranks_is_exact`, `power_sgd::tests` |
//! | PowerSGD, `r(n + m)` ≥ `nm` (so wherever `r` ≥ min(n, m)) | dense | `power_sgd_sends_dense_what_factors_would_not_shorten` |
//! | GraVAC, `ε` = 0; `ε` > 1 | always the candidate; always dense | `gravac::tests::epsilon_zero_…`, `tests/all/gravac` `golden_3_above_1_…` |
//! | DQ-SGD, `B` fixed | QSGD with `2^(B−1) − 1` levels | `qsgd_of_b_bits_has_two_to_the_b_minus_1_minus_1_levels` |
//! | momentum correction, dense | momentum SGD | `momentum_correction::tests::with_every_exchange_dense_it_is_momentum_sgd` |
//! | the sketch with every coordinate; shared random-k, `k = d` | dense | `sketched_sgd::tests`, `shared_random_k::tests` |
//! | a coded sparsifier with dense values | the sparsifier | `coded::tests::with_dense_values_it_is_the_sparsifier` |
//! | SlowMo, `α` = 1, `β` = 0; a period of 1; one rank | Local SGD; momentum SGD; Lookahead | `slow_mo::tests`, the first three |
//! | SGP on a complete graph; `2^m` ranks on the exponential graph, `m` hops | Local SGD, `H` = 1; the exact mean | `sgp::tests::a_complete_graph_…`, `…a_power_of_two_…` |
//! | SGP, every rank with equal numbers of in- and out-neighbors | `w` is 1 and `z` is `x`: D-PSGD | `mixing.rs` `where_as_many_come_as_go_…` |
//! | hierarchical in groups of 1; all ranks in one group | the reducer between machines; dense | `mixing.rs` `hierarchical_…` |
//! | two levels on one machine; one rank on each machine | synchronous SGD; the strategy between machines | `two_level::tests::with_one_machine_…` |
//! | Overlap-Local-SGD, `α` = 0 | ranks without communication | `overlap_local_sgd::tests::without_a_pull_…` |
//! | minibatches in rounds of `K` gradients | one step with a batch of `K` times the size | `minibatch::tests::it_is_minibatch_sgd_…` |
//! | delayed gradients | every step's averages, one step before | `delayed::tests::the_averages_are_those_of_every_step` |
//! | Artemis, all ranks, lossless downlink | DIANA; PP1 is PP2 | `artemis::tests::where_all_take_part_…` |
//! | DiLoCo, `ρ` = 1, `μ` = 0; a period of 1 | Local SGD; minibatch SGD | `diloco::tests::of_rate_1_…` |
//! | Streaming DiLoCo of one fragment, without overlap; one rank, `ρ` = 1, `μ` = 0 | DiLoCo; SGD | `streaming_diloco::tests::of_one_fragment_…`, `…one_rank_…` |
//! | BMUF, `η` = 0; a constant rate | Local SGD; SlowMo, `α` = 1 | `bmuf::tests::without_momentum_…`, `…at_a_constant_rate_…` |
//! | Local SGD, `H` = 1, momentum SGD, momenta kept or averaged | minibatch momentum SGD | `periodic::tests::of_one_step_…` |
//! | CoCoD-SGD of one rank | SGD | `cocod::tests::one_rank_alone_…` |
//! | LSGD of one rank | SGD | `lsgd::tests::one_rank_alone_is_plain_sgd` |
//! | Parle, one rank or no coupling; `L` = 1, `α` = 0; the same with one rank | Entropy-SGD; elastic SGD; SGD | `parle::tests::without_springs_…`, `…of_one_step_…` |
//! | backup ranks, `b` = 0, dense or top-k with error feedback | every step | `server::golden::backup_ranks_without_spares_…` |
//! | Picky SGD without a threshold; asynchronous SGD, Picky SGD or backup ranks of one worker | asynchronous SGD; SGD | `server::picky::tests::without_a_threshold_…`, `server::golden::one_worker_is_sgd` |
//! | SYNTHESIS, `Δ` = 0; `q` = 1 | SPIDER; gradient descent | `server::synthesis::tests::without_delays_…`, `…of_epochs_of_1_…` |
//! | trimmed mean, the largest `b`; CGE, `f` = 0; RFA on a line | the median; the mean; the median | `trimmed_mean::tests`, `cge::tests::by_hand`, `geometric_median::tests::by_hand` |
//! | majority vote of one rank; of an odd world | signSGD; the median of signs | `both_ways.rs` `a_vote_of_one_rank_…` |
//! | Signum, `β` = 0 | majority vote | `both_ways.rs` `signum_without_momentum_…` |
//! | compressed both ways, without loss | the exact mean | `both_ways.rs` `nothing_lost_…` |
//! | 1-bit Adam before the warm-up ends | a dense exchange, so Adam | `both_ways.rs` `one_bit_adam_…`, `one_bit_adam::tests` |
//! | MCM, lossless downlink | Artemis, so DIANA | `mcm::tests::without_loss_…` |
//! | smoothness-aware, one smoothness everywhere | DIANA; with `α` = 0 the gather | `smooth::tests::with_the_same_smoothness_…` |

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::{Local, run_ranks};
use briquette_core::compress::{Compressor, Norm, natural::Natural, tern_grad::TernGrad, top_k::TopK};
use briquette_core::config::{CompressorConfig, Config, Exchange, Feedback, ReducerConfig};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Reducer, Round, gather::Gather, power_sgd::PowerSgdConfig};
use briquette_core::report::Report;
use briquette_core::step::Driver;
use briquette_core::sync::Header;
use briquette_core::{CompressionRatio, Key, Layout, Message};
use briquette_zoo::compress::exponential_dithering::ExponentialDithering;
use briquette_zoo::reduce::multi_step::MultiStepConfig;
use briquette_zoo::wrapper::shifted::{Diana, Ef21, Shifted};
use rand::Rng;

mod both_ways;
mod mixing;

fn layout() -> Layout {
    Layout::new([("matrix", vec![10, 6]), ("bias", vec![10])])
}

/// Multiples of 1/64: sums, halves and quarters are exact.
fn dyadic(rank: usize, step: u64, len: usize) -> Vec<f32> {
    let mut rng = Key::new(8).step(step).rank(rank).block(0);
    (0..len).map(|_| f32::from(rng.random_range(-1000_i16..1000)) / 64.0).collect()
}

/// Plain SGD on `½‖x − c‖²`. Returns the parameters of every rank.
fn train(config: &Config, world: usize, steps: u64) -> Vec<Vec<f32>> {
    let centre = |rank, step| dyadic(rank, step, layout().len());
    train_to(config, world, steps, centre).into_iter().map(|(x, _)| x).collect()
}

/// Trains towards these centers, one per rank and step. Also returns the report of the last exchange.
fn train_to(
    config: &Config,
    world: usize,
    steps: u64,
    centre: impl Fn(usize, u64) -> Vec<f32> + Sync,
) -> Vec<(Vec<f32>, Report)> {
    let ranks = run_ranks(Local::world(world), |mut comm| {
        let layout = layout();
        let mut strategy = config.build(&layout, world).expect("a valid configuration");
        let mut x = vec![0.0; layout.len()];
        strategy.begin(&x);
        let mut driver = Driver::new(Key::new(5));
        driver.drive(strategy, layout);
        for step in 0..steps {
            let centre = centre(comm.rank(), step);
            let mut gradient: Vec<f32> = x.iter().zip(centre).map(|(x, c)| x - c).collect();
            // A rate of ¼ and centers with few digits: every sum is exact for a few steps.
            let optimize = |x: &mut [f32], g: &[f32]| x.iter_mut().zip(g).for_each(|(x, g)| *x -= 0.25 * g);
            driver
                .take_step(Header { samples: 1, ..Header::default() }, (&mut gradient, &mut x), optimize, &mut comm)
                .expect("no rank fails");
        }
        Ok::<_, ReduceError>((x, driver.report()))
    });
    ranks.into_iter().collect::<Result<_, _>>().expect("no rank fails")
}

fn exchange(reducer: ReducerConfig, feedback: &Feedback) -> Config {
    Config::every_step(Exchange { reducer, feedback: feedback.clone(), ..Exchange::default() })
}

fn gather(text: &str) -> ReducerConfig {
    ReducerConfig::gather(text.parse().expect("the text of a compressor"))
}

fn message(compressor: &mut dyn Compressor, x: &[f32], key: Key) -> Message {
    let mut out = Message::default();
    compressor.compress_into(x, key, &mut out);
    out
}

fn decoded(compressor: &mut dyn Compressor, x: &[f32], key: Key) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    message(compressor, x, key).decode_into(&mut out).expect("its own length");
    out
}

#[test]
fn local_sgd_that_averages_every_step_is_minibatch_sgd() {
    let local = Config::local_sgd(1);
    for world in [1, 2, 4] {
        assert_eq!(train(&local, world, 4), train(&Config::dense(), world, 4), "{world} ranks");
    }
    // Thirds are not exact.
    let off = train(&local, 3, 4).concat().into_iter().zip(train(&Config::dense(), 3, 4).concat());
    assert!(off.into_iter().all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs().max(1.0)));
    assert_ne!(train(&Config::local_sgd(2), 2, 3), train(&Config::dense(), 2, 3));
}

#[test]
fn memories_around_the_identity_change_nothing() {
    let diana = |alpha| Feedback::from(Diana { alpha });
    for world in [1, 2, 4] {
        let plain = train(&Config::dense(), world, 4);
        for feedback in [Feedback::error(), Ef21.into(), diana(None), diana(Some(0.5))] {
            for reducer in [ReducerConfig::dense(), gather("dense")] {
                let config = exchange(reducer, &feedback);
                assert_eq!(train(&config, world, 4), plain, "{config:?}, {world} ranks");
            }
        }
    }
}

#[test]
fn diana_whose_memory_stands_still_is_compressed_descent() {
    // The smallest positive step: compared with gradients of at least 1/64 the memory adds nothing.
    let run = |alpha: Option<f32>| {
        let ranks = run_ranks(Local::world(3), |mut comm| {
            let gather = Gather::new("qsgd:3:16:l2".parse::<CompressorConfig>().expect("a text").build(), Mean);
            let mut reducer: Box<dyn Reducer> = match alpha {
                None => Box::new(gather),
                Some(alpha) => Box::new(Shifted::diana(gather, alpha).expect("within (0, 1]")),
            };
            let (layout, mut averages) = (layout(), Vec::new());
            for step in 0..5 {
                let agreed_step = AgreedStep { step, ..AgreedStep::default() };
                let (input, mut average) = (dyadic(comm.rank(), step, layout.len()), vec![0.0; layout.len()]);
                let (key, slots) = (Key::new(5).step(step), layout.slots());
                let round =
                    Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
                reducer.exchange(round, &mut comm)?;
                averages.push(average);
            }
            Ok::<_, ReduceError>(averages)
        });
        ranks.into_iter().map(|averages| averages.expect("no rank fails")).collect::<Vec<_>>()
    };
    let plain = run(None);
    // The memory is empty at the first step, whatever alpha is.
    assert_eq!(run(Some(0.25))[0][0], plain[0][0]);
    assert_ne!(run(Some(0.25))[0][1], plain[0][1]);
    let still = run(Some(f32::MIN_POSITIVE)).concat().concat();
    assert!(still.iter().zip(plain.concat().concat()).all(|(a, b)| (a - b).abs() < 1e-30));
}

#[test]
fn tern_grad_has_its_closed_variance_and_qsgds_draws() {
    let x = dyadic(0, 0, 40);
    let largest = x.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
    let sum = |of: &dyn Fn(f64) -> f64| x.iter().map(|v| of(f64::from(*v))).sum::<f64>();
    let closed = largest * sum(&f64::abs) - sum(&|v| v * v);
    assert!((TernGrad::unclipped().error(&x) / closed - 1.0).abs() < 1e-6);
    let mut qsgd = "qsgd:s1:40:max".parse::<CompressorConfig>().expect("a text").build();
    let draws = 20_000;
    let mut energy = 0.0;
    for step in 0..draws {
        let key = Key::new(3).step(step);
        let out = decoded(&mut TernGrad::unclipped(), &x, key);
        assert_eq!(out, decoded(&mut *qsgd, &x, key));
        energy += out.iter().zip(&x).map(|(v, x)| f64::from(v - x).powi(2)).sum::<f64>();
    }
    assert!((energy / draws as f64 / closed - 1.0).abs() < 0.02, "{energy} over {draws} draws of {closed}");
}

#[test]
fn dithering_to_all_powers_of_two_is_natural_compression_rescaled() {
    let x: Vec<f32> = dyadic(0, 1, 3000).iter().map(|v| 0.3 * v * v * v).collect();
    let scale = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    assert!(scale.to_bits() & 0x7f_ffff != 0, "no power of two");
    let shares: Vec<f32> = x.iter().map(|v| v / scale).collect();
    let mut dither = ExponentialDithering::new(2.0, 127, x.len(), Norm::Max).expect("valid settings");
    for step in 0..20 {
        let key = Key::new(6).step(step);
        let natural: Vec<f32> = decoded(&mut Natural, &shares, key).iter().map(|v| v * scale).collect();
        assert_eq!(decoded(&mut dither, &x, key), natural);
    }
}

#[test]
fn top_k_after_a_larger_top_k_is_top_k() {
    // Distinct magnitudes, so there are no ties.
    let x: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin() * (1.0 + i as f32 * 1e-3)).collect();
    let top = |ratio| TopK::ratio(CompressionRatio::new(ratio).expect("at least 1"));
    for (coarse, fine) in [(2.0, 50.0), (10.0, 10.0), (3.0, 1000.0)] {
        let first = decoded(&mut top(coarse), &x, Key::new(0));
        let direct = message(&mut top(fine), &x, Key::new(0));
        assert_eq!(message(&mut top(fine), &first, Key::new(0)), direct, "{coarse} then {fine}");
        let mut refined = Message::default();
        top(fine).refine_into(&x, &message(&mut top(coarse), &x, Key::new(0)), Key::new(0), &mut refined);
        assert_eq!(refined, direct, "{coarse} refined to {fine}");
    }
}

#[test]
fn rounds_of_top_k_with_feedback_are_one_top_k() {
    // 70 values: 7 a round, 21 in all.
    for feedback in [Feedback::error(), Ef21.into()] {
        for world in [1, 2, 4] {
            let rounds = MultiStepConfig { rounds: 3, inner: gather("topk:10x") }.into();
            let one = train(&exchange(gather("topk:0.3"), &feedback), world, 6);
            assert_eq!(train(&exchange(rounds, &feedback), world, 6), one, "{feedback:?}, {world} ranks");
        }
    }
}

#[test]
fn one_round_of_neolithic_is_the_plain_step() {
    for (text, feedback) in [
        ("topk:10x", Feedback::error()),
        ("sign:16", Feedback::error()),
        ("topk:10x", Ef21.into()),
        ("qsgd:3:16:l2", Feedback::none()),
        ("qsgd:3:16:l2", Diana { alpha: None }.into()),
    ] {
        let once = MultiStepConfig { rounds: 1, inner: gather(text) }.into();
        let plain = train(&exchange(gather(text), &feedback), 3, 6);
        assert_eq!(train(&exchange(once, &feedback), 3, 6), plain, "{text}, {feedback:?}");
    }
}

fn power(columns: usize) -> Config {
    exchange(PowerSgdConfig { rank: columns }.into(), &Feedback::none())
}

/// A matrix of rank 1 that differs between ranks, and a vector of full length.
fn outer(rank: usize, _: u64) -> Vec<f32> {
    let (left, right) = (dyadic(rank, 1, 10), dyadic(rank, 2, 6));
    let matrix = left.iter().flat_map(|l| right.iter().map(move |r| l * r / 64.0));
    matrix.chain(dyadic(rank, 3, 10)).collect()
}

#[test]
fn power_sgd_of_as_many_columns_as_the_mean_has_ranks_is_exact() {
    // The mean of `world` matrices of rank 1 has rank `world`, and so has the gradient from a start at 0.
    for world in 1..=3 {
        let plain = train_to(&Config::dense(), world, 4, outer);
        for columns in 1..=3 {
            let factors = train_to(&power(columns), world, 4, outer);
            // Factors were sent: of 70 values `columns` of 10 and of 6, and the vector of 10.
            let sent = factors[0].1.ratio.expect("PowerSGD knows it").get();
            assert_eq!(sent, 70.0 / (16 * columns + 10) as f64);
            let off = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0, |m: f32, (a, b)| m.max((a - b).abs()));
            let off = factors.iter().zip(&plain).map(|(a, b)| off(&a.0, &b.0)).fold(0.0, f32::max);
            match columns >= world {
                true => assert!(off < 1e-4, "{columns} columns, {world} ranks: off by {off}"),
                false => assert!(off > 0.1, "{columns} columns, {world} ranks: off by {off}"),
            }
        }
    }
}

#[test]
fn power_sgd_sends_dense_what_factors_would_not_shorten() {
    // Six columns of ten rows: 3·(10 + 6) is less than 60, 4·(10 + 6) is not.
    let plain = train(&Config::dense(), 2, 4);
    for columns in [4, 6, 100] {
        assert_eq!(train(&power(columns), 2, 4), plain, "{columns} columns");
    }
    assert_ne!(train(&power(3), 2, 4), plain);
}

#[test]
fn qsgd_of_b_bits_has_two_to_the_b_minus_1_minus_1_levels() {
    let x = dyadic(0, 2, 500);
    for bits in 2..=8_u32 {
        let levels = (1 << (bits - 1)) - 1;
        for rest in ["512:max", "64:l2", "64:l2:elias"] {
            let config = |first: String| format!("qsgd:{first}:{rest}").parse::<CompressorConfig>().expect("a text");
            let (by_bits, by_levels) = (config(bits.to_string()), config(format!("s{levels}")));
            assert_eq!(by_bits, by_levels);
            let [a, b] = [by_bits, by_levels].map(|config| message(&mut *config.build(), &x, Key::new(bits.into())));
            assert_eq!(a, b);
        }
        // That is the number of steps up to the scale: an integer multiple is sent exactly, whatever is drawn.
        let whole = [1.0, 1.0 / levels as f32];
        let qsgd = &mut *format!("qsgd:{bits}").parse::<CompressorConfig>().expect("a text").build();
        assert!((0..50).all(|step| decoded(qsgd, &whole, Key::new(1).step(step)) == whole), "{bits} bits");
        let half = [1.0, 0.5 / levels as f32];
        assert!((0..50).any(|step| decoded(qsgd, &half, Key::new(1).step(step))[1] == whole[1]), "{bits} bits");
        assert!((0..50).any(|step| decoded(qsgd, &half, Key::new(1).step(step))[1] == 0.0), "{bits} bits");
    }
}
