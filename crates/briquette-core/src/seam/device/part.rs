//! Part of a device vector, as a reducer or wrapper uses it.

use std::fmt;
use std::ops::Range;

use super::{DeviceCopies, DeviceMemory, DeviceVector, OnDevice};
use crate::math::{LowRankPlan, Mask, SentStatistics, Velocity, all_finite};
use crate::seam::Compressor;
use crate::{Key, Layout, Message, Slot};

/// Part of a device vector. Ranges and slots are relative to its start.
pub struct DevicePart<'a> {
    pub(super) vector: &'a mut dyn DeviceVector,
    pub(super) copies: &'a mut DeviceCopies,
    pub(super) range: Range<usize>,
}

impl DevicePart<'_> {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns whether this is the whole vector.
    pub fn is_whole(&self) -> bool {
        self.range == (0..self.vector.len())
    }

    /// Returns a part of this part.
    pub fn part(self, range: Range<usize>) -> Self
    where
        Self: Sized,
    {
        DevicePart { range: self.range.start + range.start..self.range.start + range.end, ..self }
    }

    /// Borrows this part.
    pub fn reborrow(&mut self) -> DevicePart<'_> {
        DevicePart { vector: &mut *self.vector, copies: &mut *self.copies, range: self.range.clone() }
    }

    /// As [`DeviceVector::start_encoding`], for this part.
    ///
    /// # Errors
    /// [`DeviceError`](crate::error::DeviceError) if the device fails, as for the other operations.
    pub fn start_encoding(&mut self, compressor: &mut dyn Compressor, key: Key) -> OnDevice<()> {
        self.vector.start_encoding(compressor, self.range.clone(), key)
    }

    /// As [`DeviceVector::encode`], for this part.
    ///
    /// # Errors
    /// [`DeviceError`](crate::error::DeviceError) if the device fails, as for the other operations.
    pub fn encode(&mut self, compressor: &mut dyn Compressor, key: Key, out: &mut Message) -> OnDevice<bool> {
        self.vector.encode(compressor, self.range.clone(), key, out)
    }

    /// As [`DeviceVector::average`], for this part. Returns whether the average is finite, or `None` if the device cannot decode one of the messages.
    /// Waits for the device only if magnitudes in the messages do not exclude that the sum overflows.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn average(&mut self, weight: f32, messages: &[&Message], own: usize) -> OnDevice<Option<bool>> {
        if !self.vector.average(self.range.clone(), weight, messages, own)? {
            return Ok(None);
        }
        self.copies.averaged.push(self.range.clone());
        Ok(Some(is_bounded(weight, messages) || self.vector.is_average_finite(self.range.clone())?))
    }

    /// As [`DeviceVector::subtract`], for this part. A failure is reported by [`DeviceCopies::finish`](super::DeviceCopies::finish).
    pub fn subtract(&mut self, message: &Message, slots: &[Slot]) {
        self.copies.changed(&self.range);
        let subtracted = self.vector.subtract(self.range.clone(), message, slots);
        self.or_fail(subtracted.map(|()| true));
    }

    /// As [`DeviceVector::subtracted`], for the [whole](DevicePart::is_whole) vector: adds the statistics to `kept`, one entry for each slot, if anything
    /// was subtracted. A failure is reported by [`DeviceCopies::finish`](super::DeviceCopies::finish).
    pub(crate) fn subtracted(&mut self, kept: &mut [SentStatistics]) -> bool {
        if self.copies.failed.is_some() {
            return true;
        }
        let subtracted = self.vector.subtracted().map(|(sent, finite)| {
            assert!(sent.is_empty() || sent.len() == kept.len(), "every slot is subtracted, or none");
            for (kept, sent) in kept.iter_mut().zip(sent) {
                kept.energy += sent.energy;
                kept.values += sent.values;
            }
            finite
        });
        self.or_fail(subtracted)
    }

    /// As [`DeviceVector::energies`], for this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn energies(&mut self, slots: &[Slot]) -> OnDevice<Vec<f64>> {
        self.vector.energies(self.range.clone(), slots)
    }

    /// As [`DeviceVector::kept_energy`], for this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn kept_energy(&mut self, compressor: &mut dyn Compressor, key: Key) -> OnDevice<Option<f64>> {
        self.vector.kept_energy(compressor, self.range.clone(), key)
    }

    /// Returns `‖x‖²` of this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn norm2(&mut self) -> OnDevice<f64> {
        Ok(self.energies(Layout::flat(self.len()).slots())?.iter().sum())
    }

    /// As [`DeviceVector::total`], for the [whole](DevicePart::is_whole) vector.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn total(&mut self) -> OnDevice<f64> {
        self.vector.total()
    }

    /// As [`DeviceVector::accumulate`], for this part. The states are of the whole vector.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn accumulate(
        &mut self,
        velocity: Velocity,
        states: ([Option<&dyn DeviceMemory>; 2], &mut dyn DeviceMemory),
        slots: &[Slot],
    ) -> OnDevice<()> {
        self.copies.changed(&self.range);
        self.vector.accumulate(self.range.clone(), velocity, states, slots)
    }

    /// As [`DeviceVector::mask`], for this part of a velocity of the whole vector. A failure is reported by [`DeviceCopies::finish`](super::DeviceCopies::finish).
    pub fn mask(&mut self, message: &Message, mask: Mask, velocity: &mut dyn DeviceMemory) {
        if let Err(error) = self.vector.mask(self.range.clone(), message, mask, velocity) {
            self.copies.failed.get_or_insert(error);
        }
    }

    /// Returns whether a part of the average was computed on the device.
    pub fn is_averaged(&self) -> bool {
        !self.copies.averaged.is_empty()
    }

    /// As [`DeviceVector::subtract_velocity`], for the [whole](DevicePart::is_whole) vector. The parts of the average that the host computed are
    /// copied to the device first.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn subtract_velocity(
        &mut self,
        average: &[f32],
        before: Option<&dyn DeviceMemory>,
        momentum: f32,
    ) -> OnDevice<(Box<dyn DeviceMemory>, Option<usize>)> {
        self.copies.put_missing(self.vector, average)?;
        self.vector.subtract_velocity(before, momentum)
    }

    /// As [`DeviceVector::add_residual`], for this part. The residual is of the whole vector.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn add_residual(&mut self, residual: (Option<&dyn DeviceMemory>, f32), slots: &[Slot]) -> OnDevice<()> {
        self.copies.changed(&self.range);
        self.vector.add_residual(self.range.clone(), residual, slots)
    }

    /// As [`DeviceVector::fed_energies`], for the [whole](DevicePart::is_whole) vector.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn fed_energies(&mut self) -> OnDevice<Vec<[f64; 2]>> {
        self.vector.fed_energies()
    }

    /// As [`DeviceVector::scale`], for the [whole](DevicePart::is_whole) vector.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn scale(&mut self, weight: f32) -> OnDevice<()> {
        self.copies.changed(&(0..self.vector.len()));
        self.vector.scale(weight)
    }

    /// As [`DeviceVector::memory`].
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn memory(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        self.vector.memory()
    }

    /// As [`DeviceVector::left_factor`], for this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn left_factor(&mut self, plan: &LowRankPlan, q: &[f32], out: &mut Vec<f32>) -> OnDevice<bool> {
        self.vector.left_factor(self.range.clone(), plan, q, out)
    }

    /// As [`DeviceVector::right_factor`], for this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn right_factor(&mut self, plan: &LowRankPlan, p: &[f32], out: &mut [f32]) -> OnDevice<()> {
        self.vector.right_factor(self.range.clone(), plan, p, out)
    }

    /// As [`DeviceVector::put_product`], for this part and the `p` of [`right_factor`](DevicePart::right_factor). Returns whether the average is finite.
    /// Waits for the device only if the factors do not exclude that a product overflows.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn put_product(&mut self, plan: &LowRankPlan, (p, q): (&[f32], &[f32]), dense: &[f32]) -> OnDevice<bool> {
        self.vector.put_product(self.range.clone(), plan, q, dense)?;
        self.copies.averaged.push(self.range.clone());
        let [p, q, dense] = [p, q, dense].map(|values| largest(values).map(f64::from));
        let bound = p.zip(q).zip(dense).map(|((p, q), dense)| (plan.rank() as f64 * p * q).max(dense));
        Ok(bound.is_some_and(is_far_from_overflow) || self.vector.is_average_finite(self.range.clone())?)
    }

    /// As [`DeviceVector::subtract_product`], for this part. A failure is reported by [`DeviceCopies::finish`](super::DeviceCopies::finish).
    pub fn subtract_product(&mut self, plan: &LowRankPlan, slots: &[Slot]) {
        self.copies.changed(&self.range);
        let subtracted = self.vector.subtract_product(self.range.clone(), plan, slots);
        self.or_fail(subtracted.map(|()| true));
    }

    /// Records a failure for [`DeviceCopies::finish`](super::DeviceCopies::finish).
    pub(crate) fn or_fail(&mut self, finite: OnDevice<bool>) -> bool {
        finite.unwrap_or_else(|error| {
            self.copies.failed.get_or_insert(error);
            true
        })
    }

    /// As [`DeviceVector::pack`], for ranges of this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn pack(&mut self, ranges: &[Range<usize>]) -> OnDevice<Box<dyn DeviceVector>> {
        self.vector.pack(&self.in_vector(ranges))
    }

    /// As [`DeviceVector::unpack`], for ranges of this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn unpack(&mut self, ranges: &[Range<usize>], values: Option<&dyn DeviceMemory>) -> OnDevice<()> {
        self.copies.changed(&(0..self.vector.len()));
        self.vector.unpack(&self.in_vector(ranges), values)
    }

    /// As [`DeviceVector::unpack_average`], for ranges of this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn unpack_average(&mut self, ranges: &[Range<usize>], average: &dyn DeviceMemory) -> OnDevice<()> {
        let ranges = self.in_vector(ranges);
        self.vector.unpack_average(&ranges, average)?;
        self.copies.averaged.extend(ranges);
        Ok(())
    }

    /// As [`DeviceMemory::pack`], for ranges of this part of a velocity of the whole vector.
    pub fn pack_velocity(&self, ranges: &[Range<usize>], velocity: &dyn DeviceMemory) -> Box<dyn DeviceMemory> {
        velocity.pack(&self.in_vector(ranges))
    }

    /// As [`DeviceMemory::unpack`], for ranges of this part of a velocity of the whole vector.
    pub fn unpack_velocity(&self, ranges: &[Range<usize>], values: &dyn DeviceMemory, velocity: &mut dyn DeviceMemory) {
        velocity.unpack(&self.in_vector(ranges), values);
    }

    /// Returns the positions in the vector of ranges of this part.
    fn in_vector(&self, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        let start = self.range.start;
        ranges.iter().map(|range| start + range.start..start + range.end).collect()
    }

    /// As [`DeviceVector::take`].
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn take(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        self.copies.changed(&(0..self.vector.len()));
        self.vector.take()
    }

    /// As [`DeviceVector::upload`].
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn upload(&mut self, values: &[f32]) -> OnDevice<Box<dyn DeviceMemory>> {
        self.vector.upload(values)
    }
}

/// Returns whether the magnitudes in the messages show that `Σ weight · message` is finite.
fn is_bounded(weight: f32, messages: &[&Message]) -> bool {
    let sum: Option<f64> = messages.iter().map(|message| message.largest().map(f64::from)).sum();
    sum.is_some_and(|sum| is_far_from_overflow(f64::from(weight.abs()) * sum))
}

/// Returns whether a sum is finite whose terms have at most these magnitudes together: half of the range is far more than all that rounding adds.
fn is_far_from_overflow(magnitude: f64) -> bool {
    magnitude <= f64::from(f32::MAX) / 2.0
}

/// Returns the largest magnitude, or `None` if a value is not finite.
fn largest(values: &[f32]) -> Option<f32> {
    all_finite(values).then(|| values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs())))
}

impl fmt::Debug for DevicePart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePart").field("range", &self.range).finish_non_exhaustive()
    }
}
