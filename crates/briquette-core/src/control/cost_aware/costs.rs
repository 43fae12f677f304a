//! Cost model of the rungs of a [`CostAware`](super::CostAware): measured for rungs that were sent, predicted for the others.

use crate::CompressionRatio;
use crate::error::StateError;
use crate::seam::LastExchange;
use crate::state::State;

/// Number of samples in a median.
const RECENT: usize = 5;
/// Number of exchanges that show a change of the link.
const SUDDEN: usize = 2;
/// Factor between the bytes of two exchanges from which a line is drawn through both.
const FAR: f64 = 1.5;

/// The cost of a rung.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    /// Bytes of an exchange, summed over ranks.
    bytes: f64,
    /// Seconds to compress and decompress.
    compress: f64,
    /// Seconds of the exchange in the last measurement.
    exchange: f64,
    /// Seconds of the exchange in the last accepted timing of the rung.
    expected: Option<f64>,
}

/// One measured step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sample {
    compute: f64,
    compress: f64,
    exchange: f64,
    bytes: f64,
}

/// The costs of all rungs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Costs {
    ratios: Vec<f64>,
    world: usize,
    /// Bytes of a dense exchange, summed over ranks.
    dense_bytes: f64,
    rungs: Vec<Option<Cost>>,
    /// The link: seconds, and seconds per byte.
    latency: f64,
    per_byte: f64,
    compute: f64,
    /// The rung whose exchange began or changed the line last, until the ratio has settled on it.
    anchor: Option<usize>,
    /// The last samples at the present rung, oldest first.
    recent: Vec<Sample>,
    /// Number of steps at the present rung, measured or not.
    tried: u64,
    at: usize,
}

impl Costs {
    pub(super) fn new(rungs: &[CompressionRatio], world: usize) -> Self {
        let ratios: Vec<f64> = rungs.iter().map(|rung| rung.get()).collect();
        let (rungs, recent) = (vec![None; ratios.len()], Vec::new());
        let (latency, per_byte, compute, dense_bytes, tried, at) = Default::default();
        Costs { ratios, world, dense_bytes, rungs, latency, per_byte, compute, anchor: None, recent, tried, at }
    }

    /// Returns whether the world has one rank, which exchanges nothing.
    pub(super) fn is_alone(&self) -> bool {
        self.world == 1
    }

    /// Computes the dense bytes from the length of the vector: a ring moves it `2·(W − 1)` times.
    pub(super) fn set_values(&mut self, values: usize) {
        self.dense_bytes = 8.0 * self.world.saturating_sub(1) as f64 * values as f64;
    }

    /// Switches to this rung from the next step on.
    pub(super) fn begin(&mut self, rung: usize) {
        self.at = rung;
        self.restart();
    }

    fn restart(&mut self) {
        self.recent.clear();
        self.tried = 0;
    }

    /// Returns the number of samples at the present rung, at most five.
    pub(super) fn samples(&self) -> usize {
        self.recent.len()
    }

    /// Returns whether the present rung has this many samples, or cannot be measured: five times as many steps gave too few samples.
    pub(super) fn is_timed(&self, samples: usize) -> bool {
        self.recent.len() >= samples || self.tried >= 5 * samples as u64
    }

