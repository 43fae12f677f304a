//! What the last exchange did, for metrics.

use crate::{CompressionFactor, Traffic};

/// Filled by the layers of a strategy after an exchange, each with what it knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The nominal factor in force; 1 when dense.
    pub factor: Option<CompressionFactor>,
    /// Why the controller changed it, when it just did.
    pub reason: Option<String>,
    /// Share of this rank's vector (with its residual) that was sent: `1 − ‖x − sent‖²/‖x‖²`.
    pub gain: Option<f64>,
    /// Each slot's share, in layout order.
    pub slots: Vec<SlotReport>,
    /// Where the time went.
    pub seconds: Option<ExchangeSeconds>,
    /// Bytes that the exchange moved through this rank.
    pub traffic: Option<Traffic>,
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
