use super::*;
use crate::aggregate::mean::Mean;
use crate::comm::Local;
use crate::compress::top_k::TopK;
use crate::laws::{HostDevice, Kernels};
use crate::reduce::gather::Gather;
use crate::seam::{Agreed, Compressor, Controller, Decision, DeviceInput, ErrorBound};
use crate::state::Stateful;
use crate::wrapper::adaptive::Adaptive;
use crate::{CompressionRatio, Key, Layout, Message};

type Fed = ErrorFeedback<Gather<TopK, Mean>>;

fn reducer(make: fn(Gather<TopK, Mean>) -> Fed) -> Fed {
    make(Gather::new(TopK::fraction(0.5).unwrap(), Mean))
}

fn step(reducer: &mut Fed, input: [f32; 2], learning_rate: Option<f64>) -> Result<[f32; 2], ReduceError> {
    let (layout, mut average) = (Layout::flat(2), [0.0; 2]);
    let agreed_step = AgreedStep { learning_rate, ..AgreedStep::default() };
    let (key, slots) = (Key::new(0), layout.slots());
    let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
    reducer.exchange(round, &mut Local::world(1).remove(0)).map(|_| average)
}

#[test]
fn inside_what_waits_keeps_the_rate_of_its_step() {
    // By hand: 2 stays in the residual at rate 0.5, which is 1 in parameters; at rate 0.25 that is 4 in gradients.
    let mut inside = reducer(ErrorFeedback::inside_learning_rate);
    assert_eq!(step(&mut inside, [3.0, 2.0], Some(0.5)).unwrap(), [3.0, 0.0]);
    assert_eq!(inside.residual(), [0.0, 1.0]);
    assert_eq!(step(&mut inside, [3.0, 2.0], Some(0.25)).unwrap(), [0.0, 6.0]);
    assert_eq!(inside.residual(), [0.75, 0.0]);
    // At rate 0 nothing is applied and the residual stays.
    assert_eq!(step(&mut inside, [0.0, 1.0], Some(0.0)).unwrap(), [0.0, 1.0]);
    assert_eq!(inside.residual(), [0.75, 0.0]);
    assert_eq!(step(&mut inside, [0.0, 1.0], Some(1.0)).unwrap(), [0.0, 1.0]);
    assert_eq!(inside.residual(), [0.75, 0.0]);
}

#[test]
fn inside_what_moves_is_what_was_asked_for_whatever_the_rates() {
    // Σ γ·Δ + e = Σ γ·g: the virtual iterate. Outside, this holds for constant rates only.
    let rates = [0.5, 0.25, 1.0, 0.125, 0.5];
    let (mut moved, mut asked) = ([0.0; 2], [0.0; 2]);
    let mut inside = reducer(ErrorFeedback::inside_learning_rate);
    for (index, rate) in rates.into_iter().enumerate() {
        let input = [1.0 + index as f32, 3.0 - index as f32];
        let sent = step(&mut inside, input, Some(rate)).unwrap();
        (0..2).for_each(|i| moved[i] += rate as f32 * sent[i]);
        (0..2).for_each(|i| asked[i] += rate as f32 * input[i]);
    }
    assert_eq!([moved[0] + inside.residual()[0], moved[1] + inside.residual()[1]], asked);
}

#[test]
fn a_constant_rate_makes_no_difference() {
    let (mut inside, mut outside) = (reducer(ErrorFeedback::inside_learning_rate), reducer(ErrorFeedback::new));
    for index in 0..6 {
        let input = [0.3 * index as f32, 1.7 - 0.9 * index as f32];
        let with = step(&mut inside, input, Some(0.125)).unwrap();
        assert_eq!(with, step(&mut outside, input, None).unwrap());
    }
}

#[test]
fn rates_that_no_memory_can_be_kept_in_are_refused() {
    let mut inside = reducer(ErrorFeedback::inside_learning_rate);
    for rate in [f64::INFINITY, f64::NAN, -0.1, 1e-40, 1e39] {
        let error = step(&mut inside, [1.0, 2.0], Some(rate)).unwrap_err().to_string();
        assert!(error.contains(&format!("learning rate is {rate}")), "{error}");
        assert!(inside.residual().is_empty(), "as before");
    }
    // At rate 8 the residual of 2.9e38 would overflow.
    let error = step(&mut inside, [3e38, 2.9e38], Some(8.0)).unwrap_err();
    assert!(matches!(&error, ReduceError::NonFinite { rank: 0, .. }), "{error}");
    assert!(inside.residual().is_empty(), "as before");
}

#[test]
fn without_a_rate_inside_says_what_is_missing() {
    let mut inside = reducer(ErrorFeedback::inside_learning_rate);
    let error = step(&mut inside, [1.0, 2.0], None).unwrap_err().to_string();
    assert!(error.contains("step 0") && error.contains("record_learning_rate"), "{error}");
    assert!(inside.residual().is_empty(), "as before");
}

