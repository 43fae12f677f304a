//! Periodic averaging: Local SGD, PRSGD, SlowMo, DiLoCo, and exchanges that overlap with local steps.

use anyhow::Result;
use briquette::sim::Network;

use super::world::{Descent, Gradient, noise};
use super::{Claim, Family, Row, lowest, mean, slope};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "variance",
        says: "Local SGD (Stich 2019): W ranks cut the variance W-fold, as minibatches do",
        run: |seeds, _| variance(seeds),
        judge: |rows| {
            let slopes = ["every-step", "local-sgd:8"].map(|setting| slope(rows, setting));
            let holds = slopes.iter().all(|slope| (-1.2..-0.8).contains(slope));
            (holds, format!("excess loss ∝ W^{:.2} at every step, W^{:.2} every 8", slopes[0], slopes[1]))
        },
        log: true,
    },
    Claim {
        name: "bias",
        says: "PRSGD (Yu 2019): where ranks' data differ, the squared bias grows with I²γ²",
        run: |seeds, _| bias(seeds),
        judge: |rows| {
            let slopes = ["γ = 0.01", "γ = 0.02"].map(|setting| slope(rows, setting));
            let ratio = mean(rows, "γ = 0.02", 15.0) / mean(rows, "γ = 0.01", 15.0);
            let holds = slopes.iter().all(|slope| (1.8..2.2).contains(slope)) && (3.4..4.6).contains(&ratio);
            (
                holds,
                format!(
                    "slopes over I − 1 {:.2} and {:.2}; twice the rate, {ratio:.2} times the bias",
                    slopes[0], slopes[1]
                ),
            )
        },
        log: true,
    },
    Claim {
        name: "slow momentum",
        says: "SlowMo (Wang 2020): at the same rate and rounds a slow momentum ends lower; .6 is better than none and than .8",
        run: |seeds, _| slow_momentum(seeds),
        judge: |rows| {
            let [none, some, best, most] = BETAS.map(|beta| mean(rows, "slowmo:12", beta));
            let holds = best < some && some < none && best < most;
            (holds, format!("loss {none:.4} (β 0), {some:.4} (.4), {best:.4} (.6), {most:.4} (.8)"))
        },
        log: false,
    },
    Claim {
        name: "long periods",
        says: "DiLoCo (Douillard 2023): an outer momentum ends lower than averages do, at every period, at as many bytes, each at its best rate",
        run: |seeds, _| long_periods(seeds),
        judge: |rows| {
            let ratio = |period: &u64| mean(rows, "diloco", *period as f64) / mean(rows, "local-sgd", *period as f64);
            let each = PERIODS.iter().map(|period| format!("{:.2} (H = {period})", ratio(period)));
            let lower = PERIODS.iter().filter(|period| ratio(period) < 0.95).map(u64::to_string).collect::<Vec<_>>();
            let seen = format!("of Local SGD's loss: {}", each.collect::<Vec<_>>().join(", "));
            let at = if lower.is_empty() { "no period".into() } else { format!("H = {}", lower.join(", ")) };
            (lower.len() == PERIODS.len(), format!("{seen}: lower by a twentieth at {at}"))
        },
        log: true,
    },
    Claim {
        name: "fragments",
        says: "Streaming DiLoCo (Douillard 2025): as many bytes as DiLoCo, a fraction of them at once, at a loss near its own",
        run: |seeds, _| fragments(seeds),
        judge: |rows| {
            let [whole, parts] = ["diloco:20", "streaming-diloco:20"].map(|setting| {
                let peak = mean(rows, setting, 1.0);
                (peak, mean(rows, setting, 0.0))
            });
            let (peak, total) = (parts.0 / whole.0, parts.1 / whole.1);
            (peak < 0.3 && total == 1.0, format!("{peak:.2} of the peak, {total:.2} of the bytes"))
        },
        log: false,
    },
    Claim {
        name: "hidden exchange",
        says: "Overlap-Local-SGD, CoCoD-SGD: an exchange shorter than a period costs no time",
        run: |seeds, _| hidden(seeds),
        judge: |rows| {
            let at = |setting: &str| mean(rows, setting, 10.0);
            let (plain, late) = (at("local-sgd:8"), ["overlap-local-sgd:8", "cocod:8"].map(at));
            let holds = late.iter().all(|late| *late < 10.1) && plain > 12.0;
            (holds, format!("at 10 ms: {plain:.1} ms a step, {:.1} and {:.1} hidden", late[0], late[1]))
        },
        log: true,
    },
];

