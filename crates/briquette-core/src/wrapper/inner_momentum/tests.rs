use super::*;
use crate::aggregate::mean::Mean;
use crate::comm::Local;
use crate::compress::top_k::TopK;
use crate::error::StateError;
use crate::reduce::{dense::Dense, gather::Gather};
use crate::seam::{Agreed, AgreedStep, Controller, Decision};
use crate::state::{State, Stateful};
use crate::wrapper::adaptive::Adaptive;
use crate::{CompressionRatio, Key};
use rand_distr::{Distribution, StandardNormal};

const LEN: usize = 30;
const RATE: f32 = 0.05;
const STEPS: u64 = 50;

fn settings(momentum: f32) -> InnerMomentumConfig {
    InnerMomentumConfig { momentum, ..InnerMomentumConfig::default() }
}

fn top(ratio: f64) -> Gather<TopK, Mean> {
    Gather::new(TopK::ratio(CompressionRatio::new(ratio).unwrap()), Mean)
}

/// Controller that alternates between ten sparse and ten dense steps.
#[derive(Debug)]
struct InTurns;

impl Stateful for InTurns {
    fn save(&self, _: &mut State) {}
    fn load(&mut self, _: &State) -> Result<(), StateError> {
        Ok(())
    }
}

fn is_dense(step: u64) -> bool {
    step / 10 % 2 == 1
}

impl Controller for InTurns {
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let ratio = if is_dense(agreed.agreed_step.step) { 1.0 } else { 10.0 };
        Decision::all(CompressionRatio::new(ratio).unwrap(), None)
    }
}

fn in_turns() -> Adaptive<Gather<TopK, Mean>, InTurns> {
    Adaptive::new(top(10.0), InTurns).unwrap()
}

/// Returns this rank's gradient: the distance to a rank-local target, plus noise.
fn gradient(rank: usize, step: u64, parameters: &[f32]) -> Vec<f32> {
    let mut rng = Key::new(8).step(step).rank(rank).block(0);
    parameters.iter().map(|p| p - rank as f32 + Distribution::<f32>::sample(&StandardNormal, &mut rng)).collect()
}

fn mean_gradient(world: usize, step: u64, parameters: &[f32]) -> Vec<f32> {
    let mut mean = vec![0.0; LEN];
    for rank in 0..world {
        mean.iter_mut().zip(gradient(rank, step, parameters)).for_each(|(m, g)| *m += g / world as f32);
    }
    mean
}

/// SGD as in optimizers, with weight decay and dampening.
struct Sgd {
    momentum: f32,
    dampening: f32,
    decay: f32,
    velocity: Option<Vec<f32>>,
}

impl Sgd {
    fn new([momentum, dampening, decay]: [f32; 3]) -> Self {
        Sgd { momentum, dampening, decay, velocity: None }
    }

    fn step(&mut self, parameters: &mut [f32], gradient: &[f32]) {
        let gradient: Vec<f32> = gradient.iter().zip(&*parameters).map(|(g, p)| g + self.decay * p).collect();
        match &mut self.velocity {
            Some(v) => {
                v.iter_mut().zip(gradient).for_each(|(v, g)| *v = self.momentum * *v + (1.0 - self.dampening) * g);
            }
            none => *none = Some(gradient),
        }
        parameters.iter_mut().zip(self.velocity.iter().flatten()).for_each(|(p, v)| *p -= RATE * v);
    }
}

