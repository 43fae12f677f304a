//! Draws of every randomized compressor: mean and variance, compared with closed forms that are written down here
//! independently, value by value and naively. Fixed seeds.
//!
//! With `N` draws, a value passes within 5.5 of its *theoretical* standard deviations, `σ/√N`. Values that are rounded the rare
//! way fewer than 20 times are pooled, because the normal limit fails there. The whole error of the mean stays below `(1 +
//! 6√(2/d))·V/N`, with `V` the sum of variances and `d` the number of values that carry it, and the sample variance is `V` to 5
//! %.

use briquette_core::compress::{Compressor, Norm, qsgd::Qsgd};
use briquette_core::config::CompressorConfig;
use briquette_core::{Key, Message};
use rand_distr::{Distribution, StandardNormal};

const DRAWS: u64 = 10_000;

/// Distribution of one compressed value: mean, variance, and probability of its rarer outcome.
#[derive(Clone, Copy)]
struct Law {
    mean: f64,
    variance: f64,
    rare: f64,
}

impl Law {
    /// `low` or `high`, with mean `x`.
    fn between(low: f64, high: f64, x: f64) -> Law {
        let up = if high > low { (x - low) / (high - low) } else { 0.0 };
        Law { mean: x, variance: (x - low) * (high - x), rare: up.min(1.0 - up) }
    }

    /// This distribution with probability `kept`, otherwise zero.
    fn kept(self, probability: f64) -> Law {
        let second = self.variance + self.mean * self.mean;
        let mean = probability * self.mean;
        let rare = probability.min(1.0 - probability).max(self.rare * probability);
        Law { mean, variance: probability * second - mean * mean, rare }
    }

    fn exactly(x: f64) -> Law {
        Law { mean: x, variance: 0.0, rare: 0.0 }
    }

    /// Between `j/s` and `(j + 1)/s` of the scale.
    fn linear(x: f64, scale: f64, levels: f64) -> Law {
        if scale == 0.0 {
            return Law::exactly(0.0);
        }
        let step = scale / levels;
        let low = (x.abs() / step).floor();
        signed(x, Law::between(low * step, ((low + 1.0) * step).min(scale.max(x.abs())), x.abs()))
    }

    /// Between powers of `base` times the scale, `levels` of them, with 0 below.
    fn exponential(x: f64, scale: f64, (base, levels): (f64, i32)) -> Law {
        if scale == 0.0 {
            return Law::exactly(0.0);
        }
        let level = |j: i32| if j == 0 { 0.0 } else { scale * base.powi(j - levels) };
        let below = (0..=levels).rev().find(|&j| level(j) <= x.abs()).unwrap_or(0);
        let above = (below + 1).min(levels);
        signed(x, Law::between(level(below), level(above).max(x.abs()), x.abs()))
    }

    /// Between powers of two.
    fn natural(x: f64) -> Law {
        if x == 0.0 {
            return Law::exactly(0.0);
        }
        let low = 2.0_f64.powi(x.abs().log2().floor() as i32);
        signed(x, Law::between(low, 2.0 * low, x.abs()))
    }
}

fn signed(x: f64, law: Law) -> Law {
    Law { mean: law.mean * x.signum(), ..law }
}

fn norm(x: &[f64], p: i32) -> f64 {
    match p {
        0 => x.iter().fold(0.0, |m, v| m.max(v.abs())),
        1 => x.iter().map(|v| v.abs()).sum(),
        _ => x.iter().map(|v| v * v).sum::<f64>().sqrt(),
    }
}

/// The distribution of every value, from the whole vector (in buckets of 20 if there are buckets).
type Laws = Box<dyn Fn(&[f64]) -> Vec<Law>>;

fn each(law: impl Fn(f64, &[f64]) -> Law + 'static) -> Laws {
    Box::new(move |x| x.iter().map(|&v| law(v, x)).collect())
}

