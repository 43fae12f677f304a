//! Trend of a loss: its expected values, and alarms if it exceeds them.

use super::rise::Rise;
use crate::error::StateError;
use crate::state::{State, Value, fields::Saved};
use crate::stateful;

/// Minimum number of points of a line.
const FEWEST: usize = 4;
/// Ratio of the standard deviation of normal noise to its median absolute deviation.
const NORMAL: f64 = 1.4826;
/// Ratio of that standard deviation to the mean absolute deviation, and the weight of its moving average.
const ABSOLUTE: f64 = 1.2533;
const SMOOTHING: f64 = 0.1;
/// Initial widening of the noise, to be divided by the number of points.
const FEW: f64 = 4.0;
/// Minimum noise, as a share of the loss.
const LEAST_NOISE: f64 = 0.02;
/// Ratio of a median's standard error to that of a mean, for normal values.
const MEDIAN: f64 = 1.2533;
/// Minimum noise in standard errors of the points. Seven to eight points can lie close to a line by chance; the losses within their
/// windows are ten times as many.
const ERRORS: f64 = 1.5;

/// Number of noises above a promise that is not added to the sum.
const ALLOWED: f64 = 1.75;

/// Parameters of a trend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// Number of points of a trend.
    pub(super) points: usize,
    /// Share of a point's progress that is expected of the next one.
    pub(super) trust: f64,
    /// Number of noises that a point may lie above its expected value.
    pub(super) noises: f64,
    /// Set if a steady [rise](Rise) is an alarm.
    pub(super) rises: bool,
}

/// An alarm: a point that exceeds its expected value by more than the noise allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Alarm {
    /// The loss, and its maximum expected value.
    pub(super) loss: f64,
    pub(super) most: f64,
    /// The loss at which it is as expected again: a noise above the middle of the expected values.
    pub(super) recovered: f64,
}

/// A line through points by medians. At most a quarter of the points can move it far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    last: f64,
    slope: f64,
    pub(super) noise: f64,
}

impl Line {
    /// Returns the value of the line at the next point.
    pub(super) fn next(&self) -> f64 {
        self.last + self.slope
    }
}

/// A promise: the line from before compression was raised.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Promise {
    line: Line,
    /// Number of points since then.
    since: f64,
    /// Number of noises by which the points lay above it, less [`ALLOWED`] each, never below 0 (a one-sided cumulative sum).
    excess: f64,
}

impl Promise {
    /// Returns the expected value of the next point.
    fn next(&self, trust: f64) -> f64 {
        // Progress slows down: each point is expected to make a share of the previous point's progress.
        let steps = trust * (1.0 - trust.powf(self.since + 1.0)) / (1.0 - trust);
        self.line.last + self.line.slope * steps
    }

    fn push(self, point: f64, trust: f64) -> Promise {
        let above = (point - self.next(trust)) / self.line.noise - ALLOWED;
        let excess = if above.is_nan() { self.excess } else { (self.excess + above).max(0.0) };
        Promise { since: self.since + 1.0, excess, ..self }
    }
}

/// The last points, and the promise from when compression was raised.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Trend {
    /// The highest ratio since the last point, and the highest of that point's steps; 0 before any step.
    highest: f64,
    before: f64,
    points: Vec<f64>,
    /// The standard errors of the last points, 0 where they are unknown.
    errors: Vec<f64>,
    promise: Option<Promise>,
    /// Average distance of points from the prediction of the line before them.
    spread: f64,
    /// Number of these points.
    foretold: f64,
    rise: Rise,
}

pub(super) fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let (low, high) = (numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2]);
    low + (high - low) / 2.0
}

/// Returns the median of `losses`, the upper one of an even number, and its standard error by the median absolute deviation.
pub(super) fn point(losses: &mut [f64]) -> (f64, f64) {
    losses.sort_by(f64::total_cmp);
    let point = losses[losses.len() / 2];
    let middle = median(losses);
    let off = median(&mut losses.iter().map(|loss| (loss - middle).abs()).collect::<Vec<_>>());
    (point, MEDIAN * NORMAL * off / (losses.len() as f64).sqrt())
}

