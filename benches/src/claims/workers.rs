//! Workers of a server: QSVRG, and asynchronous LSGD.

use anyhow::{Context, Result};
use briquette::core::compress::{Compressor, dense::Dense};
use briquette::core::config::{CompressorConfig, ServerConfig};
use briquette::core::error::WireError;
use briquette::core::server::{Contribution, Reply, Server, Task};
use briquette::core::{Key, Message};

use super::leaders::two_wells;
use super::world::noise;
use super::{Claim, Family, Row, mean, means};

pub(super) const QUANTIZED_DIFFERENCES: Claim = Claim {
    name: "quantized differences",
    says: "QSVRG (Alistarh 2017): on a strongly convex sum the loss falls linearly, to 0.9 or less an epoch, in about 2.8n + 32 bits a message and \
           a dense gradient an epoch; QSGD of the same levels stops at the same rate",
    run: |seeds, _| quantized_differences(seeds),
    judge: |rows| {
        let of = |policy: &str| {
            let own = means(rows).into_iter().find(|(setting, _)| setting.starts_with(policy));
            own.map(|(setting, points)| (setting, points.into_iter().map(|(_, value)| value).collect::<Vec<_>>()))
        };
        let all = of("qsvrg").zip(of("backup")).zip(of("dense"));
        let Some((((setting, ours), (_, plain)), (_, dense))) = all else { return (false, "no rows".into()) };
        let factor = |v: &[f64]| (v[EPOCHS - 1] / v[0]).powf(1.0 / (EPOCHS - 1) as f64);
        let worst = ours.windows(2).filter(|pair| pair[0] > 1e-10).map(|pair| pair[1] / pair[0]).fold(0.0, f64::max);
        let bits: f64 = setting.split(' ').nth(1).and_then(|bits| bits.parse().ok()).unwrap_or(f64::NAN);
        let last = |v: &[f64]| v[EPOCHS - 1];
        let seen = format!(
            "‖∇f‖² falls to {:.2} an epoch ({:.2} in floats), at worst to {worst:.2}, with {bits:.2} bits a value; after {EPOCHS} epochs {:.0e} of the \
             start, QSGD {:.0e}",
            factor(&ours),
            factor(&dense),
            last(&ours),
            last(&plain)
        );
        // Of 2.8 and a norm; Elias' code has lower-order terms, which the paper leaves out.
        (worst < 0.9 && bits < 3.5 && last(&plain) > 100.0 * last(&ours), seen)
    },
    log: false,
};

pub(super) const LEADER: Claim = Claim {
    name: "asynchronous leader",
    says: "Asynchronous LSGD (Teng 2019): the best worker draws the others, at whatever pace they are, to the better of two minima",
    run: |seeds, _| leader(20 * seeds),
    judge: |rows| {
        let at = |worker: &str, pull: f64| mean(rows, worker, pull);
        let seen = format!(
            "at the better minimum: of the fast workers {:.2} without a pull, {:.2} pulled by .1, {:.2} by .4 every 4 steps; of the slow one {:.2}, {:.2}, \
             {:.2}",
            at(FAST, 0.0),
            at(FAST, 0.1),
            at(FAST, 0.4),
            at(SLOW, 0.0),
            at(SLOW, 0.1),
            at(SLOW, 0.4)
        );
        let alone = [FAST, SLOW].iter().all(|worker| at(worker, 0.0) < 0.8);
        (alone && [FAST, SLOW].iter().all(|worker| [0.1, 0.4].iter().all(|pull| at(worker, *pull) > 0.9)), seen)
    },
    log: false,
};

const LEN: usize = 256;
const WORKERS: usize = 4;
/// Samples per worker.
const SAMPLES: usize = 512;
const BATCH: usize = 32;
const EPOCH: u64 = 64;
const EPOCHS: usize = 16;
const RATE: f32 = 0.015;
/// Quantizer with `√n` levels of the norm, in Elias codes.
const LEVELS: &str = "qsgd:s16:256:l2:elias";

/// Least squares over separate samples of each worker, with noise such that the workers' optima differ.
struct Finite(Vec<Vec<(Vec<f32>, f32)>>);