/// Number of values of every problem here.
const LEN: usize = 30;

/// Returns curvatures from 1 down to `least`.
fn curvature(i: usize, least: f32) -> f32 {
    least.powf(i as f32 / (LEN - 1) as f32)
}

fn excess(x: &[f64], least: f32) -> f64 {
    x.iter().enumerate().map(|(i, x)| 0.5 * f64::from(curvature(i, least)) * x * x).sum()
}

/// Returns the gradient of `½ Σ aᵢ·xᵢ²` with noise of 0.3.
fn noisy(seed: u64, least: f32) -> impl Fn(usize, u64, &[f32], &mut [f32]) + Sync {
    move |rank, step, x, g| {
        let mut noise = noise(seed, rank, step);
        for (i, (g, x)) in g.iter_mut().zip(x).enumerate() {
            *g = curvature(i, least) * x + 0.3 * noise();
        }
    }
}

fn no_loss(_: &[f32]) -> f64 {
    0.0
}

fn run(descent: &Descent<'_>, gradient: Gradient<'_>) -> Result<super::world::Ended> {
    descent.run(&|_| vec![1.0; LEN], gradient, &no_loss)
}

fn variance(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=4 * seeds {
        for strategy in ["every-step", "local-sgd:8"] {
            for ranks in [1, 2, 4, 8, 16] {
                let descent = Descent { strategy, ranks, steps: 400, rate: 0.1, ..Descent::default() };
                // A rank's own, which has just been averaged: the mean of ranks would have this variance without any average.
                let ended: Vec<f64> =
                    run(&descent, &noisy(seed, 0.2))?.ranks[0].iter().map(|x| f64::from(*x)).collect();
                let value = excess(&ended, 0.2);
                rows.push(Row {
                    family: Family::Local,
                    claim: "variance",
                    setting: strategy.into(),
                    over: "ranks",
                    x: ranks as f64,
                    seed,
                    quantity: "excess loss",
                    rate: None,
                    value,
                });
            }
        }
    }
    Ok(rows)
}

/// Full gradients of ranks with different curvatures and optima: the remaining error is bias.
fn bias(_: u64) -> Result<Vec<Row>> {
    let own = |rank: usize, i: usize| {
        let wave = |by: f32| (((i + 1) * (3 * rank + 2)) as f32 * by).sin();
        (1.0 + 0.5 * wave(0.7), 2.0 * wave(1.3))
    };
    let gradient = |rank: usize, _: u64, x: &[f32], g: &mut [f32]| {
        for (i, (g, x)) in g.iter_mut().zip(x).enumerate() {
            let (a, b) = own(rank, i);
            *g = a * (x - b);
        }
    };
    let optimum = |i: usize| {
        let sums = (0..4)
            .map(|rank| own(rank, i))
            .fold((0.0, 0.0), |sum, (a, b)| (sum.0 + f64::from(a) * f64::from(b), sum.1 + f64::from(a)));
        sums.0 / sums.1
    };
    let mut rows = Vec::new();
    for (rate, setting) in [(0.01, "γ = 0.01"), (0.02, "γ = 0.02")] {
        for period in [2_u64, 4, 8, 16, 32] {
            let strategy = format!("local-sgd:{period}");
            let descent = Descent { strategy: &strategy, ranks: 4, steps: 1920, rate, ..Descent::default() };
            let model = run(&descent, &gradient)?.model;
            rows.push(Row {
                family: Family::Local,
                claim: "bias",
                setting: setting.into(),
                over: "I − 1",
                x: (period - 1) as f64,
                seed: 0,
                quantity: "squared distance to the optimum",
                rate: None,
                value: model.iter().enumerate().map(|(i, x)| (x - optimum(i)).powi(2)).sum(),
            });
        }
    }
    Ok(rows)
}

