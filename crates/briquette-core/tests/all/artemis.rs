//! Artemis with different data on the ranks and full gradients: the distance to the optimum falls to the rounding of f32 with
//! memories. It does not without them, or if absent ranks count as nothing (paper, §4; no gradient noise).

use briquette_core::comm::Local;
use briquette_core::config::Exchange;
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Reducer, Round};
use briquette_core::{Key, Layout};

const LEN: usize = 20;
const RANKS: usize = 10;

/// A rank's loss is `½ Σ aᵢ(xᵢ − bᵢ)²`, with curvatures in [½, 1½].
fn quadratic(rank: usize) -> [Vec<f64>; 2] {
    let wave = |i: usize, by: f64| (((i + 1) * (3 * rank + 2)) as f64 * by).sin();
    [(0..LEN).map(|i| 1.0 + 0.5 * wave(i, 0.7)).collect(), (0..LEN).map(|i| 2.0 * wave(i, 1.3)).collect()]
}

/// Returns the minimizer of the mean of all losses.
fn optimum() -> Vec<f64> {
    let all: Vec<_> = (0..RANKS).map(quadratic).collect();
    let at = |i: usize| {
        let (sum, weight) = all.iter().fold((0.0, 0.0), |(sum, weight), [a, b]| (sum + a[i] * b[i], weight + a[i]));
        sum / weight
    };
    (0..LEN).map(at).collect()
}

/// Returns `‖x − x*‖²` after `rounds` steps from 0.
fn distance(reducer: &str, rounds: u64) -> f64 {
    briquette_zoo::install();
    let exchange = Exchange { reducer: reducer.parse().unwrap(), ..Exchange::default() };
    let layout = Layout::flat(LEN);
    let ends = Local::run(RANKS, |mut comm| {
        let mut reducer = exchange.build_reducer(&layout, RANKS).unwrap();
        let [a, b] = quadratic(comm.rank());
        let (mut x, mut average) = (vec![0.0_f32; LEN], vec![0.0; LEN]);
        for step in 0..rounds {
            let gradient: Vec<f32> = (0..LEN).map(|i| (a[i] * (f64::from(x[i]) - b[i])) as f32).collect();
            let (key, slots, agreed_step) =
                (Key::new(1).step(step), layout.slots(), AgreedStep { step, ..AgreedStep::default() });
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &gradient, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            x.iter_mut().zip(&average).for_each(|(x, average)| *x -= 0.05 * average);
        }
        Ok::<_, ReduceError>(x)
    });
    let x = ends.into_iter().next().unwrap().unwrap();
    x.iter().zip(optimum()).map(|(x, at)| (f64::from(*x) - at).powi(2)).sum()
}

#[test]
fn memories_make_it_linear_and_the_mean_memory_under_half_participation_too() {
    let settings = "artemis:qsgd:s1:512:l2,down=qsgd:s1:512:l2";
    let [none, memory, pp1, pp2] = [
        format!("{settings},alpha=0"),
        settings.to_owned(),
        format!("{settings},participation=0.5,variant=pp1"),
        format!("{settings},participation=0.5"),
    ]
    .map(|reducer| distance(&reducer, 1500));
    println!("no memory {none:e}, memory {memory:e}, PP1 {pp1:e}, PP2 {pp2:e}");
    assert!(none > 1e-2 && pp1 > 1e-2, "no memory {none:e}, PP1 {pp1:e}");
    assert!(memory < 1e-10 && pp2 < 1e-10, "memory {memory:e}, PP2 {pp2:e}");
}
