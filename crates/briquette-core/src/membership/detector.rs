//! Failure detector: suspects a member whose heartbeats stop, by the history of their intervals.
//!
//! **Why.** A constant limit is chosen for the worst link and the busiest machine, so a member that vanishes on a calm link is found
//! late. Where a false alarm costs little, the limit can follow the link.
//!
//! **When not.** Where a false alarm ends the run: there the upper limit is the limit ([`use_history`](Detector::use_history)).
//!
//! **Method.** A member is suspected if its silence exceeds
//!
//! ```text
//! max(2 s, 3·interval, median + 16·max(MAD, 0.1·median), 1.5·longest)     and at most the upper limit
//! ```
//!
//! over its last 64 intervals between heartbeats, where MAD is the median of their distances to the median. Until eight intervals have been
//! seen, the upper limit holds. Time is an argument, so the detector has no clock.
//!
//! - *The floor* of 2 s, and of three intervals, covers a delay of the scheduler, one retransmission, and pauses of 1.5 s at an interval of 1 s.
//! - *Median and MAD* follow a link whose delays vary at every heartbeat. Single pauses do not change them. The MAD of equal intervals
//!   is 0, hence its floor. For normal delays, 16 MADs are 10.8 standard deviations; for exponential ones, of 0.5 s on average, one heartbeat in
//!   about 100 000 is later.
//! - *The longest interval* covers pauses that come in bursts, as on Wi-Fi. Median and MAD ignore them by design.
//!
//! **Suspended observers.** A process that was suspended itself has heard nothing either. [`is_suspect`](Detector::is_suspect) is called
//! regularly. If the time between two calls exceeds half the limit, the silence before the later one does not count.
//!
//! **Properties.** The limit is never below the floor and never above the upper limit; if the upper limit is below the floor, it is the
//! limit. A heartbeat takes a sort of 64 numbers.
//!
//! **Source.** This project's. Related work: N. Hayashibara et al., *The φ Accrual Failure Detector*, 2004, outputs a level of suspicion
//! from the mean and the variance of recent intervals. W. Chen, S. Toueg and M. Aguilera, *On the Quality of Service of Failure Detectors*, 2002,
//! define detection time and rate of false alarms, and derive the limit from the delays of a network.
//!
//! ```
//! use briquette_core::membership::detector::Detector;
//!
//! // A heartbeat per second, and an upper limit of 30 s.
//! let mut detector = Detector::new(1.0, 30.0, 0.0);
//! for second in 1..=20 {
//!     assert!(!detector.is_suspect(f64::from(second)));
//!     detector.heard(f64::from(second));
//! }
//! assert_eq!(detector.limit(), 3.0);
//! assert!(!detector.is_suspect(21.0) && !detector.is_suspect(22.0) && !detector.is_suspect(23.0));
//! assert!(detector.is_suspect(24.0));
//! ```

use std::collections::VecDeque;

/// Number of intervals that are kept.
const KEPT: usize = 64;
/// Number of intervals before which the upper limit holds.
const FEWEST: usize = 8;
/// Lowest limit in seconds.
const FLOOR: f64 = 2.0;
/// Lowest limit in heartbeat intervals.
const FLOOR_INTERVALS: f64 = 3.0;
/// Factor of the MAD.
const DEVIATIONS: f64 = 16.0;
/// Lowest MAD, as a part of the median.
const LEAST_DEVIATION: f64 = 0.1;
/// Factor of the longest interval.
const MARGIN: f64 = 1.5;

/// Failure detector of one member; see the module documentation for its rule. Times are in seconds on any monotonic clock.
#[derive(Debug, Clone)]
pub struct Detector {
    floor: f64,
    upper: f64,
    uses_history: bool,
    intervals: VecDeque<f64>,
    /// Limit by the history.
    learned: f64,
    /// Begin of the silence.
    since: f64,
    /// The last heartbeat, unless this observer was suspended since.
    beat: Option<f64>,
    /// The last call of [`is_suspect`](Detector::is_suspect).
    looked: f64,
}

impl Detector {
    /// Creates a detector at time `now` for a member that sends a heartbeat every `interval` seconds. The limit never exceeds `upper`
    /// seconds.
    pub fn new(interval: f64, upper: f64, now: f64) -> Detector {
        let floor = FLOOR.max(FLOOR_INTERVALS * interval);
        let intervals = VecDeque::with_capacity(KEPT);
        Detector { floor, upper, uses_history: true, intervals, learned: upper, since: now, beat: None, looked: now }
    }

    /// Sets whether the history determines the limit; it does by default. Otherwise the upper limit holds. The history is recorded in
    /// both cases.
    pub fn use_history(&mut self, used: bool) {
        self.uses_history = used;
    }

    /// Records a heartbeat that arrived directly from the member.
    pub fn heard(&mut self, now: f64) {
        self.forget_if_suspended(now);
        if let Some(before) = self.beat.replace(now) {
            if self.intervals.len() == KEPT {
                self.intervals.pop_front();
            }
            self.intervals.push_back(now - before);
            self.learned = self.learn();
        }
        self.since = now;
    }

    /// Returns the silence in seconds after which the member is suspected.
    pub fn limit(&self) -> f64 {
        if self.uses_history { self.learned } else { self.upper }
    }

    /// Returns the seconds since the last heartbeat, or since this observer was suspended.
    pub fn silence(&self, now: f64) -> f64 {
        now - self.since
    }

    /// Returns whether the member is suspected. Call this once per heartbeat interval, also for members whose state does not matter: a
    /// longer time between two calls means that this process was suspended.
    pub fn is_suspect(&mut self, now: f64) -> bool {
        self.forget_if_suspended(now);
        self.looked = now;
        self.silence(now) > self.limit()
    }

    fn forget_if_suspended(&mut self, now: f64) {
        if now - self.looked > self.limit() / 2.0 {
            self.since = now;
            self.beat = None;
        }
    }

    /// Computes the limit from the history.
    fn learn(&self) -> f64 {
        if self.intervals.len() < FEWEST {
            return self.upper;
        }
        let mut sorted: Vec<f64> = self.intervals.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (median, longest) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
        sorted.iter_mut().for_each(|interval| *interval = (*interval - median).abs());
        sorted.sort_unstable_by(f64::total_cmp);
        let deviation = sorted[sorted.len() / 2].max(LEAST_DEVIATION * median);
        let limit = (median + DEVIATIONS * deviation).max(MARGIN * longest);
        limit.max(self.floor).min(self.upper)
    }
}
