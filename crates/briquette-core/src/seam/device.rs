//! Vectors in device memory: encoded, averaged and kept where they are, so that only messages cross the bus.
//!
//! A [`DeviceInput`] is a vector that [arrives](Arriving) from a device. A reducer or wrapper that uses [`Arriving::device`] works on the
//! device; any other waits for the values, which copies them to the host. So every algorithm accepts a device vector, and the bits of
//! messages, averages and residuals are those of a vector on the host. A mixed group of ranks, some on devices and some on hosts, agrees.
//!
//! | work | on the device if |
//! |---|---|
//! | encode | the [`DeviceVector`] has a kernel for the compressor's [encoding](Compressor::encoding) |
//! | average | the rule is a mean, and the device can decode every rank's message |
//! | error feedback | the reducer inside [subtracts its messages](crate::seam::Reducer::can_subtract_sent), and the residual is outside the learning rate |
//! | everything else | never: the values are copied |
//!
//! [`DeviceMemory`] is a residual that stays on the device between steps. A checkpoint fetches it, so a run continues on either side.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use super::{Arriving, Compressor};
use crate::error::DeviceError;
use crate::math::SentStatistics;
use crate::{Key, Message, Session, Slot};

/// Result of an operation on a device.
pub type OnDevice<T> = Result<T, DeviceError>;

/// A vector in the memory of a device, with room for an average.
///
/// Ranges are in values. Every operation has the bits of its host version.
pub trait DeviceVector: Send {
    /// Returns the number of values.
    fn len(&self) -> usize;

    /// Returns whether there are no values.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies these values to the host.
    ///
    /// # Errors
    /// [`DeviceError`], as for every operation, if the device fails.
    fn fetch(&mut self, range: Range<usize>, out: &mut [f32]) -> OnDevice<()>;

    /// Multiplies all values by `weight`.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn scale(&mut self, weight: f32) -> OnDevice<()>;

    /// Returns `‖vector‖²` of each slot.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn energies(&mut self, slots: &[Slot]) -> OnDevice<Vec<f64>>;

    /// Adds the residual, if there is one, to the vector, and sets [absent](Slot::is_absent) slots to 0. Returns `‖sum‖²` and `‖vector‖²` of each
    /// slot; a sum with a value that is not finite is not finite.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn add_residual(&mut self, residual: Option<&dyn DeviceMemory>, slots: &[Slot]) -> OnDevice<Vec<[f64; 2]>>;

    /// Encodes these values and returns true, or returns false if the device has no kernel for `compressor`.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn encode(
        &mut self,
        compressor: &mut dyn Compressor,
        range: Range<usize>,
        key: Key,
        out: &mut Message,
    ) -> OnDevice<bool>;

    /// Writes `Σ weight · message` to these values of the average, in the order of the messages, of which `own` is the one that was encoded
    /// here. Returns whether all are finite, or `None` if the device cannot decode one of the messages.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn average(
        &mut self,
        range: Range<usize>,
        weight: f32,
        messages: &[&Message],
        own: usize,
    ) -> OnDevice<Option<bool>>;

    /// Copies values from the host to the average, from `start` on.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn put_average(&mut self, start: usize, values: &[f32]) -> OnDevice<()>;

    /// Subtracts a message of this rank from the values that it encodes, and adds statistics of it to `kept`, one entry for each of
    /// `slots`, which tile the range. Returns whether the remainder is finite.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn subtract(
        &mut self,
        range: Range<usize>,
        message: &Message,
        slots: &[Slot],
        kept: &mut [SentStatistics],
    ) -> OnDevice<bool>;

    /// Takes the values as a residual. The vector has none afterwards.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn take(&mut self) -> OnDevice<Box<dyn DeviceMemory>>;

    /// Copies a residual from the host to this vector's device.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn upload(&mut self, values: &[f32]) -> OnDevice<Box<dyn DeviceMemory>>;
}

/// A residual in the memory of a device.
pub trait DeviceMemory: Send + fmt::Debug {
    /// Copies the values to the host.
    fn fetch(&self) -> Vec<f32>;

    /// Copies these ranges from another residual of the same device and length, or sets them to 0 if there is none.
    fn restore(&mut self, from: Option<&dyn DeviceMemory>, ranges: &[Range<usize>]);

    /// Returns itself, for its device to find the memory behind it.
    fn as_any(&self) -> &dyn Any;
}

/// A device vector as the input of an exchange.
pub struct DeviceInput<'a> {
    vector: &'a mut dyn DeviceVector,
    /// Copies of values on the host, and the ranges that are up to date.
    host: Vec<f32>,
    fetched: Vec<Range<usize>>,
    /// Ranges of the average that were computed on the device.
    averaged: Vec<Range<usize>>,
    /// The order of a complete vector: ranks on devices and on hosts exchange its parts in the same order.
    order: Vec<usize>,
    /// The first failure of a copy to the host, which has aborted the session, or of a [subtraction](DevicePart::subtract).
    failed: Option<DeviceError>,
}

