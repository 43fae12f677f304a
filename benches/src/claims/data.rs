//! Ranks with different data: local steps, minibatches and accelerated minibatches, on a quadratic and on texts split by class.

use std::path::Path;

use anyhow::Result;
use briquette::core::Key;

use super::texts::{CLASSES, LEN, Texts};
use super::world::{Descent, noise};
use super::{Claim, Family, Row, lowest, mean};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "different data",
        says: "Minibatch, AC-SA, Local SGD (Woodworth 2020), full gradients of a quadratic: without differences Local SGD is best, with large ones last; minibatches do \
               not see them",
        run: |seeds, _| different_data(seeds),
        judge: |rows| {
            let at = |zeta| [LOCAL, ACCELERATED, PLAIN].map(|setting| mean(rows, setting, zeta));
            let ([l, a, m], [l10, a10, m10]) = (at(0.0), at(10.0));
            let holds = l < a && a < m && a10 < m10 && m10 < l10;
            let seen = format!(
                "ζ = 0: {l:.1e}, {a:.1e}, {m:.1e}; ζ = 10: {l10:.1e}, {a10:.1e}, {m10:.1e} (Local, AC-SA, minibatch)"
            );
            (holds, seen)
        },
        log: false,
    },
    Claim {
        name: "different classes",
        says: "Minibatch, AC-SA, Local SGD (Woodworth 2020), logistic regression on texts: only Local SGD loses where ranks' classes differ; \
               AC-SA is best there after many rounds",
        run: different_classes,
        judge: |rows| {
            let of = |strategy: &str, rounds: u64| SHARES.map(|share| mean(rows, &setting(strategy, rounds), share));
            let [local, fast, plain] = [LOCAL, ACCELERATED, PLAIN].map(|strategy| of(strategy, 100));
            let grows = |losses: [f64; 3]| losses[2] / losses[0];
            let blind = [fast, plain].iter().all(|losses| (0.67..1.5).contains(&grows(*losses)));
            let best = fast[2] < plain[2] && fast[2] < local[2];
            let text = |losses: [f64; 3]| losses.map(|loss| format!("{loss:.3}")).join(", ");
            let few = [LOCAL, ACCELERATED, PLAIN].map(|strategy| text(of(strategy, 20))).join("; ");
            let data = rows.first().map_or("", |row| row.quantity);
            let seen = format!(
                "{data} at ζ = {}, Local SGD {}; AC-SA {}; minibatch {}; after 20 rounds {few}",
                text(SHARES.map(|share| mean(rows, "ζ", share))),
                text(local),
                text(fast),
                text(plain)
            );
            (blind && grows(local) > 2.0 && best, seen)
        },
        log: false,
    },
];

fn no_loss(_: &[f32]) -> f64 {
    0.0
}

const LOCAL: &str = "local-sgd:20";
const ACCELERATED: &str = "minibatch:20,accelerate=true";
const PLAIN: &str = "minibatch:20";

