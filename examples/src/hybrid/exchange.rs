//! Exchanges of matrices between ranks, by rows (samples) and by columns (outputs of a layer).
//!
//! `W` ranks; `own` is a rank's [`share`] of a width. Every rank has the same number of rows, `B`.
//!
//! | exchange | from | to | a rank sends | backwards |
//! |---|---|---|---|---|
//! | [`gather_rows`] | `[B, n]` | `[W·B, n]` | `(W−1)·B·n` | [`sum_to_rows`] |
//! | [`sum_to_rows`] | `[W·B, n]` | `[B, n]` | `(W−1)·B·n` | |
//! | [`gather_columns`] | `[m, own]` | `[m, n]` | `(W−1)·m·own` | [`sum_to_columns`] |
//! | [`sum_to_columns`] | `[m, n]` | `[m, own]` | `m·(n − own)` | |
//! | [`columns_to_rows`] | `[W·B, own]` | `[B, n]` | `(W−1)·B·own` | [`rows_to_columns`] |
//! | [`rows_to_columns`] | `[B, n]` | `[W·B, own]` | `B·(n − own)` | |
//!
//! The first of each pair is for the forward pass, the second is its adjoint, which turns the gradient of the result
//! into that of the input. Gathers are the session's all-gather; everything else is its all-to-all. The sums are a
//! reduce-scatter: each rank receives the parts that it sums, and adds them in rank order. Tensors tracked by autodiff
//! must be detached before.

use std::ops::Range;

use anyhow::{Result, bail};
use briquette::core::comm::{Frame, Session};
use burn::tensor::{Device, Tensor, TensorData};

/// Returns the part of `len` rows or columns that a rank holds: parts differ by at most one.
pub fn share(len: usize, world: usize, rank: usize) -> Range<usize> {
    rank * len / world..(rank + 1) * len / world
}

/// Concatenates all ranks' rows.
///
/// # Errors
/// Those of the session; another rank has another number of rows.
pub fn gather_rows(comm: &mut Session, rows: Tensor<2>) -> Result<Tensor<2>> {
    let shape = rows.dims();
    Ok(Tensor::cat(gather(comm, rows, |_| shape)?, 0))
}

/// Sums all ranks' `x`, and returns this rank's rows of the sum.
///
/// # Errors
/// As for [`gather_rows`].
pub fn sum_to_rows(comm: &mut Session, x: Tensor<2>) -> Result<Tensor<2>> {
    let parts = split(&x, 0, comm.world());
    let shape = parts[comm.rank()].dims();
    Ok(sum(swap(comm, parts, |_| shape)?))
}

/// Concatenates all ranks' columns, `width` in total.
///
/// # Errors
/// As for [`gather_rows`].
pub fn gather_columns(comm: &mut Session, columns: Tensor<2>, width: usize) -> Result<Tensor<2>> {
    let ([rows, _], world) = (columns.dims(), comm.world());
    Ok(Tensor::cat(gather(comm, columns, |rank| [rows, share(width, world, rank).len()])?, 1))
}

/// Sums all ranks' `x`, and returns this rank's columns of the sum.
///
/// # Errors
/// As for [`gather_rows`].
pub fn sum_to_columns(comm: &mut Session, x: Tensor<2>) -> Result<Tensor<2>> {
    let parts = split(&x, 1, comm.world());
    let shape = parts[comm.rank()].dims();
    Ok(sum(swap(comm, parts, |_| shape)?))
}

/// Converts this rank's columns of all samples to all `width` columns of this rank's samples.
///
/// # Errors
/// As for [`gather_rows`].
pub fn columns_to_rows(comm: &mut Session, columns: Tensor<2>, width: usize) -> Result<Tensor<2>> {
    let world = comm.world();
    let parts = split(&columns, 0, world);
    let [rows, _] = parts[comm.rank()].dims();
    Ok(Tensor::cat(swap(comm, parts, |rank| [rows, share(width, world, rank).len()])?, 1))
}

