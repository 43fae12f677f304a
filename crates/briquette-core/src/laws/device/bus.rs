//! The bus and the queue of a device that is host memory: counts, and failures on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::HostDevice;
use crate::error::DeviceError;
use crate::seam::OnDevice;

/// Operations whose result is on the host.
const WAITS: [&str; 11] = [
    "fetch",
    "energies",
    "kept_energy",
    "fed_energies",
    "total",
    "subtract_velocity",
    "encode",
    "is_average_finite",
    "subtracted",
    "left_factor",
    "right_factor",
];

/// The bytes so far, and the number of operations that succeed before one fails.
#[derive(Debug, Default)]
pub(super) struct Bus {
    pub(super) down: usize,
    pub(super) up: usize,
    /// Operations that waited for the device.
    pub(super) waits: usize,
    /// The most encodings that were on their way at once.
    pub(super) most_started: usize,
    pub(super) left: Option<usize>,
    /// Set if only one operation fails.
    pub(super) is_once: bool,
    /// A clock, and the seconds by which an operation advances it.
    pub(super) clock: Arc<AtomicU64>,
    pub(super) seconds: Option<fn(&str) -> u64>,
}

impl Bus {
    /// Counts an operation, or fails.
    pub(super) fn run(&mut self, operation: &'static str) -> OnDevice<()> {
        self.waits += usize::from(WAITS.contains(&operation));
        self.clock.fetch_add(self.seconds.map_or(0, |seconds| seconds(operation)), Ordering::Relaxed);
        let fails = self.left == Some(0);
        self.left = if fails && self.is_once { None } else { self.left.map(|left| left.saturating_sub(1)) };
        if fails { Err(DeviceError::new("host twin", operation, "the device is lost")) } else { Ok(()) }
    }
}

impl HostDevice {
    /// Sets the number of operations that succeed before all fail. Operations on packed vectors count as well.
    pub fn fail_after(&mut self, operations: usize) {
        self.bus().left = Some(operations);
    }

    /// Sets the number of operations that succeed before one fails.
    pub fn fail_once_after(&mut self, operations: usize) {
        (self.bus().left, self.bus().is_once) = (Some(operations), true);
    }

    /// Sets a clock that each operation advances by `seconds` of its name.
    pub fn set_clock(&mut self, clock: Arc<AtomicU64>, seconds: fn(&str) -> u64) {
        (self.bus().clock, self.bus().seconds) = (clock, Some(seconds));
    }

    /// Returns the bytes from the device to the host.
    pub fn down(&self) -> usize {
        self.bus().down
    }

    /// Returns the bytes from the host to the device.
    pub fn up(&self) -> usize {
        self.bus().up
    }

    /// Returns the number of operations that waited for the device.
    pub fn waits(&self) -> usize {
        self.bus().waits
    }

    /// Returns the largest number of encodings that were on their way at once.
    pub fn most_started(&self) -> usize {
        self.bus().most_started
    }
}
