//! Facts about all-gather, all-reduce, broadcast and barrier.

use briquette_core::comm::{SMALL_ALL_REDUCE, all_reduce_traffic};
use briquette_core::error::CommError;
use briquette_core::{Frame, Session, Traffic};
use std::time::{Duration, SystemTime};

use super::{Launch, all_ok, naive_sum, values};

/// Lengths below, at and above the threshold at which an all-reduce changes its algorithm.
const LENGTHS: [usize; 6] = [0, 1, 7, SMALL_ALL_REDUCE, SMALL_ALL_REDUCE + 1, 5003];
/// Lengths around those at which a transport may begin to split a ring's frames, and well above.
const LONG: [usize; 4] = [65_535, 65_536, 65_537, 200_000];

/// An all-gather gives every rank every other rank's bytes, empty ones too, and its own place stays empty.
pub fn all_gather_gives_everyone_everyone_elses_bytes<L: Launch>(launch: &L) {
    let mine = |rank: usize, round: usize| vec![rank as u8 + 1; rank * 100 * round];
    all_ok(launch, |comm| {
        let mut parts = vec![vec![9; 9]; 7];
        for round in 0..4 {
            comm.all_gather(&mine(comm.rank(), round), &mut parts)?;
            let expect = |from: usize| if from == comm.rank() { Frame::new() } else { mine(from, round) };
            assert_eq!(parts, (0..comm.world()).map(expect).collect::<Vec<_>>());
        }
        Ok(())
    });
}

/// An all-to-all delivers to every rank the data that each rank has for it, of any length, and leaves its own part in place.
pub fn all_to_all_brings_everyone_what_is_for_them<L: Launch>(launch: &L) {
    let part = |from: usize, to: usize| vec![(10 * from + to) as u8; 1000 * from + 10 * to];
    all_ok(launch, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        for _ in 0..3 {
            let mut parts: Vec<Frame> = (0..world).map(|to| part(rank, to)).collect();
            comm.all_to_all(&mut parts)?;
            assert_eq!(parts, (0..world).map(|from| part(from, rank)).collect::<Vec<_>>());
        }
        Ok(())
    });
}

/// An all-reduce gives the sum in the documented order of ranks, and the same bits everywhere.
pub fn all_reduce_equals_the_naive_sum_and_agrees_to_the_bit<L: Launch>(launch: &L) {
    all_ok(launch, |comm| LENGTHS.into_iter().try_for_each(|len| reduce_and_compare(comm, len)));
}

/// The same for vectors long enough that a transport may split them: chunk `c` is still summed in the order of the
/// ranks `c`, `c + 1`, ….
pub fn long_all_reduces_sum_in_ring_order_and_agree_to_the_bit<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let chunks_around = 65_536 * comm.world() + 1;
        LONG.into_iter().chain([chunks_around]).try_for_each(|len| reduce_and_compare(comm, len))
    });
}

/// An all-reduce of exact numbers sums in rank order, gives the same bits everywhere, and accepts an empty vector.
pub fn all_reduce_of_f64_sums_in_rank_order<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        let mut x = [0.1 * (rank + 1) as f64, 1e16 * (rank % 2) as f64, -0.0];
        comm.all_reduce_sum_f64(&mut x)?;
        comm.all_reduce_sum_f64(&mut [])?;
        assert_eq!(x[0], (1..world).fold(0.1, |sum, rank| sum + 0.1 * (rank + 1) as f64));
        agree(comm, x.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect())
    });
}

/// A broadcast replaces the data of the other ranks, whatever its length, from any root.
pub fn broadcast_works_from_every_root<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        for root in 0..comm.world() {
            for len in [0, 1, 1000] {
                let mut bytes = vec![comm.rank() as u8; if comm.rank() == root { len } else { 3 }];
                comm.broadcast(root, &mut bytes)?;
                assert_eq!(bytes, vec![root as u8; len]);
            }
        }
        Ok(())
    });
}

/// No rank leaves a barrier before every rank has entered it.
///
/// Ranks record their times of entering and leaving, by the clock of the machine they share, and one of them enters
/// late on purpose. A clock that is set back meanwhile would fail this.
pub fn barrier_waits_for_every_rank<L: Launch>(launch: &L) {
    let nanoseconds = || SystemTime::UNIX_EPOCH.elapsed().expect("a time after 1970").as_nanos();
    all_ok(launch, |comm| {
        let mut parts = Vec::new();
        for round in 0..20 {
            if comm.rank() == round % comm.world() {
                std::thread::sleep(Duration::from_millis(2));
            }
            let came = nanoseconds();
            comm.barrier()?;
            let left = nanoseconds();
            comm.all_gather(&came.to_le_bytes(), &mut parts)?;
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let came = u128::from_le_bytes(part.as_slice().try_into().expect("16 bytes"));
                assert!(came <= left, "left {} ns before another rank came", came - left);
            }
        }
        Ok(())
    });
}

/// The bytes counted as sent and received are those that the collectives' documentation promises: frame contents alone,
/// whatever the transport adds to them.
pub fn traffic_equals_the_formulas<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        let others = world as u64 - 1;
        let mut before = comm.traffic();
        assert_eq!(before, Traffic::default());
        let mut moved = |comm: &mut Session| {
            let moved = comm.traffic() - before;
            before = comm.traffic();
            moved
        };
        for len in LENGTHS.into_iter().chain(LONG) {
            comm.all_reduce_sum(&mut values(rank, len))?;
            assert_eq!(moved(comm), all_reduce_traffic(len, world, rank), "{len} values");
        }
        comm.all_reduce_sum_f64(&mut [0.0; 3])?;
        assert_eq!(moved(comm), Traffic { sent: 24 * others, received: 24 * others });
        comm.all_gather(&vec![0; 10 * rank], &mut Vec::new())?;
        let received = (0..world).filter(|from| *from != rank).map(|from| 10 * from as u64).sum();
        assert_eq!(moved(comm), Traffic { sent: 10 * rank as u64 * others, received });
        comm.broadcast(0, &mut vec![0; 50])?;
        let (sent, received) = if rank == 0 { (50 * others, 0) } else { (0, 50) };
        assert_eq!(moved(comm), Traffic { sent, received });
        comm.barrier()?;
        assert_eq!(moved(comm), Traffic::default());
        Ok(())
    });
}

fn reduce_and_compare(comm: &mut Session, len: usize) -> Result<(), CommError> {
    let mut x = values(comm.rank(), len);
    comm.all_reduce_sum(&mut x)?;
    for (i, sum) in x.iter().enumerate() {
        assert_eq!(*sum, naive_sum(i, len, comm.world()), "{i} of {len}");
    }
    agree(comm, x.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect())
}

/// Panics unless every rank has rank 0's bytes.
fn agree(comm: &mut Session, mine: Vec<u8>) -> Result<(), CommError> {
    let mut first = mine.clone();
    comm.broadcast(0, &mut first)?;
    assert!(first == mine, "other bits than rank 0");
    Ok(())
}