const BETAS: [f64; 4] = [0.0, 0.4, 0.6, 0.8];

/// Curvatures down to 1/300: 60 rounds of 12 steps.
fn slow_momentum(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for beta in BETAS {
            let strategy = format!("slowmo:12,beta={beta}");
            let descent = Descent { strategy: &strategy, ranks: 8, steps: 720, rate: 0.05, ..Descent::default() };
            rows.push(Row {
                family: Family::Local,
                claim: "slow momentum",
                setting: "slowmo:12".into(),
                over: "β",
                x: beta,
                seed,
                quantity: "loss",
                rate: None,
                value: excess(&run(&descent, &noisy(seed, 1.0 / 300.0))?.model, 1.0 / 300.0),
            });
        }
    }
    Ok(rows)
}

/// Numbers of steps per period.
const PERIODS: [u64; 4] = [5, 20, 50, 100];

/// The lowest loss over learning rates.
fn long_periods(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for period in PERIODS {
            for setting in ["local-sgd", "diloco"] {
                let strategy = format!("{setting}:{period}");
                let (rate, value) = lowest(0.05, |rate| {
                    let descent = Descent { strategy: &strategy, ranks: 4, steps: 1000, rate, ..Descent::default() };
                    Ok(excess(&run(&descent, &noisy(seed, 1.0 / 300.0))?.model, 1.0 / 300.0))
                })?;
                rows.push(Row {
                    family: Family::Local,
                    claim: "long periods",
                    setting: setting.into(),
                    over: "steps of a period",
                    x: period as f64,
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

/// Steps of 10 ms on eight ranks.
fn hidden(_: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for strategy in ["every-step", "local-sgd:8", "overlap-local-sgd:8", "cocod:8"] {
        for latency in [1, 3, 10, 30] {
            let network: Network = format!("1gbit,{latency}ms").parse()?;
            let on = Some((network, "10ms"));
            let descent = Descent { strategy, ranks: 8, steps: 80, rate: 0.01, on, ..Descent::default() };
            rows.push(Row {
                family: Family::Local,
                claim: "hidden exchange",
                setting: strategy.into(),
                over: "latency, ms",
                x: f64::from(latency),
                seed: 0,
                quantity: "simulated ms a step",
                rate: None,
                value: 1e3 * run(&descent, &noisy(1, 0.2))?.seconds / 80.0,
            });
        }
    }
    Ok(rows)
}

/// Bytes of 60 tensors, over all steps and at the busiest step.
fn fragments(_: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (setting, strategy) in [("diloco:20", "diloco:20"), ("streaming-diloco:20", "streaming-diloco:20,fragments=4")]
    {
        let descent = Descent { strategy, ranks: 4, steps: 80, rate: 0.02, tensors: 60, ..Descent::default() };
        let still = |_: usize, _: u64, _: &[f32], g: &mut [f32]| g.fill(0.0);
        let ended = descent.run(&|_| vec![0.0; 60 * 400], &still, &no_loss)?;
        // Headers of the steps at which something is exchanged are not what is compared.
        let header = |steps: u64| steps * 3 * (105 + 8);
        let events = if setting == "diloco:20" { 4 } else { 16 };
        for (x, value) in [(0.0, ended.sent - header(events)), (1.0, ended.peak - header(1))] {
            rows.push(Row {
                family: Family::Local,
                claim: "fragments",
                setting: setting.into(),
                over: "all (0), at the busiest step (1)",
                x,
                seed: 0,
                quantity: "bytes of a rank",
                rate: None,
                value: value as f64,
            });
        }
    }
    Ok(rows)
}
