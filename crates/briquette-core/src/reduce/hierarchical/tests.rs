use super::*;
use crate::aggregate::Mean;
use crate::comm::{Event, Local, run_ranks};
use crate::compress::TopK;
use crate::reduce::{AgreedStep, Dense, Gather};
use crate::wrapper::ErrorFeedback;
use crate::{CompressionFactor, Key};

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

/// Returns the number of frames that left each machine in one exchange, and their bytes.
fn between_machines<R: Reducer>(world: Vec<Session>, reducer: impl Fn() -> R + Sync, len: usize) -> Vec<[usize; 2]> {
    let machines = world[0].places().machines().to_vec();
    let sent = run_ranks(world, |mut comm| {
        let (layout, mut average, agreed_step) = (Layout::flat(len), vec![0.0; len], AgreedStep::default());
        let input: Vec<f32> = (0..len).map(|i| ((7 * i + comm.rank()) % 13) as f32 - 6.0).collect();
        let (key, slots, average) = (Key::new(3), layout.slots(), &mut average[..]);
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent: None };
        let own = comm.places().machine().to_vec();
        comm.record();
        reducer().exchange(round, &mut comm)?;
        let left = |event: &Event| match event {
            Event::Sent(to, bytes) if !own.contains(to) => Some(*bytes),
            _ => None,
        };
        Ok::<_, ReduceError>(comm.take_recording().iter().filter_map(left).collect::<Vec<_>>())
    });
    let sent: Vec<Vec<usize>> = sent.into_iter().map(Result::unwrap).collect();
    let of = |machine: &Vec<usize>| machine.iter().flat_map(|rank| &sent[*rank]).copied().collect::<Vec<_>>();
    machines.iter().map(|machine| [of(machine).len(), of(machine).iter().sum()]).collect()
}

/// The claim: one of a machine's `n` ranks sends instead of all, and to one rank of another machine instead of all of its ranks.
#[test]
fn between_machines_a_gather_sends_fewer_messages_by_the_square_of_a_machines_ranks() {
    let (len, factor) = (4000, CompressionFactor::new(10.0).unwrap());
    let top_k = || Gather::new(TopK::factor(factor), Mean);
    // The message length does not depend on the values.
    let sign = || Gather::new(crate::compress::ScaledSign::new(), Mean);
    for (machines, n) in [(3, 4), (4, 2), (2, 3), (3, 1)] {
        let world = || Local::builder(machines * n).machines_of(n.try_into().unwrap()).build();
        let fewer = |flat: &[[usize; 2]], two: &[[usize; 2]], what: usize| {
            assert_eq!((flat.len(), two.len()), (machines, machines));
            flat.iter().zip(two).all(|(flat, two)| flat[what] == n * n * two[what] && two[what] > 0)
        };
        let flat = between_machines(world(), sign, len);
        let two = between_machines(world(), || Hierarchical::new(sign(), None), len);
        assert!(fewer(&flat, &two, 0) && fewer(&flat, &two, 1), "{machines} machines of {n}: {flat:?}, {two:?}");
        assert_eq!(two[0][0], machines - 1);
        let flat = between_machines(world(), top_k, len);
        let two = between_machines(world(), || Hierarchical::new(top_k(), None), len);
        assert!(fewer(&flat, &two, 0), "{machines} machines of {n}: {flat:?}, {two:?}");
    }
    // A ring in rank order crosses each link once.
    let world = || Local::builder(12).machines_of(4.try_into().unwrap()).build();
    let (flat, two) =
        (between_machines(world(), || Dense, len), between_machines(world(), || Hierarchical::new(Dense, None), len));
    for (flat, two) in flat.iter().zip(&two) {
        let [flat, two] = [flat[1], two[1]].map(|bytes| bytes as f64 / (4 * len) as f64);
        assert!((flat - 2.0 * 11.0 / 12.0).abs() < 1e-2 && (two - 2.0 * 2.0 / 3.0).abs() < 1e-2, "{flat} {two}");
    }
}

/// The part that a machine does not send is split equally over its ranks' residuals, and is sent later.
#[test]
fn under_error_feedback_all_of_it_comes() {
    let input = |rank: usize, i: usize| if rank == i { 1.0 } else { 0.25 };
    let reducer = || {
        let top_k = Gather::new(TopK::factor(CompressionFactor::new(4.0).unwrap()), Mean);
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
    assert!(error("hierarchical:artemis").contains("use artemis alone"), "{}", error("hierarchical:artemis"));
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

/// Reducers that fail without leaving a non-finite value in the average: one finds it in the others' frames, one in the first of its
/// rounds.
#[test]
fn where_the_leaders_have_no_finite_average_every_rank_has_the_same_error() {
    let layout = Layout::new([("first", vec![40]), ("second", vec![40])]);
    // The sum of two is not finite; the sum of ten tenths is not either, because of rounding.
    for (text, world, large) in [
        ("hierarchical:(multi-step:2,inner=dense),group=2", 4, 3e38),
        ("hierarchical:(sparse-all-reduce:8x),group=2", 20, f32::MAX),
        ("hierarchical:(hierarchical:(multi-step:2,inner=dense),group=2),group=2", 8, 3e38),
        ("hierarchical:dense,group=2", 4, 3e38),
    ] {
        for asks_sent in [false, true] {
            let errors = Local::run(world, |mut comm| {
                let config: ReducerConfig = text.parse().unwrap();
                let mut reducer = config.get().build(&Exchange::default(), &layout).unwrap();
                let (mut input, mut average, mut sent) = ([1.0; 80], [0.0; 80], [0.0; 80]);
                input[50] = large;
                let agreed_step = AgreedStep::default();
                let sent = asks_sent.then_some(&mut sent[..]);
                let (key, slots, average) = (Key::new(3), layout.slots(), &mut average[..]);
                let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent };
                Ok::<_, ReduceError>(reducer.exchange(round, &mut comm).map(drop))
            });
            for error in errors {
                assert_eq!(error.unwrap(), Err(ReduceError::Overflow { slot: "second".into() }), "{text}, {asks_sent}");
            }
        }
    }
}
