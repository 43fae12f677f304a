use super::*;
use crate::aggregate::mean::Mean;
use crate::comm::{Local, run_ranks};
use crate::compress::top_k::TopK;
use crate::reduce::{dense::Dense, gather::Gather};
use crate::seam::AgreedStep;
use crate::wrapper::error_feedback::ErrorFeedback;
use crate::{CompressionRatio, Key};

/// Returns each rank's averages over some steps with the same input.
fn steps<R: Reducer>(
    world: Vec<Session>,
    reducer: impl Fn() -> R + Sync,
    (len, steps): (usize, u64),
    input: impl Fn(usize, usize) -> f32 + Sync,
) -> Vec<Vec<Vec<f32>>> {
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
        Ok::<_, ReduceError>(averages)
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

#[test]
fn machines_of_any_size_make_the_mean_over_ranks() {
    let input = |rank: usize, i: usize| (rank * rank) as f32 + i as f32;
    for (world, machine) in [(1, 1), (4, 2), (5, 2), (6, 4), (3, 3), (3, 9)] {
        let machines = Local::builder(world).machines_of(machine.try_into().unwrap()).build();
        let ranks = steps(machines, || Hierarchical::new(Dense, None), (3, 1), input);
        for averages in &ranks {
            for (i, average) in averages[0].iter().enumerate() {
                let mean = (0..world).map(|rank| input(rank, i)).sum::<f32>() / world as f32;
                assert!((average - mean).abs() < 1e-4, "{world} in {machine}s: {average}, not {mean}");
            }
            assert_eq!(averages, &ranks[0], "the same bits on every rank");
        }
    }
}

/// The part that a machine does not send is split equally over its ranks' residuals, and is sent later.
#[test]
fn under_error_feedback_all_of_it_comes() {
    let input = |rank: usize, i: usize| if rank == i { 1.0 } else { 0.25 };
    let reducer = || {
        let top_k = Gather::new(TopK::ratio(CompressionRatio::new(4.0).unwrap()), Mean);
        ErrorFeedback::new(Hierarchical::new(top_k, Some(2)))
    };
    let ranks = steps(Local::world(4), reducer, (4, 40), input);
    for i in 0..4 {
        let came = ranks[3].iter().map(|average| f64::from(average[i])).sum::<f64>() / 40.0;
        assert!((came - 0.4375).abs() < 0.05, "value {i}: {came} a step");
    }
}

#[test]
fn settings_that_cannot_work_are_said() {
    let error = |text: &str| {
        let config: Result<ReducerConfig, _> = text.parse();
        let exchange = config.map(|reducer| Exchange { reducer, ..Exchange::default() });
        let built = exchange.and_then(|exchange| exchange.build_reducer(&Layout::flat(4), 6).map(drop));
        built.unwrap_err().to_string()
    };
    assert!(error("hierarchical:dense,group=0").contains("group of hierarchical must be at least 1"));
    let exchange = Exchange { reducer: "hierarchical:dense,group=4".parse().unwrap(), ..Exchange::default() };
    let error = exchange.build_reducer(&Layout::flat(4), 6).map(drop).unwrap_err().to_string();
    assert!(error.contains("group=4 of hierarchical does not go with a world of 6 ranks"), "{error}");
    let built = |text: &str, world| {
        let exchange = Exchange { reducer: text.parse().unwrap(), ..Exchange::default() };
        exchange.build_reducer(&Layout::flat(4), world).map(drop).map_err(|error| error.to_string())
    };
    // Four machines of two, and groups of two among the four; groups of three do not tile four.
    assert_eq!(built("hierarchical:(hierarchical:dense,group=2),group=2", 8), Ok(()));
    let error = built("hierarchical:(hierarchical:dense,group=3),group=2", 8).unwrap_err();
    assert!(error.contains("group=3 of hierarchical does not go with a world of 4 ranks"), "{error}");
    let error = built("hierarchical:(hierarchical:dense,group=2)", 8).unwrap_err();
    assert!(error.contains("may find 1 machines") && error.contains("set its group"), "{error}");
    assert_eq!(built("hierarchical:(hierarchical:dense)", 8), Ok(()));
    let text = "hierarchical:(gather:topk:10x),group=4";
    let config: ReducerConfig = text.parse().unwrap();
    assert_eq!(config.to_string().parse(), Ok(config));
}

/// Law 2 for machines of unequal size: the mean over ranks of `sent` is the average.
#[test]
fn what_ranks_of_unequal_machines_sent_makes_the_average() {
    let machines = Local::builder(3).machines_of(2.try_into().unwrap()).build();
    let ranks = run_ranks(machines, |mut comm| {
        let (layout, agreed_step, rank) = (Layout::flat(6), AgreedStep::default(), comm.rank());
        let input: Vec<f32> = (0..6).map(|i| ((5 * i + 3 * rank) % 7) as f32 - 2.5).collect();
        let (mut average, mut sent) = (vec![0.0; 6], vec![0.0; 6]);
        let (key, slots, out) = (Key::new(3), layout.slots(), Some(&mut sent[..]));
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: out };
        Hierarchical::new(Gather::new(TopK::fraction(0.5).unwrap(), Mean), None).exchange(round, &mut comm)?;
        Ok::<_, ReduceError>([average, sent])
    });
    let ranks: Vec<_> = ranks.into_iter().map(Result::unwrap).collect();
    for i in 0..6 {
        let mean = ranks.iter().map(|[_, sent]| sent[i]).sum::<f32>() / 3.0;
        assert!(ranks.iter().all(|[average, _]| (average[i] - mean).abs() < 1e-5), "value {i}: {ranks:?}");
    }
}
