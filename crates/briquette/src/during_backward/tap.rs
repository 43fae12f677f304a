//! Taps: identity operations on parameters that receive their gradients during the backward pass.
//!
//! Burn processes its tape by *depth*, deepest operation first. An operation on a leaf has depth 1 and would be processed last.
//! Depth also counts untracked parents. A tap therefore has a second parent, from a chain of untracked one-element tensors,
//! whose depth grows with each parameter that the forward pass reads. The tap then lies just below the operations that use the
//! parameter, and its gradient is complete when Burn processes it. A wrong depth affects only the time of delivery, never the
//! result.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "device")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
#[cfg(feature = "tch")]
#[allow(deprecated)]
use burn::backend::LibTorch;
#[cfg(feature = "ndarray")]
#[allow(deprecated)]
use burn::backend::NdArray;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata, backend_extension};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor};

/// Levels between two parameters that the forward pass reads. If the operations between the two have more levels, the deepest of
/// them run before the gradient of the later parameter is delivered.
const STRIDE: usize = 256;

/// Callback that receives a slot's number and gradient.
#[derive(Clone)]
pub(crate) struct Hook(pub(crate) Arc<dyn Fn(usize, Tensor<1>) + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(feature = "device"),
    LibTorch: cfg(feature = "tch"),
    Autodiff
)]
pub(crate) trait TapBackend: Backend {
    /// `x`, one level below `clock`.
    fn tap(x: FloatTensor<Self>, clock: FloatTensor<Self>, _slot: usize, _hook: Hook) -> FloatTensor<Self> {
        let _ = clock;
        x
    }
    /// `x`, one level deeper.
    fn tick(x: FloatTensor<Self>) -> FloatTensor<Self> {
        x
    }
}
#[cfg(feature = "flex")]
impl TapBackend for Flex {}
#[cfg(feature = "ndarray")]
#[allow(deprecated)]
impl TapBackend for NdArray {}
#[cfg(feature = "device")]
impl TapBackend for Cube {}
#[cfg(feature = "tch")]
#[allow(deprecated)]
impl TapBackend for LibTorch {}

#[derive(Debug)]
struct TapBackward;

impl<B: Backend> Backward<B, 2> for TapBackward
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (usize, Hook);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        // All operations that use the parameter are deeper, so its gradient is complete.
        let grad = grads.consume::<B>(&ops.node);
        let (slot, Hook(hook)) = ops.state;
        let flat = B::float_reshape(grad.clone(), Shape::new([grad.shape().num_elements()]));
        hook(slot, Tensor::<1>::from_primitive::<B>(flat));
        if let [Some(leaf), _] = ops.parents {
            grads.register::<B>(leaf.id, grad.clone());
        }
        // Callers may request the gradients of the clone.
        grads.register::<B>(ops.node.id, grad);
    }
}

#[derive(Debug)]
struct TickBackward;

impl<B: Backend> Backward<B, 1> for TickBackward {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {
        unreachable!("nothing is to be known of these")
    }
}

impl<B: Backend, C: CheckpointStrategy> TapBackend for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn tap(x: FloatTensor<Self>, clock: FloatTensor<Self>, slot: usize, hook: Hook) -> FloatTensor<Self> {
        let (primitive, node) = x.into_parts();
        match Backward::<B, 2>::prepare::<C>(TapBackward, [node, clock.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((slot, hook), primitive),
            OpsKind::UnTracked(prepared) => prepared.finish(primitive),
        }
    }

    fn tick(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (primitive, node) = x.into_parts();
        Backward::<B, 1>::prepare::<C>(TickBackward, [node]).compute_bound().stateless(primitive)
    }
}

/// Tensors at growing depths, [`STRIDE`] apart, on each device; kept from step to step.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Chains by device.
    chains: Vec<(Device, Vec<Tensor<1>>)>,
    /// The number of parameters that this step's forward pass has read.
    reads: usize,
}