impl Finite {
    fn new(seed: u64) -> Finite {
        let sample = |worker: usize, number: usize| {
            let mut draw = noise(seed, worker + 1, number as u64);
            let a: Vec<f32> = (0..LEN).map(|_| draw()).collect();
            (a, 10.0 * draw())
        };
        Finite((0..WORKERS).map(|worker| (0..SAMPLES).map(|number| sample(worker, number)).collect()).collect())
    }

    fn add(samples: &[&(Vec<f32>, f32)], x: &[f32], sign: f32, out: &mut [f32]) {
        for (a, b) in samples {
            let off = a.iter().zip(x).map(|(a, x)| a * x).sum::<f32>() - b;
            let share = sign * off / samples.len() as f32;
            out.iter_mut().zip(a).for_each(|(out, a)| *out += share * a);
        }
    }

    fn all(&self, worker: usize, x: &[f32]) -> Vec<f32> {
        let (samples, mut out) = (self.0[worker].iter().collect::<Vec<_>>(), vec![0.0; LEN]);
        Finite::add(&samples, x, 1.0, &mut out);
        out
    }

    /// Returns `‖∇f‖²`, in full precision.
    fn energy(&self, x: &[f32]) -> f64 {
        let mut sum = vec![0.0_f64; LEN];
        for (a, b) in self.0.iter().flatten() {
            let off = a.iter().zip(x).map(|(a, x)| f64::from(*a) * f64::from(*x)).sum::<f64>() - f64::from(*b);
            sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += off * f64::from(*a) / (WORKERS * SAMPLES) as f64);
        }
        sum.iter().map(|g| g * g).sum()
    }

    fn batch(&self, worker: usize, key: Key) -> Vec<&(Vec<f32>, f32)> {
        (0..BATCH).map(|i| &self.0[worker][key.rank(worker).word(i) as usize % SAMPLES]).collect()
    }
}

/// Runs a server and its workers in turn, since all of them are waited for. Returns `‖∇f‖²` after each epoch, and the
/// mean bits of a compressed message, without its framing.
fn epochs(policy: &str, compressor: &str, problem: &Finite, seed: u64) -> Result<(Vec<f64>, f64)> {
    /// Bytes of a frame other than the scale and the codes.
    const FRAME: usize = 17;
    let policy: ServerConfig = policy.parse()?;
    let mut server = Server::new(policy.get().build(WORKERS)?, vec![0.0; LEN], WORKERS);
    let mut compressor = compressor.parse::<CompressorConfig>()?.build();
    let (mut bits, mut messages, mut energies) = (0, 0, Vec::new());
    let mut replies = server.begin(EPOCH * EPOCHS as u64);
    while server.version() < EPOCH * EPOCHS as u64 {
        let (version, key) = (server.version(), Key::new(seed).step(server.version()));
        let mut next = Vec::new();
        for Reply { worker, task, .. } in replies {
            let task = task.context("no worker stops before the end")?;
            let (x, before, mut message) = (server.model(), server.model_before(), Message::default());
            if task == Task::Exact {
                Dense.compress_into(&problem.all(worker, x), key, &mut message);
            } else {
                let (samples, mut gradient) = (problem.batch(worker, key), vec![0.0; LEN]);
                Finite::add(&samples, x, 1.0, &mut gradient);
                if task == Task::Difference {
                    Finite::add(&samples, before, -1.0, &mut gradient);
                }
                compressor.compress_into(&gradient, key.rank(worker), &mut message);
                (bits, messages) = (bits + 8 * (message.encoded_len() - FRAME), messages + 1);
            }
            let contribution = Contribution { version, samples: 1, loss: 0.0, gradients: 1, stops: false, message };
            next = server.arrived(worker, contribution, |x, direction, _| {
                x.iter_mut().zip(direction).for_each(|(x, v)| *x -= RATE * v);
                Ok::<_, WireError>(())
            })?;
        }
        replies = next;
        if server.version().is_multiple_of(EPOCH) {
            energies.push(problem.energy(server.model()));
        }
    }
    Ok((energies, bits as f64 / messages as f64))
}

