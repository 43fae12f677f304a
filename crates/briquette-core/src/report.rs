//! What the last exchange did, for metrics.

use crate::{CompressionFactor, Traffic};

/// Filled by the wrappers of a strategy after an exchange, each with what it knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The nominal factor in force; 1 when dense.
    pub factor: Option<CompressionFactor>,
    /// What carried it, where several carriers have the same ratio: `int8 ring`.
    pub carrier: Option<&'static str>,
    /// Why the controller changed it, when it just did.
    pub reason: Option<String>,
    /// Whether [`state`](Report::state) is asked for.
    pub with_state: bool,
    /// The controller's state in words, for people; only where it is asked for, and the controller describes it.
    pub state: Option<String>,
    /// Share of this rank's vector (with its residual) that was sent: `1 − ‖x − sent‖²/‖x‖²`.
    pub gain: Option<f64>,
    /// Each slot's share, in layout order.
    pub slots: Vec<SlotReport>,
    /// Where the time went.
    pub seconds: Option<ExchangeSeconds>,
    /// Seconds for compressing and exchanging that the controller predicts of a dense exchange, where it has a model of costs.
    pub dense_seconds: Option<f64>,
    /// Bytes that the exchange moved through this rank.
    pub traffic: Option<Traffic>,
    /// What entered this rank's memory of what was not sent, and what waits in it, where there is one.
    pub waiting: Option<Waiting>,
    /// Ranks whose contributions were not finite, or not readable, and did not count, ascending: only under an aggregator other than the mean.
    pub excluded: Vec<usize>,
    /// What the controller needs for its next decision, of this rank's vector, where that is agreed with the next step header.
    pub measured: Measured,
}

/// A few numbers that ranks add up in the step header; most often there are none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    numbers: [f64; Measured::MOST],
    count: usize,
}

impl Measured {
    /// As many as a header has room for.
    pub const MOST: usize = 8;

    /// These numbers; `None` where there are more than [`MOST`](Self::MOST).
    pub fn new(numbers: &[f64]) -> Option<Self> {
        let mut measured = Measured { count: numbers.len(), ..Measured::default() };
        measured.numbers.get_mut(..numbers.len())?.copy_from_slice(numbers);
        Some(measured)
    }

    /// The numbers.
    pub fn numbers(&self) -> &[f64] {
        &self.numbers[..self.count]
    }

    /// Adds another rank's, number by number.
    pub(crate) fn add(&mut self, other: &Measured) {
        self.numbers.iter_mut().zip(other.numbers).for_each(|(sum, number)| *sum += number);
    }
}

impl Report {
    /// Nothing yet, and asks for the controller's state.
    pub fn with_state() -> Self {
        Report { with_state: true, ..Report::default() }
    }

    /// `‖x − sent‖ / ‖x‖` of this rank's vector (with its residual), where the gain is measured.
    pub fn relative_error(&self) -> Option<f64> {
        self.gain.map(relative_error)
    }

    /// The effective delay in steps, where there is a memory: see [`Waiting::delay`].
    pub fn delay(&self) -> Option<f64> {
        self.waiting.as_ref().and_then(Waiting::delay)
    }

    /// Has a reducer of the slots `members` report of them alone; those that it names no factor of have its own.
    pub(crate) fn narrowed(&mut self, members: impl Iterator<Item = usize> + Clone, report: impl FnOnce(&mut Report)) {
        let mut whole = std::mem::take(&mut self.slots);
        self.slots.extend(members.clone().filter_map(|member| whole.get(member)));
        report(self);
        for (member, part) in members.zip(&self.slots) {
            whole[member] = SlotReport { factor: part.factor.or(self.factor), ..*part };
        }
        self.slots = whole;
    }

    /// The same, of which only the slots' part enters this report; the rest of what is reported.
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

    /// Adds what a memory of what was not sent knows: in all, and the energy left of each slot.
    pub(crate) fn put_waiting(&mut self, waiting: Waiting, left: &[f64]) {
        self.waiting = Some(waiting);
        self.slots.iter_mut().zip(left).for_each(|(slot, left)| slot.left = Some(*left));
    }
}

/// `√(1 − gain)`: rounding may leave a gain above 1.
fn relative_error(gain: f64) -> f64 {
    (1.0 - gain).max(0.0).sqrt()
}

/// Energies (`‖x‖²`) around a memory of what was not sent, after an exchange. They add up over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waiting {
    /// Of what this step added: the gradient, or under momentum correction the velocity.
    pub entered: f64,
    /// Of what stays behind: the residual.
    pub left: f64,
}

impl Waiting {
    /// `‖residual‖`, in the units of a gradient.
    pub fn residual_norm(&self) -> f64 {
        self.left.sqrt()
    }

    /// The **effective delay** `‖residual‖ / ‖gradient‖`: how many steps' worth of gradient wait. 0 where all was sent; `None`
    /// where nothing entered, or numbers are not finite.
    ///
    /// ```
    /// use briquette_core::report::Waiting;
    /// assert_eq!(Waiting { entered: 4.0, left: 36.0 }.delay(), Some(3.0));
    /// assert_eq!(Waiting { entered: 0.0, left: 36.0 }.delay(), None);
    /// ```
    pub fn delay(&self) -> Option<f64> {
        Some((self.left / self.entered).sqrt()).filter(|delay| delay.is_finite())
    }
}

/// One slot's part of an exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SlotReport {
    /// Share of the slot's energy that was sent.
    pub gain: f64,
    /// Values that were sent as something other than 0.
    pub kept: usize,
    /// Its nominal factor in force, where that is known.
    pub factor: Option<CompressionFactor>,
    /// `‖residual‖²` of what stays behind of it, where there is a memory of what was not sent.
    pub left: Option<f64>,
}

impl SlotReport {
    /// `‖x − sent‖ / ‖x‖` of the slot.
    ///
    /// ```
    /// use briquette_core::report::SlotReport;
    /// assert_eq!(SlotReport { gain: 0.75, ..SlotReport::default() }.relative_error(), 0.5);
    /// ```
    pub fn relative_error(&self) -> f64 {
        relative_error(self.gain)
    }
}

/// Where the time of an exchange went, on the session's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ExchangeSeconds {
    /// Probing, encoding, decoding, as far as no exchange went on meanwhile.
    pub compress: f64,
    /// Of these, before anything was sent: probing and encoding. Under buckets, before the first one was.
    pub encode: f64,
    /// Waiting for other ranks and moving bytes.
    pub exchange: f64,
    /// Of all these, in the background while the rank did something else: they took no time of the step.
    pub hidden: f64,
}

impl ExchangeSeconds {
    /// Of `compress`, after something was sent: decoding, and the encoding of later buckets.
    pub fn decode(&self) -> f64 {
        self.compress - self.encode
    }
}
