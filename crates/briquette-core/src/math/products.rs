//! Products of a matrix with a few columns, in three forms. They are written out instead of using a library: with one to eight columns a
//! product reads each matrix value once and is bound by memory bandwidth. The order of additions is fixed, so that all machines compute the
//! same bits.
//!
//! Factors here are `columns × n`, each column contiguous. Messages and state hold them transposed.

/// Columns processed in one pass over a row.
const GROUP: usize = 4;
/// Partial sums of a product of two rows.
const LANES: usize = 16;
/// Initial value of a sum: adding to it keeps the sign of a zero.
const NOTHING: [f32; LANES] = [-0.0; LANES];
/// Rows added to the columns at a time.
const ROWS: usize = 4;

/// Transposes `n × columns` to `columns × n`.
pub(super) fn columns_of(rows: &[f32], columns: usize, out: &mut Vec<f32>) {
    let n = rows.len() / columns;
    out.clear();
    out.resize(rows.len(), 0.0);
    for (column, out) in out.chunks_exact_mut(n).enumerate() {
        out.iter_mut().zip(rows.iter().skip(column).step_by(columns)).for_each(|(out, v)| *out = *v);
    }
}

/// Transposes `columns × n` to `n × columns`.
pub(super) fn rows_of(columns: &[f32], count: usize, out: &mut [f32]) {
    let n = out.len() / count;
    for (column, values) in columns.chunks_exact(n).enumerate() {
        out.iter_mut().skip(column).step_by(count).zip(values).for_each(|(out, v)| *out = *v);
    }
}

/// Computes `P = M Q`: `p` is `n × columns`, `q` is `columns × m`. Sums are kept in lanes, which are added in pairs.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn project_left(matrix: &[f32], q: &[f32], p: &mut [f32], columns: usize) {
    let m = q.len() / columns;
    for (row, p) in matrix.chunks_exact(m).zip(p.chunks_exact_mut(columns)) {
        for (q, p) in q.chunks(GROUP * m).zip(p.chunks_mut(GROUP)) {
            match p.len() {
                1 => dots::<1>(row, q, p),
                2 => dots::<2>(row, q, p),
                3 => dots::<3>(row, q, p),
                _ => dots::<GROUP>(row, q, p),
            }
        }
    }
}

/// Multiplies a row by `C` columns.
#[inline(always)]
fn dots<const C: usize>(row: &[f32], q: &[f32], out: &mut [f32]) {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let columns: [_; C] = std::array::from_fn(|c| q[c * row.len()..][..row.len()].as_chunks::<LANES>());
    let mut sums = [[0.0_f32; LANES]; C];
    for (i, x) in chunks.iter().enumerate() {
        for (sums, (q, _)) in sums.iter_mut().zip(&columns) {
            for ((sum, x), q) in sums.iter_mut().zip(x).zip(&q[i]) {
                *sum += x * q;
            }
        }
    }
    for c in 0..C {
        let mut sums = sums[c];
        sums.iter_mut().zip(rest).zip(columns[c].1).for_each(|((sum, x), q)| *sum += x * q);
        out[c] = total(sums);
    }
}

