//! Trains strategies by SGD on threads, without step headers: tests state the agreed values.
//!
//! ```
//! use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
//! use briquette_core::sync::periodic::Periodic;
//!
//! let sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 200 };
//! let ranks = train(4, || Periodic::new(8).expect("a period"), &[3.0; 10], (sgd, &noisy));
//! assert!(loss(&mean(&ranks)) < 0.2 * loss(&[3.0; 10]));
//! ```

use rand_distr::{Distribution, StandardNormal};

use crate::comm::{Local, run_ranks};
use crate::error::CommError;
use crate::seam::{AgreedStep, Context, Momenta, SyncStrategy};
use crate::state::State;
use crate::{Key, Layout, Session};

/// Gradient of one rank at a step, as a function of its number, the step, and the parameters.
pub type Gradient<'a> = &'a (dyn Fn(usize, u64, &[f32]) -> Vec<f32> + Sync);

/// A run of SGD.
#[derive(Debug, Clone, Copy)]
pub struct Sgd {
    /// Learning rate.
    pub rate: f32,
    /// Heavy-ball momentum; 0 for plain SGD.
    pub momentum: f32,
    /// Number of steps.
    pub steps: u64,
}

/// Returns the parameters of every rank after a run from `start`.
///
/// # Panics
/// If a rank fails.
pub fn train<S: SyncStrategy>(
    world: usize,
    strategy: impl Fn() -> S + Sync,
    start: &[f32],
    task: (Sgd, Gradient<'_>),
) -> Vec<Vec<f32>> {
    run(Local::world(world), strategy, start, task).into_iter().map(|(x, _)| x).collect()
}

/// Does the same with rank-local starts and losses.
///
/// # Panics
/// If a rank fails.
pub fn train_with_losses<S: SyncStrategy>(
    world: usize,
    strategy: impl Fn() -> S + Sync,
    start: &(dyn Fn(usize) -> Vec<f32> + Sync),
    task: (Sgd, Gradient<'_>),
    loss: &(dyn Fn(usize, u64) -> f64 + Sync),
) -> Vec<Vec<f32>> {
    run_from(Local::world(world), strategy, start, task, loss).into_iter().map(|(x, _)| x).collect()
}

/// Trains on these sessions. Returns each rank's final parameters, and its clock after the last step.
///
/// # Panics
/// If a rank fails.
pub fn run<S: SyncStrategy>(
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
            let cx = Context::new(Key::new(5), layout.slots(), &agreed_step);
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
                // SGD has no second moment.
                Momenta::Keep | Momenta::AverageSecond => {}
                Momenta::Reset => velocity.fill(0.0),
                Momenta::Average | Momenta::AverageFirst => {
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
pub fn noisy(rank: usize, step: u64, x: &[f32]) -> Vec<f32> {
    let mut rng = Key::new(11).step(step).rank(rank).block(0);
    let mut noise = || -> f32 { StandardNormal.sample(&mut rng) };
    x.iter().enumerate().map(|(i, v)| curvature(i, x.len()) as f32 * v + 0.3 * noise()).collect()
}

/// The function whose gradient is [`noisy`].
pub fn loss(x: &[f64]) -> f64 {
    x.iter().enumerate().map(|(i, v)| 0.5 * curvature(i, x.len()) * v * v).sum()
}

fn curvature(i: usize, len: usize) -> f64 {
    300_f64.powf(-(i as f64) / (len - 1).max(1) as f64)
}

/// Returns the mean over ranks.
pub fn mean(ranks: &[Vec<f32>]) -> Vec<f64> {
    let sum = |i: usize| ranks.iter().map(|rank| f64::from(rank[i])).sum::<f64>();
    (0..ranks[0].len()).map(|i| sum(i) / ranks.len() as f64).collect()
}
