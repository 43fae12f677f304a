//! Momentum: the last iterate of SGD by FTRL against constant momentum, and the worst run of delayed AdaGrad with momentum.

use anyhow::Result;
use briquette::optim::{DelayedAdaGradMomentumConfig, FtrlSgdConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};

use super::optimizers::Walk;
use super::world::noise;
use super::{Claim, Family, Row, mean, slope};

pub(super) const LAST_ITERATE: Claim = Claim {
    name: "last iterate",
    says: "FTRL-based momentum (Li, Liu, Orabona 2022): for every constant momentum there is a convex loss on which the last of T iterates is off by \
           ln T/√T; with momentum that grows and updates that shrink it is off by no more than 1/√T",
    run: |_, _| last_iterate(),
    judge: |rows| {
        let at = |setting: &str| LENGTHS.map(|length| mean(rows, setting, length));
        let constant = MOMENTA.map(|momentum| at(&constant(momentum)));
        let ftrl = at(FTRL);
        // ln T grows by as much from each length to the next.
        let grows = |v: &[f64; 4]| {
            let [first, .., last] = [1, 2, 3].map(|i| v[i] - v[i - 1]);
            first > 0.04 && (0.8..1.25).contains(&(last / first))
        };
        let show = |v: [f64; 4]| v.map(|v| format!("{v:.3}")).join(", ");
        let seen = format!(
            "excess loss times √T at T = 64, 256, 1024, 4096: {} (momentum .9), {} (FTRL)",
            show(constant[2]),
            show(ftrl)
        );
        (constant.iter().all(grows) && ftrl.iter().all(|v| *v < BOUND && *v < 1.1 * ftrl[0]), seen)
    },
    log: false,
};

pub(super) const WORST_RUN: Claim = Claim {
    name: "worst run",
    says: "Delayed AdaGrad with momentum (Li, Orabona 2020): gradients go to 0 with high probability on a loss that is not convex, like 1/T without \
           noise and 1/√T with it, at one setting",
    run: |seeds, _| worst_run(seeds),
    judge: |rows| {
        let of = |which: &str| SIGMAS.map(|sigma| format!("{which}, noise {sigma}"));
        let slopes = of(WORST).map(|setting| slope(rows, &setting));
        let last = |setting: String| mean(rows, &setting, STEPS[3] as f64);
        let ([_, _, worst], [_, _, median]) = (of(WORST).map(last), of(MEDIAN).map(last));
        let seen = format!(
            "worst of {RUNS} runs, mean of ‖∇f‖² ∝ T^{:.2} without noise, T^{:.2} and T^{:.2} with noise of {} and {}; the worst is {:.1} times the \
             median",
            slopes[0],
            slopes[1],
            slopes[2],
            SIGMAS[1],
            SIGMAS[2],
            worst / median
        );
        let noisy = slopes[1..].iter().all(|slope| (-0.8..-0.35).contains(slope));
        (slopes[0] < -0.9 && noisy && worst < 2.5 * median, seen)
    },
    log: true,
};

const LENGTHS: [f64; 4] = [64.0, 256.0, 1024.0, 4096.0];
const MOMENTA: [f64; 3] = [0.0, 0.5, 0.9];
const FTRL: &str = "FTRL";
/// Value of `(‖x₁ − x*‖²/(2c) + c·G²)`: the start is an optimum, `c` is 1, and `G²` at most `¼ + Σ 1/(64j²)`.
const BOUND: f64 = 0.276;

fn constant(momentum: f64) -> String {
    format!("momentum {momentum}")
}

