//! Simulated seconds of frames, collectives and compute.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use briquette_core::comm::{Clock, Local, LocalBuilder, Session, run_ranks};
use briquette_core::error::CommError;
use briquette_sim::{Compute, Event, Network, Paces, SessionExt, Simulated};

fn patient(ranks: usize) -> LocalBuilder {
    Local::builder(ranks).deadline(Duration::from_secs(20))
}

fn world(ranks: usize, network: &str, compute: Compute) -> Vec<Session> {
    Simulated::over(patient(ranks), network.parse().unwrap(), compute)
}

fn still(ranks: usize, network: &str) -> Vec<Session> {
    world(ranks, network, Compute::Fixed(Duration::ZERO))
}

/// A manually advanced clock.
#[derive(Default)]
struct Hand(Mutex<f64>);

impl Hand {
    fn pass(&self, seconds: f64) {
        *self.0.lock().unwrap() += seconds;
    }
}

impl Clock for Hand {
    fn seconds(&self) -> f64 {
        *self.0.lock().unwrap()
    }
}

/// Returns every rank's simulated seconds after `body`.
fn seconds(world: Vec<Session>, body: impl Fn(&mut Session) -> Result<(), CommError> + Sync) -> Vec<f64> {
    let run = |mut comm: Session| body(&mut comm).map(|()| comm.now());
    run_ranks(world, run).into_iter().map(Result::unwrap).collect()
}

fn assert_near(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-9 * expected, "{got} simulated seconds, expected {expected}");
    }
}

#[test]
fn two_frames_queue_on_the_link_and_pay_the_latency_once() {
    // 1000 bytes at 1 Mbit/s are 8 ms. First: 0 + 1 + 8. Second: departs at 8, arrives at max(8 + 1, 9) + 8.
    let got = seconds(still(2, "1mbit,1ms"), |comm| {
        if comm.rank() == 0 {
            return comm.send(1, vec![0; 1000]).and_then(|()| comm.send(1, vec![0; 1000]));
        }
        comm.recv(0)?;
        assert_near(&[comm.now()], &[0.009]);
        comm.recv(0).map(drop)
    });
    assert_near(&got, &[0.0, 0.017]);
}

#[test]
fn ring_all_reduce_takes_two_rounds_per_other_rank() {
    // 2(W-1)(α + 4n·8/(W·B)) with n = 12 000 and W a divisor of it.
    for ranks in [1, 2, 3, 5] {
        let rounds = 2.0 * (ranks as f64 - 1.0);
        let expected = rounds * (0.001 + 4.0 * 12_000.0 * 8.0 / (ranks as f64 * 1e8));
        let got = seconds(still(ranks, "100mbit,1ms"), |comm| comm.all_reduce_sum(&mut vec![1.0; 12_000]));
        assert_near(&got, &vec![expected; ranks]);
    }
}

#[test]
fn all_gather_pays_one_latency_and_everyone_elses_bytes() {
    // α + (W-1)·8·n/B with n = 5000 bytes.
    for ranks in [2, 3, 5] {
        let expected = 0.001 + (ranks as f64 - 1.0) * 8.0 * 5000.0 / 1e8;
        let got = seconds(still(ranks, "100mbit,1ms"), |comm| comm.all_gather(&[0; 5000], &mut Vec::new()));
        assert_near(&got, &vec![expected; ranks]);
    }
}

#[test]
fn broadcast_is_a_star_and_barrier_one_latency() {
    // The i-th frame departs at (i-1)·t and takes α + t, with t = 0.4 ms.
    let got = seconds(still(5, "100mbit,1ms"), |comm| comm.broadcast(1, &mut vec![0; 5000]));
    assert_near(&got, &[0.001 + 4.0 * 0.0004, 0.0, 0.0014, 0.0018, 0.0022]);
    assert_near(&seconds(still(5, "100mbit,1ms"), |comm| comm.barrier()), &[0.001; 5]);
}

