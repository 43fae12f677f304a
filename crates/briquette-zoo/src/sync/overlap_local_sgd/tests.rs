use std::time::Duration;

use super::*;
use briquette_core::comm::{Local, run_ranks};
use briquette_core::error::CommError;
use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
use briquette_core::reduce::dense::Dense;
use briquette_core::state::{State, Stateful};
use briquette_core::sync::periodic::Periodic;
use briquette_core::{Key, Layout};
use briquette_testkit::simulation::{Simulation, simulate};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

fn overlap(settings: OverlapLocalSgdConfig) -> OverlapLocalSgd<Dense> {
    OverlapLocalSgd::new(settings, Dense).unwrap()
}

/// The recursion of the module's method, in one thread.
fn serial(settings: &OverlapLocalSgdConfig, world: usize, start: &[f32]) -> Vec<Vec<f32>> {
    let OverlapLocalSgdConfig { alpha, beta, offset, .. } = settings.clone();
    let period = settings.steps();
    let (mut x, mut v) = (vec![start.to_vec(); world], vec![vec![0.0_f32; start.len()]; world]);
    let (mut z, mut under_way) = (start.to_vec(), None::<Vec<f32>>);
    for step in 0..SGD.steps {
        for (rank, x) in x.iter_mut().enumerate() {
            let gradient = noisy(rank, step, x);
            x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= SGD.rate * g);
        }
        if step < offset || (step + 1 - offset) % period != 0 {
            continue;
        }
        under_way.take().into_iter().for_each(|mean| z.iter_mut().zip(mean).for_each(|(z, mean)| *z += mean));
        let mut sum = vec![0.0_f32; z.len()];
        for (x, v) in x.iter_mut().zip(&mut v) {
            for i in 0..z.len() {
                x[i] += alpha * (z[i] - x[i]);
                sum[i] += (x[i] - z[i]) - SGD.rate * beta * v[i];
                v[i] = beta * v[i] + (z[i] - x[i]) * (1.0 / SGD.rate);
            }
        }
        under_way = Some(sum.into_iter().map(|sum| sum * (1.0 / world as f32)).collect());
    }
    x
}

#[test]
fn it_is_the_serial_recursion_to_the_bit() {
    for (beta, offset) in [(0.0, 0), (0.7, 0), (0.7, 1)] {
        for world in [1, 3, 4] {
            let settings = OverlapLocalSgdConfig { period: Some(3), beta, offset, ..OverlapLocalSgdConfig::default() };
            let ours = train(world, || overlap(settings.clone()), &[3.0; 10], (SGD, &noisy));
            assert_eq!(ours, serial(&settings, world, &[3.0; 10]), "beta {beta}, offset {offset}, {world} ranks");
        }
    }
}

#[test]
fn without_a_pull_ranks_never_meet() {
    let settings = OverlapLocalSgdConfig { period: Some(3), alpha: 0.0, beta: 0.0, offset: 0 };
    let together = train(2, || overlap(settings.clone()), &[3.0; 10], (SGD, &noisy));
    let alone = train(1, || overlap(settings.clone()), &[3.0; 10], (SGD, &noisy));
    assert_eq!(together[0], alone[0]);
    assert_ne!(together[0], together[1]);
}

#[test]
fn one_rank_is_pulled_half_way_back_by_hand() {
    // Moves by 1 a step, three steps a period: x = 3 → 1.5; z = 1.5, x = 4.5 → 3; z = 3, x = 6 → 4.5.
    let settings = OverlapLocalSgdConfig { period: Some(3), alpha: 0.5, beta: 0.0, offset: 0 };
    let sgd = Sgd { rate: 1.0, steps: 9, ..SGD };
    assert_eq!(train(1, || overlap(settings.clone()), &[0.0], (sgd, &|_, _, _| vec![-1.0])), [[4.5]]);
}

/// With a momentum `v` of 2, a period's progress of 3, pulled to 1.5, is sent completely at a rate of 0, where `−γ·v` would be
/// 0.
#[test]
fn at_a_rate_of_0_a_period_is_not_lost() {
    let mut overlap = overlap(OverlapLocalSgdConfig { period: Some(1), alpha: 0.5, beta: 0.5, offset: 0 });
    overlap.begin(&[0.0]);
    overlap.momentum.set(vec![2.0]);
    overlap.advance(&[3.0], 0.0).unwrap();
    assert_eq!(
        (overlap.exchange.input.next_mut().as_slice(), overlap.momentum.next_mut().as_slice()),
        (&[1.5][..], &[1.0][..])
    );
}