impl Trend {
    /// Returns P. K. Sen's line: the median of the slopes between all pairs of points, then the median of the remainders.
    fn line(&self) -> Option<Line> {
        let points = &self.points;
        if points.len() < FEWEST {
            return None;
        }
        let places = 0..points.len();
        let pairs = places.clone().flat_map(|a| (a + 1..points.len()).map(move |b| (a, b)));
        let slope = median(&mut pairs.map(|(a, b)| (points[b] - points[a]) / (b - a) as f64).collect::<Vec<_>>());
        let rest = |at: usize| points[at] - slope * at as f64;
        let start = median(&mut places.clone().map(rest).collect::<Vec<_>>());
        let off = median(&mut places.map(|at| (rest(at) - start).abs()).collect::<Vec<_>>());
        let last = start + slope * (points.len() - 1) as f64;
        let error = (self.errors.iter().map(|error| error * error).sum::<f64>() / points.len() as f64).sqrt();
        let noise = (NORMAL * off).max(self.spread).max(ERRORS * error).max(LEAST_NOISE * last.abs());
        Some(Line { last, slope: slope.min(0.0), noise })
    }

    /// Records the highest ratio of a step. At twice the highest ratio sent since the point before the last, the line becomes a promise.
    pub(super) fn sent(&mut self, ratio: f64) {
        if ratio >= 2.0 * self.highest.max(self.before).max(1.0) {
            self.promise();
        }
        self.highest = self.highest.max(ratio);
    }

    /// Returns the highest ratio of the steps since the last point; at least 1.
    pub(super) fn highest(&self) -> f64 {
        self.highest.max(1.0)
    }

    /// Keeps the present line as the promise when compression is raised. An existing promise stays.
    pub(super) fn promise(&mut self) {
        self.promise = self.promise.or_else(|| self.line().map(|line| Promise { line, since: 0.0, excess: 0.0 }));
    }

    /// Restarts the trend for changed training conditions, discarding the earlier points and the promise.
    pub(super) fn restart(&mut self) {
        let Trend { spread, foretold, mut rise, .. } = std::mem::take(self);
        rise.restart();
        *self = Trend { spread, foretold, rise, ..Trend::default() };
    }

    /// Adds a new point and its standard error, 0 if that is unknown.
    pub(super) fn push(&mut self, (point, error): (f64, f64), reading: Reading) -> Option<Alarm> {
        let Reading { points, trust, noises, rises } = reading;
        self.before = std::mem::take(&mut self.highest);
        let line = self.line();
        let risen = line.and_then(|line| self.rise.push(point, (&self.points, line), reading)).filter(|_| rises);
        if self.before <= 1.0 {
            // Without compression, the rise cannot be due to compression, neither now nor later.
            self.rise.restart();
        }
        // With few points the noise is hardly known.
        let few = if self.foretold < points as f64 { FEW / self.points.len() as f64 } else { 0.0 };
        let noises = noises * (1.0 + few);
        let expected = |line: Line, middle: f64, room: f64| Alarm {
            loss: point,
            most: middle + room * line.noise,
            recovered: middle + line.noise,
        };
        let next = line.map(|line| expected(line, line.last + trust * line.slope, noises));
        if let Some(line) = line {
            // A single distant point must not widen the noise.
            let off = (point - line.next()).abs().min(noises * line.noise);
            self.foretold += 1.0;
            self.spread += SMOOTHING.max(1.0 / self.foretold) * (ABSOLUTE * off - self.spread);
        }
        let promised = |promise: Promise| expected(promise.line, promise.next(trust), noises - promise.excess);
        let promised = self.promise.map(promised);
        let pushed = self.promise.map(|promise| promise.push(point, trust));
        self.promise = pushed.filter(|promise| promise.since < points as f64);
        for (values, new) in [(&mut self.points, point), (&mut self.errors, error)] {
            if values.len() == points {
                values.remove(0);
            }
            values.push(new);
        }
        let lowest = [next, promised].into_iter().flatten().min_by(|a, b| a.most.total_cmp(&b.most));
        let risen = risen.map(|(lowest, noise)| Alarm {
            loss: point,
            most: lowest + reading.noises * noise,
            recovered: lowest + noise,
        });
        lowest.filter(|expected| point > expected.most).or(risen)
    }
}

stateful! {
    impl Stateful for Trend {
        points: value("points"),
        errors: optional("errors"),
        promise: value("promise"),
        [spread, foretold]: numbers("spread"),
        [highest, before]: numbers("sent"),
        rise: value("rise"),
    }
}

/// Saves an empty vector for `None`.
impl Saved for Option<Promise> {
    fn saved(&self) -> Option<Value> {
        let numbers = |Promise { line, since, excess }| vec![line.last, line.slope, line.noise, since, excess];
        Some(self.map_or(vec![], numbers).into())
    }

    fn load(name: &str, state: &State) -> Result<Self, StateError> {
        let &[last, slope, noise, since, excess] = state.f64s(name)? else { return Ok(None) };
        Ok(Some(Promise { line: Line { last, slope, noise }, since, excess }))
    }
}
