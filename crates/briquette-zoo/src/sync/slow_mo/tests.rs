use super::*;
use crate::sync::{
    graph::Graph,
    sgp::{Sgp, SgpConfig},
};
use briquette_core::Key;
use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
use briquette_core::reduce::dense::Dense;
use briquette_core::state::Stateful;
use briquette_core::sync::{Context, periodic::Periodic};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

fn slow_mo(settings: SlowMoConfig) -> SlowMo<Dense> {
    SlowMo::new(settings, Dense, None).unwrap()
}

fn plain(period: u64) -> SlowMoConfig {
    SlowMoConfig { period: Some(period), beta: 0.0, ..SlowMoConfig::default() }
}

#[test]
fn without_momentum_it_is_local_sgd() {
    for (period, momentum) in [(1, 0.0), (4, 0.0), (4, 0.9)] {
        let sgd = Sgd { momentum, ..SGD };
        let settings = SlowMoConfig { reset: false, ..plain(period) };
        let ours = train(3, || slow_mo(settings.clone()), &[3.0; 10], (sgd, &noisy));
        let local = train(3, || Periodic::new(period).unwrap(), &[3.0; 10], (sgd, &noisy));
        for (a, b) in ours.iter().flatten().zip(local.iter().flatten()) {
            assert!((a - b).abs() < 1e-5, "period {period}: {a} {b}");
        }
    }
}

