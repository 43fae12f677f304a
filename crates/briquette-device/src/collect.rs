//! Kept values in index order: a count for each tile, a scan over the tiles, and a second pass that writes.

use cubecl::prelude::*;

use crate::bits::magnitude;
use crate::run::{Run, TILE, Vector};

/// Counts the magnitudes of each tile above the cut, and those equal to it.
#[cube(launch)]
pub(crate) fn count(x: &[f32], cut: &[u32], counts: &mut [u32], #[comptime] units: u32) {
    let local = Shared::<[Atomic<u32>]>::new_slice(2usize);
    if UNIT_POS == 0u32 {
        local[0].store(0u32);
        local[1].store(0u32);
    }
    sync_cube();
    let floor = cut[0];
    let start = CUBE_POS * comptime!(TILE);
    let mut above = 0u32;
    let mut ties = 0u32;
    let mut at = UNIT_POS as usize;
    while at < comptime!(TILE) {
        if start + at < x.len() {
            let m = magnitude(x[start + at]);
            above += u32::cast_from(m > floor);
            ties += u32::cast_from(m == floor);
        }
        at += comptime!(units as usize);
    }
    local[0].fetch_add(above);
    local[1].fetch_add(ties);
    sync_cube();
    if UNIT_POS == 0u32 && 2 * CUBE_POS + 1 < counts.len() {
        counts[2 * CUBE_POS] = local[0].load();
        counts[2 * CUBE_POS + 1] = local[1].load();
    }
}

/// Replaces each unit's two numbers by their sums over all units up to it.
#[cube]
fn scan_units(one: &mut Shared<[u32]>, two: &mut Shared<[u32]>, #[comptime] units: u32) {
    let me = UNIT_POS as usize;
    let mut stride = 1usize;
    while stride < comptime!(units as usize) {
        let mut a = 0u32;
        let mut b = 0u32;
        if me >= stride {
            a = one[me - stride];
            b = two[me - stride];
        }
        sync_cube();
        one[me] += a;
        two[me] += b;
        sync_cube();
        stride *= 2usize;
    }
}

/// Replaces the counts of each tile by the sums of the tiles before it, and completes the cut. One cube.
#[cube(launch)]
pub(crate) fn scan(counts: &mut [u32], cut: &mut [u32], #[comptime] units: u32) {
    let tiles = counts.len() / 2;
    let mut one = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let mut two = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let me = UNIT_POS as usize;
    let share = tiles.div_ceil(comptime!(units as usize));
    let first = me * share;
    let mut a = 0u32;
    let mut b = 0u32;
    for i in 0..share {
        if first + i < tiles {
            a += counts[2 * (first + i)];
            b += counts[2 * (first + i) + 1];
        }
    }
    one[me] = a;
    two[me] = b;
    sync_cube();
    scan_units(&mut one, &mut two, units);
    let mut before_a = one[me] - a;
    let mut before_b = two[me] - b;
    for i in 0..share {
        if first + i < tiles {
            let at = 2 * (first + i);
            let above = counts[at];
            let ties = counts[at + 1];
            counts[at] = before_a;
            counts[at + 1] = before_b;
            before_a += above;
            before_b += ties;
        }
    }
    if UNIT_POS == comptime!(units - 1) {
        // There are at least as many ties as are to be kept.
        cut[4] = before_a + cut[3];
    }
}

/// Writes the kept values of a part of `x` in index order, up to the available room: those above the floor, and ties while fewer than `most` were
/// kept. `before` has the number of kept values and of ties before the cube's part. All units of the cube call it.
#[cube]
pub(crate) fn write_part(
    x: &[f32],
    before: &[u32],
    indices: &mut [u32],
    values: &mut [f32],
    start: usize,
    end: usize,
    floor: u32,
    most: u32,
    #[comptime] units: u32,
) {
    let mut one = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let mut two = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let me = UNIT_POS as usize;
    let share = (end - start).div_ceil(comptime!(units as usize));
    let first = start + me * share;
    let mut above = 0u32;
    let mut ties = 0u32;
    for i in 0..share {
        if first + i < end {
            let m = magnitude(x[first + i]);
            above += u32::cast_from(m > floor);
            ties += u32::cast_from(m == floor);
        }
    }
    one[me] = above;
    two[me] = ties;
    sync_cube();
    scan_units(&mut one, &mut two, units);
    if first < end {
        let mut above = before[2 * CUBE_POS] + one[me] - above;
        let mut ties = before[2 * CUBE_POS + 1] + two[me] - ties;
        for i in 0..share {
            if first + i < end {
                let value = x[first + i];
                let m = magnitude(value);
                let tie = m == floor;
                if m > floor || (tie && ties < most) {
                    let place = (above + select(ties < most, ties, most)) as usize;
                    if place < indices.len() {
                        indices[place] = (first + i) as u32;
                        values[place] = value;
                    }
                }
                above += u32::cast_from(m > floor);
                ties += u32::cast_from(tie);
            }
        }
    }
}

/// Writes the kept values of one tile a cube.
#[cube(launch)]
pub(crate) fn write(
    x: &[f32],
    cut: &[u32],
    before: &[u32],
    indices: &mut [u32],
    values: &mut [f32],
    #[comptime] units: u32,
) {
    let start = select(CUBE_POS * comptime!(TILE) < x.len(), CUBE_POS * comptime!(TILE), x.len());
    let end = select(start + comptime!(TILE) < x.len(), start + comptime!(TILE), x.len());
    write_part(x, before, indices, values, start, end, cut[0], cut[3], units);
}

/// Values that pass a cut, on the device: in index order, as many as there is room for.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) cut: Vector,
    pub(crate) before: Vector,
    pub(crate) indices: Vector,
    pub(crate) values: Vector,
}

impl Kept {
    /// Queues the counts and the writing of at most `room` values.
    pub(crate) fn collect(run: &Run, x: &Vector, cut: Vector, room: usize) -> Kept {
        let (units, tiles) = (run.units(), x.len().div_ceil(TILE));
        let before = run.empty(2 * tiles);
        if tiles > 0 {
            count::launch(run.launch(), run.cubes(tiles), run.dim(), x.arg(), cut.arg(), before.arg(), units);
            let one = CubeCount::new_single();
            scan::launch(run.launch(), one, run.dim(), before.arg(), cut.arg(), units);
        }
        Kept { cut, before, indices: run.empty(room), values: run.empty(room) }.written(run, x)
    }

    /// Queues the writing of at most `room` values of the same selection.
    pub(crate) fn with_room(&self, run: &Run, x: &Vector, room: usize) -> Kept {
        Kept { indices: run.empty(room), values: run.empty(room), ..self.clone() }.written(run, x)
    }

    fn written(self, run: &Run, x: &Vector) -> Kept {
        let tiles = x.len().div_ceil(TILE);
        if tiles > 0 && !self.indices.is_empty() {
            let Kept { cut, before, indices, values } = &self;
            let (cubes, dim, units) = (run.cubes(tiles), run.dim(), run.units());
            let (indices, values) = (indices.arg(), values.arg());
            write::launch(run.launch(), cubes, dim, x.arg(), cut.arg(), before.arg(), indices, values, units);
        }
        self
    }
}