/// Converts all columns of this rank's samples to this rank's columns of all samples.
///
/// # Errors
/// As for [`gather_rows`].
pub fn rows_to_columns(comm: &mut Session, rows: Tensor<2>) -> Result<Tensor<2>> {
    let parts = split(&rows, 1, comm.world());
    let shape = parts[comm.rank()].dims();
    Ok(Tensor::cat(swap(comm, parts, |_| shape)?, 0))
}

/// Splits a tensor into one part per rank, along a dimension.
fn split(x: &Tensor<2>, dim: usize, world: usize) -> Vec<Tensor<2>> {
    let part = |rank| {
        let share = share(x.dims()[dim], world, rank);
        x.clone().narrow(dim, share.start, share.len())
    };
    (0..world).map(part).collect()
}

/// Sums in rank order, on every rank.
fn sum(parts: Vec<Tensor<2>>) -> Tensor<2> {
    parts.into_iter().reduce(|sum, part| sum + part).expect("a world has a rank")
}

/// Gathers every rank's matrix on every rank; `shape` is the shape of each rank's.
fn gather(comm: &mut Session, mine: Tensor<2>, shape: impl Fn(usize) -> [usize; 2]) -> Result<Vec<Tensor<2>>> {
    let mut frames = Vec::new();
    comm.all_gather(&encode(&mine), &mut frames)?;
    decode(comm, frames, mine, shape)
}

/// Sends each rank its matrix, and receives one from each; `shape` is the shape of each rank's matrix for this one.
fn swap(comm: &mut Session, parts: Vec<Tensor<2>>, shape: impl Fn(usize) -> [usize; 2]) -> Result<Vec<Tensor<2>>> {
    let rank = comm.rank();
    // This rank's own part is not converted to bytes.
    let frame = |(to, part)| if to == rank { Frame::new() } else { encode(part) };
    let mut frames: Vec<_> = parts.iter().enumerate().map(frame).collect();
    comm.all_to_all(&mut frames)?;
    let mine = parts.into_iter().nth(rank).expect("one part for every rank");
    decode(comm, frames, mine, shape)
}

