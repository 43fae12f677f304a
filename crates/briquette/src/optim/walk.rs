//! Test helpers: an optimizer steps a few values with given gradients.

use burn::optim::{ModuleOptimizer, Optimizer, OptimizerRecord};
use burn::tensor::{Device, Tensor};

/// Returns the values after each step.
pub(super) fn walk<O: Optimizer, const N: usize>(
    optimizer: &O,
    rate: f64,
    start: [f32; N],
    gradients: &[[f32; N]],
) -> Vec<[f32; N]> {
    let device = Device::flex();
    let (mut x, mut state) = (Tensor::<1>::from_floats(start, &device), None);
    let step = |gradient: &[f32; N]| {
        let gradient = Tensor::from_floats(*gradient, &device);
        let (next, kept) = optimizer.step(rate, x.clone(), gradient, state.take());
        (x, state) = (next.clone(), kept);
        let values: Vec<f32> = next.into_data().try_into_vec().expect("f32");
        values.try_into().expect("as many as before")
    };
    gradients.iter().map(step).collect()
}

/// Compares values whose last digits may differ.
#[track_caller]
pub(super) fn assert_near(got: &[f32], expected: &[f64], relative: f64) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let off = (f64::from(*got) - expected).abs();
        assert!(off <= relative * expected.abs().max(1e-30), "got {got}, expected {expected}");
    }
}

/// Returns the record after a step of one value.
pub(super) fn record(optimizer: impl Into<ModuleOptimizer>) -> OptimizerRecord {
    use burn::module::Param;
    use burn::optim::GradientsParams;
    let (mut optimizer, device) = (optimizer.into(), Device::flex().autodiff());
    let module = Param::from_tensor(Tensor::<1>::from_floats([1.0], &device).require_grad());
    let gradients = GradientsParams::from_grads(module.val().sum().backward(), &module);
    let _ = optimizer.step(0.1, module, gradients);
    optimizer.to_record()
}