#[test]
fn of_one_step_it_is_momentum_sgd() {
    let settings = SlowMoConfig { period: Some(1), beta: 0.9, ..SlowMoConfig::default() };
    let ours = train(4, || slow_mo(settings.clone()), &[3.0; 10], (SGD, &noisy));
    let mut expected = (vec![3.0_f64; 10], vec![0.0_f64; 10]);
    for step in 0..SGD.steps {
        let x: Vec<f32> = expected.0.iter().map(|x| *x as f32).collect();
        let gradient = mean(&(0..4).map(|rank| noisy(rank, step, &x)).collect::<Vec<_>>());
        for ((x, u), g) in expected.0.iter_mut().zip(&mut expected.1).zip(gradient) {
            *u = 0.9 * *u + g;
            *x -= f64::from(SGD.rate) * *u;
        }
    }
    for (a, b) in ours[3].iter().zip(&expected.0) {
        assert!((f64::from(*a) - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn alone_and_without_momentum_it_is_lookahead() {
    // Constant gradient 1: five steps of 0.05, of which a fraction α = ½ is kept.
    let settings = SlowMoConfig { alpha: 0.5, ..plain(5) };
    let x = train(1, || slow_mo(settings.clone()), &[1.0], (Sgd { steps: 5, ..SGD }, &|_, _, _| vec![1.0]));
    assert!((x[0][0] - (1.0 - 0.5 * 0.25)).abs() < 1e-6);
    // Gradient x at rate ½: a step halves, two steps quarter, and half of the change is kept: times 1 − ½·¾, three times.
    let (settings, sgd) = (SlowMoConfig { alpha: 0.5, ..plain(2) }, Sgd { rate: 0.5, steps: 6, ..SGD });
    let x = train(1, || slow_mo(settings.clone()), &[1.0], (sgd, &|_, _, x| x.to_vec()));
    assert_eq!(x[0][0], 0.625 * 0.625 * 0.625);
}

/// γ = ¼, α = β = ½, mean gradients 4, 4 and 8, a period of one step. The momentum is also multiplied by α: u = 4: 1 − ⅛·4 = ½.
/// u = 2 + 4 = 6: ½ − ⅛·6 = −¼. u = 3 + 8 = 11: −¼ − 11/8 = −1⅝.
#[test]
fn three_outer_steps_by_hand() {
    let settings = SlowMoConfig { period: Some(1), alpha: 0.5, beta: 0.5, ..SlowMoConfig::default() };
    let gradient = |rank: usize, step: u64, _: &[f32]| vec![[4.0, 4.0, 8.0][step as usize] + [2.0, -2.0][rank]];
    let after = |steps| train(2, || slow_mo(settings.clone()), &[1.0], (Sgd { rate: 0.25, steps, ..SGD }, &gradient));
    for (steps, x) in [(1, 0.5), (2, -0.25), (3, -1.625)] {
        assert_eq!(after(steps), [[x], [x]], "after {steps} steps");
    }
}

#[test]
fn the_division_is_by_the_rate_of_the_step_that_ends_the_period() {
    let mut comm = briquette_core::comm::Local::world(1).remove(0);
    let layout = briquette_core::Layout::flat(1);
    let (mut ours, mut x) =
        (slow_mo(SlowMoConfig { period: Some(1), beta: 0.5, ..SlowMoConfig::default() }), vec![1.0]);
    ours.begin(&x);
    for (step, rate) in [(0, 0.5), (1, 0.125)] {
        let agreed_step = briquette_core::reduce::AgreedStep { step, learning_rate: Some(rate), ..Default::default() };
        x[0] -= rate as f32;
        let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
        ours.after_step(&mut x, &cx, &mut comm).unwrap();
        ours.commit();
    }
    // u = 1, then 1.5: 1 − 0.5 − 0.125·1.5.
    assert_eq!((&x[..], ours.momentum()), (&[0.3125][..], &[1.5][..]));
    let agreed_step = briquette_core::reduce::AgreedStep { step: 2, ..Default::default() };
    let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
    let error = ours.after_step(&mut x, &cx, &mut comm).unwrap_err().to_string();
    assert!(error.contains("step 2") && error.contains("record_learning_rate"), "{error}");
}

/// Section 4 of the paper: a slow momentum helps long periods.
#[test]
fn slow_momentum_reaches_a_lower_loss_than_local_sgd_in_the_same_steps() {
    let sgd = Sgd { steps: 360, ..SGD };
    let end = |beta| {
        let settings = SlowMoConfig { beta, ..SlowMoConfig::default() };
        loss(&mean(&train(8, || slow_mo(settings.clone()), &[3.0; 10], (sgd, &noisy))))
    };
    let (local, slow) = (end(0.0), end(0.6));
    assert!(slow < 0.8 * local, "{slow} against {local}");
}

#[test]
fn over_gossip_ranks_begin_each_period_at_the_same_place() {
    let base = || -> Box<dyn SyncStrategy> { Box::new(Sgp::new("0>1;1>2;2>0;0>2".parse().unwrap(), 3).unwrap()) };
    let both = |settings: SlowMoConfig| move || SlowMo::new(settings.clone(), Dense, Some(base())).unwrap();
    let x = train(3, both(SlowMoConfig { period: Some(4), ..SlowMoConfig::default() }), &[3.0; 10], (SGD, &noisy));
    assert!(x[0] == x[1] && x[1] == x[2]);
    // Without momentum it is gossip with an occasional exact mean: mixing in between does not change the mean.
    let gradient = |rank: usize, _: u64, _: &[f32]| vec![rank as f32];
    let x = train(3, both(plain(4)), &[10.0], (Sgd { steps: 8, ..SGD }, &gradient));
    assert!((x[2][0] - (10.0 - 8.0 * 0.05)).abs() < 1e-5, "{x:?}");
}

/// The paper's `-noaverage`: only the base sends, and every rank takes the outer step with its own change.
#[test]
fn without_an_average_each_rank_has_a_slow_momentum_of_its_own() {
    crate::install();
    let base = || -> Box<dyn SyncStrategy> { Box::new(Sgp::new(Graph::Complete, 2).unwrap()) };
    let complete = Some(SgpConfig { graph: Graph::Complete, ..SgpConfig::default() }.into());
    let settings =
        SlowMoConfig { period: Some(2), beta: 0.5, average: false, base: complete, ..SlowMoConfig::default() };
    let ours = || SlowMo::new(settings.clone(), Dense, Some(base())).unwrap();
    let gradient = |rank: usize, _: u64, _: &[f32]| vec![rank as f32];
    let x = train(2, ours, &[10.0], (Sgd { rate: 1.0, steps: 4, ..SGD }, &gradient));
    // The complete graph mixes exactly: −½ a step, so −1 a period: u = 1, then ½ + 1; 10 − 1 − 1.5.
    assert_eq!(x, [[7.5], [7.5]]);
    let build = |text: &str| {
        let config: briquette_core::config::Config =
            toml::from_str(&format!("strategy = '{text}'")).map_err(|e| e.to_string())?;
        config.build(&Layout::flat(4), 4).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(build("slowmo:3,average=false,base=sgp"), Ok(()));
    assert!(
        build("slowmo:3,average=false").unwrap_err().contains("average of slowmo must be true where there is no base")
    );
    assert!(build("slowmo:3,average=false,base=local-sgd:1").unwrap_err().contains("base=sgp"));
    assert!(build("slowmo:3,base=(local-sgd:2,adapt=true)").unwrap_err().contains("periods that adapt"));
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = SlowMoConfig::default();
    for (settings, words) in [
        (SlowMoConfig { period: Some(0), ..good.clone() }, "period of slowmo must be at least 1"),
        (SlowMoConfig { beta: 1.0, ..good.clone() }, "beta of slowmo must be in [0, 1)"),
        (SlowMoConfig { beta: f32::NAN, ..good.clone() }, "beta of slowmo"),
        (SlowMoConfig { alpha: 0.0, ..good.clone() }, "alpha of slowmo must be above 0"),
        (SlowMoConfig { alpha: f32::INFINITY, ..good.clone() }, "alpha of slowmo"),
    ] {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
