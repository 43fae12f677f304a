//! Count-Sketch: signs and columns of consecutive coordinates, sketches and estimates.
//!
//! A polynomial of degree 3 has a constant third difference. The hashes of the coordinate `LANES` further on are therefore three
//! additions away, modulo the prime, and equal those of the polynomial exactly.

use rand::Rng;

use briquette_core::Key;

/// The Mersenne prime 2⁶¹ − 1: reducing by it takes a shift and an addition.
pub(super) const PRIME: u64 = (1 << 61) - 1;

/// Number of hashes that step side by side, in vector units.
const LANES: usize = 8;
/// Number of coordinates that are hashed at once.
const BLOCK: usize = 512;

/// Signs and columns of every coordinate, from one polynomial per row.
#[derive(Debug)]
pub(super) struct Hashes {
    /// Coefficients of degree 0, 1, 2, 3.
    pub(super) rows: Vec<[u64; 4]>,
}

impl Hashes {
    pub(super) fn new(key: Key, rows: usize) -> Self {
        let mut rng = key.block(0);
        Hashes { rows: (0..rows).map(|_| std::array::from_fn(|_| rng.random_range(0..PRIME))).collect() }
    }

    /// Writes the sketch of `x`, row by row.
    pub(super) fn sketch(&self, x: &[f32], columns: usize, table: &mut Vec<f32>) {
        table.clear();
        table.resize(self.rows.len() * columns, 0.0);
        let mut hashes = [0; BLOCK];
        for (coefficients, row) in self.rows.iter().zip(table.chunks_exact_mut(columns)) {
            let mut walk = Walk::new(coefficients);
            for x in x.chunks(BLOCK) {
                advance(&mut walk, &mut hashes);
                for (v, hash) in x.iter().zip(&hashes) {
                    row[column(*hash, columns)] += signed(*v, *hash);
                }
            }
        }
    }

    /// Writes the estimate of each coordinate: the median of its estimates over rows.
    pub(super) fn estimate(&self, table: &[f32], out: &mut [f32]) {
        let columns = table.len() / self.rows.len();
        let mut walks: Vec<Walk> = self.rows.iter().map(Walk::new).collect();
        let mut estimates = vec![[0; BLOCK]; self.rows.len()];
        let mut hashes = [0; BLOCK];
        for out in out.chunks_mut(BLOCK) {
            let rows = walks.iter_mut().zip(table.chunks_exact(columns)).zip(&mut estimates);
            for ((walk, row), estimates) in rows {
                advance(walk, &mut hashes);
                for (estimate, hash) in estimates.iter_mut().zip(&hashes) {
                    *estimate = ordered(signed(row[column(*hash, columns)], *hash).to_bits() as i32);
                }
            }
            sort_to_median(&mut estimates);
            for (out, median) in out.iter_mut().zip(&estimates[self.rows.len() / 2]) {
                *out = f32::from_bits(ordered(*median) as u32);
            }
        }
    }
}

/// Hashes of consecutive coordinates by forward differences of stride `LANES`.
struct Walk {
    /// The next hash of each lane, and its differences of order 1, 2 and 3.
    differences: [[u64; LANES]; 4],
}

impl Walk {
    /// Begins at coordinate 0.
    fn new(coefficients: &[u64; 4]) -> Self {
        let mut differences = [[0; LANES]; 4];
        for lane in 0..LANES {
            let mut values: [u64; 4] = std::array::from_fn(|n| hash(coefficients, (lane + n * LANES) as u64));
            for order in 1..4 {
                for n in (order..4).rev() {
                    values[n] = add(values[n], PRIME - values[n - 1]);
                }
            }
            for (differences, value) in differences.iter_mut().zip(values) {
                differences[lane] = value;
            }
        }
        Walk { differences }
    }
}

/// Writes the next hashes.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn advance(walk: &mut Walk, out: &mut [u64; BLOCK]) {
    let [mut value, mut first, mut second, third] = walk.differences;
    for out in out.as_chunks_mut::<LANES>().0 {
        *out = value;
        for lane in 0..LANES {
            value[lane] = add(value[lane], first[lane]);
            first[lane] = add(first[lane], second[lane]);
            second[lane] = add(second[lane], third[lane]);
        }
    }
    walk.differences = [value, first, second, third];
}

