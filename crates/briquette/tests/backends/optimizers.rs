//! The optimizers of `briquette::optim` against simple f64 implementations, and their records, on every backend.

use briquette::optim::{
    CompAmsConfig, DelayedAdaGradConfig, DelayedAdaGradMomentumConfig, FtrlSgdConfig, GeneralizedSignSgdConfig,
    GenericAdamConfig, IterateAverageConfig, OneBitAdamConfig, PAdamWConfig,
};
use burn::module::{Module, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use crate::models::{Numbers, bits, values};

const RATE: f64 = 0.01;
const STEPS: usize = 50;

/// Tensors with different numbers of dimensions.
#[derive(Module, Debug)]
struct Shapes {
    one: Param<Tensor<1>>,
    two: Param<Tensor<2>>,
    four: Param<Tensor<4>>,
}

impl Shapes {
    fn new(device: &Device) -> Shapes {
        let mut numbers = Numbers::new(3);
        Shapes {
            one: Param::from_tensor(numbers.tensor([7], device).require_grad()),
            two: Param::from_tensor(numbers.tensor([3, 5], device).require_grad()),
            four: Param::from_tensor(numbers.tensor([2, 1, 3, 2], device).require_grad()),
        }
    }

    /// Gradients with magnitudes from a thousandth to ten.
    fn gradients(&self, step: usize, device: &Device) -> GradientsParams {
        let (mut numbers, mut gradients) = (Numbers::new(1000 + step as u64), GradientsParams::new());
        let (device, size) = (device.clone().inner(), 10_f32.powi((step % 5) as i32 - 3));
        gradients.register(self.one.id, numbers.tensor([7], &device).mul_scalar(size));
        gradients.register(self.two.id, numbers.tensor([3, 5], &device));
        gradients.register(self.four.id, numbers.tensor([2, 1, 3, 2], &device).mul_scalar(10.0));
        gradients
    }

    /// All gradients of a step, in the order in which a module's values are read.
    fn flat_gradients(&self, step: usize, device: &Device) -> Vec<f64> {
        let mut gradients = self.gradients(step, device);
        let read = |tensor: Option<Tensor<1>>| tensor.map(|t| t.into_data().try_into_vec::<f32>().expect("f32"));
        let flat = [
            read(gradients.remove::<1>(self.one.id)),
            read(gradients.remove::<2>(self.two.id).map(|t| t.reshape([15]))),
            read(gradients.remove::<4>(self.four.id).map(|t| t.reshape([12]))),
        ];
        flat.into_iter().flat_map(|values| values.expect("it was registered")).map(f64::from).collect()
    }
}

/// One value's step: the number of the step from 1 on, its state vectors, its position and its gradient; returns the change.
type Twin = fn(f64, &mut [f64; 3], f64, f64) -> f64;

/// `β·old + (1 − β)·value`, in place.
fn average(old: &mut f64, value: f64, beta: f64) -> f64 {
    *old = beta * *old + (1.0 - beta) * value;
    *old
}

fn optimizers() -> [(&'static str, ModuleOptimizer, Twin); 10] {
    let decay = Some(WeightDecayConfig::new(0.25));
    [
        ("comp-ams", CompAmsConfig::new().with_weight_decay(decay.clone()).init(), |_, [m, v, most], x, g| {
            let g = g + 0.25 * x;
            let (m, v) = (average(m, g, 0.9), average(v, g * g, 0.999));
            *most = most.max(v);
            RATE * m / (*most + 1e-8).sqrt()
        }),
        ("sign-sgd", GeneralizedSignSgdConfig::new().with_decoupled_weight_decay(0.5).init(), |_, [m, v, _], x, g| {
            let m = average(m, g, 0.9);
            RATE * 0.5 * x + RATE * m / (average(v, m * m, 0.999).sqrt() + 1e-8)
        }),
        ("generic-adam", GenericAdamConfig::new().with_weight_decay(decay.clone()).init(), |t, [m, v, _], x, g| {
            *v += if t == 1.0 { 1e-8 } else { 0.0 };
            let (g, theta) = (g + 0.25 * x, 1.0 - 1.0 / t.max(10.0));
            RATE / t.sqrt() * average(m, g, 0.9) / average(v, g * g, theta).sqrt()
        }),
        (
            "generic-adam with other powers",
            GenericAdamConfig::new()
                .with_rate_power(0.25)
                .with_theta_power(0.5)
                .with_theta_scale(0.9)
                .with_theta_from(1)
                .init(),
            |t, [m, v, _], _, g| {
                *v += if t == 1.0 { 1e-8 } else { 0.0 };
                RATE / t.powf(0.25) * average(m, g, 0.9) / average(v, g * g, 1.0 - 0.9 / t.sqrt()).sqrt()
            },
        ),
        (
            "delayed-ada-grad",
            DelayedAdaGradConfig::new().with_beta(0.5).with_epsilon(0.125).with_weight_decay(decay.clone()).init(),
            |_, [sum, ..], x, g| {
                let (g, before) = (g + 0.25 * x, *sum);
                *sum += g * g;
                RATE * g / (0.5 + before).powf(0.625)
            },
        ),
        (
            "delayed-ada-grad-momentum",
            DelayedAdaGradMomentumConfig::new().with_beta(0.5).with_weight_decay(decay.clone()).init(),
            |_, [sum, velocity, _], x, g| {
                let (g, before) = (g + 0.25 * x, *sum);
                *sum += g * g;
                *velocity = 0.9 * *velocity + RATE * g / (0.5 + before).sqrt();
                *velocity
            },
        ),
        ("ftrl-sgd", FtrlSgdConfig::new().with_weight_decay(decay).init(), |t, [sum, start, _], x, g| {
            *start = if t == 1.0 { x } else { *start };
            *sum += g + 0.25 * x;
            (x - (*start - RATE / t.sqrt() * *sum)) / (t + 1.0)
        }),
        ("padam-w", PAdamWConfig::new().with_weight_decay(0.5).init(), |t, [m, v, _], x, g| {
            let (m, v) = (average(m, g, 0.9), average(v, g * g, 0.999));
            let correction = (1.0 - 0.999_f64.powf(t)).sqrt() / (1.0 - 0.9_f64.powf(t));
            RATE * 0.5 * x + RATE * correction * m / (v.powf(0.125) + 1e-8)
        }),
        ("adam-w", PAdamWConfig::new().with_power(0.5).init(), |t, [m, v, _], _, g| {
            let (m, v) = (average(m, g, 0.9), average(v, g * g, 0.999));
            let correction = (1.0 - 0.999_f64.powf(t)).sqrt() / (1.0 - 0.9_f64.powf(t));
            RATE * correction * m / (v.sqrt() + 1e-8)
        }),
        ("one-bit-adam", OneBitAdamConfig::new(20).init(), |t, [m, v, _], _, g| {
            // Burn's Adam takes its betas as f32.
            let [b1, b2] = [0.9_f32, 0.999].map(f64::from);
            let m = if t <= 20.0 { average(m, g, b1) } else { g };
            let v = if t <= 20.0 { average(v, g * g, b2) } else { *v };
            RATE * m / (1.0 - b1.powf(t)) / ((v / (1.0 - b2.powf(t.min(20.0)))).sqrt() + 1e-5)
        }),
    ]
}

pub(crate) fn optimizers_follow_their_twins(device: &Device) {
    for (name, mut optimizer, twin) in optimizers() {
        let mut model = Shapes::new(device);
        let mut x: Vec<f64> = values(&model).into_iter().map(f64::from).collect();
        let mut memories = vec![[0.0; 3]; x.len()];
        let (start, mut farthest) = (x.clone(), 0.0_f64);
        // Gadam of each: the mean of the iterates after steps 20, 23, … 47.
        let mut iterates = IterateAverageConfig::new().with_from(20).with_every(3).init();
        let mut sums = vec![0.0; x.len()];
        for step in 0..STEPS {
            let gradients = model.gradients(step, device);
            let flat = model.flat_gradients(step, device);
            model = optimizer.step(RATE, model, gradients);
            for ((x, memory), g) in x.iter_mut().zip(&mut memories).zip(flat) {
                *x -= twin(step as f64 + 1.0, memory, *x, g);
            }
            for ((got, expected), start) in values(&model).iter().zip(&x).zip(&start) {
                let off = (f64::from(*got) - expected).abs();
                // Relative to the distance covered: step sizes differ widely.
                assert!(
                    off <= 2e-5 * (1.0 + (expected - start).abs()),
                    "{name}, step {step}: {got}, expected {expected}"
                );
                farthest = farthest.max((expected - start).abs());
            }
            if iterates.update(&model) {
                sums.iter_mut().zip(&x).for_each(|(sum, x)| *sum += x);
            }
        }
        assert_eq!(iterates.taken(), 10);
        let mean = iterates.evaluation_model(&model).expect("ten iterates");
        for ((got, sum), start) in values(&mean).iter().zip(&sums).zip(&start) {
            let off = (f64::from(*got) - sum / 10.0).abs();
            assert!(off <= 2e-5 * (1.0 + (sum / 10.0 - start).abs()), "mean of {name}: {got}, expected {}", sum / 10.0);
        }
        assert!(farthest > 0.05, "{name} went nowhere: {farthest}");
    }
}

pub(crate) fn optimizers_resume_to_the_bit(device: &Device) {
    for ((name, mut whole, _), (_, fresh, _)) in optimizers().into_iter().zip(optimizers()) {
        let mut model = Shapes::new(device);
        let run = |optimizer: &mut ModuleOptimizer, mut model: Shapes, steps: std::ops::Range<usize>| {
            for step in steps {
                let gradients = model.gradients(step, device);
                model = optimizer.step(RATE, model, gradients);
            }
            model
        };
        // Past the step at which 1-bit Adam freezes.
        model = run(&mut whole, model, 0..25);
        let bytes = whole.into_bytes().expect("a record");
        let mut resumed = fresh.from_bytes(bytes).expect("the same record");
        let (whole, resumed) = (run(&mut whole, model.clone(), 25..35), run(&mut resumed, model.clone(), 25..35));
        assert_ne!(bits(&values(&whole)), bits(&values(&model)), "{name} stands still");
        assert_eq!(bits(&values(&whole)), bits(&values(&resumed)), "{name}");
    }
}
