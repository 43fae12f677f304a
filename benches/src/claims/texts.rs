//! Logistic regression on texts: four classes, words hashed into buckets.

use std::path::Path;

use anyhow::{Result, ensure};
use briquette::core::Key;
use briquette_datasets::{Download, TextKind, TextSource};
use rand_distr::{Distribution, Uniform};

use super::world::noise;

const BUCKETS: usize = 256;
pub(super) const CLASSES: usize = 4;
/// Minimum number of texts of each class.
const FEWEST: usize = 64;
/// Coefficient of ½‖x‖²: small relative to the curvature of the loss.
const DECAY: f64 = 1e-4;

/// Number of parameters.
pub(super) const LEN: usize = BUCKETS * CLASSES;

/// Texts as unit vectors of hashed word counts, with the same number in each class.
pub(super) struct Texts {
    words: Vec<Vec<(usize, f64)>>,
    pub(super) labels: Vec<usize>,
}

impl Texts {
    /// Loads AG-News from a directory, or generates texts.
    pub(super) fn load(data: Option<&Path>) -> Result<Texts> {
        let kind = if data.is_some() { TextKind::AgNews } else { TextKind::Generated };
        let download = Download { allowed: false, ..Download::default() };
        let dir = data.map(|data| data.join("ag_news"));
        let set = TextSource { dir, train_limit: Some(10_000), download, ..TextSource::new(kind) }.load()?.train;
        let labels = set.labels();
        let of_class = |class: usize| (0..labels.len()).filter(move |at| usize::from(labels[*at]) == class);
        let count = (0..CLASSES).map(|class| of_class(class).count()).min().unwrap_or_default().min(1000);
        ensure!(count >= FEWEST, "{count} texts of a class are too few");
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

    /// Returns the mean loss of some texts with its decay, and writes its gradient.
    pub(super) fn loss(&self, texts: &[usize], x: &[f64], g: &mut [f64]) -> f64 {
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

    /// Returns the minimizer of the loss over all texts, and that loss: by acceleration, restarted when the loss would increase.
    pub(super) fn optimum(&self) -> (Vec<f64>, f64) {
        let all: Vec<usize> = (0..self.labels.len()).collect();
        let (mut x, mut g) = (vec![0.0; LEN], vec![0.0; LEN]);
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

    /// Writes the gradient of a batch that a rank draws from its texts at a step to `g`.
    pub(super) fn gradient(&self, own: &[usize], batch: usize, key: Key, x: &[f32], g: &mut [f32]) {
        let mut rng = key.block(1);
        let place = Uniform::new(0, own.len()).expect("a rank has texts");
        let batch: Vec<usize> = (0..batch).map(|_| own[place.sample(&mut rng)]).collect();
        let (x, mut exact) = (x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), vec![0.0; g.len()]);
        self.loss(&batch, &x, &mut exact);
        g.iter_mut().zip(exact).for_each(|(g, exact)| *g = exact as f32);
    }

    /// Returns each rank's texts, the same number on every rank.
    pub(super) fn split(&self, share: f64, seed: u64) -> Vec<Vec<usize>> {
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
        let mut g = vec![0.0; LEN];
        let x: Vec<f64> = (0..g.len()).map(|i| (i as f64).sin()).collect();
        texts.loss(&all, &x, &mut g);
        let at = |i: usize, by: f64| {
            let mut x = x.clone();
            x[i] += by;
            texts.loss(&all, &x, &mut vec![0.0; LEN])
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
