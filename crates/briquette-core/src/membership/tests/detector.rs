//! Failure detection on simulated time: false alarms, detection times, and the limits of the limit.

use rand::Rng;

use crate::Key;
use crate::membership::detector::Detector;

const UPPER: f64 = 30.0;

/// A member that sends a heartbeat per second, and an observer that looks every second.
struct Link {
    rng: Box<dyn FnMut() -> f64>,
    detector: Detector,
    sent: f64,
    arrived: f64,
    looked: f64,
    alarms: usize,
    highest: f64,
    lowest: f64,
}

impl Link {
    fn new(seed: u64) -> Link {
        let mut rng = Key::new(seed).block(0);
        let mut rng: Box<dyn FnMut() -> f64> = Box::new(move || rng.random());
        let looked = rng();
        let detector = Detector::new(1.0, UPPER, looked);
        Link { rng, detector, sent: 0.0, arrived: 0.0, looked, alarms: 0, highest: 0.0, lowest: UPPER }
    }

    /// Looks every second until `until`, and returns the time of the first alarm.
    fn look_until(&mut self, until: f64) -> Option<f64> {
        let mut first = None;
        while self.looked + 1.0 < until {
            self.looked += 1.0;
            if self.detector.is_suspect(self.looked) {
                first = first.or(Some(self.looked));
            }
        }
        first
    }

    /// Runs `beats` heartbeats with these delays, in order as TCP delivers them. A silence with an alarm counts once.
    fn run(&mut self, beats: usize, mut delay: impl FnMut(&mut dyn FnMut() -> f64) -> f64) {
        for _ in 0..beats {
            self.sent += 1.0;
            self.arrived = self.arrived.max(self.sent + delay(&mut *self.rng));
            self.alarms += usize::from(self.look_until(self.arrived).is_some());
            self.detector.heard(self.arrived);
            self.highest = self.highest.max(self.detector.limit());
            self.lowest = self.lowest.min(self.detector.limit());
        }
    }

    /// Ends the heartbeats at a random time of an interval, and returns the seconds until the alarm.
    fn lose(&mut self) -> f64 {
        let lost = self.sent + (self.rng)();
        self.look_until(self.arrived + 2.0 * UPPER).expect("an alarm") - lost
    }
}

fn normal(rng: &mut dyn FnMut() -> f64) -> f64 {
    (-2.0 * (1.0 - rng()).ln()).sqrt() * (std::f64::consts::TAU * rng()).cos()
}

fn exponential(rng: &mut dyn FnMut() -> f64, mean: f64) -> f64 {
    -mean * (1.0 - rng()).ln()
}

fn alarms(beats: usize, delay: impl FnMut(&mut dyn FnMut() -> f64) -> f64) -> usize {
    let mut link = Link::new(11);
    link.run(beats, delay);
    assert!(link.lowest >= 3.0 && link.highest <= UPPER, "{} to {}", link.lowest, link.highest);
    link.alarms
}

#[test]
fn a_million_heartbeats_of_links_that_are_alive_cause_few_alarms() {
    let normal = alarms(250_000, |rng| 0.3 + 0.1 * normal(rng));
    let pauses = alarms(250_000, |rng| if rng() < 0.01 { 1.5 } else { exponential(rng, 0.02) });
    let uneven = alarms(250_000, |rng| exponential(rng, 0.5));
    // Pareto's distribution: one delay in 2 500 is longer than 2 s.
    let heavy = alarms(250_000, |rng| 0.09 * (1.0 - rng()).powf(-1.0 / 2.5));
    println!("alarms: normal {normal}, pauses {pauses}, exponential {uneven}, heavy tail {heavy}");
    assert_eq!((normal, pauses), (0, 0));
    assert!(uneven <= 10 && heavy <= 125, "{uneven} and {heavy}");
}

/// The tail repeats itself: delays of a second and more come in bursts of twenty.
#[test]
fn bursts_cause_fewer_alarms_than_their_number() {
    let (mut bursts, mut left) = (0, 0);
    let alarms = alarms(100_000, |rng| {
        if left == 0 && rng() < 1.0 / 300.0 {
            (bursts, left) = (bursts + 1, 20);
        }
        left -= i32::from(left > 0);
        exponential(rng, if left > 0 { 1.0 } else { 0.02 })
    });
    println!("{alarms} alarms in {bursts} bursts");
    assert!(bursts > 250 && 2 * alarms < bursts, "{alarms} alarms in {bursts} bursts");
}

