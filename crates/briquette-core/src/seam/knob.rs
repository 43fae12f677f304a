//! Knob of a reducer: the compression ratio that a [controller](crate::seam::Controller) sets, for the whole vector or per slot. A knob
//! can also measure the energy (squared norm) that other ratios would keep.

use std::ops::Range;

use super::{DevicePart, OnDevice};
use crate::math::{norm2, total};
use crate::{CompressionRatio, Key, Slot};

/// Nominal compression ratios of one exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Ratios<'a> {
    /// The reducer's configured ratio.
    #[default]
    Own,
    /// One ratio for the whole vector; 1 is dense.
    All(CompressionRatio),
    /// One ratio per slot, in layout order.
    PerSlot(&'a [CompressionRatio]),
}

impl Ratios<'_> {
    /// Returns whether these ratios request no compression.
    pub fn is_dense(self) -> bool {
        match self {
            Ratios::Own => false,
            Ratios::All(ratio) => ratio.is_dense(),
            Ratios::PerSlot(ratios) => ratios.iter().all(|ratio| ratio.is_dense()),
        }
    }
}

/// Ratios to try on a vector.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// The tensors inside the vector.
    pub slots: &'a [Slot],
    /// The key of the exchange that follows.
    pub key: Key,
    /// This rank.
    pub rank: usize,
    /// Ratios to probe, from the smallest to the largest.
    pub ratios: &'a [CompressionRatio],
    /// Set if the energies of each slot are needed. Only for a knob that [compresses per slot](Knob::per_slot).
    pub per_slot: bool,
}

/// Vector of a probe.
#[derive(Debug)]
pub enum ProbeInput<'a> {
    /// In host memory.
    Host(&'a [f32]),
    /// On a device.
    Device(DevicePart<'a>),
}

impl ProbeInput<'_> {
    /// Borrows a part of the vector.
    pub fn part(&mut self, range: Range<usize>) -> ProbeInput<'_> {
        match self {
            ProbeInput::Host(input) => ProbeInput::Host(&input[range]),
            ProbeInput::Device(device) => ProbeInput::Device(device.reborrow().part(range)),
        }
    }

    /// Returns `‖x‖²`.
    ///
    /// # Errors
    /// [`DeviceError`](crate::error::DeviceError) if the device fails.
    pub fn norm2(&mut self) -> OnDevice<f64> {
        match self {
            ProbeInput::Host(input) => Ok(norm2(input)),
            ProbeInput::Device(device) => device.norm2(),
        }
    }

    /// Returns `‖x‖²` of each slot. The slots cover the vector.
    ///
    /// # Errors
    /// As [`norm2`](Self::norm2).
    pub fn energies(&mut self, slots: &[Slot]) -> OnDevice<Vec<f64>> {
        match self {
            ProbeInput::Host(input) => Ok(slots.iter().map(|slot| norm2(&input[slot.range()])).collect()),
            ProbeInput::Device(device) => device.energies(slots),
        }
    }

    /// Returns the sum of all values of a whole vector.
    pub(crate) fn total(&mut self) -> OnDevice<f64> {
        match self {
            ProbeInput::Host(input) => Ok(total(input)),
            ProbeInput::Device(device) => device.total(),
        }
    }
}

/// Energies of a vector and of its compressed forms: one row for the whole vector, or one row per slot. They can be summed over ranks and
/// concatenated or summed over buckets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Energies {
    /// `1 + ratios` numbers per row.
    numbers: Vec<f64>,
    ratios: usize,
}

impl Energies {
    /// Returns an empty table: no rows and no ratios.
    pub const fn new() -> Self {
        Energies { numbers: Vec::new(), ratios: 0 }
    }

    /// Removes all rows and sets the number of ratios.
    pub fn clear(&mut self, ratios: usize) {
        self.ratios = ratios;
        self.numbers.clear();
    }

    /// Appends a row for a vector of this energy, with kept energies of 0.
    pub fn push(&mut self, norm2: f64) {
        self.numbers.push(norm2);
        self.numbers.resize(self.numbers.len() + self.ratios, 0.0);
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.numbers.len() / (1 + self.ratios)
    }

    /// Returns `‖x‖²` of a row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn norm2(&self, row: usize) -> f64 {
        self.numbers[row * (1 + self.ratios)]
    }

    /// Returns `‖x‖² − ‖x − C(x)‖²` of a row for each ratio, in order.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn kept(&self, row: usize) -> &[f64] {
        &self.numbers[row * (1 + self.ratios) + 1..][..self.ratios]
    }

    /// Returns the same numbers as [`kept`](Self::kept), mutable.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn kept_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.numbers[row * (1 + self.ratios) + 1..][..self.ratios]
    }

    /// Returns all numbers, row by row.
    pub(crate) fn numbers(&mut self) -> &mut Vec<f64> {
        &mut self.numbers
    }

    /// Writes the sum of all rows, which describes the whole vector; empty without rows.
    pub(crate) fn whole(&self, out: &mut Vec<f64>) {
        out.clear();
        for row in self.numbers.chunks_exact(1 + self.ratios) {
            out.resize(row.len(), 0.0);
            out.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
    }

    /// Appends the rows of a part if each slot has a row. Otherwise adds the part's only row to the only row of this
    /// table.
    pub(crate) fn append(&mut self, part: &Energies, per_slot: bool) {
        if per_slot || self.numbers.is_empty() {
            self.numbers.extend_from_slice(&part.numbers);
        } else {
            self.numbers.iter_mut().zip(&part.numbers).for_each(|(sum, number)| *sum += number);
        }
    }
}

/// Returns the gain, `kept / total`, or 1 for a zero vector. Negative if the compression error exceeds the vector.
pub fn gain(kept: f64, total: f64) -> f64 {
    if total > 0.0 { kept / total } else { 1.0 }
}

/// Adjusts the compression ratio of a reducer. A controller obtains it from [`Reducer::knob`](crate::seam::Reducer::knob).
///
/// Messages made while probing are cached. If the next [`reduce`](crate::seam::Reducer::reduce) has the same key, it sends the cached message of
/// the ratio that is then set (per slot, if slots have their own ratios).
pub trait Knob {
    /// Returns whether each slot is compressed separately. Each slot may then have its own ratio, and has its own
    /// energies.
    fn per_slot(&self) -> bool;

    /// Sets the ratios from the next exchange on, each rounded to the nearest value that the knob has.
    ///
    /// # Panics
    /// May panic on [`Ratios::PerSlot`] if [`per_slot`](Knob::per_slot) does not hold or the number of slots differs.
    fn set(&mut self, ratios: Ratios<'_>);

    /// Writes the energy of a vector and the energy that each ratio would keep, and returns true. Each ratio's message may be derived from the
    /// previous one ([`refine_into`](crate::seam::Compressor::refine_into)). The numbers of a vector on a device are those on the host, but no message
    /// is cached. Returns false, with anything in `out`, if a vector on a device must be copied to the host first.
    ///
    /// # Errors
    /// [`DeviceError`](crate::error::DeviceError) if the device fails.
    fn probe(&mut self, probe: &Probe<'_>, input: ProbeInput<'_>, out: &mut Energies) -> OnDevice<bool>;
}
