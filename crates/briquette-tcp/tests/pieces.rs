//! Messages that are longer than a frame may be.

mod common;

use briquette_core::comm::{Session, run_ranks};
use briquette_core::error::CommError;
use briquette_tcp::TcpBuilder;

use common::world;

/// Below, at and above a frame of 1 000 bytes, and many of them.
const LENGTHS: [usize; 6] = [0, 999, 1000, 1001, 3000, 100_000];

fn bytes(rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 31 * rank) as u8).collect()
}

fn all_of_them(comm: &mut Session) -> Result<Vec<f32>, CommError> {
    let (rank, mut seen) = (comm.rank(), Vec::new());
    for (step, len) in LENGTHS.into_iter().enumerate() {
        comm.begin_step(step as u64);
        let own = |rank: usize| bytes(rank, LENGTHS[(step + rank) % LENGTHS.len()]);
        let mut parts = Vec::new();
        comm.all_gather(&own(rank), &mut parts)?;
        (0..3).filter(|from| *from != rank).for_each(|from| assert_eq!(parts[from], own(from), "from {from}, {len}"));
        let mut whole = if rank == 2 { bytes(5, len) } else { Vec::new() };
        comm.broadcast(2, &mut whole)?;
        assert_eq!(whole, bytes(5, len), "broadcast, {len}");
        let mut values: Vec<f32> = (0..len).map(|i| (i + 10 * rank) as f32).collect();
        comm.broadcast_values(1, &mut values)?;
        comm.all_reduce_sum(&mut values)?;
        seen.extend(values);
        let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
        let came = comm.swap_long(&[next], &bytes(rank, 20 * len), &[previous])?;
        assert_eq!(came, [bytes(previous, 20 * len)]);
    }
    Ok(seen)
}

fn run(edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync) -> Vec<Vec<f32>> {
    let ranks = run_ranks(world(3, edit), |mut comm| all_of_them(&mut comm));
    ranks.into_iter().map(|rank| rank.unwrap_or_else(|error| panic!("{error}"))).collect()
}

#[test]
fn messages_longer_than_a_frame_arrive_whole_and_change_no_bit() {
    assert!(run(|rank| rank.longest_frame(1000)) == run(|rank| rank));
}