#[test]
fn what_leaves_the_range_of_numbers_beside_the_residual_is_not_sent() {
    let mut fed = reducer(ErrorFeedback::new);
    step(&mut fed, [3e38, 2.9e38], None).unwrap();
    let error = step(&mut fed, [1.0, 2.9e38], None).unwrap_err();
    assert!(matches!(&error, ReduceError::NonFinite { rank: 0, .. }), "{error}");
    assert_eq!(fed.residual(), [0.0, 2.9e38], "as before");
}

/// A reducer that sends the negative of half of the values, or of all.
struct Opposite(bool);

impl Compressor for Opposite {
    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let opposite = x.iter().map(|x| -x);
        match self.0 {
            true => out.write_sparse(x.len(), (0..).zip(opposite).take(x.len() / 2)).unwrap(),
            false => out.write_dense(&opposite.collect::<Vec<_>>()).unwrap(),
        }
    }
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Biased { omega: 4.0 }
    }
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::DENSE
    }
}

#[test]
fn what_stays_behind_is_finite_or_the_exchange_fails() {
    for sparse in [true, false] {
        let mut fed = ErrorFeedback::new(Gather::new(Opposite(sparse), Mean));
        let (layout, mut average, agreed_step) = (Layout::flat(2), [0.0; 2], AgreedStep::default());
        let mut step = |input: [f32; 2]| {
            let (key, slots) = (Key::new(0), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            fed.exchange(round, &mut Local::world(1).remove(0)).map(|_| fed.residual().to_vec())
        };
        assert_eq!(step([1.0, 2.0]).unwrap(), [2.0, if sparse { 2.0 } else { 4.0 }]);
        let error = step([3e38, 0.0]).unwrap_err();
        assert!(matches!(&error, ReduceError::NonFinite { rank: 0, .. }), "sparse: {sparse}: {error}");
    }
}

/// A controller that compresses 2x and discards every residual.
struct Alarm;

impl Stateful for Alarm {}

impl Controller for Alarm {
    fn decide(&mut self, _: &Agreed<'_>) -> Decision<'_> {
        Decision::all(CompressionRatio::new(2.0).unwrap(), None)
    }

    fn discards_residual(&self) -> bool {
        true
    }
}

#[test]
fn a_controller_discards_the_residual_on_the_host_and_on_a_device() {
    let (layout, agreed_step) = (Layout::flat(2), AgreedStep::default());
    for is_on_device in [false, true] {
        let mut fed =
            ErrorFeedback::new(Adaptive::new(Gather::new(TopK::fraction(0.5).unwrap(), Mean), Alarm).unwrap());
        let (input, mut average, mut comm) = ([1.0, 5.0], [0.0; 2], Local::world(1).remove(0));
        let mut vector = HostDevice::new(input.to_vec(), Kernels::All);
        let (mut on_device, mut on_host) = (DeviceInput::new(&mut vector, 1), CompleteVector(&input));
        let values: &mut dyn Arriving = if is_on_device { &mut on_device } else { &mut on_host };
        let (key, slots) = (Key::new(0), layout.slots());
        let round = Round { key, slots, agreed_step: &agreed_step, input: &[], average: &mut average, sent: None };
        fed.reduce_arriving(round, values, &mut comm).unwrap();
        fed.commit();
        assert_eq!(fed.residual(), [0.0; 2], "on the device: {is_on_device}; 1 was not sent");
    }
}

/// Half of `[3, 2]` is sent: 3 twice (2 + 2/2 is no more), then 2 + 3/2.
#[test]
fn golden_a_residual_fades() {
    let mut fed = ErrorFeedback::new(Gather::new(TopK::fraction(0.5).unwrap(), Mean)).with_decay(0.5).unwrap();
    let (layout, agreed_step, mut comm) = (Layout::flat(2), AgreedStep::default(), Local::world(1).remove(0));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let mut average = [0.0; 2];
        let (key, slots, input) = (Key::new(0), layout.slots(), &[3.0, 2.0]);
        let round = Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None };
        fed.exchange(round, &mut comm).unwrap();
        seen.push((average, fed.residual()));
    }
    assert_eq!(seen, [([3.0, 0.0], vec![0.0, 2.0]), ([3.0, 0.0], vec![0.0, 3.0]), ([0.0, 3.5], vec![3.0, 0.0])]);
    let refused = ErrorFeedback::new(Gather::new(TopK::fraction(0.5).unwrap(), Mean)).with_decay(0.0).unwrap_err();
    assert!(refused.to_string().contains("decay of error must be in (0, 1]"), "{refused}");
}