/// Sorts the rows at each place until the middle row has the median.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn sort_to_median(rows: &mut [[i32; BLOCK]]) {
    for pass in 0..=rows.len() / 2 {
        for at in 1..rows.len() - pass {
            let (below, above) = rows.split_at_mut(at);
            for (low, high) in below[at - 1].iter_mut().zip(&mut above[0]) {
                (*low, *high) = ((*low).min(*high), (*low).max(*high));
            }
        }
    }
}

/// Converts the bits of a float to an integer with the order of [`f32::total_cmp`], and back.
fn ordered(bits: i32) -> i32 {
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

/// Returns the value with the sign of its coordinate's hash, whose lowest bit is set for −1.
fn signed(value: f32, hash: u64) -> f32 {
    f32::from_bits(value.to_bits() ^ ((hash as u32) << 31))
}

/// Returns the column of a hash: all bits but the lowest, scaled.
pub(super) fn column(hash: u64, columns: usize) -> usize {
    ((u128::from(hash >> 1) * columns as u128) >> 60) as usize
}

/// Returns the polynomial's value at `i`.
pub(super) fn hash([a, b, c, d]: &[u64; 4], i: u64) -> u64 {
    multiply_add(multiply_add(multiply_add(*d, i, *c), i, *b), i, *a)
}

/// Returns `x·y + z` modulo [`PRIME`], for arguments below it.
pub(super) fn multiply_add(x: u64, y: u64, z: u64) -> u64 {
    let value = u128::from(x) * u128::from(y) + u128::from(z);
    // 2⁶¹ is 1 modulo the prime; the folded value stays below 2⁶².
    let folded = (value as u64 & PRIME) + (value >> 61) as u64;
    if folded >= PRIME { folded - PRIME } else { folded }
}

/// Returns `x + y` modulo [`PRIME`], for arguments up to it, one of them below it.
#[inline(always)]
fn add(x: u64, y: u64) -> u64 {
    let over = (x + y).wrapping_sub(PRIME);
    // A negative number is one that was not over; comparing signed numbers vectorizes everywhere.
    over.wrapping_add(if (over as i64) < 0 { PRIME } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_equal_the_polynomial_and_the_table_of_its_places() {
        for (rows, len) in [(1, 1), (3, BLOCK - 1), (5, 3 * BLOCK + 7)] {
            let hashes = Hashes::new(Key::new(len as u64), rows);
            for coefficients in hashes.rows.iter().chain(&[[0; 4], [PRIME - 1; 4], [0, 1, 0, 0]]) {
                let (mut walk, mut block, mut seen) = (Walk::new(coefficients), [0; BLOCK], Vec::new());
                for _ in 0..len.div_ceil(BLOCK) {
                    advance(&mut walk, &mut block);
                    seen.extend(block);
                }
                let expected = |i: usize| hash(coefficients, i as u64);
                assert!(seen.iter().enumerate().all(|(i, seen)| *seen == expected(i)), "{coefficients:?}");
            }
        }
    }

    #[test]
    fn the_middle_row_is_the_median_in_total_order() {
        let mut rng = Key::new(4).block(0);
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MIN_POSITIVE];
        for count in [1, 3, 5, 7, 99] {
            let mut draw = || match rng.random_range(0..14) {
                at @ 0..7 => special[at],
                _ => rng.random::<f32>() - 0.5,
            };
            let rows: Vec<[f32; BLOCK]> = (0..count).map(|_| std::array::from_fn(|_| draw())).collect();
            let mut sorted: Vec<_> = rows.iter().map(|row| row.map(|v| ordered(v.to_bits() as i32))).collect();
            sort_to_median(&mut sorted);
            for place in 0..BLOCK {
                let mut column: Vec<f32> = rows.iter().map(|row| row[place]).collect();
                column.sort_by(f32::total_cmp);
                assert_eq!(ordered(sorted[count / 2][place]) as u32, column[count / 2].to_bits(), "{count} rows");
            }
        }
    }
}
