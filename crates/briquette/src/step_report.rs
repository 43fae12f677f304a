//! Report of one step's exchange.

#[cfg(feature = "metrics")]
mod facade;

use std::time::Duration;

use briquette_core::Traffic;
use briquette_core::report::Report;

/// Report of one step's exchange, for metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepReport {
    /// The step, counted from 0.
    pub step: u64,
    /// The mean loss over all ranks' samples, if it was recorded.
    pub loss: Option<f64>,
    /// The number of samples of all ranks together; after local steps, in all steps since the last exchange.
    pub samples: u64,
    /// Nominal ratio, gain, reason and residual, also for each slot.
    pub exchange: Report,
    /// Set if the format has changed since the previous exchange: the nominal ratio of the vector or of a slot, or the
    /// [carrier](Report::carrier). Not set at the first exchange after joining or resuming.
    pub ratio_changed: bool,
    /// Bytes that this rank sent and received, step header included.
    pub traffic: Traffic,
    /// Bytes that a dense ring all-reduce would have moved through this rank.
    pub dense_traffic: Traffic,
    /// Compute seconds since the previous step: those of the slowest rank, or this rank's own at a step without an
    /// exchange.
    pub compute_seconds: f64,
    /// This rank's compute seconds since the previous step.
    pub own_compute_seconds: f64,
    /// This rank's seconds of reading, probing, encoding, decoding and writing back.
    pub compress_seconds: f64,
    /// The part of `compress_seconds` spent reading gradients from the device.
    pub read_seconds: f64,
    /// The part of `compress_seconds` spent passing the average to the device. The device may still be copying it
    /// afterwards.
    pub write_seconds: f64,
    /// This rank's seconds in communication, including the step header and waiting for the slowest rank.
    pub exchange_seconds: f64,
    /// The part of `exchange_seconds` spent in the step header, in which ranks wait for the slowest one; 0 at a step
    /// without a header.
    pub wait_seconds: f64,
    /// The session's clock at the end of the step's exchange. At a step without an exchange, the time at which it would have
    /// begun.
    pub clock: f64,
    /// Gradients that arrived [during the backward pass](crate::Synchronizer::forward_model), in order of arrival; the others
    /// arrived at its end.
    pub arrivals: Vec<Arrival>,
    /// Drift between replicas, if parameters were re-broadcast at this step: the largest ‖w − w₀‖ / ‖w₀‖ of any rank, where
    /// w₀ are rank 0's parameters.
    pub drift: Option<f64>,
    /// Generations of an elastic world that have begun since the previous exchange.
    pub generations: Vec<NewGeneration>,
}

/// A new generation of an elastic world, as one of its survivors reports it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct NewGeneration {
    /// Its number.
    pub number: u64,
    /// Number of ranks.
    pub world: usize,
    /// Ranks of the previous generation that are lost.
    pub lost: Vec<usize>,
    /// Number of new members.
    pub new_members: usize,
    /// Seconds from the error, or from the agreement to admit new members, until the generation was formed.
    pub seconds: f64,
    /// Share of the energy (squared norm) of all residuals that the lost ranks held before the last exchange; `None` without residuals.
    pub lost_residual: Option<f64>,
}

/// The arrival of a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its index in the [layout](crate::Synchronizer::layout).
    pub slot: usize,
    /// Wall time (even if the session has another clock) from the arrival to the end of the backward pass: the time that
    /// its exchange can overlap. On an asynchronous device, a gradient arrives when its computation is queued.
    pub lead: Duration,
}

impl StepReport {
    /// The measured compression ratio: dense bytes over bytes sent, headers included; 1 in a world of one rank.
    pub fn wire_ratio(&self) -> f64 {
        if self.traffic.sent == 0 { 1.0 } else { self.dense_traffic.sent as f64 / self.traffic.sent as f64 }
    }

    /// Seconds of encoding, exchanging and decoding in the background that overlapped with computation. `exchange_seconds`
    /// and `compress_seconds` exclude them; [`encode_seconds`](Self::encode_seconds) and
    /// [`decode_seconds`](Self::decode_seconds) do not.
    pub fn overlapped_seconds(&self) -> f64 {
        self.exchange.seconds.unwrap_or_default().overlapped
    }

    /// Seconds of probing and encoding before the first byte was sent. They are part of `compress_seconds`, unless they were
    /// overlapped.
    pub fn encode_seconds(&self) -> f64 {
        self.exchange.seconds.unwrap_or_default().encode
    }

    /// Seconds of decoding and, with buckets, of encoding all but the first bucket. They are part of `compress_seconds`, unless
    /// they were overlapped.
    pub fn decode_seconds(&self) -> f64 {
        self.exchange.seconds.unwrap_or_default().decode()
    }

    /// Seconds of this rank's step, from the end of the previous exchange to the end of this one: its own compute time,
    /// compression, and communication with the wait for the slowest rank. Because of that wait, the sum uses the rank's own
    /// compute time and not the slowest rank's.
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