impl Clock {
    /// Returns a tensor that is deeper than any that the forward pass has made so far, provided that it makes at most
    /// [`STRIDE`] levels per parameter.
    fn next(&mut self, device: &Device) -> Tensor<1> {
        self.reads += 1;
        let known = self.chains.iter().position(|(of, _)| of == device);
        let at = known.unwrap_or_else(|| {
            self.chains.push((device.clone(), vec![Tensor::zeros([1], device)]));
            self.chains.len() - 1
        });
        let chain = &mut self.chains[at].1;
        while chain.len() <= self.reads {
            let last = chain[chain.len() - 1].clone();
            let next =
                (0..STRIDE).fold(last, |tensor, _| Tensor::from_dispatch(Dispatch::tick(tensor.into_dispatch())));
            chain.push(next);
        }
        chain[self.reads].clone()
    }
}

/// Makes the clone on which a step's forward pass runs. Its parameters are tapped when they are first read.
pub(crate) struct Taps {
    hook: Hook,
    clock: Arc<Mutex<Clock>>,
    slots: usize,
    /// The number of places of each parameter.
    places: Places,
}

#[derive(Default)]
struct Places(HashMap<ParamId, usize>);

impl ModuleVisitor for Places {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        *self.0.entry(param.id).or_default() += 1;
    }
}

impl Taps {
    /// Returns `module` with taps that call `hook`. Slots are numbered as in the layout.
    pub(crate) fn put<M: Module>(module: &M, hook: Hook, clock: &Arc<Mutex<Clock>>) -> M {
        clock.lock().unwrap_or_else(PoisonError::into_inner).reads = 0;
        let mut places = Places::default();
        module.visit(&mut places);
        module.clone().map(&mut Taps { hook, clock: Arc::clone(clock), slots: 0, places })
    }
}

impl ModuleMapper for Taps {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, leaf) = (param.id, param.val());
        if !leaf.is_require_grad() {
            return param;
        }
        let slot = self.slots;
        self.slots += 1;
        // The parameter is used in several places. Burn itself adds their gradients.
        if self.places.0.get(&id).is_some_and(|places| *places > 1) {
            return param;
        }
        let (hook, clock) = (self.hook.clone(), Arc::clone(&self.clock));
        let (device, shape) = (leaf.device(), leaf.shape());
        let read_first = move |_: &Device, _: bool| {
            let clock = clock.lock().unwrap_or_else(PoisonError::into_inner).next(&leaf.device());
            Tensor::from_dispatch(Dispatch::tap(leaf.into_dispatch(), clock.into_dispatch(), slot, hook))
        };
        Param::uninitialized(id, read_first, device, true, shape)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Distribution;

    use super::*;

    #[derive(Module, Debug)]
    struct Two {
        first: Linear,
        second: Linear,
    }

    /// Tests assumptions that Burn may change without notice: its tape goes by depth, and depth counts untracked parents.
    /// Otherwise gradients would still be right, but arrive too late.
    #[test]
    fn a_layers_gradients_come_before_backward_goes_on_below_it() {
        const BETWEEN: usize = 99;
        let device = Device::flex().autodiff();
        let layer = || LinearConfig::new(4, 4).init(&device);
        let model = Two { first: layer(), second: layer() };
        let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
        let hook = || {
            let seen = Arc::clone(&seen);
            Hook(Arc::new(move |slot, _| seen.lock().expect("no panic before").push(slot)))
        };
        let clock = Arc::default();
        for _ in 0..2 {
            let tapped = Taps::put(&model, hook(), &clock);
            let x = Tensor::<2>::random([3, 4], Distribution::Default, &device);
            let between = tapped.first.forward(x).into_dispatch();
            let shallow = Tensor::<1>::zeros([1], &device).into_dispatch();
            let between = Tensor::<2>::from_dispatch(Dispatch::tap(between, shallow, BETWEEN, hook()));
            let loss = tapped.second.forward(between).square().mean();
            let plain = model.second.forward(model.first.forward(Tensor::<2>::zeros([1, 4], &device))).mean();
            drop(plain.backward());
            let _gradients = loss.backward();
            let mut order = std::mem::take(&mut *seen.lock().expect("no panic before"));
            order[..2].sort_unstable();
            order[3..].sort_unstable();
            // Slots 2 and 3 are the second layer's.
            assert_eq!(order, [2, 3, BETWEEN, 0, 1]);
        }
    }
}