/// Section 4 of the paper, each at the best rate of one grid: with twice the steps of Local SGD, an anchor that is one period
/// old reaches the same loss.
#[test]
fn at_their_best_rates_it_ends_near_local_sgd_of_the_same_period() {
    let best = |ours: bool| {
        let of = |rate| {
            let sgd = Sgd { steps: 600, rate, ..SGD };
            loss(&mean(&match ours {
                true => train(8, || overlap(OverlapLocalSgdConfig::default()), &[3.0; 10], (sgd, &noisy)),
                false => train(8, || Periodic::new(2).unwrap(), &[3.0; 10], (sgd, &noisy)),
            }))
        };
        [0.025, 0.05, 0.1, 0.2, 0.4].map(of).into_iter().fold(f64::INFINITY, f64::min)
    };
    let (ours, local) = (best(true), best(false));
    println!("overlap {ours}, local {local}");
    assert!(ours < 1.3 * local, "{ours} against {local}");
}

/// Claim: an exchange that takes less than a period's computing costs no time.
#[test]
fn an_exchange_that_is_shorter_than_a_period_is_hidden() {
    let compute = Duration::from_millis(50);
    let seconds = |latency: &str, overlapped: bool| {
        let simulation =
            Simulation { world: 4, network: format!("100mbit,{latency}").parse().unwrap(), compute: vec![compute] };
        let sgd = Sgd { steps: 40, ..SGD };
        // 100 000 values: 6 rounds of 100 kB are 48 ms at 100 Mbit/s.
        let start = vec![0.0; 100_000];
        let flat = |_: usize, _: u64, x: &[f32]| vec![1.0; x.len()];
        let settings = OverlapLocalSgdConfig { period: Some(4), ..OverlapLocalSgdConfig::default() };
        let total = match overlapped {
            true => simulate(simulation, || overlap(settings.clone()), &start, (sgd, &flat)),
            false => simulate(simulation, || Periodic::new(4).unwrap(), &start, (sgd, &flat)),
        };
        total / 40.0 / compute.as_secs_f64()
    };
    for latency in ["1ms", "5ms", "10ms"] {
        let (hidden, waited) = (seconds(latency, true), seconds(latency, false));
        assert!(hidden <= 1.02, "{latency}: a step takes {hidden} of its computing");
        assert!(waited > 1.2, "{latency}: {waited} in the foreground");
    }
    // 6 rounds of 100 ms exceed a period of 200 ms: the remainder is waited for.
    assert!(seconds("100ms", true) > 1.5);
}

