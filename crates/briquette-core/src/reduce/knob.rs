//! Knob of a reducer: the compression ratio that a [controller](crate::control::Controller) sets, for the whole vector or per slot, and the
//! energy that other ratios would keep.

use crate::{CompressionFactor, Key, Slot};

/// Nominal compression ratios of one exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Levels<'a> {
    /// The reducer's own setting, rounded to the nearest value that its knob has.
    #[default]
    Own,
    /// One ratio for the whole vector; 1 is dense.
    All(CompressionFactor),
    /// One ratio per slot, in layout order.
    PerSlot(&'a [CompressionFactor]),
}

impl Levels<'_> {
    /// Returns whether these levels request no compression.
    pub fn is_dense(self) -> bool {
        match self {
            Levels::Own => false,
            Levels::All(factor) => factor.is_dense(),
            Levels::PerSlot(factors) => factors.iter().all(|factor| factor.is_dense()),
        }
    }
}

/// Input of a probe: a vector and the ratios to try on it.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// This rank's vector.
    pub input: &'a [f32],
    /// The tensors inside `input`.
    pub slots: &'a [Slot],
    /// The key of the following round.
    pub key: Key,
    /// This rank.
    pub rank: usize,
    /// Ratios to probe, from the smallest to the largest.
    pub factors: &'a [CompressionFactor],
    /// Set if the energies of each slot are needed; only where [`Knob::per_slot`] holds.
    pub per_slot: bool,
}

/// Energies of a vector and of its compressed forms: one row for the whole vector, or one row per slot. They can be summed over ranks and
/// concatenated or summed over buckets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Energies {
    /// `1 + factors` numbers per row.
    numbers: Vec<f64>,
    factors: usize,
}

impl Energies {
    /// Returns an empty table: no rows and no factors.
    pub const fn new() -> Self {
        Energies { numbers: Vec::new(), factors: 0 }
    }

    /// Removes all rows and sets the number of factors.
    pub fn clear(&mut self, factors: usize) {
        self.factors = factors;
        self.numbers.clear();
    }

    /// Appends a row for a vector of this energy, with kept energies of 0.
    pub fn push(&mut self, norm2: f64) {
        self.numbers.push(norm2);
        self.numbers.resize(self.numbers.len() + self.factors, 0.0);
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.numbers.len() / (1 + self.factors)
    }

    /// Returns `‖x‖²` of a row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn norm2(&self, row: usize) -> f64 {
        self.numbers[row * (1 + self.factors)]
    }

    /// Returns `‖x‖² − ‖x − C(x)‖²` of a row for each factor, in order.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn kept(&self, row: usize) -> &[f64] {
        &self.numbers[row * (1 + self.factors) + 1..][..self.factors]
    }

    /// Returns the same numbers as [`kept`](Self::kept), mutable.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn kept_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.numbers[row * (1 + self.factors) + 1..][..self.factors]
    }

    /// Returns all numbers, row by row.
    pub(crate) fn numbers(&mut self) -> &mut Vec<f64> {
        &mut self.numbers
    }

    /// Writes the sum of all rows, which describes the whole vector; empty without rows.
    pub(crate) fn whole(&self, out: &mut Vec<f64>) {
        out.clear();
        for row in self.numbers.chunks_exact(1 + self.factors) {
            out.resize(row.len(), 0.0);
            out.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
    }

    /// Appends the rows of a part if each slot has a row; otherwise adds the part's only row to the only row here.
    pub(crate) fn append(&mut self, part: &Energies, per_slot: bool) {
        if per_slot || self.numbers.is_empty() {
            self.numbers.extend_from_slice(&part.numbers);
        } else {
            self.numbers.iter_mut().zip(&part.numbers).for_each(|(sum, number)| *sum += number);
        }
    }
}

/// Returns the gain, `kept / total`; 1 for a zero vector. May be below 0 for compressors that amplify.
pub fn gain(kept: f64, total: f64) -> f64 {
    if total > 0.0 { kept / total } else { 1.0 }
}

/// Interface that a controller adjusts; [`Reducer::knob`](super::Reducer::knob) returns it.
///
/// Messages made while probing are cached. If the next [`reduce`](super::Reducer::reduce) has the same key, it sends the cached message of
/// the ratio that is set, per slot where slots have their own ratios.
pub trait Knob {
    /// Returns whether each slot is compressed separately, and so may have its own ratio and has its own energies.
    fn per_slot(&self) -> bool;

    /// Sets the ratios from the next exchange on, each rounded to the nearest value that the knob has.
    ///
    /// # Panics
    /// May panic on [`Levels::PerSlot`] if [`per_slot`](Knob::per_slot) does not hold or the number of slots differs.
    fn set(&mut self, levels: Levels<'_>);

    /// Writes the energy of a vector and the energy that each factor would keep. Each factor's message is derived from the previous
    /// factor's message if the compressor can do so ([`refine_into`](crate::compress::Compressor::refine_into)).
    fn probe(&mut self, probe: &Probe<'_>, out: &mut Energies);
}
