//! Ranks whose data differ: local steps, minibatches and accelerated minibatches, on a quadratic and on texts split by class.

use std::path::Path;

use anyhow::{Result, ensure};
use briquette::core::Key;
use briquette_datasets::{Download, TextKind, TextSource};
use rand_distr::{Distribution, Uniform};

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

/// Four ranks, 50 rounds of 20 full gradients, curvatures from 1.5 down to 1/2000 and optima `ζ` apart: the lowest loss over learning rates.
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

/// How much of a class is one rank's; the rest is dealt out to all.
const SHARES: [f64; 3] = [0.0, 0.5, 1.0];

const BUCKETS: usize = 256;
const CLASSES: usize = 4;
/// Texts of a gradient.
const BATCH: usize = 16;
/// Of ½‖x‖²: small beside the curvature of the loss.
const DECAY: f64 = 1e-4;

fn setting(strategy: &str, rounds: u64) -> String {
    format!("{strategy}, {rounds} rounds")
}

/// Texts as lengths of one in hashed words, as many of each class.
struct Texts {
    words: Vec<Vec<(usize, f64)>>,
    labels: Vec<usize>,
}

impl Texts {
    /// AG-News in a directory, else generated.
    fn load(data: Option<&Path>) -> Result<Texts> {
        let kind = if data.is_some() { TextKind::AgNews } else { TextKind::Generated };
        let download = Download { allowed: false, ..Download::default() };
        let dir = data.map(|data| data.join("ag_news"));
        let set = TextSource { dir, train_limit: Some(10_000), download, ..TextSource::new(kind) }.load()?.train;
        let labels = set.labels();
        let of_class = |class: usize| (0..labels.len()).filter(move |at| usize::from(labels[*at]) == class);
        let count = (0..CLASSES).map(|class| of_class(class).count()).min().unwrap_or_default().min(1000);
        ensure!(count >= CLASSES * BATCH, "{count} texts of a class are too few");
        let (mut words, mut labels) = (Vec::new(), Vec::new());
        for class in 0..CLASSES {
            for at in of_class(class).take(count) {
                let batch = set.batch(&[at]);
                let mut counts = [0.0_f64; BUCKETS];
                batch.tokens[..batch.lengths[0]].iter().for_each(|id| counts[*id as usize % BUCKETS] += 1.0);
                let norm = counts.iter().map(|count| count * count).sum::<f64>().sqrt().max(1.0);
                let used = counts.iter().enumerate().filter(|(_, count)| **count > 0.0);
                words.push(used.map(|(bucket, count)| (bucket, count / norm)).collect());
                labels.push(class);
            }
        }
        Ok(Texts { words, labels })
    }

    /// The mean loss of some texts with its decay, and its gradient.
    fn loss(&self, texts: &[usize], x: &[f64], g: &mut [f64]) -> f64 {
        g.iter_mut().zip(x).for_each(|(g, x)| *g = DECAY * x);
        let mut sum = 0.0;
        for text in texts {
            let mut logits = [0.0; CLASSES];
            for (bucket, weight) in &self.words[*text] {
                logits.iter_mut().zip(&x[bucket * CLASSES..]).for_each(|(logit, x)| *logit += weight * x);
            }
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let all: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            let label = self.labels[*text];
            sum += all.ln() + largest - logits[label];
            let mut slope = logits.map(|logit| (logit - largest).exp() / all / texts.len() as f64);
            slope[label] -= 1.0 / texts.len() as f64;
            for (bucket, weight) in &self.words[*text] {
                g[bucket * CLASSES..].iter_mut().zip(slope).for_each(|(g, slope)| *g += weight * slope);
            }
        }
        sum / texts.len() as f64 + 0.5 * DECAY * x.iter().map(|x| x * x).sum::<f64>()
    }

    /// Where the loss of all texts is lowest, and that loss: accelerated, beginning anew where it would go up.
    fn optimum(&self) -> (Vec<f64>, f64) {
        let all: Vec<usize> = (0..self.labels.len()).collect();
        let (mut x, mut g) = (vec![0.0; BUCKETS * CLASSES], vec![0.0; BUCKETS * CLASSES]);
        let (mut ahead, mut t) = (x.clone(), 1.0_f64);
        for _ in 0..4000 {
            self.loss(&all, &ahead, &mut g);
            if g.iter().map(|g| g * g).sum::<f64>() < 1e-12 {
                break;
            }
            let next: Vec<f64> = ahead.iter().zip(&g).map(|(x, g)| x - 2.0 * g).collect();
            let up = g.iter().zip(next.iter().zip(&x)).map(|(g, (next, x))| g * (next - x)).sum::<f64>() > 0.0;
            let grown = if up { 1.0 } else { (1.0 + (1.0 + 4.0 * t * t).sqrt()) / 2.0 };
            let on = if up { 0.0 } else { (t - 1.0) / grown };
            ahead = next.iter().zip(&x).map(|(next, x)| next + on * (next - x)).collect();
            (x, t) = (next, grown);
        }
        let lowest = self.loss(&all, &x, &mut g);
        (x, lowest)
    }