/// Sums the lanes in pairs, with fixed widths: the compiler then keeps the lanes in registers.
#[inline(always)]
fn total(sums: [f32; LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| sums[i] + sums[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Computes `Q = Mᵀ P`: `q` is `columns × m`, `p` is `n × columns`. Every sum is in the order of rows.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn project_right(matrix: &[f32], p: &[f32], q: &mut [f32], columns: usize) {
    let m = q.len() / columns;
    q.fill(0.0);
    for (rows, p) in matrix.chunks(ROWS * m).zip(p.chunks(ROWS * columns)) {
        for (column, q) in q.chunks_exact_mut(m).enumerate() {
            if rows.len() == ROWS * m {
                add_rows::<ROWS>(rows, std::array::from_fn(|row| p[row * columns + column]), q);
            } else {
                let each = rows.chunks_exact(m).zip(p.chunks_exact(columns));
                each.for_each(|(row, p)| add_rows::<1>(row, [p[column]], q));
            }
        }
    }
}

#[inline(always)]
fn add_rows<const R: usize>(rows: &[f32], weights: [f32; R], out: &mut [f32]) {
    let rows: [_; R] = std::array::from_fn(|row| rows[row * out.len()..][..out.len()].as_chunks::<LANES>());
    add_scaled::<true>(&rows, &weights, out);
}

/// Adds weighted slices, in order, to `out` or overwrites it. Slices are cut into whole lanes and a remainder.
#[inline(always)]
fn add_scaled<const ONTO: bool>(slices: &[(&[[f32; LANES]], &[f32])], weights: &[f32], out: &mut [f32]) {
    let (chunks, rest) = out.as_chunks_mut::<LANES>();
    for (i, out) in chunks.iter_mut().enumerate() {
        let mut sums = if ONTO { *out } else { NOTHING };
        for ((slice, _), weight) in slices.iter().zip(weights) {
            for (sum, v) in sums.iter_mut().zip(&slice[i]) {
                *sum += v * weight;
            }
        }
        *out = sums;
    }
    if !ONTO {
        rest.copy_from_slice(&NOTHING[..rest.len()]);
    }
    for ((_, slice), weight) in slices.iter().zip(weights) {
        for (sum, v) in rest.iter_mut().zip(*slice) {
            *sum += v * weight;
        }
    }
}

/// Computes `M = P Qᵀ`: `p` is `n × columns`, `q` is `columns × m`. Every sum is in the order of columns.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn expand(p: &[f32], q: &[f32], matrix: &mut [f32], columns: usize) {
    let m = q.len() / columns;
    for (row, p) in matrix.chunks_exact_mut(m).zip(p.chunks_exact(columns)) {
        for (group, (q, p)) in q.chunks(GROUP * m).zip(p.chunks(GROUP)).enumerate() {
            match (group, p.len()) {
                (0, 1) => combine::<false, 1>(q, p, row),
                (0, 2) => combine::<false, 2>(q, p, row),
                (0, 3) => combine::<false, 3>(q, p, row),
                (0, _) => combine::<false, GROUP>(q, p, row),
                (_, 1) => combine::<true, 1>(q, p, row),
                (_, 2) => combine::<true, 2>(q, p, row),
                (_, 3) => combine::<true, 3>(q, p, row),
                (_, _) => combine::<true, GROUP>(q, p, row),
            }
        }
    }
}

#[inline(always)]
fn combine<const ONTO: bool, const C: usize>(q: &[f32], p: &[f32], out: &mut [f32]) {
    let q: [_; C] = std::array::from_fn(|c| q[c * out.len()..][..out.len()].as_chunks::<LANES>());
    add_scaled::<ONTO>(&q, &p[..C], out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(len: usize, seed: f32) -> Vec<f32> {
        (0..len).map(|i| ((i as f32 + seed) * 0.37).sin()).collect()
    }

    /// Returns shapes with and without whole lanes, rows and groups.
    fn shapes() -> impl Iterator<Item = (usize, usize, usize)> {
        let sides = [(1, 1), (3, 5), (4, 16), (7, 40), (9, 33)];
        sides.into_iter().flat_map(|(n, m)| (1..=9).map(move |columns| (n, m, columns)))
    }

    #[test]
    fn products_by_hand() {
        // M = [1 2; 3 4; 5 6], Q = [1 0; 1 10], P = [1 1; 0 1; 2 0].
        let (matrix, q, p) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, 1.0, 10.0], [1.0, 1.0, 0.0, 1.0, 2.0, 0.0]);
        let (mut of_q, mut left, mut right) = (Vec::new(), [0.0; 6], [0.0; 4]);
        columns_of(&q, 2, &mut of_q);
        assert_eq!(of_q, [1.0, 1.0, 0.0, 10.0]);
        project_left(&matrix, &of_q, &mut left, 2);
        assert_eq!(left, [3.0, 20.0, 7.0, 40.0, 11.0, 60.0]);
        project_right(&matrix, &p, &mut right, 2);
        // Columns (1·1 + 5·2, 2·1 + 6·2) and (1 + 3, 2 + 4).
        assert_eq!(right, [11.0, 14.0, 4.0, 6.0]);
        let (mut back, mut whole) = ([0.0; 4], [0.0; 6]);
        rows_of(&right, 2, &mut back);
        assert_eq!(back, [11.0, 4.0, 14.0, 6.0]);
        expand(&p, &right, &mut whole, 2);
        assert_eq!(whole, [15.0, 20.0, 4.0, 6.0, 22.0, 28.0]);
    }

    #[test]
    fn sums_over_rows_and_columns_have_the_bits_of_plain_loops() {
        for (n, m, columns) in shapes() {
            let (matrix, p, q) = (values(n * m, 0.0), values(n * columns, 5.0), values(columns * m, 9.0));
            let (mut right, mut twin) = (vec![1.0; columns * m], vec![0.0_f32; columns * m]);
            project_right(&matrix, &p, &mut right, columns);
            for (i, j, c) in (0..n).flat_map(|i| (0..m).flat_map(move |j| (0..columns).map(move |c| (i, j, c)))) {
                twin[c * m + j] += matrix[i * m + j] * p[i * columns + c];
            }
            assert_eq!(right, twin, "{n} × {m}, {columns}");
            let mut whole = vec![1.0; n * m];
            expand(&p, &q, &mut whole, columns);
            for (at, value) in whole.iter().enumerate() {
                let (i, j) = (at / m, at % m);
                let sum: f32 = (0..columns).map(|c| p[i * columns + c] * q[c * m + j]).sum();
                assert_eq!(value.to_bits(), sum.to_bits(), "{n} × {m}, {columns}");
            }
        }
    }

    #[test]
    fn a_product_of_rows_is_that_of_f64_to_rounding() {
        for (n, m, columns) in shapes() {
            let (matrix, q, mut left) = (values(n * m, 0.0), values(columns * m, 9.0), vec![1.0; n * columns]);
            project_left(&matrix, &q, &mut left, columns);
            for (at, value) in left.iter().enumerate() {
                let (i, c) = (at / columns, at % columns);
                let exact: f64 = (0..m).map(|j| f64::from(matrix[i * m + j]) * f64::from(q[c * m + j])).sum();
                assert!((f64::from(*value) - exact).abs() < 1e-6 * m as f64, "{n} × {m}, {columns}: {value} {exact}");
            }
        }
    }
}
