//! The knob of a reducer: the compression ratio that a [controller](crate::control::Controller) sets, for the whole vector
//! or for each slot, and what it would keep at other ratios.

use crate::{CompressionFactor, Key, Slot};

/// Nominal compression ratios of one exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Levels<'a> {
    /// The reducer's own setting, to the nearest value its knob has.
    #[default]
    Own,
    /// One for the whole vector; 1 is dense.
    All(CompressionFactor),
    /// One for each slot, in layout order.
    PerSlot(&'a [CompressionFactor]),
}

impl Levels<'_> {
    /// Whether nothing is to be compressed.
    pub fn is_dense(self) -> bool {
        match self {
            Levels::Own => false,
            Levels::All(factor) => factor.is_dense(),
            Levels::PerSlot(factors) => factors.iter().all(|factor| factor.is_dense()),
        }
    }
}

/// What is to be probed.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// This rank's vector.
    pub input: &'a [f32],
    /// The tensors inside `input`.
    pub slots: &'a [Slot],
    /// The key of the round that follows.
    pub key: Key,
    /// This rank.
    pub rank: usize,
    /// From the smallest to the largest.
    pub factors: &'a [CompressionFactor],
    /// Whether the energies of each slot are needed; only where [`Knob::per_slot`] holds.
    pub per_slot: bool,
}

/// Energies of vectors and of what would be kept of them: a row for the whole vector, or one for each slot. They add up over
/// ranks, and over buckets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Energies {
    /// `1 + factors` numbers a row.
    numbers: Vec<f64>,
    factors: usize,
}

impl Energies {
    /// No rows and no factors.
    pub const fn new() -> Self {
        Energies { numbers: Vec::new(), factors: 0 }
    }

    /// No rows, of this many factors.
    pub fn clear(&mut self, factors: usize) {
        self.factors = factors;
        self.numbers.clear();
    }

    /// A row for a vector of this energy, of which nothing is kept yet.
    pub fn push(&mut self, norm2: f64) {
        self.numbers.push(norm2);
        self.numbers.resize(self.numbers.len() + self.factors, 0.0);
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.numbers.len() / (1 + self.factors)
    }

    /// `‖x‖²` of a row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn norm2(&self, row: usize) -> f64 {
        self.numbers[row * (1 + self.factors)]
    }

    /// `‖x‖² − ‖x − C(x)‖²` of a row for each factor, in order.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn kept(&self, row: usize) -> &[f64] {
        &self.numbers[row * (1 + self.factors) + 1..][..self.factors]
    }

    /// The same, to write.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn kept_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.numbers[row * (1 + self.factors) + 1..][..self.factors]
    }

    /// Everything, row by row.
    pub(crate) fn numbers(&mut self) -> &mut Vec<f64> {
        &mut self.numbers
    }

    /// The sum of all rows: of the whole vector; empty without rows.
    pub(crate) fn whole(&self, out: &mut Vec<f64>) {
        out.clear();
        for row in self.numbers.chunks_exact(1 + self.factors) {
            out.resize(row.len(), 0.0);
            out.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
    }

    /// Puts the rows of a part behind these where each slot has one, else adds its only row to the only one here.
    pub(crate) fn append(&mut self, part: &Energies, per_slot: bool) {
        if per_slot || self.numbers.is_empty() {
            self.numbers.extend_from_slice(&part.numbers);
        } else {
            self.numbers.iter_mut().zip(&part.numbers).for_each(|(sum, number)| *sum += number);
        }
    }
}

/// `kept / total`, the gain; 1 for a zero vector. May be below 0 for compressors that amplify.
pub fn gain(kept: f64, total: f64) -> f64 {
    if total > 0.0 { kept / total } else { 1.0 }
}

/// What a controller turns; [`Reducer::knob`](super::Reducer::knob) lends it.
///
/// The messages made while probing are kept: if the next [`reduce`](super::Reducer::reduce) has the same key, the message of
/// the factor that is set is sent, each slot's own where slots have their own.
pub trait Knob {
    /// Whether each slot may have a ratio of its own, and has energies of its own: whether it is compressed by itself.
    fn per_slot(&self) -> bool;

    /// Sets the ratios from the next exchange on, each to the nearest value that the knob has.
    ///
    /// # Panics
    /// May panic on [`Levels::PerSlot`] where [`per_slot`](Knob::per_slot) does not hold, or of another number of slots.
    fn set(&mut self, levels: Levels<'_>);

    /// Writes the energies of a vector and of what each factor would keep of it. A factor's message is made of the one before it
    /// where the compressor can ([`refine_into`](crate::compress::Compressor::refine_into)).
    fn probe(&mut self, probe: &Probe<'_>, out: &mut Energies);
}
