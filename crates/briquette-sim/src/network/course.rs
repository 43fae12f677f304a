//! Speed of a link over time.

use std::sync::Arc;
use std::time::Duration;

use briquette_core::error::ConfigError;

/// Bandwidth and latency of a link or a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    /// Bits per second; `None` is unlimited.
    pub(super) bandwidth: Option<f64>,
    pub(super) latency: Duration,
}

impl Speed {
    pub(super) fn new(bandwidth: Option<f64>, latency: Duration) -> Result<Self, ConfigError> {
        match bandwidth.filter(|bits| !(bits.is_finite() && *bits > 0.0)) {
            Some(bits) => Err(ConfigError::range("bandwidth", "a positive number of bits per second", bits)),
            None => Ok(Speed { bandwidth, latency }),
        }
    }

    fn seconds(self, bits: f64) -> f64 {
        match self.bandwidth {
            Some(_) if bits == 0.0 => 0.0,
            Some(bandwidth) => bits / bandwidth,
            None => 0.0,
        }
    }
}

/// Speeds of a link or a path, each from a second on. They start over at the end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Course {
    /// The second at which each speed begins. The first one is 0.
    changes: Arc<[(f64, Speed)]>,
    /// The second at which the first speed begins again; infinite for a constant speed.
    length: f64,
}

impl Course {
    pub(super) fn constant(speed: Speed) -> Self {
        Course { changes: [(0.0, speed)].into(), length: f64::INFINITY }
    }

    /// Creates a course from its changes, in order, the first at second 0, all before `length`. At least one speed is not 0.
    pub(super) fn new(changes: Vec<(f64, Speed)>, length: f64) -> Self {
        Course { changes: changes.into(), length }
    }

    /// Returns the number of the round and the index of the speed at a second.
    fn find(&self, second: f64) -> (f64, usize) {
        let round = if self.length.is_finite() { (second / self.length).floor().max(0.0) } else { 0.0 };
        let inside = second - self.start(round);
        (round, self.changes.partition_point(|(from, _)| *from <= inside).saturating_sub(1))
    }

    /// Returns the second at which a round begins.
    fn start(&self, round: f64) -> f64 {
        if round == 0.0 { 0.0 } else { round * self.length }
    }

    /// Returns the seconds at which speeds begin.
    pub(super) fn seconds(&self) -> impl Iterator<Item = f64> {
        self.changes.iter().map(|(from, _)| *from)
    }

    /// Returns the speed at a second.
    pub(super) fn at(&self, second: f64) -> Speed {
        self.changes[self.find(second).1].1
    }

    /// Returns the second at which a transfer of `bits` bits ends that begins at `start` and gets one of `shares` parts of the bandwidth.
    pub(super) fn end(&self, start: f64, mut bits: f64, shares: f64) -> f64 {
        if let [(_, speed)] = &self.changes[..] {
            return start + shares * speed.seconds(bits);
        }
        let (mut round, mut index) = self.find(start);
        let mut at = start;
        loop {
            if index == self.changes.len() {
                (round, index) = (round + 1.0, 0);
                // Rounds that pass as a whole.
                let whole = (bits * shares / self.bits()).floor();
                if whole.is_finite() && whole > 1.0 {
                    round += whole - 1.0;
                    bits -= (whole - 1.0) * self.bits() / shares;
                    at = self.start(round);
                }
            }
            let (_, speed) = self.changes[index];
            let until = match self.changes.get(index + 1) {
                Some((next, _)) => self.start(round) + next,
                None => self.start(round + 1.0),
            };
            let end = at + shares * speed.seconds(bits);
            if end <= until {
                return end;
            }
            let seconds = (until - at).max(0.0);
            bits -= speed.bandwidth.unwrap_or_default() * seconds / shares;
            (at, index) = (at.max(until), index + 1);
        }
    }

    /// Returns the bits of a round; infinite if the link is unlimited at some second.
    fn bits(&self) -> f64 {
        let ends = self.changes[1..].iter().map(|(from, _)| *from).chain([self.length]);
        let parts = self.changes.iter().zip(ends);
        parts.map(|((from, speed), end)| speed.bandwidth.unwrap_or(f64::INFINITY) * (end - from)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 Mbit/s for 2 s, nothing for 1 s, 80 Mbit/s for 1 s.
    fn course() -> Course {
        let speed = |megabits: f64| Speed { bandwidth: Some(1e6 * megabits), latency: Duration::ZERO };
        Course::new(vec![(0.0, speed(8.0)), (2.0, speed(0.0)), (3.0, speed(80.0))], 4.0)
    }

    #[test]
    fn a_transfer_takes_the_speed_of_every_second_that_it_lasts() {
        for (start, megabits, shares, end) in [
            (0.0, 8.0, 1.0, 1.0),
            (0.0, 16.0, 1.0, 2.0),
            // A bit more waits until the link is up.
            (1.0, 16.0, 1.0, 3.1),
            (2.5, 0.0, 1.0, 2.5),
            (2.5, 8.0, 1.0, 3.1),
            (2.5, 8.0, 2.0, 3.2),
            // Into the next round, and through 99 whole rounds of 96 Mbit.
            (3.0, 88.0, 1.0, 5.0),
            (0.0, 96.0 * 100.0 + 8.0, 1.0, 401.0),
            (403.5, 40.0, 1.0, 404.0),
        ] {
            let got = course().end(start, 1e6 * megabits, shares);
            assert!((got - end).abs() < 1e-9, "{start} s, {megabits} Mbit, {shares} shares: {got}, not {end}");
        }
    }

    /// A naive twin: the transfer advances by a ten-thousandth of a second.
    #[test]
    fn a_transfer_ends_where_small_steps_end() {
        let course = course();
        for start in [0.0, 0.3, 1.9, 2.2, 3.05, 3.999, 7.5] {
            for megabits in [0.5, 7.0, 20.0, 130.0, 300.0] {
                let (mut at, mut bits) = (start, 1e6 * megabits);
                while bits > 0.0 {
                    bits -= course.at(at + 0.5e-4).bandwidth.unwrap() * 1e-4;
                    at += 1e-4;
                }
                let end = course.end(start, 1e6 * megabits, 1.0);
                assert!((end - at).abs() < 5e-3, "{start} s, {megabits} Mbit: {end}, not {at}");
            }
        }
    }

    /// Sums of the seconds of changes are rounded: a start that is just before or after one must not loop.
    #[test]
    fn a_transfer_ends_from_any_start() {
        let speed = |bits| Speed { bandwidth: Some(bits), latency: Duration::ZERO };
        let course = Course::new((0..7).map(|i| (0.1 * f64::from(i), speed(1e6 * f64::from(i % 3)))).collect(), 0.7);
        for step in 0..100_000_u32 {
            let start = f64::from(step) * 0.1;
            let end = course.end(start, 1e5, 1.0);
            assert!((start..start + 0.8).contains(&end), "{start} {end}");
            let again = course.end(end, 1e5, 1.0);
            assert!(again >= end && again < end + 0.8, "{end} {again}");
        }
    }

    #[test]
    fn an_unlimited_second_ends_every_transfer() {
        let speed = |bandwidth| Speed { bandwidth, latency: Duration::ZERO };
        let course = Course::new(vec![(0.0, speed(Some(1.0))), (5.0, speed(None))], 6.0);
        assert_eq!(
            (course.end(0.0, 1e12, 1.0), course.end(5.5, 1e12, 1.0), course.end(6.0, 2.0, 1.0)),
            (5.0, 5.5, 8.0)
        );
    }
}
