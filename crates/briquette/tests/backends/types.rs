//! Parameters that are not f32.

use std::panic::catch_unwind;

use briquette::DistributedOptimizer;
use briquette::core::config::Config;
use burn::module::{Module, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor};

use crate::facts::ranks;
use crate::models::{Numbers, bits, distance, values};

/// A weight of some type and a bias of f32.
#[derive(Module, Debug)]
struct TwoTypes {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl TwoTypes {
    fn new(seed: u64, dtype: DType, device: &Device) -> Self {
        let mut numbers = Numbers::new(seed);
        let weight = numbers.tensor([4, 3], device).cast(dtype).detach().require_grad();
        let bias = numbers.tensor([3], device).require_grad();
        TwoTypes { weight: Param::from_tensor(weight), bias: Param::from_tensor(bias) }
    }

    fn gradients(&self, seed: u64, device: &Device) -> GradientsParams {
        let x = Numbers::new(seed).tensor([5, 4], device);
        let y = x.matmul(self.weight.val().cast(DType::F32)) + self.bias.val().unsqueeze::<2>();
        GradientsParams::from_grads(y.square().mean().backward(), self)
    }
}

/// Two ranks, one step; returns every rank's parameters.
fn step(dtype: DType, device: &Device) -> Vec<Result<Vec<f32>, String>> {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), comm, Config::dense(), 1);
        let model = match optim.join(TwoTypes::new(rank as u64, dtype, device)) {
            Ok(model) => model,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let gradients = model.gradients(rank as u64 + 10, device);
        let model = optim.step(0.5, model, gradients)?;
        assert_eq!(model.weight.val().dtype(), dtype, "a parameter keeps its type");
        Ok(Ok(values(&model)))
    })
}

/// Returns whether the backend supports such tensors at all: some panic, with a message to that effect.
fn exists(dtype: DType, device: &Device) -> bool {
    let device = device.clone();
    catch_unwind(move || drop(TwoTypes::new(0, dtype, &device))).is_ok()
}

pub(crate) fn half_precision_is_handled_or_refused(device: &Device) {
    for dtype in [DType::F16, DType::BF16] {
        if !exists(dtype, device) {
            println!("no {dtype:?} tensor can be made on {device:?}");
            continue;
        }
        let results = step(dtype, device);
        if device.supports_dtype(dtype) {
            let exact = step(DType::F32, device);
            let (exact, half) = (exact[0].as_ref().unwrap(), results[0].as_ref().unwrap());
            let off = distance(exact, half);
            assert!(off > 0.0 && off < 2e-2, "{dtype:?}: {off} from what f32 gives");
            assert_eq!(bits(half), bits(results[1].as_ref().unwrap()), "{dtype:?}: replicas");
        } else {
            let refused = results.iter().filter_map(|result| result.as_ref().err());
            let named = refused.filter(|e| e.contains("weight is ") && e.contains("cast the module to f32")).count();
            assert!(named >= 1 && results.iter().all(Result::is_err), "{dtype:?}: {results:?}");
        }
    }
}

/// `cat` of two types would panic: each is cast for the transfer, and back.
pub(crate) fn mixed_types_share_one_exchange(device: &Device) {
    let other = [DType::F64, DType::F16].into_iter().find(|dtype| device.supports_dtype(*dtype));
    let Some(other) = other else { return println!("this device computes in f32 alone") };
    let results = step(other, device);
    let (first, second) = (results[0].as_ref().unwrap(), results[1].as_ref().unwrap());
    assert_eq!(bits(first), bits(second));
    let exact = step(DType::F32, device);
    assert!(distance(first, exact[0].as_ref().unwrap()) < 2e-2);
}