fn quantized_differences(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds.min(3) {
        let problem = Finite::new(seed);
        let first = problem.energy(&[0.0; LEN]);
        let qsvrg = format!("qsvrg:{EPOCH}");
        for (name, policy, compressor) in
            [("qsvrg", &qsvrg[..], LEVELS), ("dense", &qsvrg, "dense"), ("backup", "backup:4,spare=0", LEVELS)]
        {
            let (energies, bits) = epochs(policy, compressor, &problem, seed)?;
            // By its tenths, so that seeds have one name.
            let setting = format!("{name}: {:.1} bits a value", bits / LEN as f64);
            rows.extend(energies.into_iter().enumerate().map(|(epoch, energy)| Row {
                family: Family::Server,
                claim: QUANTIZED_DIFFERENCES.name,
                setting: setting.clone(),
                over: "epochs",
                x: (epoch + 1) as f64,
                seed,
                quantity: "‖∇f‖² over that of the start",
                rate: Some(f64::from(RATE)),
                value: energy / first,
            }));
        }
    }
    Ok(rows)
}

const FAST: &str = "three workers";
const SLOW: &str = "a worker five times slower";
const PERIOD: u32 = 4;

/// Four workers, one of them on the better side of the ridge between two wells, each with separate noise: whether each
/// ends near the better minimum.
fn leader(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for pull in [0.0, 0.05, 0.1, 0.2, 0.4] {
            let ends = wells(pull, seed)?;
            let near = |x: &f32| f64::from(u8::from((x + 1.05).abs() < 0.3));
            let (slow, fast) = (near(&ends[3]), ends[..3].iter().map(near).sum::<f64>() / 3.0);
            rows.extend([(FAST, fast), (SLOW, slow)].map(|(setting, value)| Row {
                family: Family::Server,
                claim: LEADER.name,
                setting: setting.into(),
                over: "pull",
                x: pull,
                seed,
                quantity: "share at the better minimum",
                rate: None,
                value,
            }));
        }
    }
    Ok(rows)
}

/// Returns the position of each worker after 800 contributions in total, at a learning rate of 0.1.
fn wells(pull: f64, seed: u64) -> Result<[f32; WORKERS]> {
    const PACES: [u64; WORKERS] = [10, 11, 13, 50];
    let policy: ServerConfig = format!("async-lsgd:{PERIOD},pull={pull}").parse()?;
    let mut server = Server::new(policy.get().build(WORKERS)?, vec![0.1], WORKERS);
    let (mut ready, mut ends, mut steps) = ([0; WORKERS], [0.1; WORKERS], [0; WORKERS]);
    let mut versions = [0; WORKERS];
    server.begin(u64::MAX);
    ready.iter_mut().zip(PACES).for_each(|(ready, pace)| *ready = pace);
    for _ in 0..800 {
        let worker = (0..WORKERS).min_by_key(|worker| ready[*worker]).context("there are workers")?;
        let begun = server.model_of(worker)[0];
        let (mut x, mut loss) = (begun, 0.0);
        if steps[worker] == 0 {
            // The server begins at one place: where a worker is after its first period is its own.
            let side = if worker == 1 { -1.0 } else { 1.0 };
            x = side * (0.5 + noise(seed, worker + 1, u64::MAX)().abs().min(1.0));
        }
        for _ in 0..PERIOD {
            let (here, slope) = two_wells(x);
            loss += here / f64::from(PERIOD);
            x -= 0.1 * (slope + 0.1 * noise(seed, worker + 1, steps[worker])());
            steps[worker] += 1;
        }
        let mut message = Message::default();
        Dense.compress_into(&[begun - x], Key::new(0), &mut message);
        let version = versions[worker];
        let contribution = Contribution { version, samples: 1, loss, gradients: PERIOD, stops: false, message };
        server.arrived(worker, contribution, |_, _, _| Ok::<_, WireError>(()))?;
        versions[worker] = server.version();
        ready[worker] += PACES[worker];
        ends[worker] = x;
    }
    Ok(ends)
}
