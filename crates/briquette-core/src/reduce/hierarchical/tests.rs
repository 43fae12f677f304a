use std::time::Duration;

use super::*;
use crate::aggregate::Mean;
use crate::comm::{Compute, Local, Simulated, run_ranks};
use crate::compress::TopK;
use crate::reduce::{AgreedStep, Dense, Gather};
use crate::wrapper::ErrorFeedback;
use crate::{CompressionFactor, Key, Traffic};

/// Each rank's averages over some steps of the same input, its traffic, and the simulated seconds of all.
fn steps<R: Reducer>(
    world: Vec<Session>,
    reducer: impl Fn() -> R + Sync,
    (len, steps): (usize, u64),
    input: impl Fn(usize, usize) -> f32 + Sync,
) -> Vec<(Vec<Vec<f32>>, Traffic, f64)> {
    let ranks = run_ranks(world, |mut comm| {
        let (layout, mut reducer, mut averages) = (Layout::flat(len), reducer(), Vec::new());
        let input: Vec<f32> = (0..len).map(|i| input(comm.rank(), i)).collect();
        for step in 0..steps {
            let mut average = vec![0.0; len];
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            let round = Round {
                key: Key::new(3).step(step),
                slots: layout.slots(),
                agreed_step: &agreed_step,
                input: &input,
                average: &mut average,
                sent: None,
            };
            reducer.exchange(round, &mut comm)?;
            averages.push(average);
        }
        Ok::<_, ReduceError>((averages, comm.traffic(), comm.now()))
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

fn simulated(world: usize, network: &str) -> Vec<Session> {
    Simulated::world(world, network.parse().unwrap(), Compute::Fixed(Duration::ZERO))
}

#[test]
fn machines_of_any_size_make_the_mean_over_ranks() {
    let input = |rank: usize, i: usize| (rank * rank) as f32 + i as f32;
    for (world, machine) in [(1, 1), (4, 2), (5, 2), (6, 4), (3, 3), (3, 9)] {
        let machines = Local::builder(world).machines_of(machine.try_into().unwrap()).build();
        let ranks = steps(machines, || Hierarchical::new(Dense, None), (3, 1), input);
        for (averages, ..) in &ranks {
            for (i, average) in averages[0].iter().enumerate() {
                let mean = (0..world).map(|rank| input(rank, i)).sum::<f32>() / world as f32;
                assert!((average - mean).abs() < 1e-4, "{world} in {machine}s: {average}, not {mean}");
            }
            assert_eq!(averages, &ranks[0].0, "the same bits on every rank");
        }
    }
}

/// The claim: each machine's link carries one message instead of one for each of its ranks.
#[test]
fn between_machines_a_gather_sends_as_many_times_less_as_a_machine_has_ranks() {
    let (len, input) = (4000, |rank: usize, i: usize| ((7 * i + rank) % 13) as f32);
    let top_k = || Gather::new(TopK::factor(CompressionFactor::new(10.0).unwrap()), Mean);
    // Three machines of four ranks, on links of 100 Mbit/s that the ranks of a machine share.
    let flat = steps(simulated(12, "100mbit,0s,4"), top_k, (len, 1), input);
    let two = steps(simulated(12, "100mbit,0s,4"), || Hierarchical::new(top_k(), None), (len, 1), input);
    let seconds = |ranks: &[(Vec<Vec<f32>>, Traffic, f64)]| ranks.iter().map(|rank| rank.2).fold(0.0, f64::max);
    let times = seconds(&flat) / seconds(&two);
    assert!(times > 3.0, "{times} times as fast between machines");
}

/// What a machine does not send waits in equal parts, and comes later.
#[test]
fn under_error_feedback_all_of_it_comes() {
    let input = |rank: usize, i: usize| if rank == i { 1.0 } else { 0.25 };
    let reducer = || {
        let top_k = Gather::new(TopK::factor(CompressionFactor::new(4.0).unwrap()), Mean);
        ErrorFeedback::new(Hierarchical::new(top_k, Some(2)))
    };
    let ranks = steps(Local::world(4), reducer, (4, 40), input);
    for i in 0..4 {
        let came = ranks[3].0.iter().map(|average| f64::from(average[i])).sum::<f64>() / 40.0;
        assert!((came - 0.4375).abs() < 0.05, "value {i}: {came} a step");
    }
}

#[test]
fn settings_that_cannot_work_are_said() {
    let error = |text: &str| {
        let config: Result<ReducerConfig, _> = text.parse();
        let built = config.and_then(|config| config.get().build(&Exchange::default(), &Layout::flat(4)).map(drop));
        built.unwrap_err().to_string()
    };
    assert!(error("hierarchical:dense,group=0").contains("group of hierarchical must be at least 1"));
    assert!(error("hierarchical:artemis").contains("use it alone"), "{}", error("hierarchical:artemis"));
    let exchange = Exchange { reducer: "hierarchical:dense,group=4".parse().unwrap(), ..Exchange::default() };
    let error = exchange.build_reducer(&Layout::flat(4), 6).map(drop).unwrap_err().to_string();
    assert!(error.contains("groups of 4 ranks of hierarchical do not tile a world of 6"), "{error}");
    let text = "hierarchical:(gather:topk:10x),group=4";
    let config: ReducerConfig = text.parse().unwrap();
    assert_eq!(config.to_string().parse(), Ok(config));
}
