//! Radix search for the `k`-th largest magnitude: core's `Cut::find`, with the same three histograms of 11, 10 and 10 bits.
//!
//! Counts are whole numbers, so the order of atomic additions does not matter. Nothing is read by the host.

use cubecl::prelude::*;

use crate::bits::magnitude;
use crate::run::{Run, TILE, Vector};

pub(crate) const BINS: usize = 2048;

/// Words of a cut on the device: the magnitude bits found so far (in the end those of the cut), how many magnitudes are above, `k`, how
/// many equal to the cut are kept (the first ones), and how many values are kept in all.
pub(crate) const CUT: usize = 5;
/// Word of the cut that holds the number of kept values.
pub(crate) const KEPT: usize = 4;

/// Counts the magnitudes of a part of `x` that begin with the bits found so far, by their next bits. All units of the cube call it.
#[cube]
pub(crate) fn tally(
    x: &[f32],
    bins: &Shared<[Atomic<u32>]>,
    start: usize,
    end: usize,
    prefix: u32,
    #[comptime] shift: u32,
    #[comptime] width: u32,
    #[comptime] units: u32,
) {
    let mut bin = UNIT_POS as usize;
    while bin < comptime!(1usize << width) {
        bins[bin].store(0u32);
        bin += comptime!(units as usize);
    }
    sync_cube();
    let mut at = start + UNIT_POS as usize;
    while at < end {
        let m = magnitude(x[at]);
        if m >> comptime!(shift + width) == prefix {
            bins[((m >> shift) & comptime!((1u32 << width) - 1)) as usize].fetch_add(1u32);
        }
        at += comptime!(units as usize);
    }
    sync_cube();
}

/// Finds the bin of the `k`-th largest magnitude. `found` holds the bits found so far, and how many magnitudes are above; the bits of the bin
/// are added. All units of the cube call it.
#[cube]
pub(crate) fn descend(
    bins: &Shared<[Atomic<u32>]>,
    sums: &mut Shared<[u32]>,
    found: &mut Shared<[u32]>,
    k: u32,
    #[comptime] width: u32,
    #[comptime] units: u32,
) {
    let share = comptime!((1usize << width) / units as usize);
    let first = UNIT_POS as usize * share;
    let mut sum = 0u32;
    for i in 0..share {
        sum += bins[first + i].load();
    }
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS == 0u32 {
        let mut above = found[1];
        // From the highest: the units' shares, then the bins of one share.
        let mut unit = comptime!(units - 1).runtime();
        while unit > 0u32 && above + sums[unit as usize] < k {
            above += sums[unit as usize];
            unit -= 1u32;
        }
        let low = unit * comptime!((1u32 << width) / units);
        let mut bin = low + comptime!((1u32 << width) / units - 1);
        while bin > low && above + bins[bin as usize].load() < k {
            above += bins[bin as usize].load();
            bin -= 1u32;
        }
        found[0] = (found[0] << width) | bin;
        found[1] = above;
    }
    sync_cube();
}

/// Counts one level of the search, of one tile a cube.
#[cube(launch)]
pub(crate) fn histogram(
    x: &[f32],
    cut: &[u32],
    counts: &[Atomic<u32>],
    #[comptime] shift: u32,
    #[comptime] width: u32,
    #[comptime] units: u32,
) {
    let bins = comptime!(1usize << width);
    let local = Shared::<[Atomic<u32>]>::new_slice(bins);
    let start = CUBE_POS * comptime!(TILE);
    let end = select(start + comptime!(TILE) < x.len(), start + comptime!(TILE), x.len());
    tally(x, &local, start, end, cut[0], shift, width, units);
    let mut bin = UNIT_POS as usize;
    while bin < bins {
        let count = local[bin].load();
        if count > 0u32 {
            counts[bin].fetch_add(count);
        }
        bin += comptime!(units as usize);
    }
}

/// Finds the bin of the `k`-th largest, and clears the counts. One cube.
#[cube(launch)]
pub(crate) fn find(
    counts: &mut [u32],
    cut: &mut [u32],
    #[comptime] width: u32,
    #[comptime] last: bool,
    #[comptime] units: u32,
) {
    let local = Shared::<[Atomic<u32>]>::new_slice(comptime!(1usize << width));
    let mut sums = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let mut found = Shared::<[u32]>::new_slice(2usize);
    let share = comptime!((1usize << width) / units as usize);
    let first = UNIT_POS as usize * share;
    for i in 0..share {
        local[first + i].store(counts[first + i]);
        counts[first + i] = 0u32;
    }
    if UNIT_POS == 0u32 {
        found[0] = cut[0];
        found[1] = cut[1];
    }
    sync_cube();
    descend(&local, &mut sums, &mut found, cut[2], width, units);
    if UNIT_POS == 0u32 {
        cut[0] = found[0];
        cut[1] = found[1];
        if comptime!(last) {
            cut[3] = ties_of(&found, cut[2]);
        }
    }
}

/// Number of ties to keep. If fewer than `k` magnitudes are above 0, all of them are kept, and no ties.
#[cube]
pub(crate) fn ties_of(found: &Shared<[u32]>, k: u32) -> u32 {
    select(found[0] == 0u32, 0u32, k - found[1])
}

/// Queues the search: a cut that keeps the `k` largest magnitudes, ties to the lowest index, without zeros.
pub(crate) fn largest(run: &Run, x: &Vector, k: usize) -> Vector {
    let (units, dim) = (run.units(), run.dim());
    let cut = run.upload_words(&[0, 0, k as u32, 0, 0]);
    if k >= x.len() {
        // Every magnitude above 0.
        return cut;
    }
    let counts = run.zeros(BINS);
    for (shift, width) in [(20, 11), (10, 10), (0, 10)] {
        let cubes = run.cubes(x.len().div_ceil(TILE));
        histogram::launch(run.launch(), cubes, dim, x.arg(), cut.arg(), counts.arg(), shift, width, units);
        let one = CubeCount::new_single();
        find::launch(run.launch(), one, dim, counts.arg(), cut.arg(), width, shift == 0, units);
    }
    cut
}

/// A cut that keeps every magnitude of at least `floor`, which is above 0.
pub(crate) fn at_least(run: &Run, floor: u32) -> Vector {
    run.upload_words(&[floor - 1, 0, 0, 0, 0])
}
