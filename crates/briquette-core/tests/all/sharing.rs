//! Sessions that share a transport: separate counters and channels, one order, one clock.

use std::time::Duration;

use briquette_core::Layout;
use briquette_core::comm::{Faulty, Local, Session, run_ranks};
use briquette_core::error::{CommError, SyncError};
use briquette_core::sync::{Header, agree};
use briquette_sim::{Compute, Simulated};

#[test]
fn each_session_has_its_own_counters_and_the_frames_stay_in_order() {
    let ranks = Local::run(3, |mut first| {
        let mut second = first.share();
        let mut third = second.share();
        let mut sums = Vec::new();
        for step in 0..5 {
            for (index, comm) in [&mut first, &mut second, &mut third].into_iter().enumerate() {
                let mut x = vec![(step * 3 + index) as f32; 2000 * (index + 1)];
                comm.all_reduce_sum(&mut x)?;
                sums.push(x[0]);
            }
        }
        let numbers = [&first, &second, &third].map(|comm| (comm.share_number(), comm.traffic().sent > 0));
        Ok::<_, CommError>((sums, numbers))
    });
    let expected: Vec<f32> = (0..15).map(|value| 3.0 * value as f32).collect();
    for rank in ranks {
        let (sums, numbers) = rank.unwrap();
        assert_eq!(sums, expected);
        assert_eq!(numbers, [(0, true), (1, true), (2, true)]);
    }
}

#[test]
fn each_session_has_background_channels_of_its_own() {
    let ranks = Local::run(2, |mut first| {
        let before = first.start(1, |comm| comm.all_reduce_sum(&mut [1.0; 3]));
        let mut second = first.share();
        // Both are in flight at once.
        let other = second.start(1, |comm| {
            let mut x = vec![2.0; 5000];
            comm.all_reduce_sum(&mut x).map(|()| x[7])
        });
        let mut x = [4.0];
        second.all_reduce_sum(&mut x)?;
        let (sum, ended) = other.finish(&mut second);
        ended?;
        before.finish(&mut first).1?;
        Ok::<_, CommError>((x[0], sum?, first.traffic().sent, second.traffic().sent))
    });
    assert_eq!(ranks, vec![Ok((8.0, 4.0, 12, 20_004)); 2]);
}

#[test]
fn steps_with_different_optimizers_are_an_error_on_every_rank_whatever_their_layouts() {
    for (own, others) in [(40, 40), (40, 9)] {
        let ranks = Local::run(3, |mut first| {
            let mut second = first.share();
            let header = |comm: &Session| Header { session: comm.share_number() as u8, ..Header::default() };
            // Rank 2 uses the wrong session.
            let comm = if first.rank() == 2 { &mut second } else { &mut first };
            let (header, slots) = (header(comm), if comm.rank() == 2 { others } else { own });
            Ok::<_, CommError>(agree(&header, None, Layout::default().slots(), &mut vec![true; slots], comm).map(drop))
        });
        for (rank, result) in ranks.into_iter().enumerate() {
            let error = result.unwrap().unwrap_err();
            let (at, expected, got) = if rank == 2 { (0, 1, 0) } else { (2, 0, 1) };
            assert_eq!(error, SyncError::OtherOptimizer { step: 0, rank: at, expected, got });
            assert!(error.is_on_all_ranks() && error.to_string().contains("same order on every rank"), "{error}");
        }
    }
}

#[test]
fn a_simulated_clock_is_one_for_all_and_a_rank_leaves_with_its_last_session() {
    let world = Simulated::world(2, "1mbit,0ms".parse().unwrap(), Compute::Fixed(Duration::from_secs(1)));
    let ranks = run_ranks(world, |mut first| {
        let mut second = first.share();
        let mut at = Vec::new();
        for step in 0..2 {
            first.begin_step(step);
            at.push((second.other_used_until(), first.other_used_until()));
            first.all_gather(&[0; 125_000], &mut Vec::new())?;
            second.begin_step(step);
            second.barrier()?;
            at.push((second.other_used_until(), first.other_used_until()));
        }
        let now = (first.now(), second.now());
        // The run continues with one of the sessions.
        drop(first);
        second.barrier()?;
        Ok::<_, CommError>((at, now))
    });
    for rank in ranks {
        let (at, now) = rank.unwrap();
        // A step of each session takes a second, and the bytes of the first session's take another.
        assert_eq!(now, (6.0, 6.0));
        assert_eq!(at, [(None, None), (None, Some(3.0)), (None, Some(3.0)), (None, Some(6.0))]);
    }
}

#[test]
fn a_failure_of_one_session_ends_the_others() {
    let world = Faulty::world(Local::builder(2).endpoints(), 1, 0);
    for result in run_ranks(world, |mut first| {
        let mut second = first.share();
        let failed = first.barrier().unwrap_err();
        Ok::<_, CommError>((failed, second.barrier().unwrap_err()))
    }) {
        let (first, second) = result.unwrap();
        assert!(first.to_string().contains("injected failure"), "{first}");
        assert!(second.to_string().contains("injected failure"), "{second}");
    }
}
