use rand_distr::{Distribution, StandardNormal};

use super::*;
use briquette_core::Key;
use briquette_core::comm::all_reduce_traffic;
use briquette_core::config::{Config, Exchange};
use briquette_core::laws::{
    Setup,
    train::{Gradient, Sgd, mean, noisy, train},
};
use briquette_core::reduce::dense::Dense;
use briquette_core::sync::{every_step::EveryStep, periodic::Periodic};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

/// Elastic SGD.
const ELASTIC: ParleConfig =
    ParleConfig { period: Some(1), pull: 0.01, coupling: 0.25, scope: Some(1.0), alpha: 0.0, rate: 1.0 };

fn parle(settings: ParleConfig) -> impl Fn() -> Parle<Dense> + Sync {
    move || Parle::new(settings, Dense).unwrap()
}

fn off(a: &[Vec<f32>], b: &[Vec<f64>]) -> f64 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

fn gradient_at(rank: usize, step: u64, x: &[f64]) -> Vec<f64> {
    let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    noisy(rank, step, &x).into_iter().map(f64::from).collect()
}

/// The method's equations in one thread and f64, with momentum SGD inside.
fn serial(settings: ParleConfig, sgd: Sgd, world: usize) -> Vec<Vec<f64>> {
    let [pull, coupling, scope, alpha, rate] =
        [settings.pull, settings.coupling, settings.scope.unwrap(), settings.alpha, settings.rate].map(f64::from);
    let mut x = vec![vec![3.0_f64; 10]; world];
    let (mut y, mut z, mut v) = (x.clone(), x.clone(), vec![vec![0.0; 10]; world]);
    for step in 0..sgd.steps {
        let growth = (1.0 / scope).powi((step / settings.steps()) as i32);
        let (p, c) = ((pull * growth).min(1.0), (coupling * growth).min(1.0 / rate));
        let means: Vec<f64> = (0..10).map(|i| x.iter().map(|x| x[i]).sum::<f64>() / world as f64).collect();
        for a in 0..world {
            let g = gradient_at(a, step, &y[a]);
            for i in 0..10 {
                v[a][i] = f64::from(sgd.momentum) * v[a][i] + g[i] + p * (y[a][i] - x[a][i]);
                y[a][i] -= f64::from(sgd.rate) * v[a][i];
                z[a][i] = alpha * z[a][i] + (1.0 - alpha) * y[a][i];
                if (step + 1) % settings.steps() == 0 {
                    x[a][i] -= rate * ((x[a][i] - z[a][i]) + c * (x[a][i] - means[i]));
                    (y[a][i], z[a][i]) = (x[a][i], x[a][i]);
                }
            }
        }
    }
    x
}

#[test]
fn it_is_the_papers_recursion_and_its_scoping() {
    let sgd = Sgd { momentum: 0.9, ..SGD };
    let grows = ParleConfig { period: Some(4), pull: 0.2, coupling: 0.3, scope: Some(0.6), alpha: 0.75, rate: 0.8 };
    for settings in [grows, ELASTIC, ParleConfig { period: Some(5), scope: Some(1.0), ..grows }] {
        let ours = train(3, parle(settings), &[3.0; 10], (sgd, &noisy));
        assert!(off(&ours, &serial(settings, sgd, 3)) < 2e-5, "{settings:?}");
    }
    // Outer steps 0, 1, 2, …, never above the limits; 0 stays 0.
    let halves = ParleConfig { scope: Some(0.5), ..grows };
    assert_eq!([3, 4, 400_000].map(|step| halves.strengths(step)), [[0.2, 0.3], [0.4, 0.6], [1.0, 1.25]]);
    assert_eq!(ParleConfig { pull: 0.0, coupling: 0.0, ..grows }.strengths(u64::MAX), [0.0; 2]);
}

#[test]
fn without_springs_every_rank_runs_entropy_sgd_by_itself() {
    let settings = ParleConfig { period: Some(4), coupling: 0.0, ..ParleConfig::default() };
    let together = train(3, parle(settings), &[3.0; 10], (SGD, &noisy));
    for (rank, of_world) in together.iter().enumerate() {
        let gradient = |_: usize, step: u64, x: &[f32]| noisy(rank, step, x);
        for coupling in [0.0, 0.5] {
            let alone = train(1, parle(ParleConfig { coupling, ..settings }), &[3.0; 10], (SGD, &gradient));
            assert_eq!(*of_world, alone[0], "rank {rank}");
        }
    }
    assert_ne!(train(3, parle(ParleConfig { coupling: 0.1, ..settings }), &[3.0; 10], (SGD, &noisy)), together);
}

#[test]
fn of_one_step_it_is_elastic_sgd_and_of_one_rank_plain_sgd() {
    let ours = train(3, parle(ELASTIC), &[3.0; 10], (SGD, &noisy));
    let mut x = vec![vec![3.0_f64; 10]; 3];
    for step in 0..SGD.steps {
        let means: Vec<f64> = (0..10).map(|i| x.iter().map(|x| x[i]).sum::<f64>() / 3.0).collect();
        for (a, x) in x.iter_mut().enumerate() {
            let g = gradient_at(a, step, x);
            let each = x.iter_mut().zip(g).zip(&means);
            each.for_each(|((x, g), mean)| *x -= f64::from(SGD.rate) * g + 0.25 * (*x - mean));
        }
    }
    assert!(off(&ours, &x) < 1e-5);
    let sgd = Sgd { momentum: 0.9, ..SGD };
    let plain = train(1, || EveryStep::new(Dense), &[3.0; 10], (sgd, &noisy));
    assert_eq!(train(1, parle(ELASTIC), &[3.0; 10], (sgd, &noisy)), plain);
}

