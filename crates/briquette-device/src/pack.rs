//! Ranges of a vector, packed into a separate vector and copied back: groups of slots with separate reducers (core's `wrapper::grouped`).

use std::ops::Range;

use cubecl::prelude::*;

use crate::feed;
use crate::run::{Run, TILE, Vector};

/// Copies one tile of the packed vector a cube: from the ranges of `x`, or to the ranges of `out`. The table holds where each range starts in
/// the packed vector, the length of that vector, and where each range starts in the other vector.
#[cube(launch)]
pub(crate) fn moved(x: &[u32], table: &[u32], out: &mut [u32], #[comptime] packs: bool, #[comptime] units: u32) {
    let count = (table.len() - 1) / 2;
    let len = table[count] as usize;
    let start = CUBE_POS * comptime!(TILE);
    let mut at = start + UNIT_POS as usize;
    let mut end = start + comptime!(TILE);
    if end > len {
        end = len;
    }
    if at < end {
        // The range that holds the unit's first value.
        let mut range = 0usize;
        let mut behind = count;
        while range + 1 < behind {
            let middle = (range + behind) / 2;
            if table[middle] as usize <= at {
                range = middle;
            } else {
                behind = middle;
            }
        }
        while at < end {
            while table[range + 1] as usize <= at {
                range += 1;
            }
            let place = table[count + 1 + range] as usize + at - table[range] as usize;
            if comptime!(packs) {
                out[at] = x[place];
            } else {
                out[place] = x[at];
            }
            at += comptime!(units as usize);
        }
    }
}

/// Returns the table of these ranges, without empty ones and with neighbors joined, and the length of the packed vector.
fn table(ranges: &[Range<usize>]) -> (Vec<u32>, usize) {
    let (mut starts, mut places, mut len, mut end) = (Vec::new(), Vec::new(), 0, None);
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        if end != Some(range.start) {
            starts.push(len as u32);
            places.push(range.start as u32);
        }
        len += range.len();
        end = Some(range.end);
    }
    starts.push(len as u32);
    starts.extend(places);
    (starts, len)
}

fn launch(run: &Run, x: &Vector, ranges: &[Range<usize>], out: &Vector, packs: bool) {
    let (table, len) = table(ranges);
    let (packed, flat) = if packs { (out, x) } else { (x, out) };
    assert!(packed.len() == len, "a packed vector is as long as its ranges");
    assert!(ranges.iter().all(|range| range.end <= flat.len()), "ranges lie in their vector");
    if len > 0 {
        let (cubes, table) = (run.cubes(len.div_ceil(TILE)), run.upload_words(&table));
        moved::launch(run.launch(), cubes, run.dim(), x.arg(), table.arg(), out.arg(), packs, run.units());
    }
}

/// Returns a new vector of the values of these ranges of `x`, one after another.
///
/// # Panics
/// If a range is not inside the vector.
pub fn pack(run: &Run, x: &Vector, ranges: &[Range<usize>]) -> Vector {
    let out = run.empty(ranges.iter().map(Range::len).sum());
    launch(run, x, ranges, &out, true);
    out
}

/// Copies packed values to these ranges of `out`, which do not overlap, or sets the ranges to 0 if there are none.
///
/// # Panics
/// If a range is not inside the vector, or the packed values have another length than the ranges.
pub fn unpack(run: &Run, values: Option<&Vector>, ranges: &[Range<usize>], out: &Vector) {
    match values {
        Some(values) => launch(run, values, ranges, out, false),
        None => ranges.iter().for_each(|range| feed::clear_range(run, out, range.clone())),
    }
}
