//! Messages longer than the maximum frame: complete at the receiver, from every collective, and never with many copies at once.

use std::num::NonZeroUsize;
use std::time::Duration;

use briquette_core::comm::{BROADCAST_PIECE, Local, LocalBuilder, all_reduce_traffic, run_ranks};
use briquette_core::error::CommError;
use briquette_sim::{Event, SessionExt};

/// Builds a world with frames of at most `longest` bytes, of which four may be queued from one rank to another.
fn world(ranks: usize, longest: usize) -> LocalBuilder {
    let number = |n| NonZeroUsize::new(n).unwrap();
    let builder = Local::builder(ranks).deadline(Duration::from_secs(60));
    builder.longest_frame(number(longest)).capacity(number(4))
}

/// Returns bytes that identify rank and place.
fn bytes(rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 31 * rank) as u8).collect()
}

/// Below, at and above one piece and several.
const LENGTHS: [usize; 8] = [0, 1, 63, 64, 65, 128, 200, 1000];

#[test]
fn a_longer_frame_is_refused_and_names_both_sizes() {
    for result in run_ranks(world(2, 64).build(), |mut comm| comm.send(1 - comm.rank(), vec![0; 65])) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("a frame of 65 bytes") && error.contains("64 at most"), "{error}");
    }
}

#[test]
fn every_collective_moves_what_is_longer_than_a_frame() {
    let ranks = run_ranks(world(3, 64).build(), |mut comm| {
        let rank = comm.rank();
        for (round, len) in LENGTHS.into_iter().enumerate() {
            // Ranks send different lengths.
            let own = |rank: usize| bytes(rank, LENGTHS[(round + 3 * rank) % LENGTHS.len()]);
            let mut parts = Vec::new();
            comm.all_gather(&own(rank), &mut parts)?;
            for from in (0..3).filter(|from| *from != rank) {
                assert_eq!(parts[from], own(from), "all_gather, rank {rank} from {from}, {len}");
            }
            let to = |from: usize, to: usize| bytes(from + 5 * to, LENGTHS[(round + from + 2 * to) % LENGTHS.len()]);
            let mut parts: Vec<_> = (0..3).map(|other| to(rank, other)).collect();
            comm.all_to_all(&mut parts)?;
            (0..3).for_each(|from| assert_eq!(parts[from], to(from, rank), "all_to_all, rank {rank} from {from}"));
            let mut from_root = if rank == 1 { bytes(9, len) } else { vec![1; 5] };
            comm.broadcast(1, &mut from_root)?;
            assert_eq!(from_root, bytes(9, len), "broadcast, {len}");
            let mut values = vec![rank as f32; len];
            comm.broadcast_values(2, &mut values)?;
            assert_eq!(values, vec![2.0; len], "values, {len}");
            let mut sum = vec![1.5; 40 * len];
            comm.all_reduce_sum(&mut sum)?;
            assert_eq!(sum, vec![4.5; 40 * len]);
        }
        Ok::<_, CommError>(())
    });
    ranks.into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn messages_between_two_ranks_keep_their_order_and_their_length() {
    let ranks = run_ranks(world(2, 64).build(), |mut comm| {
        let other = 1 - comm.rank();
        for len in LENGTHS {
            if comm.rank() == 0 {
                comm.send_long(1, bytes(0, len))?;
                assert_eq!(comm.recv_any_long(&[1])?, (1, bytes(1, len)));
            } else {
                assert_eq!(comm.recv_long(0)?, bytes(0, len));
                comm.send_long(0, bytes(1, len))?;
            }
            // Both at once, and more than may be queued.
            let came = comm.swap_long(&[other], bytes(comm.rank(), 50 * len), &[other])?;
            assert_eq!(came, [bytes(other, 50 * len)]);
        }
        Ok::<_, CommError>(())
    });
    ranks.into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn values_of_another_length_are_an_error_and_leave_nothing_behind() {
    let ranks = run_ranks(world(2, 64).build(), |mut comm| {
        let mut values = vec![0.0; if comm.rank() == 0 { 100 } else { 60 }];
        let first = comm.broadcast_values(0, &mut values);
        comm.barrier()?;
        Ok::<_, CommError>(first)
    });
    assert_eq!(ranks[0], Ok(Ok(())));
    let error = ranks[1].as_ref().unwrap().as_ref().unwrap_err();
    assert!(matches!(error, CommError::Size { rank: 1, other: 0, expected: 240, got: 400, .. }), "{error}");
}

#[test]
fn pieces_change_no_byte_that_is_counted() {
    let traffic = |longest: usize| {
        let ranks = run_ranks(world(3, longest).build(), |mut comm| {
            comm.all_gather(&bytes(comm.rank(), 500), &mut Vec::new())?;
            comm.all_reduce_sum(&mut vec![1.0; 5003])?;
            comm.broadcast_values(0, &mut vec![1.0; 300])?;
            Ok::<_, CommError>(comm.traffic())
        });
        ranks.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    let whole = traffic(usize::MAX);
    assert_eq!(traffic(64), whole);
    assert_eq!(whole[0].sent, 2 * 500 + all_reduce_traffic(5003, 3, 0).sent + 2 * 1200);
}

#[test]
fn a_root_queues_one_piece_for_each_rank_and_not_the_whole() {
    let ranks = run_ranks(Local::builder(4).build(), |mut comm| {
        comm.record();
        let mut values = vec![comm.rank() as f32; (3 << 20) + 7];
        comm.broadcast_values(0, &mut values)?;
        assert!(values.iter().all(|value| *value == 0.0));
        Ok::<_, CommError>(comm.take_recording())
    });
    let sent = |event: &Event| if let Event::Sent(to, bytes) = event { Some((*to, *bytes)) } else { None };
    let sent: Vec<_> = ranks[0].as_ref().unwrap().iter().filter_map(sent).collect();
    // 12 MiB and a little go to each rank, and each piece goes to every rank before the next one.
    assert_eq!(sent.len(), 3 * 13);
    for piece in sent.chunks(3) {
        assert_eq!([piece[0].0, piece[1].0, piece[2].0], [1, 2, 3]);
        assert!(piece.iter().all(|(_, bytes)| *bytes <= BROADCAST_PIECE && *bytes == piece[0].1), "{piece:?}");
    }
}
