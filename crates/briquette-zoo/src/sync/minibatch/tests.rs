use super::*;
use briquette_core::config::Config;
use briquette_core::laws::train::{Sgd, mean, noisy, train};
use briquette_core::reduce::{AgreedStep, dense::Dense};
use briquette_core::state::{State, Stateful};
use briquette_core::sync::{SyncStrategy, every_step::EveryStep, periodic::Periodic};
use briquette_core::wrapper::momentum_correction::MomentumCorrectionConfig;

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };
const ACCELERATED: MinibatchConfig = MinibatchConfig { period: 1, accelerate: true, restart: 0 };

fn minibatch(settings: MinibatchConfig) -> impl Fn() -> Minibatch<Dense> + Sync {
    move || Minibatch::new(settings, Dense).unwrap()
}

fn plain(period: u64) -> impl Fn() -> Minibatch<Dense> + Sync {
    minibatch(MinibatchConfig { period, ..MinibatchConfig::default() })
}

#[test]
fn it_is_minibatch_sgd_of_k_times_the_batch() {
    for (period, momentum) in [(1, 0.9), (3, 0.0), (8, 0.0), (3, 0.9), (8, 0.5)] {
        let sgd = Sgd { momentum, ..SGD };
        let ours = train(4, plain(period), &[3.0; 10], (sgd, &noisy));
        let batch = |rank: usize, round: u64, x: &[f32]| {
            let gradients = (0..period).map(|k| noisy(rank, period * round + k, x)).collect::<Vec<_>>();
            mean(&gradients).into_iter().map(|g| g as f32).collect()
        };
        let rounds = Sgd { steps: SGD.steps / period, ..sgd };
        let theirs = train(4, || EveryStep::new(Dense), &[3.0; 10], (rounds, &batch));
        assert!(ours.iter().flatten().zip(theirs.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-6), "{period}");
        assert!(period > 1 || ours == theirs, "to the bit");
    }
}

#[test]
fn within_a_round_nothing_moves_whatever_the_optimizer_does() {
    let sgd = |steps| Sgd { momentum: 0.9, steps, ..SGD };
    let after = |steps| train(3, plain(5), &[3.0; 10], (sgd(steps), &noisy));
    assert!(after(4) == [[3.0; 10]; 3] && after(5) != after(4));
    assert!((6..10).all(|steps| after(steps) == after(5)) && after(10) != after(5));
}

/// Quadratics with curvatures between 1/1000 and 1.5, rank-dependent optima that lie `zeta` apart, and no noise.
struct Quadratics {
    zeta: f64,
}

const LEN: usize = 50;

impl Quadratics {
    fn curvature(rank: usize, i: usize) -> f64 {
        1e-3_f64.powf(1.0 - i as f64 / (LEN - 1) as f64) * (1.0 + 0.5 * ((i + rank) as f64).sin())
    }
    fn mean_curvature(i: usize) -> f64 {
        (0..4).map(|rank| Quadratics::curvature(rank, i)).sum::<f64>() / 4.0
    }
    fn draw(purpose: u64, i: usize) -> f64 {
        let key = briquette_core::Key::new(3).step(purpose);
        (key.word(i) >> 11) as f64 / (1_u64 << 52) as f64 * 1.7 - 1.7
    }
    /// Returns optima that lie alternately on either side, so that the common optimum does not depend on `zeta`.
    fn optimum_of(&self, rank: usize, i: usize) -> f64 {
        let side = if rank.is_multiple_of(2) { 1.0 } else { -1.0 };
        let apart = self.zeta * side * Quadratics::mean_curvature(i) / Quadratics::curvature(rank, i);
        Quadratics::draw(0, i) + apart * Quadratics::draw(1 + rank as u64 / 2, i)
    }
    fn optimum(&self, i: usize) -> f64 {
        let sum: f64 = (0..4).map(|rank| Quadratics::curvature(rank, i) * self.optimum_of(rank, i)).sum();
        sum / (4.0 * Quadratics::mean_curvature(i))
    }
    fn gradient(&self, rank: usize, x: &[f32]) -> Vec<f32> {
        let at = |(i, x): (usize, &f32)| Quadratics::curvature(rank, i) * (f64::from(*x) - self.optimum_of(rank, i));
        x.iter().enumerate().map(|x| at(x) as f32).collect()
    }
    fn excess(&self, x: &[f64]) -> f64 {
        let at = |(i, x): (usize, &f64)| 0.5 * Quadratics::mean_curvature(i) * (x - self.optimum(i)).powi(2);
        x.iter().enumerate().map(at).sum()
    }
    /// Returns the lowest loss over learning rates after 50 rounds of 20 steps with four ranks.
    fn best<S: SyncStrategy>(&self, strategy: impl Fn() -> S + Sync, rates: &[f32]) -> f64 {
        let gradient = |rank: usize, _: u64, x: &[f32]| self.gradient(rank, x);
        let end = |rate: &f32| {
            let sgd = Sgd { rate: *rate, momentum: 0.0, steps: 1000 };
            self.excess(&mean(&train(4, &strategy, &[0.0; LEN], (sgd, &gradient))))
        };
        rates.iter().map(end).fold(f64::INFINITY, f64::min)
    }
}

