//! Values that are not finite: found, or set to 0 with the rest of their slot.

use std::ops::Range;

use cubecl::prelude::*;

use crate::bits::magnitude;
use crate::error::DeviceError;
use crate::run::{Run, Vector};
use crate::sums::Sums;

/// Sets the values of a group to 0 if its sum, of squares or magnitudes, is not finite. A cube clears one piece.
#[cube(launch)]
pub(crate) fn cleared(x: &mut [u32], borders: &[u32], spans: &[u32], sums: &[u32], start: usize) {
    let piece = CUBE_POS;
    if piece + 1 < borders.len() {
        let mut bad = false.runtime();
        for of_group in spans[2 * piece]..spans[2 * piece + 1] {
            bad = bad || sums[2 * of_group as usize] >= 0x7ff0_0000u32;
        }
        if bad {
            let mut at = borders[piece] as usize + UNIT_POS as usize;
            let end = borders[piece + 1] as usize;
            while at < end {
                x[start + at] = 0u32;
                at += CUBE_DIM as usize;
            }
        }
    }
}

/// Sets the groups of `x` whose sums are not finite to 0. The first group starts at value `start` of `x`.
///
/// # Panics
/// If the groups end behind the vector.
pub(crate) fn clear_not_finite(run: &Run, x: &Vector, start: usize, sums: &Sums) {
    let Sums { words, groups } = sums;
    assert!(start + groups.len <= x.len(), "groups lie in the vector");
    let pieces = groups.borders.len() - 1;
    if pieces > 0 {
        let span = |range: &Range<usize>| vec![[range.start as u32, range.end as u32]; range.len()];
        let spans = groups.pieces.iter().flat_map(span).flatten().collect::<Vec<u32>>();
        let (borders, spans) = (groups.borders.arg(), run.upload_words(&spans));
        cleared::launch(run.launch(), run.cubes(pieces), run.dim(), x.arg(), borders, spans.arg(), words.arg(), start);
    }
}

/// Index of the first value that is not finite, or the largest word.
#[cube(launch)]
pub(crate) fn first_bad(x: &[f32], out: &[Atomic<u32>]) {
    let at = ABSOLUTE_POS;
    if at < x.len() {
        if magnitude(x[at]) >= 0x7f80_0000u32 {
            out[0].fetch_min(at as u32);
        }
    }
}

/// Returns the index of the first value that is not finite. Waits for the queue.
///
/// # Errors
/// [`DeviceError::Failed`] if a kernel failed.
pub fn first_not_finite(run: &Run, x: &Vector) -> Result<Option<usize>, DeviceError> {
    let index = run.read_words(&[&queue_first_bad(run, x)])?[0][0];
    Ok((index != u32::MAX).then_some(index as usize))
}

/// Queues the search for the first value that is not finite: one word, the largest if there is none.
pub(crate) fn queue_first_bad(run: &Run, x: &Vector) -> Vector {
    let out = run.upload_words(&[u32::MAX]);
    if !x.is_empty() {
        first_bad::launch(run.launch(), run.cubes_for(x.len()), run.dim(), x.arg(), out.arg());
    }
    out
}
