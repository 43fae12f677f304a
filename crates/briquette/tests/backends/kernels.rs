//! Compression on the device that holds the gradients, compared with compression on the host.

use briquette::DistributedOptimizer;
use briquette::core::config::Config;
use burn::backend::DispatchDevice;
use burn::module::{Module, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};

use crate::facts::{data, ranks};
use crate::models::{Numbers, bits, distance, values};

const STEPS: usize = 4;
const SIDES: [usize; 2] = [123, 317];
/// Norm to which gradients are clipped.
const LONGEST: f64 = 1.0;

/// Gradients that a backend may keep with strides: that of `matrix` is transposed, that of `shift` is one number for all values.
#[derive(Module, Debug)]
struct Wide {
    matrix: Param<Tensor<2>>,
    shift: Param<Tensor<1>>,
}

impl Wide {
    fn new(device: &Device) -> Self {
        let mut numbers = Numbers::new(3);
        let matrix = Param::from_tensor(numbers.tensor(SIDES, device).require_grad());
        Wide { matrix, shift: Param::from_tensor(numbers.tensor([SIDES[0]], device).require_grad()) }
    }

    fn loss(&self, seed: u64, device: &Device) -> Tensor<1> {
        let mut numbers = Numbers::new(seed);
        let [rows, columns] = SIDES;
        let by = numbers.tensor::<2>([columns, rows], device);
        let product = self.matrix.val().transpose() * by;
        product.square().sum() + self.shift.val().sum()
    }

    fn gradients(&self, seed: u64, device: &Device) -> GradientsParams {
        GradientsParams::from_grads(self.loss(seed, device).backward(), self)
    }
}

/// The kernels are used where the device has them, move at most a twentieth of the gradient over the bus in each direction, and change no
/// bit of parameters or residuals.
pub(crate) fn the_device_has_the_bits_of_the_host(device: &Device) {
    for clips in [false, true] {
        compare(device, clips);
    }
}

/// Gradients that arrive during the backward pass stay on the device as well.
pub(crate) fn gradients_arrive_on_the_device(device: &Device) {
    for feedback in ["error", "momentum"] {
        let text = format!("reducer=gather:topk:100x feedback={feedback} bucket_values=10000 during_backward=true");
        compare_runs(device, &text.parse().expect("a configuration"), false);
    }
}

/// Rank 0's gradient in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mistake {
    None,
    NotFinite,
    Doubled,
    LeftOut,
}

/// Errors and parameters are those of the host where ranks have different numbers of samples, and where one makes a mistake.
pub(crate) fn arriving_gradients_are_checked_as_on_the_host(device: &Device) {
    for (mistake, words) in
        [(Mistake::None, ""), (Mistake::NotFinite, "matrix"), (Mistake::Doubled, "matrix"), (Mistake::LeftOut, "shift")]
    {
        let (host, here) = (with_mistake(device, mistake, true), with_mistake(device, mistake, false));
        let texts = |of: &[(Vec<String>, Vec<f32>)]| of[0].0.clone();
        assert_eq!(texts(&here), texts(&host), "{mistake:?}");
        assert_eq!(texts(&host).len(), usize::from(mistake != Mistake::None), "{mistake:?}");
        assert!(texts(&host).iter().all(|text| text.contains(words)), "{mistake:?}: {:?}", texts(&host));
        assert_eq!(bits(&here[0].1), bits(&host[0].1), "{mistake:?}");
        assert_eq!(bits(&here[0].1), bits(&here[1].1), "{mistake:?}: replicas");
    }
}