/// Claim (section 3 of the paper, and its figure): with equal data Local SGD is best, and with very different data the order is
/// reversed. The result of minibatches does not depend on the differences at all.
#[test]
fn where_data_differ_the_order_turns_round() {
    let rates = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01].map(|rate| rate / 1.5);
    let ends = [0.0, 10.0].map(|zeta| {
        let problem = Quadratics { zeta };
        let accelerated = MinibatchConfig { period: 20, accelerate: true, restart: 0 };
        let local = problem.best(|| Periodic::new(20).unwrap(), &rates);
        [
            local,
            problem.best(minibatch(accelerated), &[0.25, 0.5, 1.0].map(|r| r / 1.5)),
            problem.best(plain(20), &rates),
        ]
    });
    let [[local, accelerated, descent], [local_apart, accelerated_apart, descent_apart]] = ends;
    assert!(3.0 * local < accelerated && accelerated < descent, "{ends:?}");
    assert!(accelerated_apart < 0.7 * descent_apart && accelerated_apart < 0.7 * local_apart, "{ends:?}");
    assert!(
        (descent_apart / descent - 1.0).abs() < 1e-3 && (accelerated_apart / accelerated - 1.0).abs() < 1e-3,
        "{ends:?}"
    );
}

/// The source's bound, 4·‖x₀ − x*‖²·H/R² for γ = 1/(4H), compared with gradient descent.
#[test]
fn acceleration_holds_its_bound_and_beats_gradient_descent() {
    let problem = Quadratics { zeta: 0.0 };
    let gradient = |_: usize, _: u64, x: &[f32]| problem.gradient(0, x);
    let excess = |x: &[Vec<f32>]| {
        let at = |i: usize| 0.5 * Quadratics::curvature(0, i) * (f64::from(x[0][i]) - problem.optimum_of(0, i)).powi(2);
        (0..LEN).map(at).sum::<f64>()
    };
    let run = |rate, rounds| Sgd { rate, momentum: 0.0, steps: rounds };
    let distance: f64 = (0..LEN).map(|i| problem.optimum_of(0, i).powi(2)).sum();
    for rounds in [25_u64, 50, 100] {
        let ours = excess(&train(1, minibatch(ACCELERATED), &[0.0; LEN], (run(1.0 / 6.0, rounds), &gradient)));
        assert!(ours <= 4.0 * 1.5 * distance / (rounds * rounds) as f64, "{rounds}: {ours}");
        let descent = excess(&train(1, plain(1), &[0.0; LEN], (run(1.0 / 1.5, rounds), &gradient)));
        assert!(rounds < 100 || ours < 0.7 * descent, "{ours} {descent}");
    }
}

/// On a strongly convex problem, momentum that has overshot is reset.
#[test]
fn restarts_help_where_the_problem_is_strongly_convex() {
    let gradient =
        |_: usize, _: u64, x: &[f32]| x.iter().enumerate().map(|(i, x)| 0.02_f32.powf(i as f32 / 9.0) * x).collect();
    let end = |restart| {
        let sgd = Sgd { rate: 0.25, momentum: 0.0, steps: 400 };
        let x = train(1, minibatch(MinibatchConfig { restart, ..ACCELERATED }), &[3.0; 10], (sgd, &gradient));
        x[0].iter().map(|x| x * x).sum::<f32>()
    };
    let (never, often) = (end(0), end(40));
    assert!(often < 0.01 * never, "{often} against {never}");
}

/// Three rounds by hand, gradient x, from 1 with γ = ½: β_t = (t + 1)/2 = 1, 3/2, 2, and γ_t = γ·β_t = ½, ¾, 1. Round 1: x = ½
/// = x_ag. Round 2 at ½/1.5 + ½/3 = ½: x = ½ − ¾·½ = ⅛, x_ag = ⅛/1.5 + ½/3 = ¼. Round 3 at ⅛/2 + ¼/2 = 3/16: x = ⅛ − 3/16 =
/// −1/16, x_ag = −1/32 + ⅛ = 3/32. Another β_t, such as (t + 2)/3, also gives ¼ in round 2.
#[test]
fn three_accelerated_rounds_by_hand() {
    let gradient = |_: usize, _: u64, x: &[f32]| x.to_vec();
    let sgd = |steps| Sgd { rate: 0.5, momentum: 0.0, steps };
    let after = |steps| train(2, minibatch(ACCELERATED), &[1.0], (sgd(steps), &gradient))[1][0];
    for (rounds, x) in [(1, 0.5), (2, 0.25), (3, 0.09375)] {
        assert!((after(rounds) - x).abs() < 1e-7, "after {rounds} rounds: {}", after(rounds));
    }
}