#[test]
fn a_loss_on_a_calm_link_is_found_in_two_to_four_seconds() {
    let mut times: Vec<f64> = (0..1000)
        .map(|seed| {
            let mut link = Link::new(seed);
            link.run(100, |rng| exponential(rng, 0.02));
            link.lose()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("found after {:.2} s, {:.2} s (median) and {:.2} s", times[0], times[500], times[999]);
    assert!((2.0..4.0).contains(&times[500]), "{}", times[500]);
    assert!(times[0] > 1.9 && times[999] < 4.5, "{} to {}", times[0], times[999]);
}

#[test]
fn a_loss_before_eight_intervals_is_found_by_the_upper_limit() {
    let found = |beats| {
        let mut link = Link::new(3);
        link.run(beats, |_| 0.01);
        link.lose()
    };
    // The first heartbeat begins the first interval.
    assert!(found(8) > UPPER - 1.0 && found(0) > UPPER - 1.0);
    assert!(found(9) < 4.5);
}

#[test]
fn the_limit_follows_a_link_that_becomes_slower_and_back() {
    let mut link = Link::new(5);
    link.run(100, |rng| exponential(rng, 0.02));
    assert_eq!((link.alarms, link.detector.limit()), (0, 3.0));
    link.run(200, |rng| exponential(rng, 0.6));
    let slow = link.detector.limit();
    assert!((4.0..15.0).contains(&slow), "{slow}");
    let found = link.lose();
    assert!((slow - 2.0..slow + 2.0).contains(&found), "{found} after {slow}");
    let mut link = Link::new(5);
    link.run(200, |rng| exponential(rng, 0.6));
    link.run(100, |rng| exponential(rng, 0.02));
    assert_eq!(link.detector.limit(), 3.0);
}

#[test]
fn the_limit_stays_between_floor_and_upper_limit() {
    // No heartbeat has a delay, and none has the interval that was agreed.
    for (interval, expected) in [(0.1, 2.0), (1.0, 3.0), (4.0, 12.0), (20.0, UPPER)] {
        let mut detector = Detector::new(interval, UPPER, 0.0);
        for beat in 0..100 {
            detector.is_suspect(0.01 * f64::from(beat));
            detector.heard(0.01 * f64::from(beat));
        }
        assert_eq!(detector.limit(), expected);
    }
    let mut impatient = Detector::new(0.1, 1.5, 0.0);
    for beat in 1..=20 {
        impatient.is_suspect(0.1 * f64::from(beat));
        impatient.heard(0.1 * f64::from(beat));
    }
    assert_eq!(impatient.limit(), 1.5);
    // Intervals that differ by more than the upper limit.
    let mut link = Link::new(7);
    link.run(1000, |rng| exponential(rng, 40.0));
    assert!(link.highest == UPPER, "{}", link.highest);
}

#[test]
fn golden_median_deviation_and_longest_interval() {
    let limit = |intervals: &[f64]| {
        let (mut detector, mut now) = (Detector::new(1.0, UPPER, 0.0), 0.0);
        detector.heard(now);
        for interval in intervals {
            for _ in 0..10 {
                now += interval / 10.0;
                detector.is_suspect(now);
            }
            detector.heard(now);
        }
        (detector.limit() * 1000.0).round() / 1000.0
    };
    // Median 1.5, distances four of 0 and four of 0.5: 1.5 + 16 · 0.5.
    assert_eq!(limit(&[1.0, 1.5, 1.0, 1.5, 1.0, 1.5, 1.0, 1.5]), 9.5);
    // Median 2, distances 0: 2 + 16 · 0.1 · 2.
    assert_eq!(limit(&[2.0; 8]), 5.2);
    // Median 1, distances 0, longest 2.4: 1.5 · 2.4 is above the floor and 2.6.
    assert_eq!(limit(&[1.0, 1.0, 1.0, 2.4, 1.0, 1.0, 1.0, 1.0]), 3.6);
    // The long interval leaves after 64 others.
    assert_eq!(limit(&[&[2.4][..], &[1.0; 63]].concat()), 3.6);
    assert_eq!(limit(&[&[2.4][..], &[1.0; 64]].concat()), 3.0);
}

/// Without a call for longer than half the limit, the observer was suspended: it heard nothing itself, and does not judge.
#[test]
fn an_observer_that_was_suspended_begins_anew() {
    for is_heard_first in [false, true] {
        let mut link = Link::new(9);
        link.run(50, |_| 0.01);
        let mut now = link.looked + 20.0;
        if is_heard_first {
            link.detector.heard(now);
        }
        assert!(!link.detector.is_suspect(now));
        link.detector.heard(now);
        // Its own pause is no interval of the member.
        assert_eq!(link.detector.limit(), 3.0);
        // The member ended meanwhile, and is found as any other.
        for _ in 0..3 {
            now += 1.0;
            assert!(!link.detector.is_suspect(now), "{:?}", link.detector);
        }
        assert!(link.detector.is_suspect(now + 1.0));
    }
}

#[test]
fn without_history_the_upper_limit_holds() {
    let mut link = Link::new(2);
    link.detector.use_history(false);
    link.run(100, |_| 0.01);
    assert_eq!(link.detector.limit(), UPPER);
    assert!(link.lose() > UPPER - 1.0);
    // The history was recorded meanwhile.
    link.detector.use_history(true);
    assert_eq!(link.detector.limit(), 3.0);
}
