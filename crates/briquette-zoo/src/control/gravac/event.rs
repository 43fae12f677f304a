//! Result of a window's check, kept until the next decision reports it as its reason.

use briquette_core::CompressionRatio;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// The next candidate is tried.
    Next,
    /// The two best throughputs differ by at most the tolerance.
    Saturated(CompressionRatio, CompressionRatio),
    /// Every candidate was tried.
    Best,
    /// The gain of the held ratio, or of the safe one, fell.
    GainFell,
    /// The throughput of the held ratio fell.
    ThroughputFell,
    /// Dense was timed.
    Timed,
    /// The gain of a bolder candidate is too small.
    Back,
    /// The throughput of dense was dropped.
    Forgotten,
}

impl Event {
    /// Returns the reason that `ratio` is sent now.
    pub(super) fn explain(self, ratio: CompressionRatio) -> String {
        let hold = if ratio.is_dense() { "compression off".to_owned() } else { format!("holding {ratio}") };
        match self {
            Event::Next => format!("window over: trying {ratio}"),
            Event::Saturated(low, high) => format!("throughput saturated between {low} and {high}: {hold}"),
            Event::Best => format!("throughput best at {ratio} of all tried: {hold}"),
            Event::GainFell => format!("gain fell: searching again from {ratio}"),
            Event::ThroughputFell => format!("throughput fell: searching again from {ratio}"),
            Event::Timed => format!("dense timed: sending {ratio}"),
            Event::Back => format!("gain of the bolder candidate too small: back to {ratio}"),
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
        let ratio = |value| CompressionRatio::new(value).ok();
        Some(match kind {
            0.0 => Event::Next,
            1.0 => Event::Saturated(ratio(low)?, ratio(high)?),
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
