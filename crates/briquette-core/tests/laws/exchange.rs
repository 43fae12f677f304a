//! Laws of one exchange: agreement, honesty, accounting, equal decisions.

use std::num::NonZeroUsize;

use crate::{exchanges, representatives};
use briquette_core::comm::{Local, SMALL_ALL_REDUCE, all_reduce_traffic};
use briquette_core::config::{CompressorConfig, Config, Exchange, ReducerConfig};
use briquette_core::reduce::{AgreedStep, Reducer, Round};
use briquette_core::sync::Plan;
use briquette_core::{Key, Layout, Message, Traffic};

use crate::memory::Memory;
use briquette_core::laws::{self, Outcome, Reduces, Setup, gradient, long, short};

#[test]
fn law_1_replicas_are_bit_identical_or_conserve_a_mean() {
    for config in representatives() {
        for setup in Setup::<Config>::all(&config) {
            laws::agrees(&setup);
            laws::conserves_its_mean(&setup);
        }
    }
}

#[test]
fn between_its_averages_local_sgd_says_nothing() {
    let config = Config::local_sgd(5);
    for (rank, run) in Setup::short(&config, 3).run(11).into_iter().enumerate() {
        let due: Vec<usize> = (0..11).filter(|&step| run[step].plan == Some(Plan::PARAMETERS)).collect();
        assert_eq!(due, [4, 9]);
        for (step, outcome) in run.iter().enumerate() {
            let moves =
                if due.contains(&step) { all_reduce_traffic(short().len(), 3, rank) } else { Traffic::default() };
            assert_eq!((outcome.counted, outcome.reported), (moves, moves), "step {step}");
        }
    }
}

/// If the aggregator declares that it is not a mean, every value lies in the range of what was sent. If the mean is compressed
/// again, the error is within that compressor's class, or, with a residual, within the residual's bound.
#[test]
fn law_2_the_mean_of_what_was_sent_is_the_average() {
    for exchange in exchanges() {
        let is_mean = exchange.aggregator.get().is_mean();
        for setup in Setup::<Exchange>::reducers(&exchange) {
            let downlink = exchange.downlink(setup.layout.len());
            let runs = setup.reduce_steps(if downlink.is_some() { laws::STEPS_DOWN } else { 4 });
            match (downlink, exchange.downlink_residual(setup.layout.len())) {
                (_, Some(residual)) => laws::is_honest_in_sum(&setup, &runs, residual),
                (Some(class), _) => laws::is_honest_within(&setup, &runs, class),
                _ if is_mean => (0..4).for_each(|step| check_honesty(&setup, &runs, step)),
                _ => (0..4).for_each(|step| laws::stays_in_range(&setup, &runs, step)),
            }
        }
    }
}

/// Error feedback around a reducer depends on the selection: velocities are masked at the selected coordinates.
#[test]
fn law_9_every_rank_is_told_the_same_selection() {
    for exchange in exchanges() {
        let world = exchange.min_ranks().max(5);
        let setup = Setup { config: exchange, layout: short(), world };
        let pairs = Local::builder(world).machines_of(const { NonZeroUsize::new(2).unwrap() });
        let ranks = laws::each_rank(pairs.build(), |mut comm, rank| {
            let mut reducer = setup.config.build_reducer(&setup.layout, world).unwrap();
            let each = |step| {
                let agreed_step =
                    AgreedStep { step, learning_rate: Some(laws::learning_rate(step)), ..AgreedStep::default() };
                let (input, mut average) = (gradient(&setup.layout, rank, step), vec![0.0; setup.layout.len()]);
                let (key, slots, average) = (Key::new(5).step(step), setup.layout.slots(), &mut average[..]);
                let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent: None };
                reducer.exchange(round, &mut comm).unwrap().selection
            };
            (0..3).map(each).collect::<Vec<_>>()
        });
        assert!(ranks.iter().all(|selections| *selections == ranks[0]), "law 9 broken: {setup}: {ranks:?}");
    }
}

