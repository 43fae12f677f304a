//! Measurements between ranks.

use std::time::{Duration, Instant};

use briquette_core::config::CompressorConfig;
use briquette_core::error::CommError;
use briquette_core::{Key, Session};

use crate::measure::{measure, median};
use crate::plan::normal;

/// Bytes of a frame of payload.
const FRAME: usize = 1 << 16;
/// Frames that a rank sends before it waits for the first, as in the ring all-reduce.
const AHEAD: usize = 4;
/// Round trips: at least, and at most.
const TRIPS: [usize; 2] = [5, 50];
/// Time after which no further round trip begins.
const TRIPPING: Duration = Duration::from_millis(300);
/// Values that are encoded.
const VALUES: usize = 1 << 20;

/// Returns the seconds of one thread to encode and decode, per value.
pub(crate) fn codec_seconds(config: &CompressorConfig) -> f64 {
    let measured = measure(config, &normal(VALUES), Key::new(0), 5);
    (measured.encode_seconds + measured.decode_seconds) / VALUES as f64
}

/// Returns the pairs of ranks to measure: all, or those of neighbors in a ring if there are more than `most` ranks.
pub(super) fn pairs(world: usize, most: usize) -> Vec<(usize, usize)> {
    if world > most {
        return (0..world).map(|rank| (rank, (rank + 1) % world)).collect();
    }
    (0..world).flat_map(|one| (one + 1..world).map(move |other| (one, other))).collect()
}

/// Returns the numbers of all ranks, in order.
pub(super) fn all(comm: &mut Session, mine: f64) -> Result<Vec<f64>, CommError> {
    let (rank, mut numbers) = (comm.rank(), vec![0.0; comm.world()]);
    numbers[rank] = mine;
    comm.all_reduce_sum_f64(&mut numbers)?;
    Ok(numbers)
}

/// Measures the latency between two ranks while the others wait. Returns it on all ranks.
pub(super) fn latency(comm: &mut Session, (one, other): (usize, usize)) -> Result<f64, CommError> {
    let mut mine = 0.0;
    if comm.rank() == one {
        let (begin, mut trips) = (Instant::now(), Vec::new());
        loop {
            let goes_on = trips.len() < TRIPS[0] || trips.len() < TRIPS[1] && begin.elapsed() < TRIPPING;
            let start = Instant::now();
            comm.send(other, vec![u8::from(goes_on)])?;
            if !goes_on {
                break;
            }
            comm.recv(other)?;
            trips.push(start.elapsed().as_secs_f64());
        }
        mine = median(trips) / 2.0;
    } else if comm.rank() == other {
        while comm.recv(one)? == [1] {
            comm.send(one, vec![0])?;
        }
    }
    Ok(all(comm, mine)?[one])
}

/// Measures the payload per second from one rank to another while the others wait. Returns it on all ranks.
pub(super) fn bandwidth(comm: &mut Session, (from, to): (usize, usize), time: Duration) -> Result<f64, CommError> {
    let mut mine = 0.0;
    if comm.rank() == from {
        let begin = Instant::now();
        // At least as many that the rate can be measured in the second half.
        let mut sent = 0;
        while sent < 2 * AHEAD || begin.elapsed() < time {
            comm.send(to, vec![0; FRAME])?;
            sent += 1;
        }
        comm.send(to, Vec::new())?;
    } else if comm.rank() == to {
        let (begin, mut arrivals) = (Instant::now(), Vec::new());
        while !comm.recv(from)?.is_empty() {
            arrivals.push(begin.elapsed().as_secs_f64());
        }
        mine = rate(&arrivals);
    }
    Ok(all(comm, mine)?[to])
}

/// Returns the bytes per second in the second half of the time, when TCP has found its rate.
fn rate(arrivals: &[f64]) -> f64 {
    let Some((last, earlier)) = arrivals.split_last() else { return 0.0 };
    let half = earlier.partition_point(|at| *at < last / 2.0).min(earlier.len().saturating_sub(1));
    let seconds = earlier.get(half).map_or(0.0, |start| last - start);
    ((arrivals.len() - 1 - half) * FRAME) as f64 / seconds.max(1e-9)
}

/// Frames that every rank sends to the next one in a ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    frames: usize,
}

impl Flow {
    /// Creates a flow that takes about this time at this rate, in bytes per second.
    pub(super) fn lasting(time: Duration, bytes_per_second: f64) -> Self {
        let frames = time.as_secs_f64() * bytes_per_second / FRAME as f64;
        Flow { frames: (frames as usize).clamp(4 * AHEAD, 1 << 20) }
    }

    /// Sends the frames, of which each follows one that was received. Returns the bytes per second of the slowest rank on all ranks.
    pub(super) fn around(self, comm: &mut Session) -> Result<f64, CommError> {
        let (rank, world) = (comm.rank(), comm.world());
        let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
        let mut arrivals = Vec::with_capacity(self.frames);
        comm.barrier()?;
        let begin = Instant::now();
        for _ in 0..AHEAD {
            comm.send(next, vec![0; FRAME])?;
        }
        for number in 0..self.frames {
            comm.recv(previous)?;
            arrivals.push(begin.elapsed().as_secs_f64());
            if number + AHEAD < self.frames {
                comm.send(next, vec![0; FRAME])?;
            }
        }
        Ok(all(comm, rate(&arrivals))?.into_iter().fold(f64::INFINITY, f64::min))
    }
}

#[cfg(test)]
mod tests {
    use briquette_core::comm::{Local, run_ranks};

    use super::*;

    #[test]
    fn all_pairs_or_neighbors() {
        assert_eq!(pairs(3, 8), [(0, 1), (0, 2), (1, 2)]);
        assert_eq!(pairs(3, 2), [(0, 1), (1, 2), (2, 0)]);
    }

    #[test]
    fn rates_are_those_of_the_second_half() {
        let frame = FRAME as f64;
        // Four frames in the first second, then ten in the second one.
        let arrivals: Vec<f64> =
            (1..=4).map(|i| f64::from(i) / 4.0).chain((1..=10).map(|i| 1.0 + f64::from(i) / 10.0)).collect();
        assert!((rate(&arrivals) / (10.0 * frame) - 1.0).abs() < 1e-9);
        assert_eq!((rate(&[]), rate(&[1.0])), (0.0, 0.0));
    }

    #[test]
    fn every_rank_has_the_same_measurements() {
        let time = Duration::from_millis(5);
        let ranks = run_ranks(Local::world(3), |mut comm| {
            let latency = latency(&mut comm, (0, 2))?;
            let bandwidth = bandwidth(&mut comm, (2, 1), time)?;
            let ring = Flow::lasting(time, bandwidth).around(&mut comm)?;
            Ok::<_, CommError>([latency, bandwidth, ring])
        });
        let first = ranks[0].as_ref().unwrap();
        assert!(first.iter().all(|number| *number > 0.0 && number.is_finite()), "{first:?}");
        assert!(ranks.iter().all(|rank| rank.as_ref().unwrap() == first), "{ranks:?}");
    }
}