/// Encodes as little-endian f32, row by row.
fn encode(x: &Tensor<2>) -> Frame {
    let values = x.clone().into_data().convert::<f32>().try_into_vec::<f32>().expect("f32 was asked for");
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Decodes the others' frames as tensors, with this rank's own among them. Stops every rank if a frame has another size.
fn decode(
    comm: &mut Session,
    frames: Vec<Frame>,
    mine: Tensor<2>,
    shape: impl Fn(usize) -> [usize; 2],
) -> Result<Vec<Tensor<2>>> {
    let (rank, device) = (comm.rank(), mine.device());
    let mut parts = Vec::new();
    for (from, frame) in frames.into_iter().enumerate() {
        if from == rank {
            parts.push(mine.clone());
            continue;
        }
        let [rows, columns] = shape(from);
        if frame.len() != 4 * rows * columns {
            let got = format!("got {} bytes from rank {from}, expected {rows}x{columns} values", frame.len());
            let problem = format!("{got} of 4 bytes; give every rank the same number of samples and the same layers");
            comm.abort(&problem);
            bail!("rank {rank}: {problem}");
        }
        parts.push(matrix(&frame, [rows, columns], &device));
    }
    Ok(parts)
}

fn matrix(frame: &[u8], shape: [usize; 2], device: &Device) -> Tensor<2> {
    let values: Vec<f32> = frame.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use briquette::core::comm::{Local, run_ranks};

    use super::*;

    /// Creates a matrix with values 10·row + column.
    fn table(rows: usize, columns: usize) -> Tensor<2> {
        let values: Vec<f32> = (0..rows).flat_map(|row| (0..columns).map(move |c| (10 * row + c) as f32)).collect();
        Tensor::from_data(TensorData::new(values, [rows, columns]), &Device::flex())
    }

    fn values(x: &Tensor<2>) -> Vec<f32> {
        x.to_data().try_into_vec().unwrap()
    }

    /// Returns the results of `exchange` for each rank's input.
    fn on_ranks(
        world: usize,
        exchange: impl Fn(&mut Session, usize) -> Result<Tensor<2>> + Sync,
    ) -> Vec<(Vec<f32>, u64)> {
        let ranks = run_ranks(Local::world(world), |mut comm| {
            let rank = comm.rank();
            let x = exchange(&mut comm, rank)?;
            Ok::<_, anyhow::Error>((values(&x), comm.traffic().sent))
        });
        ranks.into_iter().map(Result::unwrap).collect()
    }

    fn rows_of(x: &Tensor<2>, world: usize, rank: usize) -> Tensor<2> {
        split(x, 0, world).swap_remove(rank)
    }

    fn columns_of(x: &Tensor<2>, world: usize, rank: usize) -> Tensor<2> {
        split(x, 1, world).swap_remove(rank)
    }

    #[test]
    fn shares_tile_the_whole_and_differ_by_one_at_most() {
        for (len, world) in [(7, 1), (6, 3), (11, 4), (10, 7)] {
            let shares: Vec<_> = (0..world).map(|rank| share(len, world, rank)).collect();
            assert_eq!(shares.iter().cloned().flatten().collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
            let small = len / world;
            assert!(shares.iter().all(|share| (small..=small + 1).contains(&share.len())), "{shares:?}");
        }
    }

    #[test]
    fn parts_that_were_gathered_are_the_whole() {
        for world in 1..4 {
            let rows = on_ranks(world, |comm, rank| gather_rows(comm, rows_of(&table(2 * world, 5), world, rank)));
            let columns = on_ranks(world, |comm, rank| gather_columns(comm, columns_of(&table(4, 5), world, rank), 5));
            for rank in 0..world {
                let own = share(5, world, rank).len();
                assert_eq!(rows[rank], (values(&table(2 * world, 5)), (4 * (world - 1) * 2 * 5) as u64));
                assert_eq!(columns[rank], (values(&table(4, 5)), (4 * (world - 1) * 4 * own) as u64));
            }
        }
    }

    #[test]
    fn sums_go_to_the_rank_whose_part_it_is() {
        for world in 1..4 {
            // Rank r adds r + 1 times the table: 1 + 2 + … + W times in total.
            let times = (world * (world + 1) / 2) as f32;
            let part_of = |rank: usize| (rank + 1) as f32;
            let rows = on_ranks(world, |comm, rank| sum_to_rows(comm, table(2 * world, 5) * part_of(rank)));
            let columns = on_ranks(world, |comm, rank| sum_to_columns(comm, table(4, 5) * part_of(rank)));
            for rank in 0..world {
                let own = share(5, world, rank).len();
                let expected = values(&(rows_of(&table(2 * world, 5), world, rank) * times));
                assert_eq!(rows[rank], (expected, (4 * (world - 1) * 2 * 5) as u64));
                let expected = values(&(columns_of(&table(4, 5), world, rank) * times));
                assert_eq!(columns[rank], (expected, (4 * 4 * (5 - own)) as u64));
            }
        }
    }

    #[test]
    fn columns_become_rows_and_rows_columns() {
        for world in 1..4 {
            let all = table(2 * world, 5);
            let rows = on_ranks(world, |comm, rank| columns_to_rows(comm, columns_of(&all, world, rank), 5));
            let columns = on_ranks(world, |comm, rank| rows_to_columns(comm, rows_of(&all, world, rank)));
            for rank in 0..world {
                let own = share(5, world, rank).len();
                assert_eq!(rows[rank], (values(&rows_of(&all, world, rank)), (4 * (world - 1) * 2 * own) as u64));
                assert_eq!(columns[rank], (values(&columns_of(&all, world, rank)), (4 * 2 * (5 - own)) as u64));
            }
        }
    }

    #[test]
    fn ranks_with_different_numbers_of_samples_are_told() {
        let ranks = run_ranks(Local::world(2), |mut comm| {
            let rows = table(2 + comm.rank(), 5);
            gather_rows(&mut comm, rows).map(drop)
        });
        let errors: Vec<_> = ranks.into_iter().map(|rank| rank.unwrap_err().to_string()).collect();
        let told =
            "got 60 bytes from rank 1, expected 2x5 values of 4 bytes; give every rank the same number of samples";
        assert!(
            errors.iter().any(|error| error.contains(told) || error.contains("got 40 bytes from rank 0")),
            "{errors:?}"
        );
    }
}
