//! Tests of groups on the host and on a device.

use super::*;
use crate::aggregate::mean::Mean;
use crate::comm::Local;
use crate::compress::top_k::TopK;
use crate::laws::{HostDevice, Kernels, gradient};
use crate::math::norm2;
use crate::reduce::{dense::Dense, gather::Gather, power_sgd::PowerSgd};
use crate::report::{ResidualEnergy, SlotReport};
use crate::seam::{AgreedStep, Compressor, DeviceInput, Selection};
use crate::state::{State, Stateful};
use crate::wrapper::bucketed::Bucketed;
use crate::wrapper::error_feedback::ErrorFeedback;
use crate::wrapper::momentum_correction::{MomentumCorrection, MomentumCorrectionConfig};
use crate::{Key, Message};

fn layout() -> Layout {
    Layout::new([("conv.weight", vec![2, 2]), ("conv.bias", vec![2]), ("fc.weight", vec![4]), ("fc.bias", vec![1])])
}

fn top_k(fraction: f64) -> Gather<TopK, Mean> {
    Gather::new(TopK::fraction(fraction).unwrap(), Mean)
}

type Reduced = (Vec<f32>, Vec<f32>, Selection);

fn reduce(reducer: &mut dyn Reducer, layout: &Layout, input: &[f32]) -> Reduced {
    reduce_with(reducer, layout, input, true)
}

fn reduce_with(reducer: &mut dyn Reducer, layout: &Layout, input: &[f32], with_sent: bool) -> Reduced {
    let mut comm = Local::world(1).remove(0);
    let (mut average, mut sent, agreed_step) = (vec![9.0; input.len()], vec![9.0; input.len()], AgreedStep::default());
    let (slots, key) = (layout.slots(), Key::new(1));
    let wanted = with_sent.then_some(&mut sent[..]);
    let round = Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: wanted };
    let exchanged = reducer.exchange(round, &mut comm).unwrap();
    (average, sent, exchanged.selection)
}

#[test]
fn a_group_is_one_vector_and_every_value_comes_back_to_its_place() {
    let layout = layout();
    let weights = || vec![(vec![0, 2], Box::new(top_k(0.25)) as Box<dyn Reducer>)];
    let mut grouped = Grouped::new(&layout, Box::new(Dense), weights());
    let input = [1.0, 2.0, 8.0, 3.0, 0.1, 0.2, 4.0, 9.0, 5.0, 6.0, 0.3];
    let (average, sent, selection) = reduce(&mut grouped, &layout, &input);
    // The two largest values of both weights together, and the biases.
    assert_eq!(average, [0.0, 0.0, 8.0, 0.0, 0.1, 0.2, 0.0, 9.0, 0.0, 0.0, 0.3]);
    assert_eq!(sent, average);
    assert_eq!(selection, Selection::BySlot(vec![true, false, true, false]));
    // With all slots in one group, the result is that of the group's reducer alone.
    let all = vec![(vec![0, 1, 2, 3], Box::new(top_k(0.25)) as Box<dyn Reducer>)];
    let (average, _, selection) = reduce(&mut Grouped::new(&layout, Box::new(Dense), all), &layout, &input);
    assert_eq!(average, reduce(&mut top_k(0.25), &layout, &input).0);
    assert_eq!(selection, Selection::Some);
}

#[test]
fn only_slots_with_chosen_coordinates_lose_their_velocity() {
    let layout = layout();
    for with_sent in [true, false] {
        let weights = vec![(vec![0, 2], Box::new(top_k(0.25)) as Box<dyn Reducer>)];
        let grouped = Grouped::new(&layout, Box::new(Dense), weights);
        let mut corrected = MomentumCorrection::new(grouped, MomentumCorrectionConfig::default()).unwrap();
        let steps = [(); 3].map(|()| reduce_with(&mut corrected, &layout, &[1.0; 11], with_sent).0[10]);
        assert_eq!(steps, [1.0, 1.9, 2.71], "momentum SGD of the bias");
        let velocity = corrected.velocity();
        assert_eq!((velocity[10], velocity.iter().filter(|u| **u == 0.0).count()), (2.71, 2), "of weights sent");
    }
}

#[test]
fn what_one_group_cannot_average_leaves_the_main_reducer_as_it_was() {
    let layout = Layout::new([("square", vec![5, 5]), ("few", vec![1])]);
    let outcomes = Local::run(2, |mut comm| {
        let dense: Box<dyn Reducer> = Box::new(Dense);
        let mut grouped = Grouped::new(&layout, Box::new(PowerSgd::new(1).unwrap()), vec![(vec![1], dense)]);
        let (mut input, mut average, agreed_step) = (vec![1.0; 26], vec![0.0; 26], AgreedStep::default());
        input[25] = f32::MAX;
        let (key, slots) = (Key::new(0), layout.slots());
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
        let error = grouped.exchange(round, &mut comm).unwrap_err();
        let mut state = State::default();
        grouped.save(&mut state);
        Ok::<_, ReduceError>((error, state))
    });
    let mut fresh = State::default();
    Grouped::new(&layout, Box::new(PowerSgd::new(1).unwrap()), vec![]).save(&mut fresh);
    for (error, state) in outcomes.into_iter().map(Result::unwrap) {
        assert_eq!(error, ReduceError::Overflow { slot: "few".into() });
        assert_eq!(state, fresh);
    }
}

