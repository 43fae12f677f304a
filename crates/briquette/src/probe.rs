//! Optimizer probe: identifies an optimizer by its result on test gradients.
//!
//! Burn's `ModuleOptimizer` does not expose its kind and its settings, so each rank probes its own. A copy of the optimizer
//! steps a copy of the module in which every parameter is reduced to a few values. The gradients are the same on every rank:
//! large ones, small ones and none. Momenta, decays, clipping and parameter groups all affect the result. Optimizers that
//! differ only for other gradients, or after more steps, count as equal.

mod momentum;

pub(crate) use momentum::inner_optimizer;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::checkpoint::by_the_default_device;
use crate::error::Error;
use crate::flat::{self, Part, like};

/// Learning rate and scale of the gradients of each run of [`GRADIENTS`]. The last one shows decay alone, however small.
const RUNS: [(f64, f32); 4] = [(0.1, 1.0), (1.0, 1e4), (1.0, 1e-4), (1000.0, 0.0)];
/// Gradients of each run. The last one is zero.
const GRADIENTS: [[f32; 4]; 3] = [[0.6, -0.3, 0.8, 0.2], [-0.2, 0.9, 0.4, -0.7], [0.0; 4]];
/// Relative tolerances: if devices round in the same way, and if they do not.
const TOLERANCE: [f32; 2] = [1e-4, 1e-2];

/// The result of an optimizer's steps for every parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// The distinct results, as bits of f32: JSON has no infinity.
    results: Vec<Vec<u32>>,
    /// The index of each slot's result.
    slots: Vec<usize>,
}

impl Probe {
    /// Probes an optimizer. Returns `None` if that is impossible. One reason is that the device with which Burn clears the
    /// optimizer's state is unavailable. Another is that the optimizer is user-defined and does not support such small
    /// parameters.
    pub(crate) fn of<M: Module>(optimizer: &ModuleOptimizer, module: &M) -> Result<Option<Probe>, Error> {
        catch_unwind(AssertUnwindSafe(|| Probe::ask(optimizer, module))).unwrap_or(Ok(None))
    }

    fn ask<M: Module>(optimizer: &ModuleOptimizer, module: &M) -> Result<Option<Probe>, Error> {
        let Some(fresh) = fresh(optimizer) else { return Ok(None) };
        let small = module.clone().map(&mut Shrink { size: 1.0, pattern: [0.5, -0.7, 0.9, 0.4], keeps_type: true });
        let lens = lens(&small);
        let mut all = vec![Vec::new(); lens.len()];
        for (rate, size) in RUNS {
            let (mut optimizer, mut module) = (fresh.clone(), small.clone());
            for pattern in GRADIENTS {
                let gradients = gradients(&module, size, pattern);
                module = optimizer.step(rate, module, gradients);
                let mut values = Vec::new();
                flat::read_values(&module, Part::Trainable, &mut values)?;
                let mut rest = values.iter().map(|v| v.to_bits());
                lens.iter().zip(&mut all).for_each(|(len, result)| result.extend(rest.by_ref().take(*len)));
            }
        }
        let mut probe = Probe { results: Vec::new(), slots: Vec::new() };
        for result in all {
            let known = probe.results.iter().position(|other| *other == result);
            probe.slots.push(known.unwrap_or(probe.results.len()));
            if known.is_none() {
                probe.results.push(result);
            }
        }
        Ok(Some(probe))
    }

    /// Returns the first slot for which another optimizer has another result, and both results.
    pub(crate) fn difference(&self, other: &Probe, alike: bool) -> Option<(usize, f32, f32)> {
        let tolerance = TOLERANCE[usize::from(!alike)];
        let of = |probe: &Probe, slot: usize| probe.results.get(*probe.slots.get(slot)?).cloned();
        (0..self.slots.len().max(other.slots.len())).find_map(|slot| {
            let (ours, theirs) = (of(self, slot).unwrap_or_default(), of(other, slot).unwrap_or_default());
            if ours.len() != theirs.len() {
                return Some((slot, f32::NAN, f32::NAN));
            }
            let mut pairs = ours.into_iter().zip(theirs).map(|(a, b)| (f32::from_bits(a), f32::from_bits(b)));
            pairs.find(|(a, b)| !close(*a, *b, tolerance)).map(|(a, b)| (slot, a, b))
        })
    }
}

fn close(a: f32, b: f32, tolerance: f32) -> bool {
    let both_lost = !a.is_finite() && !b.is_finite();
    both_lost || a == b || (a - b).abs() <= tolerance * a.abs().max(b.abs())
}

/// The shape of a probe's parameter of `D` dimensions: two for each of the first two, one for the others.
fn shape<const D: usize>() -> [usize; D] {
    std::array::from_fn(|i| if i < 2 { 2 } else { 1 })
}

/// The same values for every parameter with the same number of dimensions.
fn values<const D: usize>(size: f32, pattern: [f32; 4]) -> TensorData {
    let shape = shape::<D>();
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| size * pattern[i % 4]).collect();
    TensorData::new(values, shape)
}

/// Returns a copy without state; `None` if the state cannot be cleared.
fn fresh(optimizer: &ModuleOptimizer) -> Option<ModuleOptimizer> {
    let copy = optimizer.clone();
    if copy.to_record().is_empty() {
        return Some(copy);
    }
    by_the_default_device(|| copy.load_record(OptimizerRecord::default())).ok()
}

/// Replaces every parameter by a few values. Buffers are unchanged, because clones share them.
struct Shrink {
    size: f32,
    pattern: [f32; 4],
    /// Set if parameters keep their type; otherwise they are f32.
    keeps_type: bool,
}

impl ModuleMapper for Shrink {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| {
            if !old.is_require_grad() {
                return old;
            }
            let device = old.device().inner();
            let small = Tensor::<D>::from_data(values::<D>(self.size, self.pattern), (&device, DType::F32));
            like(&old, if self.keeps_type { small.cast(old.dtype()) } else { small })
        })
    }
}

fn gradients<M: Module>(module: &M, size: f32, pattern: [f32; 4]) -> GradientsParams {
    struct Give {
        size: f32,
        pattern: [f32; 4],
        out: GradientsParams,
    }
    impl ModuleVisitor for Give {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if value.is_require_grad() {
                let device = value.device().inner();
                let grad = Tensor::<D>::from_data(values::<D>(self.size, self.pattern), (&device, DType::F32));
                self.out.register(param.id, grad.cast(value.dtype()));
            }
        }
    }
    let mut walk = Give { size, pattern, out: GradientsParams::new() };
    module.visit(&mut walk);
    walk.out
}

/// The number of values of every parameter.
fn lens<M: Module>(module: &M) -> Vec<usize> {
    struct Lens(Vec<usize>);
    impl ModuleVisitor for Lens {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if value.is_require_grad() {
                self.0.push(value.shape().num_elements());
            }
        }
    }
    let mut walk = Lens(Vec::new());
    module.visit(&mut walk);
    walk.0
}
