//! Messages that exceed the frame length, and two sessions on one endpoint.

use briquette_core::comm::{Session, run_ranks};
use briquette_core::error::CommError;
use briquette_tcp::TcpBuilder;

use crate::common::world;

/// Lengths below, at and above a frame of 1 000 bytes, and of many frames.
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
        let came = comm.swap_long(&[next], bytes(rank, 20 * len), &[previous])?;
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

#[test]
fn two_sessions_on_one_endpoint_take_turns_and_have_a_channel_each() {
    let results = run_ranks(world(2, |rank| rank.channels(2)), |mut first| {
        let mut second = first.share();
        let sum = |comm: &mut Session, value: f32| {
            let mut x = vec![value; 70_000];
            comm.all_reduce_sum(&mut x).map(|()| x[69_999])
        };
        let a = first.start(1, move |comm| sum(comm, 1.0));
        let b = second.start(1, move |comm| sum(comm, 2.0));
        let seen = [sum(&mut second, 3.0)?, sum(&mut first, 4.0)?];
        let (b, a) = (b.finish(&mut second), a.finish(&mut first));
        b.1.and(a.1)?;
        // The world goes on while one session is there.
        drop(first);
        second.barrier()?;
        Ok::<_, CommError>([a.0?, b.0?, seen[0], seen[1]])
    });
    assert_eq!(results, vec![Ok([2.0, 4.0, 6.0, 8.0]); 2]);
}