/// Returns rank 0's parameters after each step, and the optimizer's input.
fn train<R: Reducer>(world: usize, sgd: [f32; 3], make: impl Fn() -> R + Sync) -> Vec<[Vec<f32>; 2]> {
    let layout = Layout::flat(LEN);
    let mut ranks = Local::run(world, |mut comm| {
        let (mut reducer, mut optimizer, mut parameters) = (make(), Sgd::new(sgd), vec![0.0; LEN]);
        let mut path = Vec::new();
        for step in 0..STEPS {
            let (input, mut average) = (gradient(comm.rank(), step, &parameters), vec![0.0; LEN]);
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            let (key, slots) = (Key::new(3).step(step), layout.slots());
            let (agreed_step, input, average_of) = (&agreed_step, &input, &mut average);
            reducer.exchange(Round { key, slots, agreed_step, input, average: average_of, sent: None }, &mut comm)?;
            optimizer.step(&mut parameters, &average);
            path.push([parameters.clone(), average]);
        }
        Ok::<_, ReduceError>(path)
    });
    ranks.swap_remove(0).unwrap()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Momentum 1/2, gradient (4, 1), the larger of two values is sent and masked: the agreed velocities are (4, 0), (4, 0), (0, 4.25), as computed by
/// hand in `momentum_correction`. Minus half of the previous ones: (4, 0), (4 − 2, 0), (0 − 2, 4.25).
#[test]
fn what_is_handed_over_by_hand() {
    let mut comm = Local::world(1).remove(0);
    let settings = InnerMomentumConfig { masking: Masking::Sent, ..settings(0.5) };
    let mut reducer = InnerMomentum::new(top(2.0), settings).unwrap();
    let layout = Layout::flat(2);
    let mut velocity = [0.0; 2];
    for (handed, agreed) in [([4.0, 0.0], [4.0, 0.0]), ([2.0, 0.0], [4.0, 0.0]), ([-2.0, 4.25], [0.0, 4.25])] {
        let (mut average, mut sent) = ([0.0; 2], [0.0; 2]);
        let (key, agreed_step) = (Key::new(3), &AgreedStep::default());
        let (average_of, sent_of) = (&mut average, Some(&mut sent[..]));
        let round =
            Round { key, slots: layout.slots(), agreed_step, input: &[4.0, 1.0], average: average_of, sent: sent_of };
        reducer.exchange(round, &mut comm).unwrap();
        velocity.iter_mut().zip(average).for_each(|(v, g)| *v = 0.5 * *v + g);
        assert_eq!((average, sent, velocity), (handed, handed, agreed));
        assert_eq!(reducer.agreed_velocity(), agreed);
    }
}

#[test]
fn dense_it_is_the_optimizer_whatever_decay_and_dampening_it_has() {
    for sgd in [[0.9, 0.0, 0.0], [0.5, 0.0, 0.01], [0.9, 0.1, 0.01]] {
        for world in [1, 2, 3, 5] {
            let (mut plain, mut parameters) = (Sgd::new(sgd), vec![0.0; LEN]);
            let path = train(world, sgd, || InnerMomentum::new(Dense, settings(sgd[0])).unwrap());
            for (step, [ours, _]) in (0..).zip(&path) {
                let gradient = mean_gradient(world, step, &parameters);
                plain.step(&mut parameters, &gradient);
                let off = furthest(ours, &parameters);
                assert!(off < 1e-5, "{sgd:?}, {world} ranks, step {step}: {off}");
            }
        }
    }
}

#[test]
fn around_an_optimizer_with_momentum_it_is_momentum_correction_around_one_without() {
    for momentum in [0.5, 0.9] {
        for world in [1, 3] {
            let masking = Masking::Waited;
            let correction = MomentumCorrectionConfig { momentum, masking, ..MomentumCorrectionConfig::default() };
            let ours =
                train(world, [momentum, 0.0, 0.0], || InnerMomentum::new(in_turns(), settings(momentum)).unwrap());
            let theirs = train(world, [0.0; 3], || MomentumCorrection::new(in_turns(), correction).unwrap());
            for (step, ([ours, _], [theirs, _])) in ours.iter().zip(&theirs).enumerate() {
                let off = furthest(ours, theirs);
                assert!(off < 1e-4, "momentum {momentum}, {world} ranks, step {step}: {off}");
            }
        }
    }
}

/// The first dense step sends the residual; the second takes its velocity back; from the third on the optimizer receives gradients.
#[test]
fn some_dense_steps_after_sparse_ones_the_optimizer_is_handed_the_mean_gradient() {
    let world = 3;
    let path = train(world, [0.9, 0.0, 0.0], || InnerMomentum::new(in_turns(), settings(0.9)).unwrap());
    let off = |step: usize| furthest(&path[step][1], &mean_gradient(world, step as u64, &path[step - 1][0]));
    for step in (1..STEPS).filter(|step| is_dense(*step)) {
        let is_settled = step % 10 >= 2;
        assert_eq!(off(step as usize) < 1e-5, is_settled, "step {step}: {}", off(step as usize));
    }
}

#[test]
fn with_another_momentum_than_the_optimizer_has_it_is_another_run() {
    let run = |inner| train(2, [inner, 0.0, 0.0], || InnerMomentum::new(in_turns(), settings(0.9)).unwrap());
    let (same, other) = (run(0.9), run(0.8));
    assert!(furthest(&same[49][0], &other[49][0]) > 0.01);
}

#[test]
fn momenta_out_of_range_are_refused() {
    for momentum in [1.0, -0.1, f32::NAN] {
        let error = InnerMomentum::new(Dense, settings(momentum)).map(drop).unwrap_err().to_string();
        assert!(error.contains("momentum") && error.contains("[0, 1)"), "{error}");
    }
}
