//! Optimizers and step sizes: generalized SignSGD, delayed AdaGrad, exponential and cosine steps, Gadam, Generic Adam, FTRL.

use anyhow::{Result, anyhow};
use briquette::optim::{
    DelayedAdaGradConfig, ExponentialStepsConfig, GeneralizedSignSgdConfig, GenericAdamConfig, IterateAverageConfig,
    PAdamWConfig,
};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Param;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};

use super::world::noise;
use super::{Claim, Family, Row, comp_ams, mean, momentum, slope};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "unbounded smoothness",
        says: "Generalized SignSGD (Crawshaw 2022): where curvature grows with the gradient it needs no clipping; SGD diverges, or is slow",
        run: |seeds, _| unbounded(seeds),
        judge: |rows| {
            let at = |setting: &str| SIZES.map(|rate| mean(rows, setting, rate));
            let (sgd, sign) = (at("SGD"), at(SIGN));
            let diverges = SIZES.iter().zip(sgd).filter(|(rate, _)| **rate >= 1e-3).all(|(_, loss)| loss == CAP);
            let best = sgd.iter().copied().fold(CAP, f64::min);
            let seen = format!(
                "SGD diverges from rate 1e-3 on and ends at {best:.2} at its best one; SignSGD at {:.0e} (rate .1), {:.0e} (1)",
                sign[4], sign[5]
            );
            let holds = diverges && sign[4] < 0.05 && sign[5] < 0.05 && best > 0.1;
            (holds && sign.iter().all(|loss| *loss < CAP), seen)
        },
        log: true,
    },
    Claim {
        name: "unknown noise",
        says: "Exponential and cosine steps (Li 2021), delayed AdaGrad (Li 2019): one setting does with noise and without",
        run: |seeds, _| unknown_noise(seeds),
        judge: |rows| {
            let at = |sigma: f64| STEP_SIZES.map(|setting| mean(rows, setting, sigma));
            let (quiet, noisy) = (at(0.0), at(1.0));
            let show = |all: [f64; 5]| all.map(|loss| format!("{loss:.1e}")).join(", ");
            let seen = format!("({}) without noise {}; with it {}", STEP_SIZES.join(", "), show(quiet), show(noisy));
            // Those that adapt, beside 1/√t where there is none, and beside a constant where there is.
            let holds = [0, 1, 4].iter().all(|i| quiet[*i] < 1e-2 * quiet[2] && noisy[*i] < 0.1 * noisy[3]);
            (holds, seen)
        },
        log: false,
    },
    Claim {
        name: "iterate average",
        says: "Gadam (Granziol 2020): at a rate that stays large, the mean of iterates is far below the last one",
        run: |seeds, _| iterate_average(seeds),
        judge: |rows| {
            let ratio = |setting| mean(rows, setting, 1.0) / mean(rows, setting, 0.0);
            let [sgd, gadam, gadam_x] = ["SGD", "AdamW (Gadam)", "PAdamW (GadamX)"].map(ratio);
            let (last, averaged) = (mean(rows, "SGD", 0.0), mean(rows, "SGD", 1.0));
            let seen = format!(
                "SGD {last:.2} at the last iterate, {averaged:.4} at the mean; of the last one's loss: {sgd:.4} (SGD), {gadam:.4} \
                 (Gadam), {gadam_x:.4} (GadamX)"
            );
            (sgd < 0.01 && gadam < 0.1 && gadam_x < 0.1, seen)
        },
        log: false,
    },
    Claim {
        name: "counter-example",
        says: "Generic Adam (Zou 2019): on Reddi's sequence a constant θ ends at the worst point, one that goes to 1 by the condition at the best",
        run: |seeds, _| counter_example(seeds),
        judge: |rows| {
            let at = |setting: &str| [3.0, 5.0, 10.0].map(|c| mean(rows, setting, c));
            let (constant, growing) = (at(CONSTANT), at(GROWING));
            let refused = counter_example_settings(3.0).map(|(_, config)| config.sufficient_condition().is_ok());
            let seen =
                format!("C = 3: {:.3} (constant), {:.3}; the condition refuses the first", constant[0], growing[0]);
            let holds = constant.iter().all(|x| *x > 0.95) && growing.iter().all(|x| *x < -0.95);
            (holds && refused == [false, true], seen)
        },
        log: false,
    },
    Claim {
        name: "distributed Adam",
        says: "Generic Adam (Chen 2022): the mean gradient of n ranks is worth n times the steps",
        run: |seeds, _| distributed_adam(seeds),
        judge: |rows| {
            let slopes = [RANKS, ALONE].map(|setting| slope(rows, setting));
            let holds = slopes.iter().all(|slope| (-0.65..-0.35).contains(slope));
            (holds, format!("excess loss ∝ n^{:.2} over ranks, ∝ T^{:.2} over one rank's steps", slopes[0], slopes[1]))
        },
        log: true,
    },
    comp_ams::CLAIM,
    momentum::LAST_ITERATE,
    momentum::WORST_RUN,
];

