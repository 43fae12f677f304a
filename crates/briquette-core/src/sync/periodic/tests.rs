use super::*;
use crate::config::Config;
use crate::laws::train::{Sgd, loss, mean, noisy, train};
use crate::settings::{Feedback, ReducerConfig};
use crate::sync::every_step::EveryStep;

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

fn run(settings: LocalSgd, exchange: &Exchange, world: usize, sgd: Sgd) -> Vec<Vec<f32>> {
    let layout = Layout::flat(10);
    train(world, || settings.build(exchange, &layout, world).unwrap(), &[3.0; 10], (sgd, &noisy))
}

fn top_k() -> Exchange {
    let reducer = ReducerConfig::gather("topk:5x".parse().unwrap());
    Exchange { reducer, feedback: Feedback::error(), ..Exchange::default() }
}

fn off(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn differences_that_travel_whole_make_the_mean() {
    let every_fourth = LocalSgd { period: Some(4), ..LocalSgd::default() };
    let gathered = Exchange { reducer: ReducerConfig::gather("dense".parse().unwrap()), ..Exchange::default() };
    let [mean, differences] = [Exchange::default(), gathered].map(|exchange| run(every_fourth, &exchange, 3, SGD));
    assert!(off(&mean, &differences) < 1e-5);
    assert!(mean[0] == mean[1] && differences[0] == differences[2]);
}

/// Velocities are linear in gradients, so averaging them does not matter. Resetting them does.
#[test]
fn of_one_step_with_momentum_it_is_minibatch_momentum_sgd() {
    let sgd = Sgd { momentum: 0.9, ..SGD };
    let minibatch = train(4, || EveryStep::new(Dense), &[3.0; 10], (sgd, &noisy));
    let with =
        |momenta| run(LocalSgd { period: Some(1), momenta, ..LocalSgd::default() }, &Exchange::default(), 4, sgd);
    assert!(off(&minibatch, &with(Momenta::Keep)) < 1e-5);
    assert!(off(&minibatch, &with(Momenta::Average)) < 1e-5);
    assert!(off(&minibatch, &with(Momenta::Reset)) > 0.1);
}

#[test]
fn a_rate_is_how_much_of_the_difference_is_taken() {
    // Constant gradients of 1 and 3: after two steps of 0.25, ranks are 0.5 and 1.5 away, 1 on average.
    let gradient = |rank: usize, _: u64, _: &[f32]| vec![1.0 + 2.0 * rank as f32];
    let settings = LocalSgd { period: Some(2), rate: 0.5, ..LocalSgd::default() };
    let layout = Layout::flat(1);
    let build = || settings.build(&Exchange::default(), &layout, 2).unwrap();
    let x = train(2, build, &[4.0], (Sgd { rate: 0.25, steps: 2, ..SGD }, &gradient));
    assert_eq!(x, [[3.5], [3.5]]);
}

/// Stich's lemma: ranks are never further from their mean than `2HηG`, in squares `4H²η²G²`.
#[test]
fn ranks_drift_no_further_than_four_times_the_squares() {
    for period in [2, 8, 16] {
        let (rate, bound) = (0.05, 1.0_f32);
        // Gradients of norm 1, in a rank-dependent direction.
        let gradient = |rank: usize, step: u64, _: &[f32]| {
            let angle = rank as f32 * 2.0 + (step as f32).sin();
            vec![angle.cos(), angle.sin()]
        };
        let layout = Layout::flat(2);
        let local = LocalSgd { period: Some(period), ..LocalSgd::default() };
        let build = || local.build(&Exchange::default(), &layout, 5).unwrap();
        // Without averages ranks would be further apart than that after three periods.
        for steps in 1..=4 * period {
            let x = train(5, build, &[0.0; 2], (Sgd { rate, momentum: 0.0, steps }, &gradient));
            let centre = mean(&x);
            let far = |x: &Vec<f32>| x.iter().zip(&centre).map(|(x, c)| (f64::from(*x) - c).powi(2)).sum::<f64>();
            let drift = x.iter().map(far).fold(0.0, f64::max);
            let allowed = 4.0 * (period as f32 * rate * bound).powi(2);
            assert!(drift <= f64::from(allowed), "period {period}, step {steps}: {drift} of {allowed}");
        }
    }
}

/// Stich's theorem: the variance of the result falls with the number of ranks.
#[test]
fn the_variance_falls_with_the_number_of_ranks() {
    // A random walk around the optimum of ½x²: at rest, the expected loss is that of one rank over W.
    let coordinates = 2000;
    let gradient = |rank: usize, step: u64, x: &[f32]| {
        use rand_distr::{Distribution, StandardNormal};
        let mut rng = crate::Key::new(3).step(step).rank(rank).block(0);
        x.iter().map(|x| x + <StandardNormal as Distribution<f32>>::sample(&StandardNormal, &mut rng)).collect()
    };
    let layout = Layout::flat(coordinates);
    let energy = |world: usize| {
        let local = LocalSgd { period: Some(4), ..LocalSgd::default() };
        let build = || local.build(&Exchange::default(), &layout, world).unwrap();
        let x = train(world, build, &vec![0.0; coordinates], (Sgd { rate: 0.05, momentum: 0.0, steps: 80 }, &gradient));
        // Just averaged. Without averaging the mean of the ranks would have the same energy.
        x[world - 1].iter().map(|x| f64::from(x * x)).sum::<f64>()
    };
    let fall = energy(1) / energy(8);
    assert!((6.8..9.3).contains(&fall), "8 ranks: {fall} times less");
}

/// Yu: if ranks have different optima and curvatures, the bias grows with the squares of period and rate.
#[test]
fn the_bias_on_different_data_grows_with_the_squares_of_period_and_rate() {
    // ½·a(x−c)² with rank-dependent (a, c): the optimum of the sum is Σac/Σa.
    let (curvatures, centres) = ([1.0, 3.0], [1.0, -1.0]);
    let gradient = |rank: usize, _: u64, x: &[f32]| vec![curvatures[rank] * (x[0] - centres[rank])];
    let optimum = -0.5;
    let layout = Layout::flat(1);
    let bias = |period: u64, rate: f32| {
        let local = LocalSgd { period: Some(period), ..LocalSgd::default() };
        let build = || local.build(&Exchange::default(), &layout, 2).unwrap();
        let steps = (12.0 / rate) as u64 / period * period;
        (mean(&train(2, build, &[0.0], (Sgd { rate, momentum: 0.0, steps }, &gradient)))[0] - optimum).abs()
    };
    assert!(bias(1, 0.01) < 1e-4);
    // The limit point is off by (I − 1)γ to first order: in squared gradient norms, (I − 1)²γ².
    let squares = |period, rate| bias(period, rate).powi(2);
    let by_period = squares(9, 0.01) / squares(5, 0.01);
    assert!((3.0..5.0).contains(&by_period), "eight local steps instead of four: {by_period}");
    let by_rate = squares(5, 0.02) / squares(5, 0.01);
    assert!((3.0..5.0).contains(&by_rate), "twice the rate: {by_rate}");
}

/// Qsparse-local SGD: bytes fall by the period times the compression ratio, and the residual is not lost.
#[test]
fn compressed_differences_under_error_feedback_reach_the_loss_of_exact_means() {
    let sgd = Sgd { steps: 240, ..SGD };
    let local = LocalSgd { period: Some(4), ..LocalSgd::default() };
    let end = |exchange: &Exchange| loss(&mean(&run(local, exchange, 4, sgd)));
    let without = Exchange { feedback: Feedback::none(), ..top_k() };
    let (exact, fed_back, lost) = (end(&Exchange::default()), end(&top_k()), end(&without));
    assert!(fed_back < 1.6 * exact && fed_back < 0.9 * lost, "exact {exact}, fed back {fed_back}, lost {lost}");
}

#[test]
fn texts_and_bad_settings() {
    let text = "local-sgd:4,momenta=average,rate=0.5";
    assert_eq!(text.parse::<crate::settings::StrategyConfig>().unwrap().to_string(), text);
    let error = |text: &str| text.parse::<crate::settings::StrategyConfig>().unwrap_err().to_string();
    assert!(error("local-sgd:4,rate=0").contains("rate of local-sgd must be above 0"));
    let text = error("local-sgd:4,momenta=forget");
    assert!(text.contains("`keep`, `reset`, `average`"), "{text}");
    assert!(error("local-sgd:4,adapt=true,momenta=average").contains("keep or reset where the period adapts"));
    let momentum = Exchange { feedback: "momentum".parse().unwrap(), ..top_k() };
    let config = Config { exchange: momentum, ..Config::local_sgd(8) };
    let error = config.build(&Layout::flat(10), 2).map(drop).unwrap_err().to_string();
    assert!(error.contains("momentum included") && error.contains("use feedback error"), "{error}");
    assert_eq!(Config::local_sgd(4).strategy, LocalSgd { period: Some(4), ..LocalSgd::default() }.into());
}
