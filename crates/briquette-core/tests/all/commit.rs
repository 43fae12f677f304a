//! Every wrapper forwards commit and discard to its contents, and a failure anywhere leaves nothing staged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::Local;
use briquette_core::compress::top_k::TopK;
use briquette_core::control::schedule::Schedule;
use briquette_core::error::ReduceError;
use briquette_core::reduce::{
    AgreedStep, Energies, Exchanged, Knob, OnDevice, Probe, ProbeInput, Ratios, Reducer, Round, dense::Dense,
    gather::Gather, power_sgd::PowerSgd,
};
use briquette_core::state::{Staged, State, Stateful};
use briquette_core::wrapper::{
    adaptive::Adaptive,
    bucketed::Bucketed,
    error_feedback::ErrorFeedback,
    grouped::Grouped,
    metered::Metered,
    momentum_correction::{MomentumCorrection, MomentumCorrectionConfig},
};
use briquette_core::{CompressionRatio, Key, Layout, Session};
use briquette_zoo::reduce::multi_step::MultiStep;
use briquette_zoo::wrapper::shifted::Shifted;

fn layout() -> Layout {
    Layout::new([("square", vec![5, 5]), ("few", vec![3])])
}

fn exchange(reducer: &mut dyn Reducer, input: &[f32], comm: &mut Session) -> Result<Vec<f32>, ReduceError> {
    let (layout, mut average, agreed_step) = (layout(), vec![0.0; input.len()], AgreedStep::default());
    let (key, slots) = (Key::new(1), layout.slots());
    reducer
        .exchange(Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None }, comm)?;
    Ok(average)
}

/// A dense reducer that counts its commits and discards.
#[derive(Clone, Default)]
struct Counts(Arc<[AtomicUsize; 2]>);

impl Counts {
    fn get(&self) -> [usize; 2] {
        [0, 1].map(|index| self.0[index].load(Ordering::Relaxed))
    }
}

impl Stateful for Counts {
    fn commit(&mut self) {
        self.0[0].fetch_add(1, Ordering::Relaxed);
    }
    fn discard(&mut self) {
        self.0[1].fetch_add(1, Ordering::Relaxed);
    }
}

impl Reducer for Counts {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        Dense.reduce(round, comm)
    }
    fn knob(&mut self) -> Option<&mut dyn Knob> {
        Some(self)
    }
}