const SIGN: &str = "generalized SignSGD, β₂ = .9";
/// Upper limit on the final value, reported for runs that diverge.
const CAP: f64 = 1e12;
/// Learning rates.
const SIZES: [f64; 6] = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// A vector that Burn's optimizers step.
pub(super) struct Walk {
    x: Param<Tensor<1>>,
    optimizer: ModuleOptimizer,
}

impl Walk {
    pub(super) fn new(start: &[f32], optimizer: ModuleOptimizer) -> Walk {
        let tensor = tensor(start, &Device::flex().autodiff()).require_grad();
        Walk { x: Param::from_tensor(tensor), optimizer }
    }

    pub(super) fn at(&self) -> Result<Vec<f32>> {
        Ok(self.x.val().inner().into_data().try_into_vec()?)
    }

    pub(super) fn step(self, rate: f64, gradient: &[f32]) -> Walk {
        let Walk { x, mut optimizer } = self;
        let mut gradients = GradientsParams::new();
        gradients.register(x.id, tensor(gradient, &Device::flex()));
        Walk { x: optimizer.step(rate, x, gradients), optimizer }
    }
}

fn tensor(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

fn row(
    claim: &'static str,
    setting: &str,
    (over, x): (&'static str, f64),
    seed: u64,
    ended: (&'static str, f64),
) -> Row {
    let (quantity, value) = ended;
    Row { family: Family::Optimizers, claim, setting: setting.into(), over, x, seed, quantity, rate: None, value }
}

/// `x⁴/4` from about 100, 3000 steps.
fn unbounded(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        let start = 100.0 + 10.0 * (seed as f32 * 1.3).sin();
        for rate in SIZES {
            for setting in ["SGD", SIGN] {
                let optimizer = match setting {
                    "SGD" => SgdConfig::new().init(),
                    _ => GeneralizedSignSgdConfig::new().with_beta_2(0.9).init(),
                };
                let mut walk = Walk::new(&[start], optimizer);
                for _ in 0..3000 {
                    let x = walk.at()?[0];
                    if !x.is_finite() {
                        break;
                    }
                    walk = walk.step(rate, &[x.powi(3)]);
                }
                let loss = 0.25 * f64::from(walk.at()?[0]).powi(4);
                let loss = if loss < CAP { loss.max(1e-12) } else { CAP };
                rows.push(row(
                    "unbounded smoothness",
                    setting,
                    ("learning rate", rate),
                    seed,
                    ("loss after 3000 steps", loss),
                ));
            }
        }
    }
    Ok(rows)
}

const LEN: usize = 10;
/// Number of steps of a run.
const STEPS: usize = 1000;
const STEP_SIZES: [&str; 5] = ["exponential", "cosine", "1/√t", "constant", "delayed AdaGrad"];

/// Returns curvatures from 1 down to a tenth.
fn curvature(i: usize) -> f32 {
    0.1_f32.powf(i as f32 / (LEN - 1) as f32)
}

fn excess(x: &[f32]) -> f64 {
    x.iter().enumerate().map(|(i, x)| 0.5 * f64::from(curvature(i)) * f64::from(*x).powi(2)).sum()
}

/// Returns the gradient of `½ Σ aᵢ·xᵢ²`, with noise.
fn gradient(x: &[f32], sigma: f32, seed: u64, step: usize) -> Vec<f32> {
    let mut drawn = noise(seed, 0, step as u64);
    x.iter().enumerate().map(|(i, x)| curvature(i) * x + sigma * drawn()).collect()
}

/// One learning rate of ½, scaled by each schedule.
fn unknown_noise(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for sigma in [0.0, 0.25, 0.5, 1.0] {
            for setting in STEP_SIZES {
                let optimizer = match setting {
                    "delayed AdaGrad" => DelayedAdaGradConfig::new().init(),
                    _ => SgdConfig::new().init(),
                };
                let (mut walk, mut schedule) = (Walk::new(&[3.0; LEN], optimizer), schedule(setting)?);
                for step in 0..STEPS {
                    let g = gradient(&walk.at()?, sigma, seed, step);
                    walk = walk.step(rate(setting, step, schedule.as_mut()), &g);
                }
                let (x, loss) = (f64::from(sigma), excess(&walk.at()?).max(1e-20));
                rows.push(row("unknown noise", setting, ("noise", x), seed, ("excess loss", loss)));
            }
        }
    }
    Ok(rows)
}

fn schedule(setting: &str) -> Result<Option<ModuleLrScheduler>> {
    let built = match setting {
        "exponential" => ExponentialStepsConfig::new(0.5, STEPS).init().map(Some),
        "cosine" => CosineAnnealingLrSchedulerConfig::new(0.5, STEPS).init().map(Some),
        _ => Ok(None),
    };
    built.map_err(|error| anyhow!(error))
}

fn rate(setting: &str, step: usize, schedule: Option<&mut ModuleLrScheduler>) -> f64 {
    match (setting, schedule) {
        (_, Some(schedule)) => schedule.step().base(),
        ("1/√t", None) => 0.5 / (step as f64 + 1.0).sqrt(),
        // Its own sum makes it smaller.
        ("delayed AdaGrad", None) => 1.0,
        _ => 0.5,
    }
}

/// The mean of the second half of 4000 steps.
fn iterate_average(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        let optimizers = [
            ("SGD", SgdConfig::new().init(), 0.5),
            ("AdamW (Gadam)", AdamWConfig::new().with_weight_decay(0.0).init(), 0.1),
            ("PAdamW (GadamX)", PAdamWConfig::new().init(), 0.5),
        ];
        for (setting, optimizer, rate) in optimizers {
            let mut walk = Walk::new(&[3.0; LEN], optimizer);
            let mut average = IterateAverageConfig::new().with_from(2000).init();
            let mut last = 0.0;
            for step in 0..4000 {
                let g = gradient(&walk.at()?, 1.0, seed, step);
                walk = walk.step(rate, &g);
                if average.update(&walk.x) {
                    last += excess(&walk.at()?) / 2000.0;
                }
            }
            let averaged = average.evaluation_model(&walk.x).ok_or_else(|| anyhow!("no iterate counted"))?;
            let averaged = excess(&averaged.val().into_data().try_into_vec::<f32>()?);
            for (x, loss) in [(0.0, last), (1.0, averaged)] {
                let over = ("0: iterates, 1: their mean", x);
                rows.push(row("iterate average", setting, over, seed, ("excess loss", loss)));
            }
        }
    }
    Ok(rows)
}

