//! What one step's exchange did.

#[cfg(feature = "metrics")]
mod facade;

use std::time::Duration;

use briquette_core::Traffic;
use briquette_core::report::Report;

/// What one step's exchange did, for metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepReport {
    /// The step, counted from 0.
    pub step: u64,
    /// The mean loss over all ranks' samples, where it was recorded.
    pub loss: Option<f64>,
    /// Samples of all ranks together.
    pub samples: u64,
    /// Nominal ratio, gain, reason, what waits, and the same of each slot.
    pub exchange: Report,
    /// Whether what was sent is another thing than at the exchange before: another nominal ratio, another one of any slot, or another
    /// [carrier](Report::carrier). Not so at the first exchange since joining or resuming.
    pub ratio_changed: bool,
    /// Bytes this rank moved, step header included.
    pub traffic: Traffic,
    /// Bytes the dense ring would have moved through this rank.
    pub dense_traffic: Traffic,
    /// Seconds computing since the step before; the slowest rank's, or this rank's where nothing was due.
    pub compute_seconds: f64,
    /// Seconds computing since the step before, this rank's.
    pub own_compute_seconds: f64,
    /// Seconds reading, probing, encoding, decoding and writing back, this rank's.
    pub compress_seconds: f64,
    /// Of these, seconds reading gradients from the device.
    pub read_seconds: f64,
    /// Of these, seconds handing the average to the device, which may go on taking it while this rank does.
    pub write_seconds: f64,
    /// Seconds in communication, this rank's: step header and waiting for the slowest rank included.
    pub exchange_seconds: f64,
    /// Of these, seconds in the step header, where ranks wait for the slowest one; 0 at a step that agrees on none.
    pub wait_seconds: f64,
    /// The session's clock when the step's exchange ended, or would have begun where nothing was due.
    pub clock: f64,
    /// Gradients that came [during the backward pass](crate::Synchronizer::forward_model), in that order; the others came at its end.
    pub arrivals: Vec<Arrival>,
    /// How far ranks had drifted apart, where parameters were re-broadcast at this step: the largest ‖w − w₀‖ / ‖w₀‖ of any
    /// rank, w₀ being rank 0's parameters.
    pub drift: Option<f64>,
}

/// When a gradient came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its place in the [layout](crate::Synchronizer::layout).
    pub slot: usize,
    /// Wall time from then to the end of the backward pass, whatever the session's clock: what can hide its exchange. On a device that
    /// computes on its own, a gradient has come when its computing was asked for.
    pub lead: Duration,
}

impl StepReport {
    /// Dense bytes over bytes really sent, headers included; 1 in a world of one.
    pub fn wire_factor(&self) -> f64 {
        if self.traffic.sent == 0 { 1.0 } else { self.dense_traffic.sent as f64 / self.traffic.sent as f64 }
    }

    /// Seconds of encoding, exchanging and decoding in the background, behind computing: they are in none of the other seconds but those of
    /// encoding and decoding.
    pub fn hidden_seconds(&self) -> f64 {
        self.exchange.seconds.unwrap_or_default().hidden
    }

    /// Seconds of probing and encoding before anything was sent: of the compress seconds, where they are not hidden.
    pub fn encode_seconds(&self) -> f64 {
        self.exchange.seconds.unwrap_or_default().encode
    }

    /// Seconds of decoding, under buckets of encoding all but the first one too: of the compress seconds, where they are not hidden.
    pub fn decode_seconds(&self) -> f64 {
        self.exchange.seconds.unwrap_or_default().decode()
    }

    /// Seconds of the step as this rank spent them, from the end of the exchange before to the end of this one: its own computing,
    /// compressing, and communicating with the wait for the slowest rank. That wait is why its own computing counts here, and not the
    /// slowest rank's.
    ///
    /// ```
    /// use briquette::StepReport;
    /// // 1 s of computing, then 2 s of waiting in the header for a rank that computes for 3 s, then 0.5 s of exchange.
    /// let report = StepReport {
    ///     compute_seconds: 3.0,
    ///     own_compute_seconds: 1.0,
    ///     wait_seconds: 2.0,
    ///     exchange_seconds: 2.5,
    ///     ..StepReport::default()
    /// };
    /// assert_eq!(report.seconds(), 3.5);
    /// ```
    pub fn seconds(&self) -> f64 {
        self.own_compute_seconds + self.compress_seconds + self.exchange_seconds
    }
}