#[test]
fn a_run_that_is_resumed_sends_again_what_was_under_way() {
    // Law 5 checks the bits. This checks the state that is saved while an exchange is in flight, and after the wait for it.
    let mut comm = briquette_core::comm::Local::world(1).remove(0);
    let layout = briquette_core::Layout::flat(1);
    let settings = OverlapLocalSgdConfig { period: Some(1), alpha: 0.5, beta: 0.0, offset: 0 };
    let (mut first, mut x) = (overlap(settings.clone()), vec![8.0]);
    first.begin(&[0.0]);
    let agreed_step = |step| AgreedStep { step, learning_rate: Some(1.0), ..AgreedStep::default() };
    let mut step = |overlap: &mut OverlapLocalSgd<Dense>, x: &mut Vec<f32>, step| {
        let agreed_step = agreed_step(step);
        let cx = Context::new(briquette_core::Key::new(0), layout.slots(), &agreed_step);
        overlap.after_step(x, &cx, &mut comm).unwrap();
        overlap.commit();
        overlap.after_commit(&cx, &mut comm);
    };
    step(&mut first, &mut x, 0);
    let saved = |overlap: &OverlapLocalSgd<Dense>| {
        let mut state = State::default();
        overlap.save(&mut state);
        state
    };
    let (under_way, mut second) = (saved(&first), overlap(settings));
    assert_eq!((x.clone(), under_way.f32s("input", None).unwrap()), (vec![4.0], &[4.0][..]));
    second.load(&under_way).unwrap();
    let mut y = x.clone();
    step(&mut first, &mut x, 1);
    step(&mut second, &mut y, 1);
    assert_eq!((x, y, second.anchor()), (vec![4.0], vec![4.0], &[4.0][..]));
    assert_eq!(saved(&first), saved(&second));
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = OverlapLocalSgdConfig::default();
    for (settings, words) in [
        (OverlapLocalSgdConfig { period: Some(0), ..good.clone() }, "period of overlap-local-sgd must be at least 1"),
        (OverlapLocalSgdConfig { alpha: 1.0, ..good.clone() }, "alpha of overlap-local-sgd must be in [0, 1)"),
        (
            OverlapLocalSgdConfig { period: Some(2), offset: 2, ..good.clone() },
            "offset of overlap-local-sgd must be below its period",
        ),
        (OverlapLocalSgdConfig { alpha: f32::NAN, ..good.clone() }, "alpha of overlap-local-sgd"),
        (OverlapLocalSgdConfig { beta: 1.0, ..good.clone() }, "beta of overlap-local-sgd must be in [0, 1)"),
    ] {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_momentum_that_is_not_finite_is_that_of_the_rank_that_has_it() {
    let settings = OverlapLocalSgdConfig { period: Some(1), alpha: 0.5, beta: 0.5, offset: 0 };
    let results = run_ranks(Local::world(2), |mut comm| {
        let (mut overlap, layout) = (overlap(settings.clone()), Layout::flat(1));
        overlap.begin(&[0.0]);
        let agreed_step = AgreedStep { learning_rate: Some(1e-35), ..AgreedStep::default() };
        let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
        let mut x = vec![1e10 * comm.rank() as f32];
        let result = overlap.after_step(&mut x, &cx, &mut comm);
        assert_eq!(x, [1e10 * comm.rank() as f32]);
        Ok::<_, CommError>(result)
    });
    let slot = Layout::flat(1).slots()[0].path().to_owned();
    assert_eq!(results, [Ok(Ok(Momenta::Keep)), Ok(Err(SyncError::Diverged { step: 0, rank: 1, slot }))]);
}

/// Nothing requires equal learning rates on ranks that step alone, and Accordion sends more when the rate falls.
#[test]
fn controllers_of_ranks_whose_learning_rates_differ_decide_alike() {
    crate::install();
    for strategy in ["overlap-local-sgd:1", "cocod:1", "local-sgd:1", "bmuf:1", "diloco:1"] {
        let text = format!(
            "strategy = '{strategy}'\nreducer = 'gather:topk:4x'\nfeedback = '{}'\ncontroller = \
             'accordion:2x,high=8x,interval=4,window=2,per_slot=false'",
            if strategy.starts_with("overlap") { "none" } else { "error" }
        );
        let config: briquette_core::config::Config = toml::from_str(&text).unwrap();
        let layout = Layout::flat(16);
        let ranks = run_ranks(Local::world(2), |mut comm| {
            let (mut strategy, mut ratios) = (config.build(&layout, 2).unwrap(), Vec::new());
            strategy.begin(&[3.0; 16]);
            for step in 0..40 {
                let rate = if comm.rank() == 1 && step > 30 { 0.005 } else { 0.05 };
                let mut x: Vec<f32> = (0..16).map(|i| 3.0 - 0.01 * (step * (i + 1)) as f32).collect();
                let agreed_step = AgreedStep { step, learning_rate: Some(rate), ..AgreedStep::default() };
                let cx = Context::new(Key::new(5), layout.slots(), &agreed_step);
                strategy.after_step(&mut x, &cx, &mut comm).unwrap();
                strategy.commit();
                strategy.after_commit(&cx, &mut comm);
                let mut report = Report::default();
                strategy.report(&mut report);
                ratios.push(report.ratio);
            }
            strategy.settle(&mut comm).unwrap();
            Ok::<_, CommError>(ratios)
        });
        let ranks: Vec<_> = ranks.into_iter().map(Result::unwrap).collect();
        assert_eq!(ranks[0], ranks[1], "{strategy}");
        let known: std::collections::BTreeSet<u64> = ranks[0].iter().flatten().map(|f| f.get() as u64).collect();
        assert!(known.contains(&8), "{strategy}: {:?}", ranks[0]);
    }
}
