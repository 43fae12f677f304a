//! Hierarchical reduction: messages between machines, and its combinations with reducers of the zoo.

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::{Local, Session, run_ranks};
use briquette_core::compress::{scaled_sign::ScaledSign, top_k::TopK};
use briquette_core::config::{Exchange, ReducerConfig};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Reducer, Round, dense::Dense, gather::Gather, hierarchical::Hierarchical};
use briquette_core::{CompressionRatio, Key, Layout};
use briquette_sim::{Event, SessionExt};

/// Returns the number of frames that left each machine in one exchange, and their bytes.
fn between_machines<R: Reducer>(world: Vec<Session>, reducer: impl Fn() -> R + Sync, len: usize) -> Vec<[usize; 2]> {
    let machines = world[0].machine_map().machines().to_vec();
    let sent = run_ranks(world, |mut comm| {
        let (layout, mut average, agreed_step) = (Layout::flat(len), vec![0.0; len], AgreedStep::default());
        let input: Vec<f32> = (0..len).map(|i| ((7 * i + comm.rank()) % 13) as f32 - 6.0).collect();
        let (key, slots, average) = (Key::new(3), layout.slots(), &mut average[..]);
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent: None };
        let own = comm.machine_map().machine().to_vec();
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
    let (len, ratio) = (4000, CompressionRatio::new(10.0).unwrap());
    let top_k = || Gather::new(TopK::ratio(ratio), Mean);
    // The message length does not depend on the values.
    let sign = || Gather::new(ScaledSign::new(), Mean);
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

/// Reducers that fail without leaving a non-finite value in the average: one finds it in the others' frames, one in the first of its
/// rounds.
#[test]
fn where_the_leaders_have_no_finite_average_every_rank_has_the_same_error() {
    briquette_zoo::install();
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

#[test]
fn a_reducer_with_a_downlink_is_refused() {
    briquette_zoo::install();
    let reducer: Result<ReducerConfig, _> = "hierarchical:artemis".parse();
    let exchange = reducer.map(|reducer| Exchange { reducer, ..Exchange::default() });
    let built = exchange.and_then(|exchange| exchange.build_reducer(&Layout::flat(4), 6).map(drop));
    let error = built.unwrap_err().to_string();
    assert!(error.contains("use artemis alone"), "{error}");
}
