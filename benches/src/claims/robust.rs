//! Aggregators under Byzantine attacks: least squares on 20 ranks, some of which send other messages.

use anyhow::Result;

use super::world::{Descent, noise};
use super::{Claim, Family, Row, mean};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "elimination",
        says: "CGE (Gupta 2021): eliminating the f largest keeps to the optimum where 3 of 20 ranks send ten times the reverse, or noise; \
               what is small and wrong it keeps",
        run: |seeds, _| elimination(seeds),
        judge: |rows| {
            let of = |attack: usize, aggregator: &str| mean(rows, aggregator, attack as f64);
            let [reverse, random, small] = [0, 1, 2].map(|attack| of(attack, "cge:3"));
            let clean = of(2, "median");
            let seen = format!(
                "distance {reverse:.4} under reversed, {random:.4} under random, {small:.4} under small ones; the mean {:.0e}, {:.1}",
                of(0, "mean"),
                of(1, "mean")
            );
            (
                reverse < 0.02
                    && random < 0.02
                    && small < 0.02
                    && of(0, "mean") > 100.0
                    && of(1, "mean") > 1.0
                    && clean < 0.05,
                seen,
            )
        },
        log: false,
    },
    Claim {
        name: "breakdown",
        says: "Krum, coordinate median and geometric median (Blanchard 2017, Yin 2018, Pillutla 2022) tolerate up to their share of ranks that send \
               what is far off, and no more",
        run: |seeds, _| breakdown(seeds),
        judge: |rows| {
            let of = |aggregator: &str, f: f64| mean(rows, aggregator, f);
            let all = ["median", "geometric-median", "licm", "trimmed-mean:8", "krum:8"];
            let within = all.iter().map(|aggregator| of(aggregator, 8.0)).fold(0.0, f64::max);
            let beyond = ["median", "geometric-median"].map(|aggregator| of(aggregator, 11.0));
            let seen = format!(
                "with 8 of 20 at most {within:.3} from the optimum, with 11 median {:.0e}, geometric median {:.0e}",
                beyond[0], beyond[1]
            );
            (within < 0.2 && beyond.iter().all(|distance| *distance > 10.0), seen)
        },
        log: false,
    },
];

const LEN: usize = 5;

/// Message of a Byzantine rank, derived from its gradient.
#[derive(Debug, Clone, Copy)]
enum Attack {
    Reverse,
    Random,
    Small,
    Far,
}

/// Returns the distance from the optimum after 300 steps, with gradients of batches of 10 and targets with noise 0.1.
fn distance(aggregator: &str, attack: Attack, byzantine: usize, seed: u64) -> Result<f64> {
    let target = {
        let mut draw = noise(seed, 99, 0);
        (0..LEN).map(|_| draw()).collect::<Vec<f32>>()
    };
    let honest = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
        let mut draw = noise(seed, rank, step);
        g.fill(0.0);
        for _ in 0..10 {
            let a: [f32; LEN] = std::array::from_fn(|_| draw());
            let off = a.iter().zip(x).zip(&target).map(|((a, x), w)| a * (x - w)).sum::<f32>() + 0.1 * draw();
            g.iter_mut().zip(a).for_each(|(g, a)| *g += off * a / 10.0);
        }
    };
    let gradient = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
        honest(rank, step, x, g);
        if rank >= byzantine {
            return;
        }
        let mut draw = noise(seed + 1000, rank, step);
        match attack {
            Attack::Reverse => g.iter_mut().for_each(|g| *g *= -10.0),
            Attack::Random => g.iter_mut().for_each(|g| *g = 100.0 * draw()),
            Attack::Small => g.iter_mut().for_each(|g| *g *= -0.9),
            Attack::Far => g.iter_mut().enumerate().for_each(|(i, g)| *g = 1e3 * (1.0 + i as f32)),
        }
    };
    let (reducer, ranks, steps, rate) = ("gather:dense", 20, 300, 0.1);
    let descent = Descent { reducer, aggregator, ranks, steps, rate, ..Descent::default() };
    let ended = descent.run(&|_| vec![0.0; LEN], &gradient, &|_| 0.0)?;
    Ok(ended.model.iter().zip(&target).map(|(x, w)| (x - f64::from(*w)).powi(2)).sum::<f64>().sqrt())
}

fn elimination(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for aggregator in ["mean", "cge:3", "krum:3", "trimmed-mean:3", "median", "geometric-median", "licm"] {
            for (at, attack) in [Attack::Reverse, Attack::Random, Attack::Small].into_iter().enumerate() {
                rows.push(Row {
                    family: Family::Robust,
                    claim: "elimination",
                    setting: aggregator.into(),
                    over: "attack: 0 reversed tenfold, 1 random, 2 small and reversed",
                    x: at as f64,
                    seed,
                    quantity: "distance to the optimum",
                    rate: None,
                    value: distance(aggregator, attack, 3, seed)?.min(1e9),
                });
            }
        }
    }
    Ok(rows)
}

fn breakdown(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for aggregator in ["mean", "median", "geometric-median", "licm", "trimmed-mean:8", "krum:8"] {
            for byzantine in [0, 2, 4, 8, 9, 11] {
                rows.push(Row {
                    family: Family::Robust,
                    claim: "breakdown",
                    setting: aggregator.into(),
                    over: "Byzantine ranks of 20",
                    x: byzantine as f64,
                    seed,
                    quantity: "distance to the optimum",
                    rate: None,
                    value: distance(aggregator, Attack::Far, byzantine, seed)?.min(1e9),
                });
            }
        }
    }
    Ok(rows)
}
