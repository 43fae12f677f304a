//! Metrics of the last exchange.

use crate::{CompressionRatio, Traffic};

/// Report that the wrappers of a strategy fill after an exchange, each with its own measurements.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The nominal compression ratio in force; 1 when dense.
    pub ratio: Option<CompressionRatio>,
    /// The format of the exchange, if several formats have the same ratio: `int8 ring`.
    pub carrier: Option<&'static str>,
    /// The controller's reason for changing the ratio, if it just did.
    pub reason: Option<String>,
    /// Set if the caller requests [`state`](Report::state).
    pub with_state: bool,
    /// The controller's state in words, for people. Present only if it was requested, and if the controller describes
    /// its state.
    pub state: Option<String>,
    /// Share of this rank's vector (with its residual) that was sent: `1 − ‖x − sent‖²/‖x‖²`.
    pub gain: Option<f64>,
    /// Report of each slot, in layout order.
    pub slots: Vec<SlotReport>,
    /// Time spent in each phase of the exchange.
    pub seconds: Option<ExchangeSeconds>,
    /// Predicted seconds for compression and communication of a dense exchange, where the controller has a cost model.
    pub dense_seconds: Option<f64>,
    /// Bytes that the exchange moved through this rank.
    pub traffic: Option<Traffic>,
    /// Energies (squared norms) that entered the residual and that remain in it, if there is a residual.
    pub residual_energy: Option<ResidualEnergy>,
    /// Ranks whose contributions were excluded because they were not finite or not readable, ascending. Filled only by
    /// an aggregator other than the mean.
    pub excluded: Vec<usize>,
    /// Measurements of this rank's vector for the controller's next decision, where they are agreed with the next step
    /// header.
    pub measured: Measured,
}

/// Up to [`MOST`](Self::MOST) measurements for a controller, which the step header sums over ranks; usually none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    numbers: [f64; Measured::MOST],
    count: usize,
}

impl Measured {
    /// The maximum count: a header has room for no more.
    pub const MOST: usize = 8;

    /// Creates a value from these numbers; `None` for more than [`MOST`](Self::MOST).
    pub fn new(numbers: &[f64]) -> Option<Self> {
        let mut measured = Measured { count: numbers.len(), ..Measured::default() };
        measured.numbers.get_mut(..numbers.len())?.copy_from_slice(numbers);
        Some(measured)
    }

    /// Returns the numbers.
    pub fn numbers(&self) -> &[f64] {
        &self.numbers[..self.count]
    }

    /// Adds another rank's numbers, element by element.
    pub(crate) fn add(&mut self, other: &Measured) {
        self.numbers.iter_mut().zip(other.numbers).for_each(|(sum, number)| *sum += number);
    }
}

impl Report {
    /// Returns an empty report that requests the controller's state.
    pub fn with_state() -> Self {
        Report { with_state: true, ..Report::default() }
    }

    /// Returns `‖x − sent‖ / ‖x‖` of this rank's vector (with its residual), where the gain is measured.
    pub fn relative_error(&self) -> Option<f64> {
        self.gain.map(relative_error)
    }

    /// Returns the effective delay in steps, where there is a residual: see [`ResidualEnergy::delay`].
    pub fn delay(&self) -> Option<f64> {
        self.residual_energy.as_ref().and_then(ResidualEnergy::delay)
    }

    /// Lets the reducer of the slots `members` report on these slots alone. A slot without a ratio gets this report's
    /// own ratio.
    pub(crate) fn narrowed(&mut self, members: impl Iterator<Item = usize> + Clone, report: impl FnOnce(&mut Report)) {
        let mut whole = std::mem::take(&mut self.slots);
        self.slots.extend(members.clone().filter_map(|member| whole.get(member)));
        report(self);
        for (member, part) in members.zip(&self.slots) {
            whole[member] = SlotReport { ratio: part.ratio.or(self.ratio), ..*part };
        }
        self.slots = whole;
    }

