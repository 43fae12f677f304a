//! No lock step: backup workers, Picky SGD, asynchronous Local SGD, SYNTHESIS.

use anyhow::Result;

use super::world::{Problem, Service, noise};
use super::{Claim, Family, Row, mean, means, slope};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "spares",
        says: "Backup workers (Chen 2016): of 100 machines with stragglers there is a best number that is not waited for",
        run: spares,
        judge: |rows| {
            let all: Vec<(f64, f64)> = SPARES.iter().map(|spare| (*spare, mean(rows, "backup", *spare))).collect();
            let best = all.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((f64::NAN, f64::NAN));
            let [none, most] = [all[0].1, all[SPARES.len() - 1].1];
            let holds = none > 3.0 * best.1 && most > 1.1 * best.1;
            (holds, format!("time for as many samples: {none:.1} (b = 0), {:.1} ({}), {most:.1} (80)", best.1, best.0))
        },
        log: false,
    },
    Claim {
        name: "picky",
        says: "Picky SGD (Cohen 2021): at a rate that is good without delays plain asynchronous SGD does not get there",
        run: picky,
        judge: |rows| {
            let [plain, picky] = ["async-sgd", "picky:0.5"].map(|setting| mean(rows, setting, 0.3));
            let seen = format!("‖∇f‖ at rate .3, from 4.9: {plain:.0e} asynchronous, {picky:.2} Picky");
            (picky < 0.5 && plain > 4.0 * picky, seen)
        },
        log: true,
    },
    Claim {
        name: "local steps",
        says: "Asynchronous Local SGD: the loss of asynchronous SGD at as many gradients, with a period of times fewer bytes",
        run: local_steps,
        judge: |rows| {
            let best = |policy: &str| {
                let own = means(rows).into_iter().filter(|(setting, _)| setting.starts_with(policy));
                own.flat_map(|(_, points)| points).map(|(_, loss)| loss).fold(f64::MAX, f64::min)
            };
            let bytes = |policy: &str| {
                let own = rows.iter().find(|row| row.setting.starts_with(policy));
                own.and_then(|row| row.setting.split(", ").nth(1)?.strip_suffix(" kB")?.parse().ok())
                    .unwrap_or(f64::NAN)
            };
            let loss = best("async-local-sgd:8") / best("async-sgd");
            let fewer = bytes("async-sgd") / bytes("async-local-sgd:8");
            (
                fewer > 7.0 && loss < 1.5,
                format!("{fewer:.1} times fewer bytes, {loss:.2} times the loss, each at its best rate"),
            )
        },
        log: true,
    },
    Claim {
        name: "gradients",
        says: "SYNTHESIS (Liu 2022): on a finite sum, under delays, gradients to a small ‖∇f‖ grow like √N",
        run: gradients,
        judge: |rows| {
            let (ours, ends) = (slope(rows, "synthesis"), mean(rows, "async-sgd", 4096.0));
            (
                ours < 0.85 && ends.is_nan(),
                format!("∝ N^{ours:.2}; asynchronous SGD of the same rate does not get there at all"),
            )
        },
        log: true,
    },
];

/// Nothing: for times alone.
struct Still;

impl Problem for Still {
    fn start(&self) -> Vec<f32> {
        vec![0.0; 2]
    }
    fn gradient(&self, _: usize, _: Option<u64>, _: &[f32], out: &mut [f32]) {
        out.fill(0.0);
    }
}

const SPARES: [f64; 9] = [0.0, 2.0, 4.0, 6.0, 10.0, 20.0, 30.0, 40.0, 80.0];

/// 100 machines of log-normal times, 3 % of steps ten times as long: seconds of an update, for as many samples. A straggler is away for
/// ten updates: at any time about a quarter of the machines are.
fn spares(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for spare in SPARES {
            let policy = format!("backup:{},spare={spare}", 100.0 - spare);
            let paces = format!("1s;lognormal=0.2;slow=0.03x10;seed={seed}");
            let service = Service { policy: &policy, workers: 100, paces: &paces, rate: 0.0 };
            let seconds = service.run(&Still, &[60])?[0].seconds;
            rows.push(Row {
                family: Family::Server,
                claim: "spares",
                setting: "backup".into(),
                over: "spare workers",
                x: spare,
                seed,
                quantity: "seconds for 100 gradients",
                value: seconds / 60.0 * 100.0 / (100.0 - spare),
            });
        }
    }
    Ok(rows)
}

/// `½ Σ aᵢ·xᵢ²`, curvatures from 1 down to 1/30, with noise.
struct Noisy {
    seed: u64,
    noise: f32,
}

impl Noisy {
    fn curvature(i: usize) -> f32 {
        30_f32.powf(-(i as f32) / 9.0)
    }
    fn norm(x: &[f32]) -> f64 {
        x.iter().enumerate().map(|(i, x)| f64::from(Noisy::curvature(i) * x).powi(2)).sum::<f64>().sqrt()
    }
    fn loss(x: &[f32]) -> f64 {
        x.iter().enumerate().map(|(i, x)| 0.5 * f64::from(Noisy::curvature(i)) * f64::from(*x).powi(2)).sum()
    }
}

impl Problem for Noisy {
    fn start(&self) -> Vec<f32> {
        vec![3.0; 10]
    }
    fn gradient(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut [f32]) {
        let mut noise = noise(self.seed, rank, batch.unwrap_or_default());
        for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
            *out = Noisy::curvature(i) * x + self.noise * noise();
        }
    }
}