/// Returns the errors of each rank, and its parameters.
fn with_mistake(device: &Device, mistake: Mistake, on_host: bool) -> Vec<(Vec<String>, Vec<f32>)> {
    let config = "reducer=gather:topk:100x feedback=error bucket_values=10000 during_backward=true";
    ranks(2, |comm| {
        let (rank, config) = (comm.rank(), config.parse::<Config>()?);
        let config = if on_host { config.with_host_compression() } else { config };
        let mut optim =
            DistributedOptimizer::new(SgdConfig::new().init(), comm, config, 1).with_local_weight_decay(0.01);
        let (mut module, mut errors) = (optim.join(Wide::new(device))?, Vec::new());
        for step in 0..STEPS as u64 {
            optim.record_samples(4 + 3 * rank);
            let mistake = if step == 2 && rank == 0 { mistake } else { Mistake::None };
            let loss = optim.forward_model(&module)?.loss(data(step, rank), device);
            let loss = if mistake == Mistake::NotFinite { loss * f32::INFINITY } else { loss };
            let mut gradients = GradientsParams::from_grads(loss.backward(), &module);
            if mistake == Mistake::Doubled {
                let gradient = gradients.remove::<2>(module.matrix.id).expect("a gradient");
                gradients.register(module.matrix.id, gradient * 2.0);
            } else if mistake == Mistake::LeftOut {
                gradients.remove::<1>(module.shift.id);
            }
            match optim.try_step(0.05, module, gradients) {
                Ok(next) => module = next,
                Err(error) => {
                    errors.push(error.to_string());
                    module = *error.model;
                }
            }
            // A mistake in the program ends the run, a bad batch does not.
            if errors.iter().any(|error| !error.contains("non-finite")) {
                break;
            }
        }
        Ok((errors, values(&module)))
    })
}

fn compare(device: &Device, clips: bool) {
    compare_runs(device, &Config::top_k(0.01).expect("a share"), clips);
}

/// Compares runs on the host, on the device and mixed. A run that clips does so at every step.
fn compare_runs(device: &Device, config: &Config, clips: bool) {
    let run = |on_host: [bool; 2]| {
        ranks(2, |comm| {
            let rank = comm.rank();
            let module = Wide::new(device);
            let config = config.clone();
            let config = if on_host[rank] { config.with_host_compression() } else { config };
            let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), comm, config, 1);
            if clips {
                optim = optim.with_clip_norm(LONGEST);
            }
            let mut module = optim.join(module)?;
            let (start, mut first) = (values(&module), None);
            for step in 0..STEPS {
                let gradients = optim.forward_model(&module)?.gradients(data(step as u64, rank), device);
                module = optim.step(0.05, module, gradients)?;
                assert_eq!(optim.gradient_norm().map(|norm| norm > LONGEST), clips.then_some(true));
                // The first step has the self-test.
                first = first.or(optim.synchronizer().device_work());
            }
            Ok((start, values(&module), first.zip(optim.synchronizer().device_work())))
        })
    };
    let (host, here, mixed) = (run([true; 2]), run([false; 2]), run([false, true]));
    assert!(distance(&host[0].0, &host[0].1) > 1e-3, "nothing was trained");
    for (_, end, _) in here.iter().chain(&mixed).chain(&host[1..]) {
        assert_eq!(bits(end), bits(&host[0].1));
    }
    assert!(host.iter().chain(&mixed[1..]).all(|(_, _, work)| work.is_none()), "compressed on the host");
    #[allow(unreachable_patterns)] // in a build with one backend
    let has_kernels = match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(_) => true,
        _ => false,
    };
    let dense = 4 * (SIDES[0] * SIDES[1] + SIDES[0]);
    for (_, _, work) in here.iter().chain(&mixed[..1]) {
        assert_eq!(work.is_some(), has_kernels, "compressed on the device");
        if let Some((first, last)) = work {
            let share = |first: usize, last: usize| (last - first) as f64 / (dense * (STEPS - 1)) as f64;
            let (down, up) = (share(first.down, last.down), share(first.up, last.up));
            assert!(0.0 < down && down <= 0.05 && 0.0 < up && up <= 0.05, "of the gradient: {down} down, {up} up");
        }
    }
}
