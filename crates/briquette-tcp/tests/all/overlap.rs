//! Overlapped buckets over sockets: bitwise identical to sequential buckets.

use briquette_core::comm::{Session, run_ranks};
use briquette_core::config::{Exchange, Feedback, ReducerConfig};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Round};
use briquette_core::state::State;
use briquette_core::{Key, Layout, Traffic};

use crate::common::world;

/// Runs three steps in 40 buckets, and returns the bits of the averages and sent vectors, the saved state, and the traffic.
fn steps(exchange: &Exchange, comm: &mut Session) -> Result<(Vec<u32>, State, Traffic), ReduceError> {
    let layout = Layout::new((0..40).map(|slot| (slot.to_string(), vec![100 + slot])));
    let mut reducer = exchange.build_reducer(&layout, comm.world()).expect("settings that work");
    let (mut bits, mut state, before) = (Vec::new(), State::default(), comm.traffic());
    let (mut average, mut sent) = (vec![0.0; layout.len()], vec![0.0; layout.len()]);
    for step in 0..3 {
        comm.begin_step(step);
        let value = |i: usize| (i as f32 * 0.37 + comm.rank() as f32 + step as f32).sin();
        let input: Vec<f32> = (0..layout.len()).map(value).collect();
        let (key, slots, agreed_step) =
            (Key::new(3).step(step), layout.slots(), AgreedStep { step, ..AgreedStep::default() });
        let (average, sent) = (&mut average[..], &mut sent[..]);
        reducer.exchange(
            Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent: Some(sent) },
            comm,
        )?;
        bits.extend(average.iter().chain(sent.iter()).map(|v| v.to_bits()));
    }
    reducer.save(&mut state);
    Ok((bits, state, comm.traffic() - before))
}

/// Returns the results of all ranks of a world.
fn run(ranks: usize, channels: usize, exchange: &Exchange) -> Vec<(Vec<u32>, State, Traffic)> {
    let outcomes = run_ranks(world(ranks, |rank| rank.channels(channels)), |mut comm| steps(exchange, &mut comm));
    outcomes.into_iter().collect::<Result<_, _>>().unwrap()
}

#[test]
fn buckets_that_overlap_give_the_same_bits_as_buckets_one_after_another() {
    let gather = |compressor: &str| ReducerConfig::gather(compressor.parse().unwrap());
    let sparse: ReducerConfig = "sparse-all-reduce:8x".parse().unwrap();
    for ranks in [2, 3] {
        for reducer in [ReducerConfig::Dense, gather("topk:8x:q8"), gather("qsgd:4"), sparse.clone()] {
            let feedback = if matches!(reducer, ReducerConfig::Dense) { Feedback::None } else { Feedback::Error };
            let alone = Exchange { reducer, feedback, bucket_values: Some(1), ..Exchange::default() };
            let overlap = |overlap| Exchange { overlap, ..alone.clone() };
            let expected = run(ranks, 0, &overlap(false));
            assert!(run(ranks, 1, &overlap(true)) == expected, "{alone:?}, {ranks} ranks");
            // Without a channel, one after another.
            assert!(run(ranks, 0, &overlap(true)) == expected, "{alone:?}, {ranks} ranks, no channel");
        }
    }
}