fn row(claim: &Claim, setting: String, x: f64, seed: u64, ended: (&'static str, f64)) -> Row {
    let (quantity, value) = ended;
    Row { family: Family::Optimizers, claim: claim.name, setting, over: "steps", x, seed, quantity, rate: None, value }
}

/// Loss of Harvey, Liaw, Plan and Randhawa (2019), `max(0, maxᵢ hᵢ·x)` in `T + 1` dimensions: `hᵢ` is
/// `1/(8(T + 2 − j))` at `j < i`, `−√i/(2√T)` at `i`, 0 beyond. The subgradient is that of the first maximizer. From 0,
/// an optimum, every step activates one more `hᵢ`.
struct Worst {
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Worst {
    fn new(steps: usize) -> Worst {
        let a = (0..=steps).map(|j| 0.125 / (steps - j + 1) as f64).collect();
        let b = (1..=steps + 1).map(|i| (i.min(steps) as f64 / steps as f64).sqrt() / 2.0).collect();
        Worst { a, b }
    }

    /// Returns the loss, and the index of the active `hᵢ`.
    fn at(&self, x: &[f32]) -> (f64, usize) {
        let (mut sum, mut most) = (0.0, (f64::NEG_INFINITY, 0));
        for (i, x) in x.iter().map(|x| f64::from(*x)).enumerate() {
            let value = sum - self.b[i] * x;
            most = if value > most.0 { (value, i) } else { most };
            sum += self.a[i] * x;
        }
        (most.0.max(0.0), most.1)
    }

    fn subgradient(&self, which: usize) -> Vec<f32> {
        let value = |j: usize| match j.cmp(&which) {
            std::cmp::Ordering::Less => self.a[j] as f32,
            std::cmp::Ordering::Equal => -self.b[j] as f32,
            std::cmp::Ordering::Greater => 0.0,
        };
        (0..self.a.len()).map(value).collect()
    }
}

/// Runs at the rate `1/√t`.
fn last_iterate() -> Result<Vec<Row>> {
    let sgd = |momentum: f64| {
        let config = MomentumConfig::new().with_momentum(momentum).with_dampening(momentum);
        SgdConfig::new().with_momentum(Some(config).filter(|_| momentum > 0.0)).init()
    };
    let mut rows = Vec::new();
    for length in LENGTHS {
        let (steps, worst) = (length as usize, Worst::new(length as usize));
        let mut run = |setting: String, optimizer: ModuleOptimizer, rate: fn(f64) -> f64| -> Result<()> {
            let mut walk = Walk::new(&vec![0.0; steps + 1], optimizer);
            for step in 1..=steps {
                let (_, which) = worst.at(&walk.at()?);
                walk = walk.step(rate(step as f64), &worst.subgradient(which));
            }
            let ended = ("excess loss of the last iterate times √T", worst.at(&walk.at()?).0 * length.sqrt());
            rows.push(row(&LAST_ITERATE, setting, length, 0, ended));
            Ok(())
        };
        for momentum in MOMENTA {
            run(constant(momentum), sgd(momentum), |step| 1.0 / step.sqrt())?;
        }
        run(FTRL.into(), FtrlSgdConfig::new().init(), |_| 1.0)?;
    }
    Ok(rows)
}

const WORST: &str = "worst run";
const MEDIAN: &str = "median run";
const SIGMAS: [f64; 3] = [0.0, 0.5, 1.0];
const RUNS: usize = 100;
const LEN: usize = 10;
const STEPS: [usize; 4] = [250, 1000, 4000, 16_000];
const RATE: f64 = 0.05;

/// `Σ aᵢ/2·xᵢ²/(1 + xᵢ²)` from 1.5, outside of the convex region, `aᵢ` from 1 down to a tenth. All runs are stepped as
/// one vector, since the optimizer works coordinate-wise.
fn worst_run(seeds: u64) -> Result<Vec<Row>> {
    let slope = |i: usize, x: f64| 0.1_f64.powf(i as f64 / (LEN - 1) as f64) * x / (1.0 + x * x).powi(2);
    let mut rows = Vec::new();
    for seed in 1..=seeds.min(2) {
        for sigma in SIGMAS {
            let mut walk = Walk::new(&[1.5; RUNS * LEN], DelayedAdaGradMomentumConfig::new().init());
            let mut sums = [0.0; RUNS];
            for step in 1..=STEPS[3] {
                let mut drawn = noise(seed, 0, step as u64);
                let slopes: Vec<f64> =
                    walk.at()?.iter().enumerate().map(|(i, x)| slope(i % LEN, f64::from(*x))).collect();
                sums.iter_mut()
                    .zip(slopes.chunks(LEN))
                    .for_each(|(sum, run)| *sum += run.iter().map(|g| g * g).sum::<f64>());
                let gradient: Vec<f32> = slopes.iter().map(|g| *g as f32 + sigma as f32 * drawn()).collect();
                walk = walk.step(RATE, &gradient);
                if STEPS.contains(&step) {
                    let mut means = sums.map(|sum| sum / step as f64);
                    means.sort_by(f64::total_cmp);
                    for (which, value) in [(WORST, means[RUNS - 1]), (MEDIAN, means[RUNS / 2])] {
                        let setting = format!("{which}, noise {sigma}");
                        rows.push(row(&WORST_RUN, setting, step as f64, seed, ("mean of ‖∇f‖² over the run", value)));
                    }
                }
            }
        }
    }
    Ok(rows)
}
