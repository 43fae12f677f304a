//! Gradients in a world of one rank, where they are already the average.

use std::num::NonZeroUsize;
use std::thread::{available_parallelism, scope};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, TensorData};

use super::transfer::as_f32;
use super::{decayed, finite};
use crate::error::Error;

/// Gradients after [`check`].
pub(crate) struct Checked {
    /// The gradients, in their original memory.
    pub(crate) grads: GradientsParams,
    /// Set for each slot with a gradient.
    pub(crate) present: Vec<bool>,
    /// The first slot with a value that is not finite.
    pub(crate) bad_slot: Option<u32>,
}

/// Adds the local weight decay and checks for values that are not finite. Tensors in this process's memory are not copied.
pub(crate) fn check<M: Module>(module: &M, grads: GradientsParams, weight_decay: f64) -> Result<Checked, Error> {
    let checked = Checked { grads: GradientsParams::new(), present: Vec::new(), bad_slot: None };
    let mut walk = Walk { grads, weight_decay, checked, failed: None };
    module.visit(&mut walk);
    walk.failed.map_or(Ok(walk.checked), Err)
}

struct Walk {
    grads: GradientsParams,
    weight_decay: f64,
    checked: Checked,
    failed: Option<Error>,
}

/// Returns `grad`, and whether it is finite.
fn look<const D: usize>(grad: Tensor<D>) -> Result<(Tensor<D>, bool), Error> {
    let (device, dtype) = (grad.device(), grad.dtype());
    let read = |tensor: Tensor<D>| -> Result<(TensorData, bool), Error> {
        let data = tensor.try_into_data().map_err(Error::device)?;
        let is_finite = finite_by_all(as_f32(&data)?);
        Ok((data, is_finite))
    };
    if dtype != DType::F32 {
        let (_, is_finite) = read(grad.clone().cast(DType::F32))?;
        return Ok((grad, is_finite));
    }
    let (data, is_finite) = read(grad)?;
    Ok((Tensor::from_data(data, (&device, dtype)), is_finite))
}

/// As [`finite`], on all cores if there are enough values, because no other rank needs the cores.
fn finite_by_all(values: &[f32]) -> bool {
    /// Reading this many values takes a few hundred microseconds, much longer than starting a thread.
    const FEWEST: usize = 1 << 19;
    let threads = available_parallelism().map_or(1, NonZeroUsize::get).min(values.len() / FEWEST);
    if threads < 2 {
        return finite(values);
    }
    scope(|scope| {
        let parts = values.chunks(values.len().div_ceil(threads));
        let looking: Vec<_> = parts.map(|part| scope.spawn(move || finite(part))).collect();
        looking.into_iter().fold(true, |all, part| all & part.join().unwrap_or(false))
    })
}

impl ModuleVisitor for Walk {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() || self.failed.is_some() {
            return;
        }
        let slot = self.checked.present.len() as u32;
        let grad = self.grads.remove::<D>(param.id);
        self.checked.present.push(grad.is_some());
        let Some(grad) = grad else { return };
        match look(decayed(grad, value.inner(), self.weight_decay)) {
            Ok((grad, is_finite)) => {
                if !is_finite {
                    self.checked.bad_slot.get_or_insert(slot);
                }
                self.checked.grads.register(param.id, grad);
            }
            Err(error) => self.failed = Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_not_finite_is_found_by_whichever_thread_reads_it() {
        let mut values = vec![1.0; 3 << 19];
        assert!(finite_by_all(&values));
        for place in [0, 1 << 19, (3 << 19) - 1] {
            values[place] = f32::INFINITY;
            assert!(!finite_by_all(&values), "{place}");
            values[place] = 1.0;
        }
    }
}
