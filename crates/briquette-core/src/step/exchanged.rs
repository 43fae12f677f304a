//! Result of an exchange.

use crate::Traffic;
use crate::seam::{AgreedStep, Momenta, RankStep};
use crate::sync::{Agreement, StopFlags};

/// Result of an exchange.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Exchanged {
    /// The agreement of the ranks, or this rank's own values where [no rank agrees](crate::seam::Agrees::NoRank).
    pub agreed_step: AgreedStep,
    /// The values of each rank. Empty where no rank agrees; those of this machine's ranks where they agree.
    pub ranks: Vec<RankStep>,
    /// Stop requests of any rank.
    pub stop: StopFlags,
    /// Treatment of the inner optimizer's momenta.
    pub momenta: Momenta,
    /// Cost of the step header.
    pub header: HeaderCost,
}

/// Cost of a step header.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct HeaderCost {
    /// Seconds, including the wait for the slowest rank.
    pub seconds: f64,
    /// Bytes through this rank.
    pub traffic: Traffic,
}

pub(super) fn exchanged(agreement: Agreement, momenta: Momenta, header: HeaderCost) -> Exchanged {
    Exchanged { agreed_step: agreement.agreed_step, ranks: agreement.ranks, stop: agreement.stop, momenta, header }
}