    /// Like [`narrowed`](Self::narrowed), but merges only the slots into this report, and returns the rest as a
    /// separate report.
    pub(crate) fn part(
        &mut self,
        members: impl Iterator<Item = usize> + Clone,
        report: impl FnOnce(&mut Report),
    ) -> Report {
        let mut part = Report { slots: std::mem::take(&mut self.slots), ..Report::default() };
        part.narrowed(members, report);
        self.slots = std::mem::take(&mut part.slots);
        part
    }

    /// Adds the residual's energies: in total, and the energy left in each slot.
    pub(crate) fn put_residual_energy(&mut self, residual_energy: ResidualEnergy, left: &[f64]) {
        self.residual_energy = Some(residual_energy);
        self.slots.iter_mut().zip(left).for_each(|(slot, left)| slot.left = Some(*left));
    }
}

/// Returns `√(1 − gain)`, clamped because rounding may leave a gain above 1.
fn relative_error(gain: f64) -> f64 {
    (1.0 - gain).max(0.0).sqrt()
}

/// Energies (squared norms, `‖x‖²`) of a residual after an exchange. The energies of several ranks can be added.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ResidualEnergy {
    /// Energy of this step's addition: the gradient, or under momentum correction the velocity.
    pub entered: f64,
    /// Energy of the residual.
    pub left: f64,
}

impl ResidualEnergy {
    /// Returns `‖residual‖`, in the units of a gradient.
    pub fn residual_norm(&self) -> f64 {
        self.left.sqrt()
    }

    /// Returns the **effective delay** `‖residual‖ / ‖gradient‖`: the length of the residual in units of one step's
    /// gradient. 0 if everything was sent; `None` if nothing entered or the numbers are not finite.
    ///
    /// ```
    /// use briquette_core::report::ResidualEnergy;
    /// assert_eq!(ResidualEnergy { entered: 4.0, left: 36.0 }.delay(), Some(3.0));
    /// assert_eq!(ResidualEnergy { entered: 0.0, left: 36.0 }.delay(), None);
    /// ```
    pub fn delay(&self) -> Option<f64> {
        Some((self.left / self.entered).sqrt()).filter(|delay| delay.is_finite())
    }
}

/// Report of one slot in an exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct SlotReport {
    /// Share of the slot's energy that was sent.
    pub gain: f64,
    /// Number of values that were sent as something other than 0.
    pub kept: usize,
    /// The slot's nominal ratio in force, where known.
    pub ratio: Option<CompressionRatio>,
    /// `‖residual‖²` of the slot, where there is a residual.
    pub left: Option<f64>,
}

impl SlotReport {
    /// Returns `‖x − sent‖ / ‖x‖` of the slot.
    ///
    /// ```
    /// use briquette_core::report::SlotReport;
    /// let mut slot = SlotReport::default();
    /// slot.gain = 0.75;
    /// assert_eq!(slot.relative_error(), 0.5);
    /// ```
    pub fn relative_error(&self) -> f64 {
        relative_error(self.gain)
    }
}

/// Breakdown of an exchange's time, on the session's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct ExchangeSeconds {
    /// Seconds of probing, encoding and decoding that did not overlap with communication.
    pub compress: f64,
    /// Part of `compress` before anything was sent: probing and encoding. With buckets, the time before the first
    /// bucket was sent.
    pub encode: f64,
    /// Time spent waiting for other ranks and moving bytes.
    pub exchange: f64,
    /// Part of all these that overlapped with other work of the rank, and therefore did not lengthen the step.
    pub overlapped: f64,
}

impl ExchangeSeconds {
    /// Returns the times of an exchange that only waits and moves bytes.
    pub fn exchanging(seconds: f64) -> Self {
        ExchangeSeconds { exchange: seconds, ..ExchangeSeconds::default() }
    }

    /// Returns the part of `compress` after something was sent: decoding, and the encoding of later buckets.
    pub fn decode(&self) -> f64 {
        self.compress - self.encode
    }
}