fn bucketed(law: impl Fn(f64, &[f64]) -> Law + 'static) -> Laws {
    Box::new(move |x| x.chunks(20).flat_map(|bucket| bucket.iter().map(|&v| law(v, bucket))).collect())
}

fn config(text: &str) -> Box<dyn Compressor> {
    text.parse::<CompressorConfig>().expect("the text of a compressor").build()
}

/// Every randomized compressor.
fn table() -> Vec<(String, Box<dyn Compressor>, Laws)> {
    briquette_zoo::install();
    let mut table: Vec<(String, Box<dyn Compressor>, Laws)> = Vec::new();
    let mut add = |name: &str, laws: Laws| table.push((name.to_owned(), config(name), laws));
    // 60 values, 15 kept; the others' positions are not independent, but this does not affect the distribution of a single
    // value.
    add("randk:4x:scaled", each(|x, _| Law::exactly(4.0 * x).kept(0.25)));
    add("randk:4x", each(|x, _| Law::exactly(x).kept(0.25)));
    add("biased-random:0.3", each(|x, _| Law::exactly(x).kept(0.3)));
    add("adaptive-random", each(|x, all| Law::exactly(x).kept(if x == 0.0 { 0.0 } else { x.abs() / norm(all, 1) })));
    add("natural", each(|x, _| Law::natural(x)));
    add("round:2:random", each(|x, _| Law::natural(x)));
    add("round:3:random", each(|x, _| Law::exponential(x, 3.0_f64.powi(30), (3.0, 127))));
    add("terngrad:none", each(|x, all| Law::linear(x, norm(all, 0), 1.0)));
    add(
        "terngrad:1",
        each(|x, all| {
            let clip = norm(all, 2) / (all.len() as f64).sqrt();
            Law::linear(x.clamp(-clip, clip), clip.min(norm(all, 0)), 1.0)
        }),
    );
    for (name, p) in [("max", 0), ("l2", 2)] {
        add(&format!("qsgd:3:20:{name}"), bucketed(move |x, all| Law::linear(x, norm(all, p), 3.0)));
        add(&format!("qsgd:s5:20:{name}:elias"), bucketed(move |x, all| Law::linear(x, norm(all, p), 5.0)));
    }
    for (name, p) in [("max", 0), ("l2", 2), ("l1", 1)] {
        add(&format!("dither:2:3:20:{name}"), bucketed(move |x, all| Law::exponential(x, norm(all, p), (2.0, 3))));
        add(&format!("dither:1.5:9:20:{name}"), bucketed(move |x, all| Law::exponential(x, norm(all, p), (1.5, 9))));
    }
    // Both are random: kept or not, then up or down.
    add("randk:4x:scaled+natural", each(|x, _| Law::natural(4.0 * x).kept(0.25)));
    add("biased-random:0.3+natural", each(|x, _| Law::natural(x).kept(0.3)));
    // Settings do not offer this norm.
    let l1 = Qsgd::with_levels(7, 20, Norm::L1).expect("valid settings");
    table.push(("qsgd, l1".into(), Box::new(l1), bucketed(|x, all| Law::linear(x, norm(all, 1), 7.0))));
    table
}

/// 60 values each.
fn vectors() -> Vec<(&'static str, Vec<f32>)> {
    let mut rng = Key::new(12).block(0);
    let normal: Vec<f32> = (0..60).map(|_| StandardNormal.sample(&mut rng)).collect();
    let laplace = normal.iter().map(|v| v * v.abs()).collect();
    let mut outlier = normal.clone();
    outlier[7] = -300.0;
    let mut hot = vec![0.0; 60];
    hot[33] = 0.3;
    let denormals = (0..60).map(|i| (i as f32 - 30.0) * 1e-41).collect();
    let list = vec![("normal", normal), ("laplace", laplace), ("outlier", outlier), ("one-hot", hot)];
    list.into_iter().chain([("all equal", vec![0.7; 60]), ("zeros", vec![0.0; 60]), ("denormals", denormals)]).collect()
}