    /// Each rank's texts, as many on every rank.
    fn split(&self, share: f64, seed: u64) -> Vec<Vec<usize>> {
        let mut ranks = vec![Vec::new(); CLASSES];
        for class in 0..CLASSES {
            let mut draw = noise(seed, class, 0);
            let of_class = (0..self.labels.len()).filter(|text| self.labels[*text] == class);
            let mut drawn: Vec<(f32, usize)> = of_class.map(|text| (draw(), text)).collect();
            drawn.sort_by(|a, b| a.0.total_cmp(&b.0));
            let own = (share * drawn.len() as f64) as usize;
            for (place, (_, text)) in drawn.into_iter().enumerate() {
                ranks[if place < own { class } else { place % CLASSES }].push(text);
            }
        }
        ranks
    }
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
                let mut rng = Key::new(seed).step(step).rank(rank).block(1);
                let place = Uniform::new(0, ranks[rank].len()).expect("a rank has texts");
                let batch: Vec<usize> = (0..BATCH).map(|_| ranks[rank][place.sample(&mut rng)]).collect();
                let (x, mut exact) = (x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), vec![0.0; g.len()]);
                texts.loss(&batch, &x, &mut exact);
                g.iter_mut().zip(exact).for_each(|(g, exact)| *g = exact as f32);
            };
            for rounds in [20, 100] {
                for (strategy, start) in [(LOCAL, 4.0), (ACCELERATED, 8.0), (PLAIN, 32.0)] {
                    let (rate, value) = lowest(start, |rate| {
                        let descent = Descent { strategy, ranks: 4, steps: 20 * rounds, rate, ..Descent::default() };
                        let ended = descent.run(&|_| vec![0.0; BUCKETS * CLASSES], &gradient, &no_loss)?;
                        Ok(texts.loss(&all, &ended.model, &mut vec![0.0; BUCKETS * CLASSES]) - best)
                    })?;
                    rows.push(row(setting(strategy, rounds), share, seed, (Some(rate), value)));
                }
            }
            let mut g = vec![0.0; BUCKETS * CLASSES];
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

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Texts {
        let words = (0..160).map(|text| vec![(text % 7, 0.8), (7 + text / 40, 0.6)]).collect();
        Texts { words, labels: (0..160).map(|text| text / 40).collect() }
    }

    #[test]
    fn the_gradient_is_the_loss_s_and_vanishes_at_the_optimum() {
        let (texts, all) = (texts(), (0..160).collect::<Vec<_>>());
        let mut g = vec![0.0; BUCKETS * CLASSES];
        let x: Vec<f64> = (0..g.len()).map(|i| (i as f64).sin()).collect();
        texts.loss(&all, &x, &mut g);
        let at = |i: usize, by: f64| {
            let mut x = x.clone();
            x[i] += by;
            texts.loss(&all, &x, &mut vec![0.0; BUCKETS * CLASSES])
        };
        for i in [0, 5, 30, 41, 900] {
            assert!(((at(i, 1e-5) - at(i, -1e-5)) / 2e-5 - g[i]).abs() < 1e-8, "{i}");
        }
        let (best, lowest) = texts.optimum();
        assert!(texts.loss(&all, &best, &mut g) == lowest && lowest < 0.1, "{lowest}");
        assert!(g.iter().all(|g| g.abs() < 1e-4));
    }

    #[test]
    fn ranks_have_as_many_texts_and_each_text_is_somewhere() {
        for (share, own) in [(0.0, 10), (0.5, 25), (1.0, 40)] {
            let texts = texts();
            let ranks = texts.split(share, 3);
            let mut all = ranks.concat();
            all.sort_unstable();
            assert_eq!(all, (0..160).collect::<Vec<_>>());
            for (rank, mine) in ranks.iter().enumerate() {
                let of_class = mine.iter().filter(|text| texts.labels[**text] == rank).count();
                assert_eq!((mine.len(), of_class), (40, own), "{share}");
            }
        }
    }
}