#[test]
fn frames_from_several_ranks_queue_on_the_incoming_link() {
    // Four frames of 1000 bytes depart at 0; they come off one link of 1 Mbit/s one after another.
    let got = seconds(still(5, "1mbit,1ms"), |comm| match comm.rank() {
        0 => (1..5).try_for_each(|from| comm.recv(from).map(drop)),
        _ => comm.send(0, vec![0; 1000]),
    });
    assert_near(&got, &[0.001 + 4.0 * 0.008, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn ranks_of_one_machine_talk_for_free_and_share_the_link() {
    // Two machines of two ranks. Ranks 0 and 1 each send 1000 bytes off their machine at half of 1 Mbit/s: 16 ms.
    let got = seconds(still(4, "1mbit,1ms,2"), |comm| {
        comm.send(comm.rank() ^ 1, vec![0; 5000])?;
        comm.recv(comm.rank() ^ 1)?;
        assert_eq!(comm.now(), 0.0);
        if comm.rank() < 2 { comm.send(comm.rank() + 2, vec![0; 1000]) } else { comm.recv(comm.rank() - 2).map(drop) }
    });
    assert_near(&got, &[0.0, 0.0, 0.017, 0.017]);
}

#[test]
fn an_unlimited_network_leaves_only_the_fixed_compute() {
    let compute = Compute::Fixed(Duration::from_millis(250));
    let got = seconds(world(3, "unlimited", compute), |comm| {
        for step in 0..4 {
            comm.begin_step(step);
            comm.all_reduce_sum(&mut vec![1.0; 3000])?;
        }
        Ok(())
    });
    assert_eq!(got, [1.0; 3]);
}

#[test]
fn fixed_compute_gives_the_same_seconds_in_every_run() {
    let steps = |comm: &mut Session, run: usize| {
        for step in 0..20 {
            // The threads interleave differently in every run.
            (0..(comm.rank() * 31 + run * 17 + step) % 7).for_each(|_| thread::yield_now());
            comm.begin_step(step as u64);
            comm.all_gather(&vec![0; 100 * comm.rank() + step], &mut Vec::new())?;
            comm.all_reduce_sum(&mut vec![1.0; 5003])?;
            comm.broadcast(step % comm.world(), &mut vec![0; 999])?;
        }
        Ok(())
    };
    for ranks in 1..=5 {
        let once = |run| {
            let compute = Compute::Fixed(Duration::from_millis(3));
            seconds(world(ranks, "7mbit,130us,2", compute), |comm| steps(comm, run))
                .iter()
                .map(|s| s.to_bits())
                .collect()
        };
        let first: Vec<u64> = once(0);
        for run in 1..6 {
            assert_eq!(once(run), first);
        }
    }
}

#[test]
fn measured_compute_counts_each_ranks_own_seconds_only() {
    for ranks in [1, 2, 3, 5] {
        let hand = Arc::new(Hand::default());
        let got = seconds(world(ranks, "unlimited", Compute::Measured(hand.clone())), |comm| {
            comm.begin_step(0);
            comm.barrier()?;
            for step in 1..=10 {
                // Rank r computes for r + 1 seconds; the others' seconds pass on the same real clock.
                (0..=comm.rank()).for_each(|_| {
                    thread::yield_now();
                    hand.pass(1.0);
                });
                comm.begin_step(step);
                comm.barrier()?;
            }
            Ok(())
        });
        // Every step takes as long as the slowest rank.
        assert_eq!(got, vec![10.0 * ranks as f64; ranks]);
        let real = 10.0 * (1..=ranks).sum::<usize>() as f64;
        assert_eq!(hand.seconds(), real);
    }
}

#[test]
fn waiting_for_room_in_a_queue_gives_the_turn_away() {
    let local = patient(2).capacity(std::num::NonZeroUsize::MIN);
    let compute = Compute::Measured(Arc::new(Hand::default()));
    let results = run_ranks(Simulated::over(local, Network::unlimited(), compute), |mut comm| {
        (0..50).try_for_each(|_| if comm.rank() == 0 { comm.send(1, vec![1]) } else { comm.recv(0).map(drop) })
    });
    assert_eq!(results, vec![Ok::<_, CommError>(()); 2]);
}

#[test]
fn a_turn_longer_than_the_deadline_stops_the_world() {
    let local = Local::builder(2).deadline(Duration::from_millis(50));
    let compute = Compute::Measured(Arc::new(Hand::default()));
    let mut world = Simulated::over(local, Network::unlimited(), compute);
    let (mut second, mut first) = (world.pop().unwrap(), world.pop().unwrap());
    first.begin_step(0);
    let error = second.send(0, vec![1]).unwrap_err();
    assert!(matches!(&error, CommError::Deadline { rank: 1, others, .. } if **others == [0]), "{error}");
    assert!(matches!(first.recv(1), Err(CommError::Aborted { by: 1, .. })));
}

#[test]
fn turns_that_go_on_elsewhere_prolong_a_wait() {
    let local = Local::builder(3).deadline(Duration::from_millis(400));
    let compute = Compute::Measured(Arc::new(Hand::default()));
    let results = run_ranks(Simulated::over(local, Network::unlimited(), compute), |mut comm| match comm.rank() {
        0 => comm.recv(1),
        // The other two ranks hand the turn to each other for longer than the deadline.
        rank => {
            let other = 3 - rank;
            for _ in 0..25 {
                comm.send(other, vec![])?;
                comm.recv(other)?;
                thread::sleep(Duration::from_millis(20));
            }
            // Rank 0 leaves when it has a turn.
            if rank == 1 {
                comm.send(0, vec![5])?;
            }
            Ok(vec![5])
        }
    });
    assert_eq!(results, vec![Ok(vec![5]); 3]);
}

#[test]
fn a_slow_path_holds_its_frames_and_not_the_links() {
    // 1000 bytes take 8 ms on links and 80 ms on the path from 0 to 1. Rank 0's second frame, to 2, leaves after the link's 8 ms, and its third
    // follows the first on the path: 5 + 80, then 8 + 1 + 8, then 80 + 5 + 80.
    let got = seconds(still(3, "1mbit,1ms;0/1=100kbit,5ms"), |comm| match comm.rank() {
        0 => [1, 2, 1].into_iter().try_for_each(|to| comm.send(to, vec![0; 1000])),
        1 => {
            comm.recv(0)?;
            assert_near(&[comm.now()], &[0.085]);
            comm.recv(0).map(drop)
        }
        _ => comm.recv(0).map(drop),
    });
    assert_near(&got, &[0.0, 0.165, 0.017]);
    // Received in the other order, a frame on a slow path does not keep the link from a frame that arrived in the
    // meantime.
    let got = seconds(still(3, "1mbit,1ms;0/1=100kbit,5ms"), |comm| match comm.rank() {
        1 => {
            comm.recv(0)?;
            comm.recv(2).map(drop)
        }
        _ => comm.send(1, vec![0; 1000]),
    });
    assert_near(&got, &[0.0, 0.085, 0.0]);
}

#[test]
fn compute_times_differ_between_ranks_and_steps() {
    let paces: Paces = "20ms,50ms;slow=0.5x10".parse().unwrap();
    let expected: Vec<f64> = (0..3).map(|rank| (4..9).map(|step| paces.seconds(rank, step)).sum()).collect();
    assert!(expected.iter().all(|seconds| (0.1..2.5).contains(seconds)), "{expected:?}");
    let steps = |comm: &mut Session| {
        (4..9).for_each(|step| comm.begin_step(step));
        Ok(())
    };
    assert_near(&seconds(world(3, "unlimited", Compute::Paced(paces.clone())), steps), &expected);
    let mut stepped = Local::world(2).remove(1).stepped(paces);
    steps(&mut stepped).unwrap();
    assert_near(&[stepped.now()], &expected[1..2]);
}

#[test]
#[should_panic(expected = "it joins no ranks of different machines")]
fn a_path_inside_a_machine_makes_no_world() {
    still(8, "10gbit,20us,4;0/1=100mbit");
}

#[test]
fn a_clock_is_added_to_a_session_without_one_and_leaves_its_recording() {
    let hand = Arc::new(Hand::default());
    hand.pass(12.0);
    let mut comm = Local::world(1).remove(0);
    comm.record();
    assert!(!comm.has_clock());
    let mut comm = comm.or_clock(Arc::clone(&hand) as _);
    comm.begin_step(0);
    assert_eq!((comm.now(), comm.take_recording()), (12.0, vec![Event::BeginStep]));
    let stepped = Local::world(1).remove(0).stepped(Duration::from_millis(50));
    assert_eq!(stepped.or_clock(hand).now(), 0.0);
}