#[test]
fn another_length_is_refused() {
    let mut grouped = Grouped::new(&layout(), Box::new(Dense), Vec::new());
    let (mut average, agreed_step) = ([0.0; 3], AgreedStep::default());
    let round = Round {
        key: Key::new(0),
        slots: &[],
        agreed_step: &agreed_step,
        input: &[0.0; 3],
        average: &mut average,
        sent: None,
    };
    let error = grouped.exchange(round, &mut Local::world(1).remove(0)).unwrap_err();
    assert_eq!(error, ReduceError::Length { expected: 11, got: 3 });
}

/// A reducer that subtracts its contribution on the host only.
struct OnHost(Gather<TopK, Mean>);

impl Stateful for OnHost {}

impl Reducer for OnHost {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        self.0.reduce(round, comm)
    }

    fn can_subtract_sent(&self) -> bool {
        true
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        self.0.subtract_sent(input)
    }
}

/// Groups of all kinds of reducers, by name.
fn groups(layout: &Layout) -> Vec<(&'static str, Box<dyn Reducer>)> {
    let one = |main: Box<dyn Reducer>, members: Vec<usize>, other: Box<dyn Reducer>| {
        Box::new(Grouped::new(layout, main, vec![(members, other)])) as Box<dyn Reducer>
    };
    let bucket = |index: usize| {
        let bucket = part(layout, &[2 * index, 2 * index + 1]);
        Grouped::new(&bucket, Box::new(top_k(0.5)), vec![(vec![1 - index], Box::new(Dense))])
    };
    vec![
        ("dense biases", one(Box::new(top_k(0.25)), vec![1, 3], Box::new(Dense))),
        ("dense weights", one(Box::new(Dense), vec![0, 2], Box::new(top_k(0.25)))),
        ("low rank and a bias", one(Box::new(PowerSgd::new(1).unwrap()), vec![3], Box::new(top_k(1.0)))),
        ("on the host", one(Box::new(top_k(0.25)), vec![0, 3], Box::new(OnHost(top_k(0.5))))),
        ("all in one", one(Box::new(Dense), vec![0, 1, 2, 3], Box::new(top_k(0.25)))),
        ("all dense", one(Box::new(top_k(0.25)), vec![0, 1, 2, 3], Box::new(Dense))),
        ("other order", one(Box::new(Dense), vec![3, 0, 2, 1], Box::new(top_k(0.25)))),
        ("in buckets", Box::new(Bucketed::new(layout, 6, bucket))),
    ]
}

/// Exchanges a vector, on a device or on the host, and returns the average.
fn exchange(
    reducer: &mut dyn Reducer,
    layout: &Layout,
    step: u64,
    device: Option<&mut HostDevice>,
) -> Result<Vec<f32>, ReduceError> {
    let mut comm = Local::world(1).remove(0);
    let own = gradient(layout, 0, step);
    let (mut average, agreed_step) = (vec![0.0; own.len()], AgreedStep { step, ..AgreedStep::default() });
    let (key, slots) = (Key::new(1).step(step), layout.slots());
    let round = Round { key, slots, agreed_step: &agreed_step, input: &[], average: &mut average, sent: None };
    let Some(vector) = device else {
        reducer.reduce_arriving(round, &mut CompleteVector(&own), &mut comm)?;
        reducer.commit();
        return Ok(average);
    };
    let mut input = DeviceInput::new(vector, slots.len());
    let reduced = reducer.reduce_arriving(round, &mut input, &mut comm);
    let ended = reduced.and_then(|_| {
        let finished = input.finish(&average);
        finished.map_err(|source| ReduceError::Device { rank: 0, source })
    });
    ended.inspect_err(|_| reducer.discard())?;
    reducer.commit();
    Ok(Vec::new())
}

fn vector(layout: &Layout, step: u64) -> HostDevice {
    HostDevice::new(gradient(layout, 0, step), Kernels::All)
}

fn state(reducer: &dyn Reducer) -> State {
    let mut state = State::default();
    reducer.save(&mut state);
    state
}

/// Returns the residual energy, of all slots and of each.
fn report(reducer: &dyn Reducer) -> (Option<ResidualEnergy>, Vec<SlotReport>) {
    let mut report = Report { slots: vec![SlotReport::default(); 4], ..Report::default() };
    reducer.report(&mut report);
    (report.residual_energy, report.slots)
}

