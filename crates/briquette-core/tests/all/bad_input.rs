//! Rare inputs that break careless code: empty vectors, one value, zeros of both signs, equal values, denormal and huge ones,
//! and non-finite values. One table, over every compressor alone and every configuration with two ranks.
//!
//! A finite input gives a finite output, or an error that names the slot. Nothing panics, and no state holds a non-finite
//! value.

use briquette_core::comm::Local;
use briquette_core::compress::{Compressor, ErrorBound};
use briquette_core::config::{AggregatorConfig, CompressorConfig, Config, Exchange, exchanges, representatives};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{
    AgreedStep, Reducer, Round,
    gather::{Gather, Grain},
};
use briquette_core::report::Report;
use briquette_core::state::{State, Value};
use briquette_core::{CompressionRatio, Key, Layout, Message};

const MAX: f32 = f32::MAX;
const TINY: f32 = 1e-45;

/// Name and vector.
fn table() -> Vec<(&'static str, Vec<f32>)> {
    let mut hot = vec![0.0; 1030];
    hot[600] = -3.7e-5;
    let ramp = |of: &dyn Fn(f32) -> f32| (0..700).map(|i| of(i as f32 - 350.0)).collect::<Vec<f32>>();
    vec![
        ("empty", vec![]),
        ("one value", vec![-2.5]),
        ("one zero", vec![0.0]),
        ("zeros", vec![0.0; 64]),
        ("negative zeros", vec![-0.0; 33]),
        ("zeros of both signs", ramp(&|i| 0.0 * i)),
        ("all equal", vec![0.7; 1100]),
        ("all equal, negative", vec![-0.7; 33]),
        ("one-hot", hot),
        ("one denormal", vec![TINY]),
        ("denormals", ramp(&|i| i * TINY)),
        ("denormal and normal", vec![TINY, -3e-40, 1.0, f32::MIN_POSITIVE]),
        ("one that is largest", vec![MAX]),
        ("all largest", vec![MAX; 600]),
        ("largest of both signs", ramp(&|i| if i < 0.0 { -MAX } else { MAX })),
        ("near the largest", ramp(&|i| i * (MAX / 350.0))),
        ("largest and smallest", vec![MAX, -MAX, TINY, 0.0, -0.0, -TINY]),
    ]
}

/// Returns every compressor of a representative, and every default.
fn compressors() -> Vec<CompressorConfig> {
    briquette_zoo::install();
    let of = |exchange: &Exchange| exchange.reducer.get().compressor();
    let mut all: Vec<CompressorConfig> = exchanges().iter().filter_map(of).collect();
    all.extend(CompressorConfig::defaults());
    all
}

#[test]
fn every_compressor_gives_finite_values_of_every_finite_vector() {
    for config in compressors() {
        for (name, x) in table() {
            let (mut compressor, mut message, mut out) = (config.build(), Message::default(), vec![f32::NAN; x.len()]);
            compressor.compress_into(&x, Key::new(5), &mut message);
            message.decode_into(&mut out).unwrap();
            assert!(out.iter().all(|v| v.is_finite()), "{config} of {name}: {out:?}");
            let largest = |x: &[f32]| x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            // A plain sign cannot represent zero.
            let signs = config.to_string() == "plain-sign";
            assert!(signs || largest(&x) > 0.0 || largest(&out) == 0.0, "{config} of {name}: something of nothing");
            let (mut bytes, mut back) = (Vec::new(), Message::default());
            message.encode_into(&mut bytes);
            back.decode_from(&bytes).unwrap();
            assert_eq!(back, message, "{config} of {name}");
            let (ErrorBound::Contractive { delta: constant }
            | ErrorBound::MeanContractive { delta: constant }
            | ErrorBound::Unbiased { omega: constant }
            | ErrorBound::Biased { omega: constant }) = compressor.error_bound(&x)
            else {
                panic!("{config} of {name}: a bound that this test does not know")
            };
            let bounded = constant.is_finite() || (signs && largest(&x) == 0.0);
            assert!(constant >= 0.0 && bounded, "{config} of {name}: class {:?}", compressor.error_bound(&x));
            assert!(message.error_energy(&x).is_finite() && message.kept_energy(&x).is_finite(), "{config} of {name}");
        }
    }
}