fn check_honesty(setup: &Setup<Exchange>, runs: &[Vec<Outcome>], step: usize) {
    let world = setup.world as f64;
    let memories: Vec<Vec<Memory>> =
        runs.iter().map(|run| run[..step].iter().map(|o| Memory::of(&o.state)).collect()).collect();
    let sent = |i: usize| runs.iter().map(move |r| f64::from(r[step].sent[i]));
    // Stored vectors are subtracted before and added after, and keep every earlier step's rounding.
    let kept = |i: usize| memories.iter().flatten().map(|m| m.size(i)).sum::<f64>();
    // A sent value may be a difference of the input and the residual.
    let left: Vec<Memory> = runs.iter().map(|run| Memory::of(&run[step].state)).collect();
    let left = |i: usize| left.iter().filter_map(|m| m.residual.get(i)).map(|v| f64::from(v.abs())).sum::<f64>();
    let size = |i: usize| sent(i).map(f64::abs).sum::<f64>() + left(i) + kept(i);
    // PowerSGD multiplies factors: its rounding grows with the rank of the factors and the size of a whole matrix, not only
    // with W and the individual value.
    let (terms, largest) = match setup.config.reducers().any(|r| r.get().traits().multiplies_matrices) {
        true => (8.0, (0..setup.layout.len()).map(size).fold(0.0, f64::max)),
        false => (2.0, 0.0),
    };
    for i in 0..setup.layout.len() {
        let mean = sent(i).sum::<f64>() / world;
        let bound = terms * (world + 1.0) * f64::from(f32::EPSILON) * size(i).max(largest) + 1e-12;
        let off = (f64::from(runs[0][step].average[i]) - mean).abs();
        assert!(off <= bound, "{setup}, step {step}, value {i}: off by {off:e}, bound {bound:e}");
    }
}

#[test]
fn law_8_traffic_is_what_the_transport_counted() {
    for config in representatives() {
        Setup::<Config>::all(&config).for_each(|setup| laws::accounts_for_its_bytes(&setup));
    }
}

#[test]
fn law_8_holds_over_a_resume() {
    for config in representatives() {
        [1, 2, 3].into_iter().for_each(|world| laws::accounts_over_a_resume(&Setup::short(&config, world)));
    }
}

#[test]
fn law_8_dense_moves_what_the_ring_formula_says() {
    assert!(short().len() <= SMALL_ALL_REDUCE && long().len() > SMALL_ALL_REDUCE);
    for setup in Setup::<Config>::all(&Config::dense()) {
        for (rank, run) in setup.run(1).iter().enumerate() {
            assert_eq!(run[0].counted, all_reduce_traffic(setup.layout.len(), setup.world, rank), "{setup}");
        }
    }
    // By hand, three ranks and 6 017 values: chunks of 2 005, 2 006 and 2 006. Rank 0 sends chunks 0 and 2, then 1 and 0.
    let setup = Setup { config: Config::dense(), layout: long(), world: 3 };
    let counted = setup.run(1)[0][0].counted;
    assert_eq!(counted, Traffic { sent: 4 * (2005 + 2006 + 2006 + 2005), received: 4 * (2006 + 2006 + 2005 + 2006) });
}

#[test]
fn law_8_a_gather_sends_its_message_and_a_length_to_every_other_rank() {
    let compressor: CompressorConfig = "topk:8x".parse().unwrap();
    let exchange = Exchange { reducer: ReducerConfig::gather(compressor.clone()), ..Exchange::default() };
    for setup in Setup::<Exchange>::reducers(&exchange) {
        for (rank, run) in setup.reduce_steps(1).iter().enumerate() {
            let mut message = Message::default();
            compressor.build().compress_into(&gradient(&setup.layout, rank, 0), Key::new(0), &mut message);
            let expected = (setup.world as u64 - 1) * (4 + message.encoded_len() as u64);
            assert_eq!(run[0].counted.sent, expected, "{setup}");
        }
    }
}

#[test]
fn law_9_ranks_decide_alike() {
    for config in representatives() {
        laws::decides_identically(&Setup::short(&config, 5));
    }
}

#[test]
fn a_world_of_one_goes_through_the_whole_path() {
    // No shortcut: the average of a single rank is its compressed vector, not its vector.
    let exchange = Exchange { reducer: ReducerConfig::gather("topk:8x".parse().unwrap()), ..Exchange::default() };
    let setup = Setup { config: exchange, layout: Layout::flat(131), world: 1 };
    let run = &setup.reduce_steps(1)[0];
    assert_eq!(run[0].average.iter().filter(|v| **v != 0.0).count(), 16); // 131 / 8 = 16.4
    assert_eq!(run[0].counted, Traffic::default());
}