impl Knob for Counts {
    fn per_slot(&self) -> bool {
        false
    }
    fn set(&mut self, _: Ratios<'_>) {}
    fn probe(&mut self, _: &Probe<'_>, _: ProbeInput<'_>, _: &mut Energies) -> OnDevice<bool> {
        Ok(true)
    }
}

#[test]
fn every_wrapper_passes_commit_and_discard_on() {
    type Wrap = fn(Counts) -> Box<dyn Reducer>;
    let wraps: [(&str, Wrap, usize); 10] = [
        ("box", |inner| Box::new(Box::new(inner) as Box<dyn Reducer>), 1),
        ("error feedback", |inner| Box::new(ErrorFeedback::new(inner)), 1),
        ("momentum", |inner| Box::new(MomentumCorrection::new(inner, MomentumCorrectionConfig::default()).unwrap()), 1),
        ("diana", |inner| Box::new(Shifted::diana(inner, 0.5).unwrap()), 1),
        ("metered", |inner| Box::new(Metered::new(inner)), 1),
        ("main group", |inner| Box::new(Grouped::new(&layout(), Box::new(inner), vec![])), 1),
        ("group", |inner| Box::new(Grouped::new(&layout(), Box::new(Dense), vec![(vec![1], Box::new(inner))])), 1),
        ("buckets", |inner| Box::new(Bucketed::new(&layout(), 1, |_| inner.clone())), 2),
        ("rounds", |inner| Box::new(MultiStep::contractive(vec![inner.clone(), inner]).unwrap()), 2),
        ("adaptive", |inner| Box::new(Adaptive::new(inner, Schedule::constant(CompressionRatio::DENSE)).unwrap()), 1),
    ];
    for (name, wrap, held) in wraps {
        let counts = Counts::default();
        let mut wrapped = wrap(counts.clone());
        wrapped.commit();
        assert_eq!(counts.get(), [held, 0], "{name}");
        wrapped.discard();
        assert_eq!(counts.get(), [held, held], "{name}");
    }
}

#[cfg(feature = "rayon")]
#[test]
fn a_pool_passes_commit_and_discard_on() {
    let counts = Counts::default();
    let mut threaded = briquette_core::wrapper::threaded::Threaded::new(counts.clone(), 1).unwrap();
    threaded.commit();
    threaded.discard();
    assert_eq!(counts.get(), [1, 1]);
}

fn saved(reducer: &dyn Reducer) -> State {
    let mut state = State::default();
    reducer.save(&mut state);
    state
}

/// The second bucket's sum overflows after the first has staged its warm start, or the residual overflows after all have
/// staged.
#[test]
fn what_was_staged_before_a_failure_is_never_committed() {
    let low_rank = || Bucketed::new(&layout(), 1, |_| PowerSgd::new(1).unwrap());
    let good: Vec<f32> = (0..28).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut bad = good.clone();
    bad[27] = f32::MAX;
    let outcomes = Local::run(2, |mut comm| {
        let (mut clean, mut failed) = (ErrorFeedback::new(low_rank()), ErrorFeedback::new(low_rank()));
        for step in 0..3 {
            let before = saved(&failed);
            let error = exchange(&mut failed, &bad, &mut comm).unwrap_err();
            assert_eq!(error, ReduceError::Overflow { slot: "few".into() }, "step {step}");
            // Nothing is staged: committing again changes nothing.
            failed.commit();
            assert_eq!(saved(&failed), before, "step {step}");
            assert_eq!(exchange(&mut failed, &good, &mut comm)?, exchange(&mut clean, &good, &mut comm)?);
            assert_eq!(saved(&failed), saved(&clean), "step {step}");
        }
        Ok::<_, ReduceError>(())
    });
    outcomes.into_iter().for_each(Result::unwrap);
}

#[test]
fn what_was_reduced_and_not_committed_is_as_if_it_had_not_been() {
    let mut comm = Local::world(1).remove(0);
    let top_k = || ErrorFeedback::new(Gather::new(TopK::fraction(0.2).unwrap(), Mean));
    let (mut clean, mut tried) = (top_k(), top_k());
    let (layout, agreed_step, mut average) = (layout(), AgreedStep::default(), vec![0.0; 28]);
    for step in 0..3 {
        let input: Vec<f32> = (0..28).map(|i| ((i + step) as f32 * 0.7).cos()).collect();
        let (key, slots) = (Key::new(9), layout.slots());
        let round =
            Round { key, slots, agreed_step: &agreed_step, input: &[7.0; 28], average: &mut average, sent: None };
        tried.reduce(round, &mut comm).unwrap();
        assert_eq!(tried.residual(), clean.residual());
        let expected = exchange(&mut clean, &input, &mut comm).unwrap();
        assert_eq!(exchange(&mut tried, &input, &mut comm).unwrap(), expected, "step {step}");
    }
}

#[test]
fn a_memory_has_its_length_from_the_first_commit_on() {
    let mut memory = Staged::<Vec<f32>>::default();
    memory.fit(2).unwrap();
    assert_eq!(memory.both().0, &[0.0; 2]);
    assert!(memory.now().is_empty());
    memory.discard();
    memory.fit(3).unwrap();
    memory.next_mut().fill(1.0);
    memory.stage();
    memory.discard();
    memory.commit();
    assert!(memory.now().is_empty(), "discarded");
    memory.fit(3).unwrap();
    memory.commit();
    assert_eq!(memory.now(), &[0.0; 3]);
    assert_eq!(memory.fit(2), Err(ReduceError::Length { expected: 3, got: 2 }));
}