impl<'a> DeviceInput<'a> {
    /// Creates an input of a vector that holds this many slots.
    pub fn new(vector: &'a mut dyn DeviceVector, slots: usize) -> Self {
        let (host, fetched, averaged, failed) = Default::default();
        DeviceInput { vector, host, fetched, averaged, order: (0..slots).collect(), failed }
    }

    /// Ends an exchange that succeeded: copies the parts of the average that the host computed to the device.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails, or has failed during the exchange.
    pub fn finish(&mut self, average: &[f32]) -> OnDevice<()> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let end = average.len();
        self.averaged.push(end..end);
        self.averaged.sort_by_key(|range| range.start);
        let mut start = 0;
        for range in self.averaged.drain(..) {
            if start < range.start {
                self.vector.put_average(start, &average[start..range.start])?;
            }
            start = range.end;
        }
        Ok(())
    }
}

impl Arriving for DeviceInput<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.host.resize(self.vector.len(), 0.0);
        if !self.fetched.iter().any(|fetched| fetched.start <= range.start && range.end <= fetched.end) {
            let values = &mut self.host[range.clone()];
            if let Err(error) = self.vector.fetch(range.clone(), values) {
                // No rank may average what was not read.
                comm.abort(&error.to_string());
                values.fill(0.0);
                self.failed.get_or_insert(error);
            }
            self.fetched.push(range.clone());
        }
        &self.host[range]
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn device(&mut self) -> Option<DevicePart<'_>> {
        let range = 0..self.vector.len();
        let (vector, fetched, averaged) = (&mut *self.vector, &mut self.fetched, &mut self.averaged);
        Some(DevicePart { input: Input { vector, fetched, averaged, failed: &mut self.failed }, range })
    }
}

impl fmt::Debug for DeviceInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceInput").field("len", &self.vector.len()).finish_non_exhaustive()
    }
}

struct Input<'a> {
    vector: &'a mut dyn DeviceVector,
    fetched: &'a mut Vec<Range<usize>>,
    averaged: &'a mut Vec<Range<usize>>,
    failed: &'a mut Option<DeviceError>,
}

/// Part of a device vector. Ranges and slots are relative to its start.
pub struct DevicePart<'a> {
    input: Input<'a>,
    range: Range<usize>,
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
        self.range == (0..self.input.vector.len())
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
        let Input { vector, fetched, averaged, failed } = &mut self.input;
        DevicePart { input: Input { vector: &mut **vector, fetched, averaged, failed }, range: self.range.clone() }
    }

    /// As [`DeviceVector::encode`], for this part.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails, as for the other operations.
    pub fn encode(&mut self, compressor: &mut dyn Compressor, key: Key, out: &mut Message) -> OnDevice<bool> {
        self.input.vector.encode(compressor, self.range.clone(), key, out)
    }

    /// As [`DeviceVector::average`], for this part.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn average(&mut self, weight: f32, messages: &[&Message], own: usize) -> OnDevice<Option<bool>> {
        let finite = self.input.vector.average(self.range.clone(), weight, messages, own)?;
        if finite.is_some() {
            self.input.averaged.push(self.range.clone());
        }
        Ok(finite)
    }

    /// As [`DeviceVector::subtract`], for this part. A failure is reported by [`DeviceInput::finish`].
    pub fn subtract(&mut self, message: &Message, slots: &[Slot], kept: &mut [SentStatistics]) -> bool {
        self.input.fetched.clear();
        let subtracted = self.input.vector.subtract(self.range.clone(), message, slots, kept);
        subtracted.unwrap_or_else(|error| {
            self.input.failed.get_or_insert(error);
            true
        })
    }

    /// As [`DeviceVector::energies`], for the [whole](DevicePart::is_whole) vector.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn energies(&mut self, slots: &[Slot]) -> OnDevice<Vec<f64>> {
        self.input.vector.energies(slots)
    }

    /// As [`DeviceVector::add_residual`], for the [whole](DevicePart::is_whole) vector.
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn add_residual(&mut self, residual: Option<&dyn DeviceMemory>, slots: &[Slot]) -> OnDevice<Vec<[f64; 2]>> {
        self.input.fetched.clear();
        self.input.vector.add_residual(residual, slots)
    }

    /// As [`DeviceVector::take`].
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn take(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        self.input.fetched.clear();
        self.input.vector.take()
    }

    /// As [`DeviceVector::upload`].
    ///
    /// # Errors
    /// As [`encode`](DevicePart::encode).
    pub fn upload(&mut self, values: &[f32]) -> OnDevice<Box<dyn DeviceMemory>> {
        self.input.vector.upload(values)
    }
}

impl fmt::Debug for DevicePart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePart").field("range", &self.range).finish_non_exhaustive()
    }
}
