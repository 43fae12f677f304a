//! Result of a window's check, kept until the next decision reports it as its reason.

use crate::CompressionFactor;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// The next candidate is tried.
    Next,
    /// The two best throughputs differ by at most the tolerance.
    Saturated(CompressionFactor, CompressionFactor),
    /// Every candidate was tried.
    Best,
    /// The gain of the held factor, or of the safe one, fell.
    GainFell,
    /// The throughput of the held factor fell.
    ThroughputFell,
    /// Dense was timed.
    Timed,
    /// The gain of a bolder candidate is too small.
    Back,
    /// The throughput of dense was dropped.
    Forgotten,
}

impl Event {
    /// Returns the reason that `factor` is sent now.
    pub(super) fn explain(self, factor: CompressionFactor) -> String {
        let hold = if factor.is_dense() { "compression off".to_owned() } else { format!("holding {factor}") };
        match self {
            Event::Next => format!("window over: trying {factor}"),
            Event::Saturated(low, high) => format!("throughput saturated between {low} and {high}: {hold}"),
            Event::Best => format!("throughput best at {factor} of all tried: {hold}"),
            Event::GainFell => format!("gain fell: searching again from {factor}"),
            Event::ThroughputFell => format!("throughput fell: searching again from {factor}"),
            Event::Timed => format!("dense timed: sending {factor}"),
            Event::Back => format!("gain of the bolder candidate too small: back to {factor}"),
            Event::Forgotten => "timing dense again".to_owned(),
        }
    }

    pub(super) fn to_numbers(self) -> [f64; 3] {
        match self {
            Event::Next => [0.0; 3],
            Event::Saturated(low, high) => [1.0, low.get(), high.get()],
            Event::Best => [2.0, 0.0, 0.0],
            Event::GainFell => [3.0, 0.0, 0.0],
            Event::ThroughputFell => [4.0, 0.0, 0.0],
            Event::Timed => [5.0, 0.0, 0.0],
            Event::Back => [6.0, 0.0, 0.0],
            Event::Forgotten => [7.0, 0.0, 0.0],
        }
    }

    /// Returns `None` if [`to_numbers`](Self::to_numbers) cannot have written the numbers.
    pub(super) fn from_numbers([kind, low, high]: [f64; 3]) -> Option<Self> {
        let factor = |value| CompressionFactor::new(value).ok();
        Some(match kind {
            0.0 => Event::Next,
            1.0 => Event::Saturated(factor(low)?, factor(high)?),
            2.0 => Event::Best,
            3.0 => Event::GainFell,
            4.0 => Event::ThroughputFell,
            5.0 => Event::Timed,
            6.0 => Event::Back,
            7.0 => Event::Forgotten,
            _ => return None,
        })
    }
}