/// One rank's outcome of a step.
type Step = Result<Vec<f32>, ReduceError>;

/// Runs some steps of a configuration with two ranks (or as many as it needs), odd ranks with the vector negated and reversed
/// if `mirrored`. After an error the others are notified, and the run ends.
fn run(exchange: &Exchange, x: &[f32], mirrored: bool) -> Vec<Vec<(Step, State)>> {
    let world = exchange.min_ranks().max(2);
    let ranks = Local::run(world, |mut comm| {
        let layout = layout(x.len());
        let mut reducer = exchange.build_reducer(&layout, world).unwrap();
        let own: Vec<f32> = match comm.rank() % 2 == 1 && mirrored {
            true => x.iter().rev().map(|v| -v).collect(),
            false => x.to_vec(),
        };
        let mut steps = Vec::new();
        for step in 0..3 {
            let mut average = vec![f32::NAN; x.len()];
            let (key, slots, agreed_step) = (
                Key::new(5).step(step),
                layout.slots(),
                AgreedStep { step, learning_rate: Some([0.5, 4.0, 0.25][step as usize % 3]), ..AgreedStep::default() },
            );
            let round = Round { key, slots, agreed_step: &agreed_step, input: &own, average: &mut average, sent: None };
            let before = saved(&*reducer);
            let outcome = reducer.exchange(round, &mut comm).map(|_| average);
            let (state, failed) = (saved(&*reducer), outcome.is_err());
            assert!(
                !failed || state == before,
                "{exchange:?}, step {step}: {outcome:?} changed {before:?} to {state:?}"
            );
            steps.push((outcome, state));
            if failed {
                comm.abort("the step failed");
                break;
            }
        }
        Ok::<_, ReduceError>(steps)
    });
    ranks.into_iter().map(|steps| steps.expect("outcomes are kept")).collect()
}

fn saved(reducer: &dyn Reducer) -> State {
    let mut state = State::default();
    reducer.save(&mut state);
    state
}

/// Returns a layout of matrices with and without a rule and a few values if there are enough, and the rest.
fn layout(len: usize) -> Layout {
    match len {
        0..60 => Layout::new([("only.weight", vec![len])]),
        _ => Layout::new([
            ("matrix.weight", vec![5, 5]),
            ("square", vec![5, 5]),
            ("few", vec![4]),
            ("rest.bias", vec![len - 54]),
        ]),
    }
}

#[test]
fn every_configuration_gives_finite_averages_or_names_the_slot() {
    briquette_zoo::install();
    for exchange in exchanges() {
        for (name, x) in table() {
            if let Err(error) = exchange.build_reducer(&layout(x.len()), exchange.min_ranks().max(2)) {
                // The rule has nothing to match.
                assert!(!exchange.rules.is_empty() && error.to_string().contains("matches no slot"), "{error}");
                continue;
            }
            for mirrored in [false, true] {
                let runs = run(&exchange, &x, mirrored);
                let what = format!("{exchange:?} of {name}, mirrored: {mirrored}");
                let mut named = false;
                for (step, (outcome, state)) in runs.iter().flat_map(|run| run.iter().enumerate()) {
                    match outcome {
                        Ok(average) => {
                            assert!(average.iter().all(|v| v.is_finite()), "{what}, step {step}: {average:?}")
                        }
                        Err(ReduceError::NonFinite { slot, .. } | ReduceError::Overflow { slot }) => {
                            named |= ["only.weight", "matrix.weight", "square", "few", "rest.bias"].contains(&&**slot)
                        }
                        // The other rank's error was first.
                        Err(ReduceError::Comm(_)) => {}
                        Err(error) => panic!("{what}, step {step}: {error}"),
                    }
                    for (entry, values) in floats(state) {
                        assert!(values.iter().all(|v| v.is_finite()), "{what}, step {step}: {entry} {values:?}");
                    }
                }
                let failed = runs.iter().flatten().any(|(outcome, _)| outcome.is_err());
                assert!(named || !failed, "{what}: nobody names the slot");
                // Only inputs near the largest number may fail.
                assert!(!failed || x.iter().any(|v| v.abs() > 1e30), "{what}: {runs:?}");
            }
        }
    }
}

