//! Asynchronous training with a server: backup workers, Picky SGD, asynchronous Local SGD, SYNTHESIS.

use anyhow::{Context, Result};
use briquette::core::compress::{Compressor, dense::Dense};
use briquette::core::config::ServerConfig;
use briquette::core::error::WireError;
use briquette::core::server::{Contribution, Reply, Server, Task};
use briquette::core::{Key, Message};

use super::world::{Problem, Service, noise};
use super::{Claim, Family, Row, mean, means, slope, workers};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "spares",
        says: "Backup workers (Chen 2016): of 100 machines with stragglers there is a best number that is not waited for",
        run: |seeds, _| spares(seeds),
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
        run: |seeds, _| picky(seeds),
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
        run: |seeds, _| local_steps(seeds),
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
        name: "variance",
        says: "SYNTHESIS (Liu 2022): the error of the estimate grows at most linearly within an epoch",
        run: |seeds, _| variance(seeds),
        judge: |rows| {
            let (grows, [first, last]) =
                (slope(rows, "synthesis"), [1.0, 31.0].map(|position| mean(rows, "synthesis", position)));
            let seen =
                format!("‖v − ∇f‖² ∝ k^{grows:.2}, from {first:.1e} after the full gradient to {last:.1e} at the end");
            (grows < 1.1 && first < last, seen)
        },
        log: true,
    },
    Claim {
        name: "gradients",
        says: "SYNTHESIS (Liu 2022): on a finite sum, under delays, gradients to a small ‖∇f‖ grow like √N, and are fewer than of SGD",
        run: |seeds, _| gradients(seeds),
        judge: |rows| {
            let grows = slope(rows, "synthesis");
            let rates = SGD_RATES.map(|rate| format!("async-sgd, rate {rate}"));
            let times = SAMPLES.map(|samples| {
                let samples = samples as f64;
                let best =
                    rates.iter().map(|rate| mean(rows, rate, samples)).min_by(f64::total_cmp).unwrap_or(f64::NAN);
                best / mean(rows, "synthesis", samples)
            });
            let seen = times.map(|times| format!("{times:.1}")).join(", ");
            // A value that is not a number makes the claim fail.
            let holds = (0.35..=0.65).contains(&grows) && times.iter().all(|times| *times > 1.5);
            (holds, format!("∝ N^{grows:.2}; asynchronous SGD at the best of five rates takes {seen} times as many"))
        },
        log: true,
    },
    workers::QUANTIZED_DIFFERENCES,
    workers::LEADER,
];

/// A problem without gradients, for measuring times only.
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

/// Seconds of an update on 100 machines with log-normal times and 3 % of steps ten times as long, for the same number
/// of samples. A straggler is away for ten updates: at any time about a quarter of the machines are.
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
                rate: None,
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

/// Sixteen workers, 2 % of whose gradients take a hundred times as long. Non-finite results have no row.
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
                    rate: None,
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
                    rate: None,
                    value: Noisy::loss(&end.model).min(1e6),
                });
            }
        }
    }
    Ok(rows)
}

/// Least squares. Each of four workers takes full gradients of its quarter of the samples, and batches of one sample
/// out of all, so that the frequency of each worker's contributions does not change the limit of the mean.
struct Finite {
    samples: Vec<(Vec<f32>, f32)>,
    /// Seed of the batch draws.
    draws: u64,
}

const WORKERS: usize = 4;
const LEN: usize = 8;
/// Time that each worker takes for a gradient of a sample: one is twice as slow.
const PACES: [u64; WORKERS] = [1, 1, 1, 2];

impl Finite {
    fn new(samples: u64, seed: u64, draws: u64) -> Finite {
        let sample = |number| {
            let mut draw = noise(seed, 0, number);
            ((0..LEN).map(|_| draw()).collect(), draw())
        };
        Finite { samples: (0..samples).map(sample).collect(), draws }
    }

    fn own(&self) -> usize {
        self.samples.len() / WORKERS
    }

    fn add((a, b): &(Vec<f32>, f32), x: &[f32], share: f32, out: &mut [f32]) {
        let off = a.iter().zip(x).map(|(a, x)| a * x).sum::<f32>() - b;
        out.iter_mut().zip(a).for_each(|(out, a)| *out += share * off * a);
    }

    fn mean(samples: &[(Vec<f32>, f32)], x: &[f32]) -> Vec<f32> {
        let mut sum = vec![0.0; LEN];
        samples.iter().for_each(|sample| Finite::add(sample, x, 1.0 / samples.len() as f32, &mut sum));
        sum
    }

    /// Computes a worker's contribution to a task.
    fn compute(&self, worker: usize, doing: &Doing, batch: u64) -> Vec<f32> {
        if doing.task == Task::Full {
            return Finite::mean(&self.samples[worker * self.own()..][..self.own()], &doing.x);
        }
        let at = Key::new(self.draws).step(batch).rank(worker).word(0) % self.samples.len() as u64;
        let (sample, mut out) = (&self.samples[at as usize], vec![0.0; LEN]);
        Finite::add(sample, &doing.x, 1.0, &mut out);
        if doing.task == Task::Difference {
            Finite::add(sample, &doing.before, -1.0, &mut out);
        }
        out
    }
}

