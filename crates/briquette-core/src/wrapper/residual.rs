//! Residual or velocity: a vector that a wrapper keeps until the next exchange, on the host or on the device of its input.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::ReduceError;
use crate::seam::{DeviceMemory, DevicePart, OnDevice};
use crate::state::Staged;
use crate::state::fields::Cell;

/// A staged vector that is in one place at a time: on the host, or on a device if the last exchange was there.
#[derive(Debug, Default)]
pub(super) struct Residual {
    /// Empty while the residual is on a device.
    host: Staged<Vec<f32>>,
    device: Staged<Option<Box<dyn DeviceMemory>>>,
}

impl Residual {
    /// Moves the residual to the host, and returns it with storage for the next one, both of length `len`.
    ///
    /// # Errors
    /// [`ReduceError::Length`] if it has another length.
    pub(super) fn on_host(&mut self, len: usize) -> Result<(&[f32], &mut [f32]), ReduceError> {
        if let Some(device) = self.device.now() {
            let values = device.fetch();
            self.host.set(values);
            self.device.set(None);
        }
        self.host.fit(len)?;
        let (now, next) = self.host.both();
        Ok((now, next))
    }

    /// Moves the residual to the device of `vector`, and returns it unless all values are 0.
    ///
    /// # Errors
    /// [`DeviceError`](crate::error::DeviceError) if the device fails.
    pub(super) fn on_device(&mut self, vector: &mut DevicePart<'_>) -> OnDevice<Option<&dyn DeviceMemory>> {
        // A dense exchange on the host leaves zeros.
        if self.host.now().iter().any(|value| value.to_bits() != 0) {
            self.device.set(Some(vector.upload(self.host.now())?));
            self.host.set(Vec::new());
        }
        Ok(self.device.now().as_deref())
    }

    /// Returns the next residual on the host.
    pub(super) fn next_mut(&mut self) -> &mut Vec<f32> {
        self.host.next_mut()
    }

    /// Stages the next residual on the host.
    pub(super) fn stage(&mut self) {
        self.host.stage();
    }

    /// Stages a next residual on the device.
    pub(super) fn stage_on_device(&mut self, next: Box<dyn DeviceMemory>) {
        *self.device.next_mut() = Some(next);
        self.device.stage();
    }

    /// Sets all `len` values of the staged residual to 0.
    pub(super) fn restore_zeros(&mut self, len: usize) {
        if self.device.is_staged() {
            self.device.next_mut().iter_mut().for_each(|next| next.restore(None, std::slice::from_ref(&(0..len))));
            self.device.stage();
        } else {
            self.host.next_mut().fill(0.0);
            self.host.stage();
        }
    }

    /// Reverts the staged residual in these ranges.
    pub(super) fn hold(&mut self, ranges: &[Range<usize>]) {
        if ranges.is_empty() {
            return;
        }
        if self.device.is_staged() {
            let (now, next) = self.device.both();
            next.iter_mut().for_each(|next| next.restore(now.as_deref(), ranges));
            self.device.stage();
        } else if let (true, Some(device)) = (self.host.is_staged(), self.device.now()) {
            let now = device.fetch();
            let next = self.host.next_mut();
            ranges.iter().for_each(|range| next[range.clone()].copy_from_slice(&now[range.clone()]));
            self.host.stage();
        } else {
            self.host.hold(ranges);
        }
    }
}

impl Cell for Residual {
    type Value = Vec<f32>;

    fn now(&self) -> Cow<'_, Vec<f32>> {
        match self.device.now() {
            Some(device) => Cow::Owned(device.fetch()),
            None => Cow::Borrowed(self.host.now()),
        }
    }

    fn set(&mut self, value: Vec<f32>) {
        self.host.set(value);
        self.device.set(None);
    }

    fn commit(&mut self) {
        let [host, device] = [self.host.is_staged(), self.device.is_staged()];
        self.host.commit();
        self.device.commit();
        if device {
            self.host.set(Vec::new());
            *self.device.next_mut() = None;
        } else if host {
            self.device.set(None);
        }
    }

    fn discard(&mut self) {
        self.host.discard();
        self.device.discard();
    }
}