/// A strategy's header rejects such vectors for all ranks (law 10); a layer with state does not rely on it.
#[test]
fn no_memory_takes_in_what_is_not_finite() {
    briquette_zoo::install();
    for exchange in exchanges().into_iter().filter(|exchange| exchange.feedback.get().requirement().keeps_state()) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![0.5; 100];
            x[70] = bad;
            for run in run(&exchange, &x, false) {
                let (outcome, state) = &run[0];
                match outcome {
                    Err(ReduceError::NonFinite { slot, .. }) => assert_eq!(slot, "rest.bias"),
                    // The other rank's error was first.
                    Err(ReduceError::Comm(_)) => {}
                    other => panic!("{exchange:?}: {other:?}"),
                }
                assert!(floats(state).all(|(_, values)| values.iter().all(|v| *v == 0.0)), "{exchange:?}: {state:?}");
            }
        }
    }
}

/// Sends a message of one value in place of the vector, on one rank.
struct Short(bool);

impl Compressor for Short {
    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        out.write_dense(if self.0 { &x[..1] } else { x }).unwrap();
    }
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 1.0 }
    }
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::DENSE
    }
}

/// An aggregator that rates contributions would compare only their first value, and another rank's selection would hide it.
/// Under a mean the message is an error. Other aggregators combine the contributions of the other ranks, and the report names
/// this one.
#[test]
fn a_message_shorter_than_the_vector_counts_under_no_aggregator() {
    briquette_zoo::install();
    for aggregator in AggregatorConfig::all() {
        for (grain, liar) in [(Grain::Whole, 0), (Grain::PerSlot, 0), (Grain::Whole, 4)] {
            let ranks = Local::run(5, |mut comm| {
                let mut gather = Gather::new(Short(comm.rank() == liar), aggregator.get().build()).grain(grain);
                let layout = Layout::new([("a", vec![3]), ("b", vec![4])]);
                let (input, mut average, agreed_step) = ([comm.rank() as f32; 7], [0.0; 7], AgreedStep::default());
                let (key, slots) = (Key::new(1), layout.slots());
                let round =
                    Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
                gather.reduce(round, &mut comm)?;
                let mut report = Report::default();
                gather.report(&mut report);
                Ok::<_, ReduceError>(report.excluded)
            });
            for (rank, outcome) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != liar) {
                if !aggregator.get().is_mean() && aggregator.get().min_ranks() <= 5 {
                    assert_eq!(outcome, Ok(vec![liar]), "{aggregator}, rank {rank}");
                    continue;
                }
                let error = outcome.expect_err(&format!("{aggregator}, rank {rank}")).to_string();
                assert!(error.contains(&format!("rank {liar}")) && error.contains("1 values"), "{aggregator}: {error}");
            }
        }
    }
}