/// Sixteen workers, 2 % of whose gradients take a hundred times as long. What is not finite has no row.
fn picky(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for policy in ["async-sgd", "picky:0.5"] {
            for rate in [0.02, 0.05, 0.1, 0.2, 0.3] {
                let paces = format!("0ms,10ms;slow=0.02x100;seed={seed}");
                let service = Service { policy, workers: 16, paces: &paces, rate };
                let Some(end) = service.run(&Noisy { seed, noise: 0.05 }, &[1200])?.pop() else { continue };
                rows.push(Row {
                    family: Family::Server,
                    claim: "picky",
                    setting: policy.into(),
                    over: "learning rate",
                    x: (f64::from(rate) * 1e3).round() / 1e3,
                    seed,
                    quantity: "‖∇f‖ after 1200 updates",
                    value: Noisy::norm(&end.model).min(1e6),
                });
            }
        }
    }
    Ok(rows)
}

/// Four workers, one three times slower; 1600 gradients at several rates.
fn local_steps(seeds: u64) -> Result<Vec<Row>> {
    let policies =
        [("async-sgd", 1600), ("async-local-sgd:2", 800), ("async-local-sgd:8", 200), ("async-local-sgd:32", 50)];
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for (policy, updates) in policies {
            for rate in [0.01, 0.02, 0.05, 0.1, 0.2, 0.4] {
                let service = Service { policy, workers: 4, paces: "0ms,30ms,10ms", rate };
                let Some(end) = service.run(&Noisy { seed, noise: 0.3 }, &[updates])?.pop() else { continue };
                rows.push(Row {
                    family: Family::Server,
                    claim: "local steps",
                    setting: format!("{policy}, {:.0} kB", end.bytes as f64 / 1e3),
                    over: "learning rate",
                    x: (f64::from(rate) * 1e3).round() / 1e3,
                    seed,
                    quantity: "loss after 1600 gradients",
                    value: Noisy::loss(&end.model).min(1e6),
                });
            }
        }
    }
    Ok(rows)
}

/// Least squares: each of four workers has a quarter of the samples, batches of one sample.
struct Finite {
    samples: Vec<(Vec<f32>, f32)>,
}

const WORKERS: usize = 4;
const LEN: usize = 8;

impl Finite {
    fn new(samples: u64, seed: u64) -> Finite {
        let sample = |number| {
            let mut draw = noise(seed, 0, number);
            ((0..LEN).map(|_| draw()).collect(), draw())
        };
        Finite { samples: (0..samples).map(sample).collect() }
    }

    fn own(&self) -> usize {
        self.samples.len() / WORKERS
    }

    fn add((a, b): &(Vec<f32>, f32), x: &[f32], share: f32, out: &mut [f32]) {
        let off = a.iter().zip(x).map(|(a, x)| a * x).sum::<f32>() - b;
        out.iter_mut().zip(a).for_each(|(out, a)| *out += share * off * a);
    }

    fn norm(&self, x: &[f32]) -> f64 {
        let mut sum = vec![0.0; LEN];
        let share = 1.0 / self.samples.len() as f32;
        self.samples.iter().for_each(|sample| Finite::add(sample, x, share, &mut sum));
        sum.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt()
    }
}

impl Problem for Finite {
    fn start(&self) -> Vec<f32> {
        vec![2.0; LEN]
    }
    fn gradient(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        let own = &self.samples[(rank - 1) * self.own()..rank * self.own()];
        match batch {
            Some(batch) => {
                let at = briquette::core::Key::new(7).step(batch).rank(rank).word(0) % own.len() as u64;
                Finite::add(&own[at as usize], x, 1.0, out);
            }
            None => own.iter().for_each(|sample| Finite::add(sample, x, 1.0 / own.len() as f32, out)),
        }
    }
    fn batches(&self) -> u64 {
        self.own() as u64
    }
}

const TARGET: f64 = 1e-3;

/// Gradients of samples until ‖∇f‖ is below the target, at epochs of √N updates and rates of 0.02; asynchronous SGD has ten times as
/// many. What never gets there has no row.
fn gradients(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for samples in [256_u64, 1024, 4096] {
            let problem = Finite::new(samples, seed);
            let epoch = samples.isqrt();
            let spider = format!("synthesis:{epoch},delay=8");
            let pauses: Vec<u64> = (1..=4000 / epoch).map(|n| n * epoch).collect();
            let later: Vec<u64> = (1..=40).map(|n| n * 1000).collect();
            for (setting, policy, pauses) in [("synthesis", &spider[..], &pauses), ("async-sgd", "async-sgd", &later)] {
                let service = Service { policy, workers: WORKERS, paces: "0ms,40ms,20ms", rate: 0.02 };
                let run = service.run(&problem, pauses)?;
                let Some(there) = run.iter().find(|pause| problem.norm(&pause.model) < TARGET) else { continue };
                rows.push(Row {
                    family: Family::Server,
                    claim: "gradients",
                    setting: setting.into(),
                    over: "samples N",
                    x: samples as f64,
                    seed,
                    quantity: "gradients to ‖∇f‖ < .001",
                    value: there.served.gradients as f64,
                });
            }
        }
    }
    Ok(rows)
}
