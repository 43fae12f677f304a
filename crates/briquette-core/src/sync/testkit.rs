//! Test harness: trains by plain SGD on threads, without headers; tests set the agreed values.

use std::time::Duration;

use rand_distr::{Distribution, StandardNormal};

use super::{Context, Momenta, SyncStrategy};
use crate::comm::{Compute, Local, Network, Paces, Session, Simulated, run_ranks};
use crate::error::CommError;
use crate::reduce::AgreedStep;
use crate::state::State;
use crate::{Key, Layout};

/// Gradient of one rank at a step, as a function of its number, the step, and the parameters.
pub(super) type Gradient<'a> = &'a (dyn Fn(usize, u64, &[f32]) -> Vec<f32> + Sync);

/// A run of plain or momentum SGD.
#[derive(Clone, Copy)]
pub(super) struct Sgd {
    pub(super) rate: f32,
    pub(super) momentum: f32,
    pub(super) steps: u64,
}

/// A simulated network.
#[derive(Clone)]
pub(super) struct Simulation {
    pub(super) world: usize,
    pub(super) network: Network,
    /// Compute time of a step for each rank; further ranks use the last entry.
    pub(super) compute: Vec<Duration>,
}

/// Returns the parameters of every rank after a run from `start`.
pub(super) fn train<S: SyncStrategy>(
    world: usize,
    strategy: impl Fn() -> S + Sync,
    start: &[f32],
    task: (Sgd, Gradient<'_>),
) -> Vec<Vec<f32>> {
    run(Local::world(world), strategy, start, task).into_iter().map(|(x, _)| x).collect()
}

/// Does the same with rank-local starts and losses.
pub(super) fn train_with_losses<S: SyncStrategy>(
    world: usize,
    strategy: impl Fn() -> S + Sync,
    start: &(dyn Fn(usize) -> Vec<f32> + Sync),
    task: (Sgd, Gradient<'_>),
    loss: &(dyn Fn(usize, u64) -> f64 + Sync),
) -> Vec<Vec<f32>> {
    run_from(Local::world(world), strategy, start, task, loss).into_iter().map(|(x, _)| x).collect()
}

/// Returns the simulated seconds of the slowest rank.
pub(super) fn simulate<S: SyncStrategy>(
    Simulation { world, network, compute }: Simulation,
    strategy: impl Fn() -> S + Sync,
    start: &[f32],
    task: (Sgd, Gradient<'_>),
) -> f64 {
    let world = Simulated::world(world, network, Compute::Paced(Paces::constant(&compute).unwrap()));
    run(world, strategy, start, task).into_iter().map(|(_, seconds)| seconds).fold(0.0, f64::max)
}

/// Returns each rank's final parameters, and its clock after the last step.
fn run<S: SyncStrategy>(
    world: Vec<Session>,
    strategy: impl Fn() -> S + Sync,
    start: &[f32],
    task: (Sgd, Gradient<'_>),
) -> Vec<(Vec<f32>, f64)> {
    run_from(world, strategy, &|_| start.to_vec(), task, &|_, _| 0.0)
}

fn run_from<S: SyncStrategy>(
    world: Vec<Session>,
    strategy: impl Fn() -> S + Sync,
    start: &(dyn Fn(usize) -> Vec<f32> + Sync),
    (sgd, gradient): (Sgd, Gradient<'_>),
    loss: &(dyn Fn(usize, u64) -> f64 + Sync),
) -> Vec<(Vec<f32>, f64)> {
    let each = |mut comm: Session| {
        let (mut strategy, mut x) = (strategy(), start(comm.rank()));
        let (layout, mut velocity) = (Layout::flat(x.len()), vec![0.0; x.len()]);
        strategy.begin(&x);
        for step in 0..sgd.steps {
            comm.begin_step(step);
            let (learning_rate, loss) = (Some(f64::from(sgd.rate)), Some(loss(comm.rank(), step)));
            let agreed_step = AgreedStep { step, learning_rate, loss, samples: 1, ..AgreedStep::default() };
            let cx = Context { key: Key::new(5), slots: layout.slots(), agreed_step: &agreed_step, ranks: &[] };
            let (plan, mut g) = (strategy.plan(step), gradient(comm.rank(), step, &x));
            if plan.gradients {
                strategy.after_backward(&mut g, &cx, &mut comm).expect("no rank fails");
            }
            for ((x, v), g) in x.iter_mut().zip(&mut velocity).zip(&g).filter(|_| plan.optimizes) {
                *v = sgd.momentum * *v + g;
                *x -= sgd.rate * *v;
            }
            let momenta = match plan.parameters {
                true => strategy.after_step(&mut x, &cx, &mut comm).expect("no rank fails"),
                false => Momenta::Keep,
            };
            match momenta {
                Momenta::Keep => {}
                Momenta::Reset => velocity.fill(0.0),
                Momenta::Average => {
                    comm.all_reduce_sum(&mut velocity).expect("no rank fails");
                    let world = comm.world() as f32;
                    velocity.iter_mut().for_each(|v| *v /= world);
                }
            }
            strategy.commit();
            strategy.after_commit(&cx, &mut comm);
        }
        let seconds = comm.now();
        strategy.settle(&mut comm).expect("no rank fails");
        strategy.save(&mut State::default());
        strategy.view(&mut x);
        Ok::<_, CommError>((x, seconds))
    };
    run_ranks(world, each).into_iter().collect::<Result<_, _>>().expect("no rank fails")
}

/// The gradient of `½ Σ aᵢ·xᵢ²`, with curvatures from 1 down to 1/300 and noise that differs between ranks and steps.
pub(super) fn noisy(rank: usize, step: u64, x: &[f32]) -> Vec<f32> {
    let mut rng = Key::new(11).step(step).rank(rank).block(0);
    let mut noise = || -> f32 { StandardNormal.sample(&mut rng) };
    x.iter().enumerate().map(|(i, v)| curvature(i, x.len()) as f32 * v + 0.3 * noise()).collect()
}

/// The function whose gradient is [`noisy`].
pub(super) fn loss(x: &[f64]) -> f64 {
    x.iter().enumerate().map(|(i, v)| 0.5 * curvature(i, x.len()) * v * v).sum()
}

fn curvature(i: usize, len: usize) -> f64 {
    300_f64.powf(-(i as f64) / (len - 1).max(1) as f64)
}

/// Returns the mean over ranks.
pub(super) fn mean(ranks: &[Vec<f32>]) -> Vec<f64> {
    let sum = |i: usize| ranks.iter().map(|rank| f64::from(rank[i])).sum::<f64>();
    (0..ranks[0].len()).map(|i| sum(i) / ranks.len() as f64).collect()
}
