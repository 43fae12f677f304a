//! A non-finite average is an error on every rank, for any combination of reducers: no layer is needed to detect it, and no
//! layer stores any of it.

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::Local;
use briquette_core::compress::top_k::TopK;
use briquette_core::error::ReduceError;
use briquette_core::reduce::{
    AgreedStep, Exchanged, Reducer, Round, Selection, dense::Dense, gather::Gather, power_sgd::PowerSgd,
    shared_random_k::SharedRandomK,
};
use briquette_core::state::{State, Stateful};
use briquette_core::wrapper::{
    error_feedback::ErrorFeedback,
    momentum_correction::{MomentumCorrection, MomentumCorrectionConfig},
};
use briquette_core::{CompressionRatio, Key, Layout, Session, Traffic};
use briquette_zoo::reduce::{
    multi_step::MultiStep,
    sketched_sgd::{SketchedSgd, SketchedSgdConfig},
    sparse_all_reduce::SparseAllReduce,
};
use briquette_zoo::wrapper::shifted::Shifted;

const MAX: f32 = f32::MAX;
/// Half of the largest number: twice it is the largest number, and three times it overflows.
const HALF: f32 = MAX / 2.0;

/// Creates a reducer.
type Make<'a> = &'a (dyn Fn() -> Box<dyn Reducer> + Sync);

fn layout() -> Layout {
    Layout::new([("small", vec![2]), ("large", vec![2])])
}

fn reduce(reducer: &mut dyn Reducer, input: &[f32], comm: &mut Session) -> Result<Vec<f32>, ReduceError> {
    let (layout, mut average) = (layout(), vec![0.0; input.len()]);
    let agreed_step = AgreedStep { learning_rate: Some(0.5), ..AgreedStep::default() };
    let (key, slots) = (Key::new(1), layout.slots());
    reducer
        .exchange(Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None }, comm)?;
    Ok(average)
}

fn saved(reducer: &dyn Reducer) -> State {
    let mut state = State::default();
    reducer.save(&mut state);
    state
}

fn overflow() -> ReduceError {
    ReduceError::Overflow { slot: "large".into() }
}

/// Returns the outcome on every rank if all exchange `input` through separate reducers.
fn outcomes(
    world: usize,
    input: [f32; 4],
    make: impl Fn() -> Box<dyn Reducer> + Sync,
) -> Vec<Result<Vec<f32>, ReduceError>> {
    Local::run(world, |mut comm| reduce(&mut *make(), &input, &mut comm))
}

