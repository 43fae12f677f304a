//! Worlds with different devices: detects ranks that round differently, and re-broadcasts rank 0's parameters.
//!
//! Every rank applies the same bits of an average, but an optimizer's multiplications and roots round differently on each device,
//! so replicas drift apart by about one rounding error per step. Periodic re-broadcasts of rank 0's parameters keep the drift
//! from accumulating. Optimizer states and BatchNorm's statistics stay rank-local.

use briquette_core::sync::Agrees;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use super::{Joined, Synchronizer};
use crate::error::Error;
use crate::flat::{self, Part};

/// Default number of steps between re-broadcasts if ranks round differently. Re-broadcasts then add one hundredth to the
/// traffic of dense gradients.
pub const REBROADCAST_STEPS: u64 = 100;

impl Synchronizer {
    /// Broadcasts rank 0's parameters to all ranks every `steps` steps that exchange gradients; 0 for never. Must be the same
    /// on every rank. By default, a world whose devices round differently re-broadcasts every [`REBROADCAST_STEPS`] steps, and
    /// any other world never. To detect different rounding, [`join`](Self::join) runs an optimizer's arithmetic on every rank
    /// and compares the bits.
    #[must_use]
    pub fn with_rebroadcast(mut self, steps: u64) -> Self {
        self.rebroadcast = Some(steps);
        self
    }

    /// Steps between re-broadcasts in the joined world; 0 for none.
    ///
    /// # Errors
    /// [`Error::NotJoined`].
    pub fn rebroadcast_steps(&self) -> Result<u64, Error> {
        self.joined.as_ref().map(|j| j.rebroadcast).ok_or(Error::NotJoined { rank: self.rank() })
    }

    /// Returns whether the current step ends with a re-broadcast. That is the case at the first step, from each multiple of the
    /// interval on, that exchanges gradients between replicas that must be equal.
    pub(crate) fn rebroadcast_due(&self) -> bool {
        let Some(Joined { rebroadcast: every @ 1.., .. }) = &self.joined else { return false };
        let steps_with_average = |step: &u64| {
            let plan = self.driver.strategy().plan(*step);
            plan.gradients && plan.replicas_equal && plan.agrees == Agrees::World
        };
        let before = || (0..self.step()).rev().find(steps_with_average).map_or(0, |step| step + 1);
        steps_with_average(&self.step()) && (self.step() + 1) / every > before() / every
    }

    /// Ends a step whose gradients were exchanged: re-broadcasts if that is due.
    pub(super) fn rebroadcast<M: Module>(&mut self, module: M) -> Result<M, (M, Error)> {
        if !self.rebroadcast_due() {
            return Ok(module);
        }
        match (self.rank_0s_parameters(&module), &self.joined) {
            (Ok(values), Some(joined)) => Ok(flat::write_values(module, Part::Trainable, &values, &joined.inventory)),
            (Ok(_), None) => Ok(module),
            (Err(error), _) => {
                self.comm.abort(&error.to_string());
                Err((module, error))
            }
        }
    }

    /// Returns rank 0's parameters. The step's report gets the largest distance of any rank from them, and the cost.
    fn rank_0s_parameters<M: Module>(&mut self, module: &M) -> Result<Vec<f32>, Error> {
        // The optimizer may still be running; its seconds count as the next step's compute time, as always.
        flat::settle(module)?;
        self.check_layout(module)?;
        self.comm.scope().operation = "re-broadcast of parameters";
        let (begin, before) = (self.comm.now(), self.comm.traffic());
        let mut mine = Vec::new();
        flat::read_values(module, Part::Trainable, &mut mine)?;
        let mut first = mine.clone();
        let read = self.comm.now();
        self.broadcast(&mut first)?;
        let mut drifts = Vec::new();
        let drift = distance(&mine, &first);
        self.comm.all_gather(&drift.to_le_bytes(), &mut drifts)?;
        let theirs = drifts.iter().filter_map(|bytes| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        let now = self.comm.now();
        let report = &mut self.report;
        report.drift = Some(theirs.fold(drift, f64::max));
        report.traffic += self.comm.traffic() - before;
        report.compress_seconds += read - begin;
        report.exchange_seconds += now - read;
        report.clock = now;
        self.last_end += now - begin;
        Ok(first)
    }
}

/// ‖a − b‖ / ‖b‖; infinite if that is NaN.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |sum: f64, v: f64| sum + v * v;
    let norm = b.iter().map(|v| f64::from(*v)).fold(0.0, square);
    let apart = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)).fold(0.0, square);
    let ratio = if apart == 0.0 { 0.0 } else { (apart / norm).sqrt() };
    if ratio.is_nan() { f64::INFINITY } else { ratio }
}

/// A text that identifies the rounding of a module's devices: ranks with different texts drift apart. It contains the bits of an
/// optimizer's arithmetic on each device, and the types of the module's parameters.
pub(super) fn rounding<M: Module>(module: &M) -> Result<String, Error> {
    let mut text = flat::types(module);
    for device in module.devices() {
        let result = arithmetic(&device.without_autodiff()).try_into_data().map_err(Error::device)?;
        text += &format!(" {:08x}", crc32fast::hash(result.as_bytes()));
    }
    Ok(text)
}

/// The operations of momentum, Adam, clipping by norms and orthogonalizing optimizers, on values that need rounding.
fn arithmetic(device: &Device) -> Tensor<1> {
    let values = |from: f32, by: f32| {
        let values: Vec<f32> = (0..1024).map(|i| from + by * i as f32).collect();
        Tensor::<1>::from_data(TensorData::new(values, [1024]), device)
    };
    let (weight, grad) = (values(0.3, 0.001_37), values(-1.7, 0.003_1));
    let velocity = values(0.11, -0.000_7).mul_scalar(0.9) + grad.clone().mul_scalar(0.1);
    let second = grad.clone().mul(grad).mul_scalar(0.001);
    let adam = velocity.clone().div_scalar(0.19).div(second.div_scalar(0.001_999).sqrt().add_scalar(1e-8));
    let norm = velocity.clone().square().sum().sqrt();
    let square = adam.clone().reshape([32, 32]);
    let product = square.clone().matmul(square.transpose()).reshape([1024]);
    let steps = vec![weight.clone() - velocity.mul_scalar(0.1), weight - adam.mul_scalar(0.003), norm, product];
    Tensor::cat(steps, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_and_never_lost_in_a_nan() {
        assert_eq!(distance(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(distance(&[0.0, 0.0], &[3.0, 4.0]), 1.0);
        assert_eq!(distance(&[f32::NAN, 0.0], &[3.0, 4.0]), f64::INFINITY);
        assert_eq!(distance(&[1.0], &[0.0]), f64::INFINITY);
    }
}