#[test]
fn draws_have_the_mean_and_the_variance_of_their_closed_forms() {
    for (name, mut compressor, laws) in table() {
        for (kind, x) in vectors() {
            // Subnormal numbers are too coarse for closed forms of powers and shares: see the edges.
            let coarse = kind == "denormals" && !name.starts_with("randk:4x") && name != "biased-random:0.3";
            if coarse || (kind == "denormals" && name.contains('+')) {
                continue;
            }
            let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            if let Err(fault) = check(&mut *compressor, &x, &laws(&wide)) {
                panic!("{name} of {kind}: {fault}");
            }
        }
    }
}

fn check(compressor: &mut dyn Compressor, x: &[f32], laws: &[Law]) -> Result<(), String> {
    let (mut message, mut out) = (Message::default(), vec![0.0; x.len()]);
    let (mut off, mut energy) = (vec![0.0; x.len()], 0.0);
    for step in 0..DRAWS {
        compressor.compress_into(x, Key::new(41).step(step), &mut message);
        message.decode_into(&mut out).map_err(|e| e.to_string())?;
        for ((off, v), law) in off.iter_mut().zip(&out).zip(laws) {
            let error = f64::from(*v) - law.mean;
            *off += error / DRAWS as f64;
            energy += error * error / DRAWS as f64;
        }
    }
    check_values(&off, laws)?;
    let draws = DRAWS as f64;
    let total: f64 = laws.iter().map(|law| law.variance).sum();
    // The f32 rounding of scales, shares and values.
    let rounding: f64 = laws.iter().map(|law| (1e-6 * law.mean).powi(2)).sum();
    let many = total * total / laws.iter().map(|law| law.variance * law.variance).sum::<f64>().max(f64::MIN_POSITIVE);
    let bias: f64 = off.iter().map(|off| off * off).sum();
    if many >= 20.0 && bias > (1.0 + 6.0 * (2.0 / many).sqrt()) * total / draws + rounding {
        return Err(format!("the mean is off by {} of {}", bias.sqrt(), (total / draws).sqrt()));
    }
    // A value that hardly ever has the other outcome has no meaningful sample variance.
    let seen = laws.iter().filter(|law| law.variance > 0.01 * total).all(|law| law.rare * draws >= 500.0);
    if seen && (energy - total).abs() > 0.05 * total + rounding {
        return Err(format!("the sample variance is {energy}, exactly {total}"));
    }
    Ok(())
}

/// Checks each value separately, and values that are rarely rounded the other way together.
fn check_values(off: &[f64], laws: &[Law]) -> Result<(), String> {
    let draws = DRAWS as f64;
    let (mut pooled, mut variance, mut events) = (0.0, 0.0, 0.0);
    for (i, (off, law)) in off.iter().zip(laws).enumerate() {
        let rounding = 1e-6 * law.mean.abs();
        if law.rare * draws >= 20.0 {
            let bound = 5.5 * (law.variance / draws).sqrt() + rounding;
            if off.abs() > bound {
                return Err(format!("value {i}, {}, is off by {off}, bound {bound}", law.mean));
            }
        } else {
            (pooled, variance, events) = (pooled + off, variance + law.variance / draws, events + law.rare * draws);
        }
    }
    let rounding = laws.iter().map(|law| 1e-6 * law.mean.abs()).sum::<f64>();
    if events >= 20.0 && pooled.abs() > 5.5 * variance.sqrt() + rounding {
        return Err(format!("the rare ones together are off by {pooled}, deviation {}", variance.sqrt()));
    }
    // Fewer than one of them in all is expected: a value with the other outcome is too improbable.
    if events < 1e-3 && pooled.abs() > rounding { Err(format!("off by {pooled} without a draw")) } else { Ok(()) }
}