const CONSTANT: &str = "θ = 1/(1 + C²)";
const GROWING: &str = "θ = 1 − .9/t";

fn counter_example_settings(c: f64) -> [(&'static str, GenericAdamConfig); 2] {
    let plain = GenericAdamConfig::new().with_beta_1(0.0).with_theta_from(1);
    let constant = plain.clone().with_theta_power(0.0).with_theta_scale(1.0 - 1.0 / (1.0 + c * c));
    [(CONSTANT, constant), (GROWING, plain.with_theta_scale(0.9))]
}

/// `C·x` at one step of three and `−x` at the others, on [−1, 1], 10 000 steps.
fn counter_example(_: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for c in [3.0, 5.0, 10.0] {
        for (setting, config) in counter_example_settings(c) {
            let mut walk = Walk::new(&[0.0], config.init());
            for step in 0..10_000 {
                walk = walk.step(0.5, &[if step % 3 == 0 { c as f32 } else { -1.0 }]);
                walk.x = walk.x.map(|x| x.inner().clamp(-1.0, 1.0).autodiff().require_grad());
            }
            let x = f64::from(walk.at()?[0]);
            rows.push(row("counter-example", setting, ("C", c), 0, ("x at the end; best is −1", x)));
        }
    }
    Ok(rows)
}

const RANKS: &str = "n ranks, 2000 steps";
const ALONE: &str = "one rank, n times 2000 steps";

/// Compares the mean of n gradients with as many gradients one after the other.
fn distributed_adam(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for n in [1, 2, 4, 8] {
            for (setting, ranks, steps) in [(RANKS, n, 2000), (ALONE, 1, n as usize * 2000)] {
                let mut walk = Walk::new(&[0.5; LEN], GenericAdamConfig::new().init());
                let mut loss = 0.0;
                for step in 0..steps {
                    let (x, mut mean) = (walk.at()?, vec![0.0; LEN]);
                    for rank in 0..ranks {
                        let g = gradient(&x, 1.0, seed * 1000 + rank, step);
                        mean.iter_mut().zip(g).for_each(|(mean, g)| *mean += g / ranks as f32);
                    }
                    walk = walk.step(1.0, &mean);
                    loss += if step >= steps / 2 { 2.0 * excess(&walk.at()?) / steps as f64 } else { 0.0 };
                }
                let ended = ("excess loss of the second half", loss);
                rows.push(row("distributed Adam", setting, ("n", n as f64), seed, ended));
            }
        }
    }
    Ok(rows)
}
