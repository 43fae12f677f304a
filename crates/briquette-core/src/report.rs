//! What the last exchange did, for metrics.

use crate::{CompressionFactor, Traffic};

/// Filled by the wrappers of a strategy after an exchange, each with what it knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The nominal factor in force; 1 when dense.
    pub factor: Option<CompressionFactor>,
    /// What carried it, where the ratio does not tell: `int8 ring`.
    pub carrier: Option<&'static str>,
    /// Why the controller changed it, when it just did.
    pub reason: Option<String>,
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

/// Energies (`‖x‖²`) around a memory of what was not sent, after an exchange. They add up over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waiting {
    /// Of what this step added: the gradient, or under momentum correction the velocity.
    pub entered: f64,
    /// Of what stays behind: the residual.
    pub left: f64,
}

impl Waiting {
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
}