fn with_feedback(inner: Box<dyn Reducer>, momentum: bool) -> Box<dyn Reducer> {
    match momentum {
        true => Box::new(MomentumCorrection::new(inner, MomentumCorrectionConfig::default()).unwrap()),
        false => Box::new(ErrorFeedback::new(inner)),
    }
}

#[test]
fn groups_on_a_device_have_the_bits_of_the_host() {
    let layout = layout();
    for momentum in [false, true] {
        let [on_host, on_device] = [(); 2].map(|()| groups(&layout));
        for ((name, on_host), (_, on_device)) in on_host.into_iter().zip(on_device) {
            let (mut on_host, mut on_device) = (with_feedback(on_host, momentum), with_feedback(on_device, momentum));
            for step in 0..5 {
                let average = exchange(&mut on_host, &layout, step, None).unwrap();
                // The run continues on the other side.
                let mut vector = vector(&layout, step);
                let device = (step != 3).then_some(&mut vector);
                let moved = exchange(&mut on_device, &layout, step, device).unwrap();
                let got = if step == 3 { moved } else { vector.into_average() };
                assert_eq!(got, average, "{name}, momentum: {momentum}, step {step}");
                assert_eq!(state(&on_device), state(&on_host), "{name}, momentum: {momentum}, step {step}");
                let [on_device, on_host] = [&on_device, &on_host].map(|reducer| report(reducer));
                assert_eq!(on_device, on_host, "{name}, momentum: {momentum}, step {step}");
            }
        }
    }
}

#[test]
fn a_dense_group_reads_its_own_values_only() {
    let layout = layout();
    let dense: Vec<(Vec<usize>, Box<dyn Reducer>)> = vec![(vec![1, 3], Box::new(Dense))];
    let mut fed = ErrorFeedback::new(Grouped::new(&layout, Box::new(top_k(0.25)), dense));
    for step in 0..2 {
        let mut vector = vector(&layout, step);
        exchange(&mut fed, &layout, step, Some(&mut vector)).unwrap();
        let mut message = Message::default();
        TopK::fraction(0.25).unwrap().compress_into(&[1.0; 8], Key::new(0), &mut message);
        // Three values, a message with the statistics of two slots, and two energies of each slot.
        let down = 3 * 4 + message.encoded_len() + 2 * 16 + 4 * 16;
        assert_eq!((vector.down(), vector.up()), (down, 3 * 4), "step {step}");
        for (slot, reported) in layout.slots().iter().zip(report(&fed).1) {
            let (left, energy) = (reported.left.unwrap(), norm2(&fed.residual()[slot.range()]));
            assert!((left - energy).abs() <= 1e-6 * (1.0 + energy), "step {step}, {}: {left}, {energy}", slot.path());
        }
    }
}

/// Averages of two steps on the host.
fn averages_on_host(index: usize, momentum: bool) -> [Vec<f32>; 2] {
    let (layout, (_, reducer)) = (layout(), groups(&layout()).swap_remove(index));
    let mut fed = with_feedback(reducer, momentum);
    [0, 1].map(|step| exchange(&mut fed, &layout, step, None).unwrap())
}

/// Fails after each number of operations, and returns the number of the operations of a step. Every failure is reported and leaves no trace.
fn operations(index: usize, momentum: bool, is_once: bool) -> usize {
    let (layout, [_, expected]) = (layout(), averages_on_host(index, momentum));
    for operations in 0.. {
        let (name, reducer) = groups(&layout).swap_remove(index);
        let mut fed = with_feedback(reducer, momentum);
        exchange(&mut fed, &layout, 0, Some(&mut vector(&layout, 0))).unwrap();
        let before = state(&fed);
        let mut vector = vector(&layout, 1);
        match is_once {
            true => vector.fail_once_after(operations),
            false => vector.fail_after(operations),
        }
        let Err(error) = exchange(&mut fed, &layout, 1, Some(&mut vector)) else { return operations };
        let text = error.to_string();
        assert!(text.contains("rank 0") && text.contains("the device is lost"), "{name}: {text}");
        assert_eq!(state(&fed), before, "{name}, {operations}");
        // The step is repeated elsewhere.
        assert_eq!(exchange(&mut fed, &layout, 1, None).unwrap(), expected, "{name}, {operations}");
    }
    unreachable!("a step has some operations")
}

#[test]
fn no_failure_of_a_packed_vector_is_lost() {
    for momentum in [false, true] {
        for index in 0..groups(&layout()).len() {
            let [all, one] = [false, true].map(|is_once| operations(index, momentum, is_once));
            assert!(all >= 3 && one == all, "{index}, momentum: {momentum}: {all} and {one} operations");
        }
    }
}