/// Current task of a worker.
struct Doing {
    task: Task,
    version: u64,
    x: Vec<f32>,
    before: Vec<f32>,
    /// Number of samples whose gradients it computes.
    takes: u64,
    until: u64,
}

/// Callback with the step that each update subtracts, the model before it and the number of sample gradients so far;
/// returns whether to continue.
type Seen<'a> = &'a mut dyn FnMut(&[f32], &[f32], u64) -> bool;

/// Simulates a server and its workers, event by event: the server is a state machine.
fn play(policy: &str, problem: &Finite, rate: f32, seen: Seen<'_>) -> Result<()> {
    let policy: ServerConfig = policy.parse()?;
    let mut server = Server::new(policy.get().build(WORKERS)?, vec![2.0; LEN], WORKERS);
    let mut workers: [Option<Doing>; WORKERS] = Default::default();
    let (mut taken, mut now, mut goes_on, mut batch) = (0, 0, true, 0);
    let mut replies = server.begin(u64::MAX);
    while goes_on {
        for Reply { worker, task, .. } in replies {
            let task = task.context("no version is the last")?;
            let takes = match task {
                Task::Full => problem.own() as u64,
                Task::Difference => 2,
                _ => 1,
            };
            let (x, before) = (server.model().to_vec(), server.model_before().to_vec());
            let until = now + takes * PACES[worker];
            workers[worker] = Some(Doing { task, version: server.version(), x, before, takes, until });
        }
        let times = workers.iter().enumerate().filter_map(|(worker, doing)| Some((doing.as_ref()?.until, worker)));
        let (until, worker) = times.min().context("a worker computes")?;
        let doing = workers[worker].take().context("a worker computes")?;
        (now, taken, batch) = (until, taken + doing.takes, batch + 1);
        let mut message = Message::default();
        Dense.compress_into(&problem.compute(worker, &doing, batch), Key::new(0), &mut message);
        let (version, gradients) = (doing.version, doing.takes as u32);
        let contribution = Contribution { version, samples: 1, loss: 0.0, gradients, stops: false, message };
        replies = server.arrived(worker, contribution, |x, direction, _| {
            goes_on = seen(direction, x, taken);
            x.iter_mut().zip(direction).for_each(|(x, v)| *x -= rate * v);
            Ok::<_, WireError>(())
        })?;
    }
    Ok(())
}

fn squared(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum()
}

/// Mean over forty first epochs of 32 updates with different batches, by position in the epoch.
fn variance(seeds: u64) -> Result<Vec<Row>> {
    const DRAWS: u64 = 40;
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        let mut errors = [0.0; 32];
        for draws in 1..=DRAWS {
            let (problem, mut position) = (Finite::new(1024, seed, draws), 0);
            play("synthesis:32,delay=8", &problem, 0.005, &mut |v, x, _| {
                errors[position] += squared(v, &Finite::mean(&problem.samples, x)) / DRAWS as f64;
                position += 1;
                position < errors.len()
            })?;
        }
        rows.extend([1, 2, 4, 8, 16, 31].map(|position| Row {
            family: Family::Server,
            claim: "variance",
            setting: "synthesis".into(),
            over: "updates since the full gradient",
            x: position as f64,
            seed,
            quantity: "‖v − ∇f‖²",
            rate: None,
            value: errors[position],
        }));
    }
    Ok(rows)
}

const SAMPLES: [u64; 3] = [256, 1024, 4096];
const SGD_RATES: [f32; 5] = [1e-3, 5e-4, 2.5e-4, 1.25e-4, 6e-5];
const TARGET: f64 = 1e-2;
/// Number of sample gradients after which a run counts as not having reached the target.
const MOST: u64 = 300_000;

/// Number of sample gradients until ‖∇f‖ is below the target, checked every 16 updates: with epochs of √N updates and a
/// rate of .02, and for asynchronous SGD at the best of several rates. A run that does not reach the target has the
/// maximum as its value.
fn gradients(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for samples in SAMPLES {
            let problem = Finite::new(samples, seed, 7);
            let spider = format!("synthesis:{},delay=8", samples.isqrt());
            let sgd = SGD_RATES.map(|rate| (format!("async-sgd, rate {rate}"), "async-sgd", rate));
            for (setting, policy, rate) in [("synthesis".to_owned(), &spider[..], 0.02)].into_iter().chain(sgd) {
                let (mut updates, mut value) = (0_u64, MOST);
                play(policy, &problem, rate, &mut |_, x, taken| {
                    updates += 1;
                    let there = || squared(&Finite::mean(&problem.samples, x), &[0.0; LEN]).sqrt() < TARGET;
                    if updates.is_multiple_of(16) && there() {
                        value = value.min(taken);
                    }
                    value == MOST && taken < MOST
                })?;
                rows.push(Row {
                    family: Family::Server,
                    claim: "gradients",
                    setting,
                    over: "samples N",
                    x: samples as f64,
                    seed,
                    quantity: "gradients to ‖∇f‖ < .01",
                    rate: None,
                    value: value as f64,
                });
            }
        }
    }
    Ok(rows)
}