    /// Returns the lower median of a number over the recent samples; 0 without samples.
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let mut numbers: Vec<f64> = self.recent.iter().map(of).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }

    /// Records a step at the present rung. Invalid times are not a sample.
    pub(super) fn learn(&mut self, last: &LastExchange) {
        let LastExchange { compute_seconds: compute, compress_seconds: compress, exchange_seconds: exchange, .. } =
            *last;
        self.tried = self.tried.saturating_add(1);
        if ![compute, compress, exchange].iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0) {
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push(Sample { compute, compress, exchange, bytes: last.traffic.sent as f64 });
        self.compute = self.median(|sample| sample.compute);
        self.measure();
    }

    /// Sets the cost of the present rung from the recent samples.
    fn measure(&mut self) {
        let (compress, exchange) = (self.median(|s| s.compress), self.median(|s| s.exchange));
        let (bytes, expected) = (self.median(|s| s.bytes), self.rungs[self.at].and_then(|cost| cost.expected));
        self.rungs[self.at] = Some(Cost { bytes, compress, exchange, expected });
    }

    fn line(&self, bytes: f64) -> f64 {
        self.latency + self.per_byte * bytes
    }

    /// Returns whether `rung` was measured.
    pub(super) fn is_known(&self, rung: usize) -> bool {
        self.rungs[rung].is_some()
    }

    /// Returns the bytes of an exchange at `rung`. Those of a rung that was never sent are interpolated between dense and the nearest measured
    /// rung: `dense / ratio^p`.
    pub(super) fn bytes(&self, rung: usize) -> f64 {
        let known = |at: usize| self.rungs[at].map(|cost| (cost.bytes, self.ratios[at]));
        let nearest = || (rung..self.rungs.len()).chain((1..rung).rev()).find_map(known);
        let power = nearest().map_or(1.0, |(bytes, ratio)| (self.dense_bytes / bytes).ln() / ratio.ln());
        let power = if power.is_finite() { power } else { 1.0 };
        known(rung).map_or_else(|| self.dense_bytes / self.ratios[rung].powf(power), |(bytes, _)| bytes)
    }

    /// Returns the predicted seconds of the exchange at `rung`: the last measurement, or the line's.
    pub(super) fn exchange(&self, rung: usize) -> f64 {
        match &self.rungs[rung] {
            Some(cost) => cost.exchange,
            None => self.line(self.bytes(rung)),
        }
    }

    /// Returns the predicted seconds of compression at `rung`.
    fn compress(&self, rung: usize) -> f64 {
        let known = |at: usize| self.rungs[at].map(|cost| cost.compress);
        // A rung that was never sent has the compression time of the nearest measured one. For dense it is 0.
        let nearest = || (rung..self.rungs.len()).chain((0..rung).rev()).find_map(known).unwrap_or_default();
        known(rung).unwrap_or_else(|| if self.ratios[rung] == 1.0 { 0.0 } else { nearest() })
    }

    /// Returns the predicted seconds of a step at `rung`.
    pub(super) fn step(&self, rung: usize) -> f64 {
        self.compute + self.compress(rung) + self.exchange(rung)
    }

    /// Returns the part of this time for compression and exchange.
    pub(super) fn overhead(&self, rung: usize) -> f64 {
        self.compress(rung) + self.exchange(rung)
    }

    /// Returns the least seconds that a step at `rung` may take: half of the predicted exchange, and the compression if it was measured.
    pub(super) fn least(&self, rung: usize) -> f64 {
        let compress = if self.is_known(rung) { self.compress(rung) } else { 0.0 };
        self.compute + compress + self.exchange(rung) / 2.0
    }

    /// Begins the line of the link with the present rung. Without another one, all of its exchange is taken for bandwidth.
    pub(super) fn start(&mut self) {
        let Some(Cost { bytes, exchange, .. }) = self.rungs[self.at] else { return };
        (self.latency, self.per_byte) = (0.0, if bytes > 0.0 { exchange / bytes } else { 0.0 });
        self.believe(self.at);
        self.anchor = Some(self.at);
    }

    /// Returns whether the rung that is sent has no expected time yet.
    pub(super) fn is_new(&self) -> bool {
        self.rungs[self.at].is_some_and(|cost| cost.expected.is_none())
    }

    /// Accepts the measurement at `rung` as its expected time.
    pub(super) fn believe(&mut self, rung: usize) {
        self.rungs[rung].iter_mut().for_each(|cost| cost.expected = Some(cost.exchange));
    }

    /// Follows a change of the link, which the last exchanges at the present rung have shown: fits the line of the link through them, and
    /// scales the measurements of all rungs from the line before to this one. Returns the expected seconds and those of these exchanges.
    /// Without a valid exchange at the present rung, nothing changes.
    pub(super) fn follow(&mut self) -> Option<[f64; 2]> {
        self.fit(None)
    }

    /// Adds the present rung as a second point to a line that has just begun or changed. The first point is a measurement of this link and stays.
    pub(super) fn refine(&mut self) {
        self.fit(self.anchor);
        self.settle();
    }

    /// Fits the line to the last exchanges at the present rung, and scales the measurements of all others but `kept`.
    fn fit(&mut self, kept: Option<usize>) -> Option<[f64; 2]> {
        if self.recent.is_empty() {
            return None;
        }
        let before = (self.latency, self.per_byte);
        self.recent.drain(..self.recent.len().saturating_sub(SUDDEN));
        self.measure();
        let Cost { bytes, exchange, expected, .. } = self.rungs[self.at]?;
        let line = |(latency, per_byte): (f64, f64), bytes: f64| latency + per_byte * bytes;
        // A rung that was sent since the change gives a second point. Without it, the bandwidth has changed, if it alone can explain the
        // seconds, and otherwise both.
        let anchor = self.anchor.and_then(|rung| self.rungs[rung]);
        let far = anchor.filter(|other| other.bytes > FAR * bytes || bytes > FAR * other.bytes);
        let slope = far.map(|other| (exchange - other.exchange) / (bytes - other.bytes));
        let through = slope.filter(|slope| *slope >= 0.0);
        let scale = exchange / line(before, bytes);
        (self.latency, self.per_byte) = match through {
            Some(slope) if exchange >= slope * bytes => (exchange - slope * bytes, slope),
            _ if exchange > before.0 && bytes > 0.0 => (before.0, (exchange - before.0) / bytes),
            _ if scale.is_finite() => (scale * before.0, scale * before.1),
            _ => (exchange, 0.0),
        };
        let after = (self.latency, self.per_byte);
        for (rung, cost) in self.rungs.iter_mut().enumerate() {
            let Some(known) = cost else { continue };
            if rung != self.at && Some(rung) != kept {
                known.exchange *= line(after, known.bytes) / line(before, known.bytes);
            }
            known.expected = Some(known.exchange);
            *cost = cost.filter(|cost| cost.exchange.is_finite());
        }
        self.anchor = Some(self.at);
        Some([expected?, exchange])
    }

    /// Reports that the ratio has settled after a change of the link.
    pub(super) fn settle(&mut self) {
        self.anchor = None;
    }

    /// Returns whether the link has changed, and the ratio has not settled since.
    pub(super) fn is_unsettled(&self) -> bool {
        self.anchor.is_some()
    }

    /// Returns whether the last two exchange times at the present rung both exceed its expected time, or both fall below it, by more than
    /// the factor `most` and by more than this share of the step.
    pub(super) fn surprise(&self, most: f64, share: f64) -> bool {
        let Some(expected) = self.rungs[self.at].and_then(|cost| cost.expected) else { return false };
        let margin = share * self.step(self.at);
        let last = || self.recent[self.recent.len().saturating_sub(SUDDEN)..].iter().map(|sample| sample.exchange);
        let is_longer = |seconds: f64| seconds > most * expected && seconds - expected > margin;
        let is_shorter = |seconds: f64| seconds * most < expected && expected - seconds > margin;
        !self.recent.is_empty() && (last().all(is_longer) || last().all(is_shorter))
    }

    pub(super) fn save(&self, state: &mut State) {
        let cost = |cost: Cost| [1.0, cost.bytes, cost.compress, cost.exchange, cost.expected.unwrap_or(-1.0)];
        let costs: Vec<f64> = self.rungs.iter().flat_map(|rung| rung.map_or([0.0; 5], cost)).collect();
        let recent = self.recent.iter().flat_map(|s| [s.compute, s.compress, s.exchange, s.bytes]);
        state.put("costs", costs);
        state.put("recent", recent.collect::<Vec<f64>>());
        state.put("link", vec![self.latency, self.per_byte, self.compute, self.dense_bytes]);
        state.put("anchor", self.anchor.map_or(Vec::new(), |rung| vec![rung as f64]));
        state.put("at", self.at as u64);
        state.put("tried", self.tried);
    }

    pub(super) fn load(&mut self, state: &State) -> Result<(), StateError> {
        let (costs, recent, link) = (state.f64s("costs")?, state.f64s("recent")?, state.f64s("link")?);
        let wrong = |name: &str, expected: String, got: usize| Err(StateError::mismatch(name, &expected, got));
        let (costs, rest) = costs.as_chunks::<5>();
        if costs.len() != self.rungs.len() || !rest.is_empty() {
            return wrong("costs", format!("5 numbers for each of {} ratios", self.rungs.len()), 5 * costs.len());
        }
        let &[latency, per_byte, compute, dense_bytes] = link else {
            return wrong("link", "4 numbers".into(), link.len());
        };
        let tried = state.u64("tried")?;
        let at = usize::try_from(state.u64("at")?).unwrap_or(usize::MAX);
        if at >= self.rungs.len() {
            return wrong("at", format!("below {} ratios", self.rungs.len()), at);
        }
        // A state without this entry is from a version that timed all ratios again after a change.
        let anchor = match if state.contains("anchor") { state.f64s("anchor")? } else { &[] } {
            [] => None,
            &[rung] if (rung as usize) < self.rungs.len() => Some(rung as usize),
            other => return wrong("anchor", "no number, or the number of a ratio".into(), other.len()),
        };
        let cost = |[known, bytes, compress, exchange, expected]: &[f64; 5]| {
            let expected = Some(*expected).filter(|expected| *expected >= 0.0);
            (*known != 0.0).then_some(Cost { bytes: *bytes, compress: *compress, exchange: *exchange, expected })
        };
        self.rungs = costs.iter().map(cost).collect();
        let sample = |&[compute, compress, exchange, bytes]: &[f64; 4]| Sample { compute, compress, exchange, bytes };
        self.recent = recent.as_chunks::<4>().0.iter().map(sample).collect();
        (self.latency, self.per_byte, self.compute, self.dense_bytes) = (latency, per_byte, compute, dense_bytes);
        (self.at, self.tried, self.anchor) = (at, tried, anchor);
        Ok(())
    }
}