#[test]
fn settings_that_cannot_work_are_said() {
    let error = |settings: MinibatchConfig| Minibatch::new(settings, Dense).map(drop).unwrap_err().to_string();
    let good = MinibatchConfig::default();
    assert!(error(MinibatchConfig { period: 0, ..good }).contains("period of minibatch must be at least 1"));
    assert!(error(MinibatchConfig { restart: 3, ..good }).contains("restart of minibatch"));
    assert!(error(MinibatchConfig { restart: 1, accelerate: true, ..good }).contains("restart of minibatch"));
    let momentum = Exchange { feedback: MomentumCorrectionConfig::default().into(), ..Exchange::default() };
    let accelerated = MinibatchConfig { accelerate: true, ..good };
    let config = Config { strategy: accelerated.into(), exchange: momentum };
    let error = config.build(&Layout::flat(2), 2).map(drop).unwrap_err().to_string();
    assert!(error.contains("a second time"), "{error}");
}

/// The last round counts as a round of its actual length.
#[test]
fn a_round_that_the_run_cuts_short_is_the_mean_of_the_gradients_that_it_has() {
    let strategy = || {
        let mut minibatch = plain(4)();
        minibatch.ends_at(5);
        minibatch
    };
    let gradient = |_: usize, step: u64, _: &[f32]| vec![[1.0, 2.0, 3.0, 6.0, 1.0, 3.0][step as usize]];
    let sgd = Sgd { rate: 1.0, momentum: 0.0, steps: 6 };
    // The means of four and of two: 3 and 2.
    assert_eq!(train(2, strategy, &[10.0], (sgd, &gradient)), [[5.0], [5.0]]);
}

/// Returns the parameters after `gradients`, one per step from `first`, by plain SGD at rate 1; the last step of the run is
/// `last`.
fn continued(minibatch: &mut Minibatch<Dense>, x: &mut Vec<f32>, (first, last): (u64, u64), gradients: &[f32]) {
    let (mut comm, layout) = (briquette_core::comm::Local::world(1).remove(0), Layout::flat(1));
    minibatch.ends_at(last);
    for (step, gradient) in (first..).zip(gradients) {
        let agreed_step = AgreedStep { step, learning_rate: Some(1.0), ..AgreedStep::default() };
        let cx = Context::new(briquette_core::Key::new(0), layout.slots(), &agreed_step);
        let (plan, mut gradient) = (minibatch.plan(step), vec![*gradient]);
        minibatch.after_backward(&mut gradient, &cx, &mut comm).unwrap();
        if plan.optimizes {
            x[0] -= gradient[0];
        }
        minibatch.after_step(x, &cx, &mut comm).unwrap();
        minibatch.commit();
    }
}

/// A run of 6 steps is extended: its second round had two gradients, and the remaining two steps of that round form another
/// one.
#[test]
fn the_rest_of_a_round_that_was_cut_short_is_the_mean_of_the_gradients_that_it_has() {
    let (mut before, mut x) = (plain(4)(), vec![100.0]);
    before.begin(&x);
    continued(&mut before, &mut x, (0, 5), &[1.0, 2.0, 3.0, 6.0, 1.0, 3.0]);
    assert_eq!(x, [95.0]);
    // Also saved between two gradients of the remainder.
    for steps in [0, 1] {
        let (mut after, mut x, gradients) = (plain(4)(), x.clone(), [4.0, 8.0, 1.0, 1.0, 1.0, 5.0]);
        let mut state = State::default();
        before.save(&mut state);
        after.load(&state).unwrap();
        continued(&mut after, &mut x, (6, 11), &gradients[..steps]);
        let (mut state, mut last) = (State::default(), plain(4)());
        after.save(&mut state);
        last.load(&state).unwrap();
        continued(&mut last, &mut x, (6 + steps as u64, 11), &gradients[steps..]);
        // The mean of two, 6, and that of four, 2.
        assert_eq!(x, [87.0], "saved after {steps} steps");
    }
}

/// If the world size changes and rank-local state is dropped, a round has only the gradients taken afterwards.
#[test]
fn a_round_without_its_first_gradients_is_the_mean_of_the_others() {
    let (mut before, mut x) = (plain(4)(), vec![100.0]);
    before.begin(&x);
    continued(&mut before, &mut x, (0, 7), &[8.0, 8.0]);
    let (mut own, mut after) = (State::default(), plain(4)());
    before.save(&mut own);
    let mut state = own.clone();
    state.for_each_own(&own, |_, _, vector| vector.clear());
    after.load(&state).unwrap();
    continued(&mut after, &mut x, (2, 7), &[1.0, 3.0]);
    assert_eq!(x, [98.0]);
}
