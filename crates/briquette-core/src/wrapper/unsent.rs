//! Subtraction of a contribution from the vector that a wrapper has fed, on the host or on a device, with the energies of each slot.

use super::check_finite;
use super::residual::Residual;
use crate::error::ReduceError;
use crate::layout::absent;
use crate::math::SentStatistics;
use crate::report::{Report, ResidualEnergy};
use crate::seam::{Arriving, DevicePart, Reducer, SentInput, SentVelocity};
use crate::{Session, Slot};

/// Energies (squared norms) of each slot: of the fed vector, of its contribution, and of the residual.
#[derive(Debug, Default)]
pub(super) struct FedEnergies {
    /// `‖x‖²` of the fed vector.
    pub(super) fed: Vec<f64>,
    kept: Vec<SentStatistics>,
    /// Residual energy of each slot, in the units of a gradient.
    left: Vec<f64>,
    residual: ResidualEnergy,
}

impl FedEnergies {
    /// Sets the energies of a fed vector that was computed on a device, or refuses it.
    ///
    /// # Errors
    /// [`ReduceError::NonFinite`] names the rank and the slot.
    pub(super) fn set_fed(&mut self, sums: &[[f64; 2]], slots: &[Slot], rank: usize) -> Result<(), ReduceError> {
        if let Some(bad) = sums.iter().position(|[energy, _]| !energy.is_finite()) {
            return Err(ReduceError::NonFinite { rank, slot: slots[bad].path().to_owned() });
        }
        self.fed.clear();
        self.fed.extend(sums.iter().map(|[energy, _]| energy));
        Ok(())
    }

    /// Sets the energy that has entered the residual.
    pub(super) fn set_entered(&mut self, entered: impl Iterator<Item = f64>) {
        self.residual.entered = entered.sum();
    }

    /// Sets the energy of the residual of each slot.
    pub(super) fn set_left(&mut self, left: Vec<f64>) {
        self.left = left;
        self.residual.left = self.left.iter().sum();
    }

    /// Subtracts the contribution of the last exchange from the fed vector, on the host or on its device, and masks its velocity. Returns
    /// whether the remainder is finite.
    pub(super) fn subtract<R: Reducer>(
        &mut self,
        inner: &mut R,
        slots: &[Slot],
        vector: &mut [f32],
        mut device: Option<DevicePart<'_>>,
        mut velocity: SentVelocity<'_>,
    ) -> bool {
        self.kept.clear();
        self.kept.resize(slots.len(), SentStatistics::default());
        let device = device.as_mut().map(DevicePart::reborrow);
        let mut input = SentInput::new(slots, vector, device, &self.fed, &mut self.kept);
        input.velocity = velocity.reborrow();
        let finite = inner.subtract_sent(&mut input) & input.settle();
        self.left.clear();
        self.left.extend(self.fed.iter().zip(&self.kept).map(|(energy, kept)| (energy - kept.energy).max(0.0)));
        self.residual.left = self.left.iter().sum();
        finite
    }

    /// Subtracts the contribution of an exchange whose input is on a device, and stages the residual, times `rate` in (0, 1]: there if the reducer
    /// inside subtracts there, and otherwise on the host, where it has read the vector. `velocity` is in the same place.
    ///
    /// # Errors
    /// [`ReduceError::NonFinite`] if the residual is not finite, [`ReduceError::Device`] if the device fails.
    pub(super) fn subtract_and_stage<R: Reducer>(
        &mut self,
        (inner, residual): (&mut R, &mut Residual),
        (slots, rate): (&[Slot], f32),
        input: &mut dyn Arriving,
        velocity: SentVelocity<'_>,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let (len, rank) = (slots.last().map_or(0, |slot| slot.range().end), comm.rank());
        if inner.subtracts_on_device() {
            let finite = self.subtract(inner, slots, &mut [], input.device(0..len, comm), velocity);
            let mut device = input.device(0..len, comm).expect("a vector on a device");
            let scaled = if rate == 1.0 { Ok(()) } else { device.scale(rate) };
            let next = scaled.and_then(|()| device.take()).map_err(|source| ReduceError::Device { rank, source })?;
            if !finite {
                check_finite(&next.fetch(), slots, rank)?;
            }
            residual.stage_on_device(next);
        } else {
            let next = residual.next_mut();
            next.clear();
            next.extend_from_slice(input.wait(0..len, comm));
            if !self.subtract(inner, slots, next, None, velocity) {
                check_finite(next, slots, rank)?;
            }
            if rate != 1.0 {
                next.iter_mut().for_each(|left| *left *= rate);
            }
            residual.stage();
        }
        if inner.discards_residual() {
            residual.restore_zeros(len);
            self.discard();
        }
        residual.hold(&absent(slots));
        Ok(())
    }

    /// Sets the energies of a residual that a controller has discarded.
    pub(super) fn discard(&mut self) {
        self.left.fill(0.0);
        self.residual.left = 0.0;
    }

    pub(super) fn report(&self, report: &mut Report) {
        report.put_residual_energy(self.residual, &self.left);
    }
}
