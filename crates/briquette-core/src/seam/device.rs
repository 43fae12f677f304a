//! Vectors in device memory: encoded, averaged and kept where they are, so that only messages cross the bus.
//!
//! A [`DeviceInput`] is a complete vector on a device. A gradient on a device that [arrives](Arriving) during the backward pass has
//! [`DeviceCopies`]. A reducer or wrapper that uses [`Arriving::device`] works on the device; any other waits for the values, which copies
//! them to the host. Every algorithm therefore accepts a device vector, and the bits of
//! messages, averages and residuals are those of a vector on the host. A mixed group of ranks, some on devices and some on hosts, agrees.
//!
//! | work | on the device if |
//! |---|---|
//! | encode | the [`DeviceVector`] has a kernel for the compressor's [encoding](crate::seam::Compressor::encoding); the host encodes kept values by a [value code](crate::seam::Compressor::value_code) |
//! | average | the rule is a mean, and the device can decode every rank's message |
//! | error feedback | the reducer inside [subtracts its contribution](crate::seam::Reducer::can_subtract_sent), and the learning rate, if the residual is inside it, is in 2⁻²⁰ to 1 |
//! | momentum correction, inner momentum | the reducer inside subtracts its contribution |
//! | norms, sums and energies of slots for a controller | always |
//! | gains of compression ratios for a controller | the device has a kernel for the sparsifier (random-k is excluded), and all probed messages together hold at most half of the values |
//! | PowerSGD | the device has kernels for its products; the host orthonormalizes the factors |
//! | slots with separate reducers (rules, `dense_below`) | always: each group is packed into a separate device vector, to which this table applies |
//! | everything else | never: the values are copied |
//!
//! [`DeviceMemory`] is a residual or a velocity that stays on the device between steps, or packed values. A checkpoint fetches it, so a run can
//! resume on the host or on a device.

mod part;
mod vector;

pub use part::DevicePart;
pub use vector::{DeviceMemory, DeviceVector, OnDevice};

use std::fmt;
use std::ops::Range;

use super::{Arriving, DevicePlace};
use crate::Session;
use crate::error::DeviceError;

/// A complete device vector as the input of an exchange.
pub struct DeviceInput<'a> {
    vector: &'a mut dyn DeviceVector,
    copies: DeviceCopies,
    /// The order of a complete vector: ranks on devices and on hosts exchange its parts in the same order.
    order: Vec<usize>,
}

impl<'a> DeviceInput<'a> {
    /// Creates an input of a vector that holds this many slots.
    pub fn new(vector: &'a mut dyn DeviceVector, slots: usize) -> Self {
        DeviceInput { vector, copies: DeviceCopies::default(), order: (0..slots).collect() }
    }

    /// As [`DeviceCopies::finish`].
    ///
    /// # Errors
    /// As for `DeviceCopies::finish`.
    pub fn finish(&mut self, average: &[f32]) -> OnDevice<()> {
        self.copies.finish(self.vector, average)
    }

    /// Returns the whole vector.
    pub(crate) fn whole(&mut self) -> DevicePart<'_> {
        let all = 0..self.vector.len();
        self.copies.part(self.vector, all)
    }

    /// Returns the failure that was recorded, if there is one.
    pub(crate) fn check(&mut self) -> OnDevice<()> {
        self.copies.check()
    }
}

/// State of the exchange of a device vector: which values are also on the host, and which of the average are on the device.
#[derive(Debug, Default)]
pub struct DeviceCopies {
    /// Copies of values on the host, and the ranges that are up to date, in order.
    host: Vec<f32>,
    fetched: Vec<Range<usize>>,
    /// Ranges of the average that were computed on the device.
    averaged: Vec<Range<usize>>,
    /// The first failure of a copy, which has aborted the session, or of a [subtraction](DevicePart::subtract) or [mask](DevicePart::mask).
    pub(crate) failed: Option<DeviceError>,
}

impl DeviceCopies {
    /// Copies values to the host, unless they are there already.
    pub fn wait(&mut self, vector: &mut dyn DeviceVector, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.host.resize(vector.len(), 0.0);
        for missing in missing(&self.fetched, range.clone()) {
            let values = &mut self.host[missing.clone()];
            let fetched = vector.fetch(missing.clone(), values);
            if fetched.is_err() {
                values.fill(0.0);
            }
            or_abort(fetched, &mut self.failed, comm);
            self.fetched.push(missing);
        }
        self.fetched.sort_by_key(|range| range.start);
        &self.host[range]
    }

    /// Returns a part of the vector.
    pub fn part<'a>(&'a mut self, vector: &'a mut dyn DeviceVector, range: Range<usize>) -> DevicePart<'a> {
        DevicePart { vector, copies: self, range }
    }

    /// Ends an exchange that succeeded: copies the parts of the average that the host computed to the device.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails, or has failed during the exchange.
    pub fn finish(&mut self, vector: &mut dyn DeviceVector, average: &[f32]) -> OnDevice<()> {
        self.check()?;
        self.put_missing(vector, average)
    }

    /// Returns the failure that was recorded, if there is one.
    fn check(&mut self) -> OnDevice<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Copies the parts of the average that are not on the device to it. All of the average is there afterwards.
    fn put_missing(&mut self, vector: &mut dyn DeviceVector, average: &[f32]) -> OnDevice<()> {
        self.averaged.sort_by_key(|range| range.start);
        for missing in missing(&self.averaged, 0..average.len()) {
            vector.put_average(missing.start, &average[missing.clone()])?;
        }
        self.averaged.clear();
        self.averaged.push(0..average.len());
        Ok(())
    }

    /// Records that values on the device have changed.
    fn changed(&mut self, range: &Range<usize>) {
        self.fetched.retain(|fetched| fetched.end <= range.start || range.end <= fetched.start);
    }
}

/// Records a failure, and aborts the session: no rank may average what was not read or computed.
pub(crate) fn or_abort(result: OnDevice<()>, failed: &mut Option<DeviceError>, comm: &mut Session) {
    if let Err(error) = result {
        comm.abort(&error.to_string());
        failed.get_or_insert(error);
    }
}

/// Returns the parts of `range` that are in none of the sorted ranges.
fn missing(sorted: &[Range<usize>], range: Range<usize>) -> Vec<Range<usize>> {
    let (mut start, mut missing) = (range.start, Vec::new());
    for there in sorted {
        missing.push(start..there.start.min(range.end));
        start = start.max(there.end);
    }
    missing.push(start..range.end);
    missing.retain(|range| !range.is_empty());
    missing
}

impl Arriving for DeviceInput<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.copies.wait(self.vector, range, comm)
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn on_device(&self) -> Option<DevicePlace> {
        Some(DevicePlace { len: self.vector.len(), is_complete: true })
    }

    fn device(&mut self, range: Range<usize>, _comm: &mut Session) -> Option<DevicePart<'_>> {
        Some(self.copies.part(self.vector, range))
    }
}

impl fmt::Debug for DeviceInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceInput").field("len", &self.vector.len()).finish_non_exhaustive()
    }
}