/// Four ranks, 50 rounds of 20 full gradients, curvatures from 1.5 down to 1/2000 and optima `ζ` apart: the lowest loss
/// over learning rates.
fn different_data(seeds: u64) -> Result<Vec<Row>> {
    let curvature =
        |rank: usize, i: usize| 1e-3_f64.powf(1.0 - i as f64 / 49.0) * (1.0 + 0.5 * ((i + rank) as f64).sin());
    let common = |i: usize| (0..4).map(|rank| curvature(rank, i)).sum::<f64>() / 4.0;
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for zeta in [0.0, 0.3, 1.0, 3.0, 10.0] {
            let draws = |number: u64| {
                let mut draw = noise(seed, 0, number);
                (0..50).map(|_| f64::from(draw())).collect::<Vec<_>>()
            };
            let (centre, apart) = (draws(0), [draws(1), draws(2)]);
            let optimum = |rank: usize, i: usize| {
                let side = if rank.is_multiple_of(2) { zeta } else { -zeta };
                centre[i] + side * common(i) / curvature(rank, i) * apart[rank / 2][i]
            };
            let gradient = |rank: usize, _: u64, x: &[f32], g: &mut [f32]| {
                for (i, (g, x)) in g.iter_mut().zip(x).enumerate() {
                    *g = (curvature(rank, i) * (f64::from(*x) - optimum(rank, i))) as f32;
                }
            };
            let excess = |model: &[f64]| {
                let at = |(i, x): (usize, &f64)| {
                    let best =
                        (0..4).map(|rank| curvature(rank, i) * optimum(rank, i)).sum::<f64>() / (4.0 * common(i));
                    0.5 * common(i) * (x - best).powi(2)
                };
                model.iter().enumerate().map(at).sum::<f64>()
            };
            for strategy in [LOCAL, ACCELERATED, PLAIN] {
                let (rate, value) = lowest(0.25 / 1.5, |rate| {
                    let descent = Descent { strategy, ranks: 4, steps: 1000, rate, ..Descent::default() };
                    Ok(excess(&descent.run(&|_| vec![0.0; 50], &gradient, &no_loss)?.model))
                })?;
                rows.push(Row {
                    family: Family::Data,
                    claim: "different data",
                    setting: strategy.into(),
                    over: "ζ",
                    x: zeta,
                    seed,
                    quantity: "loss at the best rate",
                    rate: Some(rate),
                    value,
                });
            }
        }
    }
    Ok(rows)
}

/// Shares of a class that belong to one rank; the rest is distributed over all.
const SHARES: [f64; 3] = [0.0, 0.5, 1.0];

/// Batch size in texts.
const BATCH: usize = 16;

fn setting(strategy: &str, rounds: u64) -> String {
    format!("{strategy}, {rounds} rounds")
}

/// Four ranks, rounds of 20 gradients of 16 texts: the lowest loss over learning rates.
fn different_classes(seeds: u64, data: Option<&Path>) -> Result<Vec<Row>> {
    let texts = Texts::load(data)?;
    let all: Vec<usize> = (0..texts.labels.len()).collect();
    let (at_best, best) = texts.optimum();
    let quantity = match data {
        Some(_) => "loss on AG-News above the optimum's",
        None => "loss on generated texts above the optimum's",
    };
    let row = |setting: String, x, seed, (rate, value)| Row {
        family: Family::Data,
        claim: "different classes",
        setting,
        over: "share of a class that is one rank's",
        x,
        seed,
        quantity,
        rate,
        value,
    };
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for share in SHARES {
            let ranks = texts.split(share, seed);
            let gradient = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
                texts.gradient(&ranks[rank], BATCH, Key::new(seed).step(step).rank(rank), x, g);
            };
            for rounds in [20, 100] {
                for (strategy, start) in [(LOCAL, 4.0), (ACCELERATED, 8.0), (PLAIN, 32.0)] {
                    let (rate, value) = lowest(start, |rate| {
                        let descent = Descent { strategy, ranks: 4, steps: 20 * rounds, rate, ..Descent::default() };
                        let ended = descent.run(&|_| vec![0.0; LEN], &gradient, &no_loss)?;
                        Ok(texts.loss(&all, &ended.model, &mut vec![0.0; LEN]) - best)
                    })?;
                    rows.push(row(setting(strategy, rounds), share, seed, (Some(rate), value)));
                }
            }
            let mut g = vec![0.0; LEN];
            let mut squared = |own: &Vec<usize>| {
                texts.loss(own, &at_best, &mut g);
                g.iter().map(|g| g * g).sum::<f64>() / CLASSES as f64
            };
            let apart = ranks.iter().map(&mut squared).sum::<f64>().sqrt();
            rows.push(row("ζ".into(), share, seed, (None, apart)));
        }
    }
    Ok(rows)
}
