use std::time::Duration;

use super::*;
use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
use briquette_core::reduce::dense::Dense;
use briquette_core::sync::periodic::Periodic;
use briquette_testkit::simulation::{Simulation, simulate};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

fn cocod(period: u64) -> impl Fn() -> CoCoD<Dense> + Sync {
    move || CoCoD::new(CoCoDConfig { period: Some(period) }, Dense).unwrap()
}

/// The paper's algorithm in one thread: averages snapshots, and adds the progress since each snapshot.
fn serial(period: u64, world: usize) -> Vec<Vec<f64>> {
    let mut x = vec![vec![3.0_f64; 10]; world];
    let mut snapshots: Option<Vec<Vec<f64>>> = None;
    for step in 0..SGD.steps {
        for (rank, x) in x.iter_mut().enumerate() {
            let here: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let gradient = noisy(rank, step, &here);
            x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= f64::from(SGD.rate) * f64::from(g));
        }
        if (step + 1) % period == 0 {
            for i in 0..10 {
                let Some(before) = &snapshots else { break };
                let mean = before.iter().map(|x| x[i]).sum::<f64>() / world as f64;
                x.iter_mut().zip(before).for_each(|(x, before)| x[i] = mean + (x[i] - before[i]));
            }
            snapshots = Some(x.clone());
        }
    }
    x
}

#[test]
fn it_is_the_papers_recursion() {
    for (period, world) in [(1, 2), (4, 3), (5, 4)] {
        let ours = train(world, cocod(period), &[3.0; 10], (SGD, &noisy));
        for (a, b) in ours.iter().flatten().zip(serial(period, world).iter().flatten()) {
            assert!((f64::from(*a) - b).abs() < 1e-4, "period {period}: {a} {b}");
        }
    }
}

#[test]
fn one_rank_alone_is_its_optimizer() {
    let sgd = Sgd { momentum: 0.9, ..SGD };
    let alone = train(1, || Periodic::new(1).unwrap(), &[3.0; 10], (sgd, &noisy));
    let ours = train(1, cocod(3), &[3.0; 10], (sgd, &noisy));
    assert!(ours[0].iter().zip(&alone[0]).all(|(a, b)| (a - b).abs() < 1e-5));
}

/// Claim: an exchange that takes less than a period costs no time, and little accuracy.
#[test]
fn exchanges_are_hidden_and_the_loss_is_near_local_sgds() {
    let start = vec![3.0; 20_000];
    let world =
        Simulation { world: 4, network: "100mbit,1ms".parse().unwrap(), compute: vec![Duration::from_millis(10)] };
    let flat = |_: usize, _: u64, x: &[f32]| vec![0.0; x.len()];
    let seconds = |hidden: bool| match hidden {
        true => simulate(world.clone(), cocod(8), &start, (Sgd { steps: 32, ..SGD }, &flat)),
        false => simulate(world.clone(), || Periodic::new(8).unwrap(), &start, (Sgd { steps: 32, ..SGD }, &flat)),
    };
    let (local, ours) = (seconds(false), seconds(true));
    assert!(ours < 0.33 && local > 1.1 * ours, "{ours} s against {local} s; computing takes 0.32 s");
    let end = |x: Vec<Vec<f32>>| loss(&mean(&x));
    let sgd = Sgd { steps: 240, ..SGD };
    let local = end(train(4, || Periodic::new(8).unwrap(), &[3.0; 10], (sgd, &noisy)));
    let ours = end(train(4, cocod(8), &[3.0; 10], (sgd, &noisy)));
    assert!(ours < 1.2 * local, "{ours} against {local}");
}

#[test]
fn a_period_of_0_is_refused() {
    let error = CoCoD::new(CoCoDConfig { period: Some(0) }, Dense).map(drop).unwrap_err().to_string();
    assert!(error.contains("period of cocod must be at least 1"), "{error}");
}
