//! The `k` largest magnitudes of every chunk: the zoo's `ChunkTopK`. One cube searches a chunk, so that no search spans the whole vector.

use briquette_core::CompressionRatio;
use cubecl::prelude::*;

use crate::collect::{Kept, scan, write_part};
use crate::run::{Run, Vector};
use crate::select::{BINS, CUT, descend, tally, ties_of};

/// Finds the cut of each chunk, one a cube: its magnitude bits, and how many ties are kept. `counts` are the numbers of kept values, each followed
/// by 0.
#[cube(launch)]
pub(crate) fn cut(
    x: &[f32],
    cuts: &mut [u32],
    counts: &mut [u32],
    chunk: usize,
    k: u32,
    last: u32,
    #[comptime] units: u32,
) {
    let bins = Shared::<[Atomic<u32>]>::new_slice(BINS);
    let mut sums = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let mut found = Shared::<[u32]>::new_slice(2usize);
    let chunks = cuts.len() / 2;
    let start = select(CUBE_POS < chunks, CUBE_POS * chunk, x.len());
    let end = select(x.len() - start > chunk, start + chunk, x.len());
    let k = select(CUBE_POS + 1 == chunks, last, k);
    if UNIT_POS == 0u32 {
        found[0] = 0u32;
        found[1] = 0u32;
    }
    // The first tally waits for all units.
    tally(x, &bins, start, end, 0u32.runtime(), 20u32, 11u32, units);
    descend(&bins, &mut sums, &mut found, k, 11u32, units);
    tally(x, &bins, start, end, found[0], 10u32, 10u32, units);
    descend(&bins, &mut sums, &mut found, k, 10u32, units);
    tally(x, &bins, start, end, found[0], 0u32, 10u32, units);
    descend(&bins, &mut sums, &mut found, k, 10u32, units);
    if UNIT_POS == 0u32 && CUBE_POS < chunks {
        let ties = ties_of(&found, k);
        cuts[2 * CUBE_POS] = found[0];
        cuts[2 * CUBE_POS + 1] = ties;
        counts[2 * CUBE_POS] = found[1] + ties;
        counts[2 * CUBE_POS + 1] = 0u32;
    }
}

/// Writes the kept values of one chunk a cube.
#[cube(launch)]
pub(crate) fn write(
    x: &[f32],
    cuts: &[u32],
    before: &[u32],
    indices: &mut [u32],
    values: &mut [f32],
    chunk: usize,
    #[comptime] units: u32,
) {
    let place = select(2 * CUBE_POS < cuts.len(), 2 * CUBE_POS, 0usize);
    let start = select(2 * CUBE_POS < cuts.len(), CUBE_POS * chunk, x.len());
    let end = select(x.len() - start > chunk, start + chunk, x.len());
    write_part(x, before, indices, values, start, end, cuts[place], cuts[place + 1], units);
}

/// Queues the selection. There is room for all kept values.
pub(crate) fn largest(run: &Run, x: &Vector, ratio: CompressionRatio, chunk: usize) -> Kept {
    let (units, dim) = (run.units(), run.dim());
    let chunk = chunk.max(1);
    let (chunks, rest) = (x.len().div_ceil(chunk), x.len() % chunk);
    let (k, last) = (ratio.keep(chunk), ratio.keep(if rest == 0 { chunk } else { rest }));
    let room = (chunks * k + last).saturating_sub(k);
    let before = run.empty(2 * chunks);
    let kept = Kept { cut: run.upload_words(&[0; CUT]), before, indices: run.empty(room), values: run.empty(room) };
    if chunks > 0 {
        let Kept { cut: total, before, indices, values } = &kept;
        let (cubes, cuts) = (run.cubes(chunks), run.empty(2 * chunks));
        let (k, last) = (k as u32, last as u32);
        cut::launch(run.launch(), cubes.clone(), dim, x.arg(), cuts.arg(), before.arg(), chunk, k, last, units);
        scan::launch(run.launch(), CubeCount::new_single(), dim, before.arg(), total.arg(), units);
        let (indices, values) = (indices.arg(), values.arg());
        write::launch(run.launch(), cubes, dim, x.arg(), cuts.arg(), before.arg(), indices, values, chunk, units);
    }
    kept
}
