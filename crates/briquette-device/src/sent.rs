//! Energy and number of the values that a rank sent, of each slot: core's `math::subtract_sent`, for which messages are decoded in blocks of 1024
//! values.

use std::ops::Range;

use cubecl::prelude::*;

use crate::double::{removed, signed_plus};
use crate::error::DeviceError;
use crate::run::{Run, Vector};
use crate::sums::cut;
use crate::wide::Wide;

/// Values of core's blocks of a decoded message.
const BLOCK: usize = 1024;
const LANES: usize = 8;
/// Words of a result: a sum, and a count.
const WORDS: usize = 3;

/// One lane of one block a unit.
#[cube(launch)]
pub(crate) fn lanes(x: &[f32], sent: &[f32], borders: &[u32], out: &mut [u32]) {
    let unit = ABSOLUTE_POS;
    let block = unit / comptime!(LANES);
    if block + 1 < borders.len() {
        let mut at = borders[block] as usize + unit % comptime!(LANES);
        let end = borders[block + 1] as usize;
        let mut high = 0u32;
        let mut low = 0u32;
        let mut count = 0u32;
        while at < end {
            let value = sent[at];
            let sum = signed_plus(&Wide { high, low }, &removed(x[at], value));
            high = sum.high;
            low = sum.low;
            count += u32::cast_from(u32::reinterpret(value) << 1u32 != 0u32);
            at += comptime!(LANES);
        }
        out[comptime!(WORDS) * unit] = high;
        out[comptime!(WORDS) * unit + 1] = low;
        out[comptime!(WORDS) * unit + 2] = count;
    }
}

/// Sums of the lanes of each block, in order.
#[cube(launch)]
pub(crate) fn fold(lanes: &[u32], out: &mut [u32]) {
    let block = ABSOLUTE_POS;
    if comptime!(WORDS) * block < out.len() {
        let mut high = 0u32;
        let mut low = 0u32;
        let mut count = 0u32;
        for lane in 0..comptime!(LANES) {
            let at = comptime!(WORDS) * (block * comptime!(LANES) + lane);
            let sum = signed_plus(&Wide { high, low }, &Wide { high: lanes[at], low: lanes[at + 1] });
            high = sum.high;
            low = sum.low;
            count += lanes[at + 2];
        }
        out[comptime!(WORDS) * block] = high;
        out[comptime!(WORDS) * block + 1] = low;
        out[comptime!(WORDS) * block + 2] = count;
    }
}

/// Division of a vector into slots, for [`sent`]. It depends on the layout alone.
#[derive(Debug, Clone)]
pub struct Slots {
    borders: Vector,
    blocks: Vec<Range<usize>>,
    len: usize,
}

impl Slots {
    /// Creates slots of these lengths, one after another from the start of the vector.
    pub fn new(run: &Run, lengths: impl IntoIterator<Item = usize>) -> Slots {
        let (borders, blocks) = cut(lengths, BLOCK);
        let len = borders[borders.len() - 1] as usize;
        Slots { borders: run.upload_words(&borders), blocks, len }
    }
}

/// Statistics of what was sent, on the device.
#[derive(Debug, Clone)]
pub struct Sent {
    pub(crate) words: Vector,
    blocks: Vec<Range<usize>>,
}

impl Sent {
    /// Waits for `‖x‖² − ‖x − sent‖²` and the number of values sent other than 0, of each slot.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel failed.
    pub fn read(&self, run: &Run) -> Result<Vec<(f64, usize)>, DeviceError> {
        Ok(self.totals(&run.read_words(&[&self.words])?[0]))
    }

    /// Returns the statistics of each slot, from the words of this.
    pub(crate) fn totals(&self, words: &[u32]) -> Vec<(f64, usize)> {
        let results = words.as_chunks::<WORDS>().0;
        let slot = |blocks: &Range<usize>| {
            results[blocks.clone()].iter().fold((0.0, 0), |(energy, values), [high, low, count]| {
                let sum = f64::from_bits(u64::from(*high) << 32 | u64::from(*low));
                (energy + sum, values + *count as usize)
            })
        };
        self.blocks.iter().map(slot).collect()
    }
}

/// Queues the statistics of `sent`, the decoded message, in place of `x`.
///
/// # Panics
/// If lengths differ.
pub fn sent(run: &Run, x: &Vector, sent: &Vector, slots: &Slots) -> Sent {
    assert!(x.len() == sent.len() && x.len() == slots.len, "slots and both vectors have one length");
    let blocks = slots.borders.len() - 1;
    let (parts, words) = (run.empty(WORDS * LANES * blocks), run.empty(WORDS * blocks));
    if blocks > 0 {
        let (cubes, borders) = (run.cubes_for(LANES * blocks), slots.borders.arg());
        lanes::launch(run.launch(), cubes, run.dim(), x.arg(), sent.arg(), borders, parts.arg());
        fold::launch(run.launch(), run.cubes_for(blocks), run.dim(), parts.arg(), words.arg());
    }
    Sent { words, blocks: slots.blocks.clone() }
}