#[test]
fn layers_around_an_overflow_keep_their_memory() {
    let momentum = || MomentumCorrection::new(Dense, MomentumCorrectionConfig::default()).unwrap();
    let layers: [(&str, Make<'_>); 5] = [
        ("error feedback", &|| Box::new(ErrorFeedback::new(Dense))),
        ("inside the learning rate", &|| Box::new(ErrorFeedback::inside_learning_rate(Dense))),
        ("momentum correction", &|| Box::new(momentum())),
        ("ef21", &|| Box::new(Shifted::ef21(Dense))),
        ("diana", &|| Box::new(Shifted::diana(Dense, 0.5).unwrap())),
    ];
    for (name, make) in layers {
        let run = Local::run(2, |mut comm| {
            let (mut tried, mut never) = (make(), make());
            for (step, small) in [1.0, -3.0, 0.5].into_iter().enumerate() {
                let before = saved(&*tried);
                assert_eq!(reduce(&mut *tried, &[small, 1.0, -MAX, 1.0], &mut comm), Err(overflow()), "{name} {step}");
                assert_eq!(saved(&*tried), before, "{name}, step {step}");
                let input = [small, 2.0, 4.0, -small];
                assert_eq!(reduce(&mut *tried, &input, &mut comm), reduce(&mut *never, &input, &mut comm), "{name}");
            }
            assert_eq!(saved(&*tried), saved(&*never), "{name}");
            Ok::<_, ReduceError>(())
        });
        assert_eq!(run, [Ok(()), Ok(())], "{name}");
    }
}

#[test]
fn what_waits_in_error_feedback_goes_on_waiting() {
    let run = Local::run(2, |mut comm| {
        let mut reducer = ErrorFeedback::new(Dense);
        let (mut state, waiting) = (State::default(), [1.0, -2.0, 0.0, 3.0]);
        state.put("residual", waiting.to_vec());
        reducer.load(&state).unwrap();
        assert_eq!(reduce(&mut reducer, &[0.0, 0.0, MAX, 0.0], &mut comm), Err(overflow()));
        assert_eq!(reducer.residual(), waiting);
        reduce(&mut reducer, &[0.0; 4], &mut comm)
    });
    assert_eq!(run, [Ok(vec![1.0, -2.0, 0.0, 3.0]), Ok(vec![1.0, -2.0, 0.0, 3.0])]);
}

#[test]
fn what_sums_on_the_way_says_overflow_on_every_rank() {
    let (ratio, all) = (CompressionRatio::new(4.0 / 3.0).unwrap(), CompressionRatio::DENSE);
    let sketch =
        |ratio| SketchedSgd::new(SketchedSgdConfig { ratio, candidates: 1, ..SketchedSgdConfig::default() }).unwrap();
    let makes: [(&str, Make<'_>); 6] = [
        ("dense", &|| Box::new(Dense)),
        ("multi-step", &|| Box::new(MultiStep::contractive(vec![Dense, Dense]).unwrap())),
        ("power-sgd", &|| Box::new(PowerSgd::new(1).unwrap())),
        ("shared random-k", &|| Box::new(SharedRandomK::new(all))),
        ("sketched", &|| Box::new(sketch(ratio))),
        ("sketched, without a sketch", &|| Box::new(sketch(all))),
    ];
    for (name, make) in makes {
        for world in [3, 5] {
            for input in [[1.0, 0.0, MAX, MAX], [0.0, 1.0, -MAX, 0.0], [0.0, 0.0, HALF, 2.0]] {
                assert_eq!(outcomes(world, input, make), vec![Err(overflow()); world], "{name} of {input:?}");
            }
        }
    }
}

/// Ten times a tenth of the largest number, rounded at every addition, exceeds it.
#[test]
fn what_rounds_to_infinity_is_the_same_on_every_rank() {
    let input = [1.0, 0.0, MAX, -MAX];
    let gather = || Box::new(Gather::new(TopK::fraction(0.5).unwrap(), Mean)) as Box<dyn Reducer>;
    assert_eq!(outcomes(10, input, gather), vec![Err(overflow()); 10]);
    // Only an owner sums here, and it notifies the others.
    let sparse = || Box::new(SparseAllReduce::new(CompressionRatio::DENSE)) as Box<dyn Reducer>;
    assert_eq!(outcomes(10, input, sparse), vec![Err(overflow()); 10]);
}

/// Returns the same average for any input.
#[derive(Debug)]
struct Says([f32; 4]);

impl Stateful for Says {}

impl Reducer for Says {
    fn reduce(&mut self, round: Round<'_>, _comm: &mut Session) -> Result<Exchanged, ReduceError> {
        round.average.copy_from_slice(&self.0);
        round.sent.into_iter().for_each(|sent| sent.fill(0.0));
        Ok(Exchanged { traffic: Traffic::default(), selection: Selection::All })
    }
}

/// Sends the opposite of its input, so the residual is twice the input.
struct Opposite;

impl Stateful for Opposite {}

impl Reducer for Opposite {
    fn reduce(&mut self, round: Round<'_>, _comm: &mut Session) -> Result<Exchanged, ReduceError> {
        round.average.fill(0.0);
        round.sent.unwrap().iter_mut().zip(round.input).for_each(|(sent, input)| *sent = -input);
        Ok(Exchanged { traffic: Traffic::default(), selection: Selection::All })
    }
}

#[test]
fn what_cannot_stay_behind_is_an_error_and_no_memory_has_it() {
    let momentum = || {
        MomentumCorrection::new(
            Opposite,
            MomentumCorrectionConfig { momentum: 0.0, ..MomentumCorrectionConfig::default() },
        )
        .unwrap()
    };
    let layers: [(&str, Make<'_>); 3] = [
        ("error feedback", &|| Box::new(ErrorFeedback::new(Opposite))),
        ("inside the learning rate", &|| Box::new(ErrorFeedback::inside_learning_rate(Opposite))),
        ("momentum correction", &|| Box::new(momentum())),
    ];
    for (name, make) in layers {
        let (mut tried, mut comm) = (make(), Local::world(1).remove(0));
        for begun in [false, true] {
            let before = saved(&*tried);
            let error = reduce(&mut *tried, &[1.0, 0.0, 0.0, -MAX], &mut comm).unwrap_err();
            assert_eq!(error, ReduceError::NonFinite { rank: 0, slot: "large".into() }, "{name}, begun: {begun}");
            assert_eq!(saved(&*tried), before, "{name}, begun: {begun}");
            reduce(&mut *tried, &[1.0, -2.0, 0.5, 3.0], &mut comm).unwrap();
        }
    }
}

#[test]
fn the_sum_of_finite_rounds_may_overflow() {
    let rounds = |rounds| {
        move || {
            Box::new(MultiStep::contractive((0..rounds).map(|_| Says([1.0, 0.0, 0.0, HALF])).collect()).unwrap()) as _
        }
    };
    assert_eq!(outcomes(2, [0.0; 4], rounds(2)), vec![Ok(vec![2.0, 0.0, 0.0, MAX]); 2]);
    assert_eq!(outcomes(2, [0.0; 4], rounds(3)), vec![Err(overflow()); 2]);
}
