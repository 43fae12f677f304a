//! Gradient compression in a single process, for any Burn program.
//!
//! [`Compressed`] wraps a per-tensor [`Optimizer`]. The inner optimizer receives the part of the gradient that a rank would send,
//! and the residual is added at the next step. The residual is part of the optimizer's state, so Burn's own checkpoints contain
//! it. Use it to measure the effect of compression on accuracy before you use several machines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use briquette_core::compress::Compressor;
use briquette_core::{Key, Message};
use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Optimizer whose inner optimizer receives compressed gradients.
///
/// ```
/// use briquette::Compressed;
/// use briquette::core::compress::top_k::TopK;
/// use burn::grad_clipping::GradientClippingConfig;
/// use burn::optim::{ModuleOptimizer, SgdConfig};
///
/// let config = SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Norm(1.0)));
/// let optim: ModuleOptimizer = Compressed::from_config(&config, SgdConfig::build, TopK::fraction(0.01)?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Use it in place of a Burn optimizer: in your own loop, or in `Learner::new(model, optim, scheduler)`.
///
/// Each tensor is compressed separately. Gradients are copied to the host and back one tensor at a time, so this is for
/// experiments, not for speed.
#[derive(Clone)]
pub struct Compressed<O> {
    inner: O,
    shared: Arc<Shared>,
    key: Key,
}

/// Mutable state of the compression. It is behind a lock, because `Optimizer::step` takes `&self` on a `Clone` type.
struct Shared {
    work: Mutex<(Box<dyn Compressor>, Message)>,
    /// Numbers tensors in the order of their first step, so that each has its own random numbers.
    slots: AtomicU64,
}

impl<O: std::fmt::Debug> std::fmt::Debug for Compressed<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressed").field("inner", &self.inner).field("key", &self.key).finish_non_exhaustive()
    }
}

impl<O: Optimizer> Compressed<O> {
    /// Creates the optimizer from a configuration, in place of `config.init()`. `build` is the configuration's own method.
    /// Gradients are clipped as configured, before they are compressed. With [`new`](Self::new) there is no clipping, because
    /// `build` ignores it.
    pub fn from_config<C: Config>(
        config: &C,
        build: impl FnOnce(&C) -> O,
        compressor: impl Compressor + 'static,
        seed: u64,
    ) -> ModuleOptimizer {
        let optim = Compressed::new(build(config), compressor, seed).into_module_optimizer();
        match clipping(config) {
            Some(clipping) => optim.with_grad_clipping(clipping.init()),
            None => optim,
        }
    }

    /// Wraps `inner`, which steps with the result of `compressor` for each gradient.
    pub fn new(inner: O, compressor: impl Compressor + 'static, seed: u64) -> Self {
        let work = Mutex::new((Box::new(compressor) as Box<dyn Compressor>, Message::default()));
        Compressed { inner, shared: Arc::new(Shared { work, slots: AtomicU64::new(0) }), key: Key::new(seed) }
    }
}

/// Returns the clipping of a configuration, from the configuration's text, because Burn's configurations do not expose
/// it.
fn clipping<C: Config>(config: &C) -> Option<GradientClippingConfig> {
    let text = serde_json::to_value(config).ok()?;
    let clipping = ["grad_clipping", "gradient_clipping"].iter().find_map(|name| text.get(name))?;
    serde_json::from_value(clipping.clone()).ok()
}

/// State of [`Compressed`] for one tensor.
#[derive(Clone)]
pub struct CompressedState<S, const D: usize> {
    inner: Option<S>,
    residual: Tensor<D>,
    slot: u64,
    step: u64,
}

impl<S, const D: usize> std::fmt::Debug for CompressedState<S, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompressedState").field("slot", &self.slot).field("step", &self.step).finish_non_exhaustive()
    }
}

impl<S, const D: usize> CompressedState<S, D> {
    /// The residual: the part of the gradients that has not been sent yet.
    pub fn residual(&self) -> &Tensor<D> {
        &self.residual
    }
}

/// By hand, because Burn's derive macro does not work outside its own crate.
impl<S: RecordState, const D: usize> RecordState for CompressedState<S, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(inner) = &self.inner {
            inner.state_flatten(&nested(prefix), out);
        }
        out.push_scalar(prefix, "has_inner", self.inner.is_some().into());
        out.push_tensor(prefix, "residual", self.residual.clone().into_data());
        out.push_scalar(prefix, "slot", self.slot.into());
        out.push_scalar(prefix, "step", self.step.into());
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let inner = match bool::try_from(src.take_scalar(prefix, "has_inner")?).ok()? {
            true => Some(S::state_unflatten(&nested(prefix), src, device)?),
            false => None,
        };
        let data = src.take_tensor(prefix, "residual")?;
        let dtype = data.dtype();
        Some(CompressedState {
            inner,
            residual: Tensor::from_data(data, (device, dtype)),
            slot: u64::try_from(src.take_scalar(prefix, "slot")?).ok()?,
            step: u64::try_from(src.take_scalar(prefix, "step")?).ok()?,
        })
    }
}

fn nested(prefix: &str) -> String {
    format!("{prefix}.inner")
}

impl<O: Optimizer> Optimizer for Compressed<O> {
    type State<const D: usize> = CompressedState<O::State<D>, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (fed, inner, slot, step) = match state {
            Some(s) => (grad + s.residual, s.inner, s.slot, s.step),
            None => (grad, None, self.shared.slots.fetch_add(1, Ordering::Relaxed), 0),
        };
        // The slot of a loaded state is in use.
        self.shared.slots.fetch_max(slot + 1, Ordering::Relaxed);
        let sent = self.compress(fed.clone(), self.key.step(step).bucket(slot as usize));
        let residual = fed - sent.clone();
        let (tensor, inner) = self.inner.step(lr, tensor, sent, inner);
        (tensor, Some(CompressedState { inner, residual, slot, step: step + 1 }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        CompressedState {
            inner: state.inner.map(|inner| O::to_device(inner, device)),
            residual: state.residual.to_device(device),
            ..state
        }
    }
}

impl<O: Optimizer> Compressed<O> {
    fn compress<const D: usize>(&self, x: Tensor<D>, key: Key) -> Tensor<D> {
        let (device, dtype, shape) = (x.device(), x.dtype(), x.shape());
        let mut values: Vec<f32> = x.cast(DType::F32).into_data().try_into_vec().expect("cast to f32 above");
        // If another thread panicked while compressing, the next message overwrites everything that it left.
        let mut work = self.shared.work.lock().unwrap_or_else(PoisonError::into_inner);
        let (compressor, message) = &mut *work;
        compressor.compress_into(&values, key, message);
        message.decode_into(&mut values).expect("a message fits the vector it was made of");
        let tensor = Tensor::<D>::from_data(TensorData::new(values, shape), (&device, DType::F32));
        if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
    }
}

impl<O: Optimizer> Compressed<O> {
    /// Converts this optimizer to one for a whole module.
    pub fn into_module_optimizer(self) -> ModuleOptimizer {
        self.into()
    }
}