#[test]
fn settings_outside_their_range_fail_before_anybody_talks() {
    briquette_zoo::install();
    let layout = layout(100);
    for (text, says) in [
        ("reducer = { kind = 'power-sgd', rank = 0 }", "at least 1"),
        ("reducer = { kind = 'multi-step', rounds = 0, inner = { kind = 'dense' } }", "1 to 1000"),
        ("reducer = { kind = 'shared-random-k', ratio = 0.5 }", "at least 1"),
        ("reducer = { kind = 'shared-random-k', ratio = nan }", "at least 1"),
        ("reducer = { kind = 'sparse-all-reduce', ratio = inf }", "at least 1"),
        ("reducer = { kind = 'sketched-sgd', ratio = 8.0, rows = 0 }", "rows"),
        ("reducer = { kind = 'sketched-sgd', ratio = 8.0, width = 0.0 }", "width"),
        ("reducer = { kind = 'sketched-sgd', ratio = 8.0, width = nan }", "width"),
        ("reducer = { kind = 'sketched-sgd', ratio = 8.0, candidates = 0 }", "candidates"),
        ("bucket_values = 0", "at least 1"),
        ("feedback = { kind = 'diana', alpha = 0.0 }", "in (0, 1]"),
        ("feedback = { kind = 'diana', alpha = -1.0 }", "in (0, 1]"),
        ("feedback = { kind = 'momentum', momentum = 1.0 }", "in [0, 1)"),
        ("feedback = { kind = 'momentum', momentum = nan }", "in [0, 1)"),
        ("feedback = { kind = 'momentum', clip = 0.0 }", "above 0"),
        ("reducer = { kind = 'gather', compressor = 'topk:0' }", "at most 1"),
        ("reducer = { kind = 'gather', compressor = 'hard-threshold:nan' }", "above 0"),
        ("reducer = { kind = 'gather', compressor = 'dither:1' }", "1.01"),
        ("aggregator = 'krum:1'", "krum:1 does not go with a world of 4 ranks: it needs at least 5 ranks"),
        (
            "aggregator = 'krum:0,keep=3'",
            "krum:0,keep=3 does not go with a world of 4 ranks: it needs at least 5 ranks",
        ),
        ("aggregator = 'krum:x'", "whole number"),
        ("aggregator = 'cge:2'", "cge:2 does not go with a world of 4 ranks: it needs at least 5 ranks"),
        ("aggregator = 'cge:18446744073709551615'", "needs at least 18446744073709551615 ranks"),
        ("aggregator = 'geometric-median:0'", "rounds of geometric-median must be 1 to 1000"),
        ("aggregator = 'geometric-median:3,smoothing=nan'", "smoothing of geometric-median must be above 0"),
        ("aggregator = 'licm:0.5'", "reach of licm must be at least 1"),
        (
            "reducer = 'dense'\naggregator = 'median'",
            "does not go with reducer dense: it combines messages, and the reducer exchanges otherwise; use reducer gather",
        ),
        (
            "aggregator = 'geometric-median'\nbucket_values = 9\nreducer = { kind = 'gather', compressor = 'sign' }",
            "leave out bucket_values",
        ),
        ("aggregator = 'krum:18446744073709551615'", "needs at least 18446744073709551615 ranks"),
        ("aggregator = 'krum:1,keep=18446744073709551615'", "needs at least 18446744073709551615 ranks"),
        ("aggregator = 'trimmed-mean:9223372036854775808'", "needs at least 18446744073709551615 ranks"),
        (
            "feedback = 'error'\ncontroller = { kind = 'schedule', from = 8.0 }\n\
             reducer = { kind = 'gather', compressor = 'qsgd:8' }",
            "under a controller gather may get so few levels",
        ),
        (
            "aggregator = 'trimmed-mean:2'",
            "trimmed-mean:2 does not go with a world of 4 ranks: it needs at least 5 ranks",
        ),
        (
            "reducer = 'dense'\naggregator = 'trimmed-mean:1'",
            "does not go with reducer dense: it combines messages, and the reducer exchanges otherwise; use reducer gather",
        ),
        ("aggregator = 'trimmed-mean:1'\nreducer = { kind = 'power-sgd', rank = 1 }", "reducer power-sgd"),
        (
            "aggregator = 'trimmed-mean:1'\ndense_below = 9\nreducer = { kind = 'gather', compressor = 'sign' }",
            "leave out rules and dense_below",
        ),
        (
            "aggregator = 'krum:0'\nbucket_values = 9\nreducer = { kind = 'gather', compressor = 'sign' }",
            "leave out bucket_values",
        ),
        (
            "aggregator = 'krum:0'\ncontroller = { kind = 'gravac' }\nreducer = { kind = 'gather', compressor = 'topk:0.1' }",
            "under a controller dense steps are averaged",
        ),
        (
            "aggregator = 'krum:0'\nfeedback = 'ef21'\nreducer = { kind = 'gather', compressor = 'sign' }",
            "is not linear, and the memories of diana and ef21",
        ),
    ] {
        let config = toml::from_str::<Config>(&format!("strategy = 'every-step'\n{text}"));
        let error = match config {
            Ok(config) => config.build(&layout, 4).map(drop).expect_err(text).to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(says), "{text}: {error}");
    }
    assert!(Config::dense().build(&layout, 0).is_err());
    // An empty vector has no parameters, and is no reason to fail.
    assert!(
        representatives()
            .iter()
            .all(|config| config.build(&Layout::new([("weight", vec![0]), ("bias", vec![0])]), 5).is_ok())
    );
}

fn floats(state: &State) -> impl Iterator<Item = (&str, &Vec<f32>)> {
    state.iter().filter_map(|(name, value)| match value {
        Value::F32s(values) => Some((name, values)),
        _ => None,
    })
}