#[test]
fn it_rests_at_the_minimiser() {
    let gradient = |_: usize, _: u64, x: &[f32]| vec![x[0] - 2.0, 0.1 * (x[1] + 1.0)];
    let x = train(3, parle(ParleConfig::default()), &[9.0, 9.0], (Sgd { rate: 0.1, steps: 3000, ..SGD }, &gradient));
    assert!(x.iter().all(|x| (x[0] - 2.0).abs() < 1e-4 && (x[1] + 1.0).abs() < 1e-3), "{x:?}");
}

#[test]
fn springs_draw_ranks_together_and_do_not_move_their_mean() {
    // Constant gradients: their effect on the mean does not depend on the ranks' parameters.
    let gradient = |rank: usize, _: u64, _: &[f32]| vec![rank as f32, -3.0 * rank as f32];
    let run = |coupling| {
        let settings = ParleConfig { period: Some(5), coupling, scope: Some(1.0), ..ParleConfig::default() };
        train(4, parle(settings), &[1.0, 2.0], (Sgd { steps: 50, ..SGD }, &gradient))
    };
    let (free, tied) = (run(0.0), run(0.5));
    assert!(mean(&free).iter().zip(mean(&tied)).all(|(a, b)| (a - b).abs() < 1e-5), "{free:?} {tied:?}");
    let apart = |x: &[Vec<f32>]| (x[3][1] - x[0][1]).abs();
    assert!(apart(&tied) < 0.3 * apart(&free), "{free:?} {tied:?}");
}

/// A deep narrow well at 0 and a wide one at 2, with noise. Each coordinate has its own start.
fn wells(rank: usize, step: u64, x: &[f32]) -> Vec<f32> {
    let mut rng = Key::new(4).step(step).rank(rank).block(0);
    let well = |x: f32, depth: f32, width: f32| depth * x / width.powi(2) * (-0.5 * (x / width).powi(2)).exp();
    let slope = |x: f32| well(x, 1.0, 0.25) + well(x - 2.0, 0.8, 0.8) + 0.2 * (x - 1.0);
    let mut noise = || -> f32 { StandardNormal.sample(&mut rng) };
    x.iter().map(|x| slope(*x) + 3.5 * noise()).collect()
}

/// Claim: Parle and Entropy-SGD end in wide valleys more often than SGD does, with one rank and with all.
#[test]
fn it_ends_in_the_wide_well_more_often_than_sgd() {
    let start: Vec<f32> = (0..400).map(|i| i as f32 / 100.0 - 2.0).collect();
    let task = (Sgd { rate: 0.1, momentum: 0.0, steps: 1500 }, &wells as Gradient<'_>);
    let wide = |x: Vec<Vec<f32>>| mean(&x).iter().filter(|x| (0.6..3.5).contains(*x)).count();
    let settings = ParleConfig { pull: 1.0, scope: Some(1.0), alpha: 0.95, ..ParleConfig::default() };
    let [parle_4, entropy] = [4, 1].map(|world| wide(train(world, parle(settings), &start, task)));
    let [sgd_4, sgd] = [4, 1].map(|world| wide(train(world, || EveryStep::new(Dense), &start, task)));
    let local = wide(train(4, || Periodic::new(25).unwrap(), &start, task));
    let found = format!("Parle {parle_4}, Entropy-SGD {entropy}, SGD {sgd_4} and {sgd}, Local SGD {local} of 400");
    assert!(parle_4 > sgd_4.max(sgd).max(local) + 30 && entropy > sgd.max(sgd_4) + 30, "{found}");
}

#[test]
fn ranks_exchange_once_in_25_steps() {
    let config = Config { strategy: ParleConfig::default().into(), exchange: Exchange::default() };
    let setup = Setup::short(&config, 3);
    for (rank, run) in setup.run(50).into_iter().enumerate() {
        let sent: u64 = run.iter().map(|step| step.counted.sent).sum();
        assert_eq!(sent, 2 * all_reduce_traffic(setup.layout.len(), 3, rank).sent);
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = ParleConfig::default();
    for (settings, words) in [
        (ParleConfig { period: Some(0), ..good }, "period of parle must be at least 1"),
        (ParleConfig { pull: -1.0, ..good }, "pull of parle must be at least 0"),
        (ParleConfig { scope: Some(0.0), ..good }, "scope of parle must be in (0, 1]"),
        (ParleConfig { alpha: 1.0, ..good }, "alpha of parle must be in [0, 1)"),
        (ParleConfig { rate: f32::NAN, ..good }, "rate of parle must be in (0, 1]"),
        (ParleConfig { rate: 0.5, coupling: 2.5, ..good }, "coupling of parle must be in [0, 1/rate]"),
    ] {
        let error = Parle::new(settings, Dense).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
