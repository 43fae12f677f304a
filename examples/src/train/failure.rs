//! What is refused, and which of the ranks' errors is the one to show.

use std::fmt;

use anyhow::{Result, anyhow};
use briquette::core::error::CommError;

use crate::record::Summary;

/// What was asked for cannot be done, and nothing was changed: the same again would be refused again.
#[derive(Debug)]
pub struct Refused {
    reason: String,
}

impl Refused {
    /// Why.
    pub fn new(reason: impl Into<String>) -> Refused {
        Refused { reason: reason.into() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refused {}

/// Whether a rank failed by itself or was stopped by another.
#[derive(Debug)]
pub(super) enum RankError {
    Own(anyhow::Error),
    Stopped(anyhow::Error),
}

impl From<anyhow::Error> for RankError {
    fn from(error: anyhow::Error) -> Self {
        if briquette::was_stopped(error.as_ref()) { RankError::Stopped(error) } else { RankError::Own(error) }
    }
}

impl From<CommError> for RankError {
    fn from(error: CommError) -> Self {
        RankError::Own(error.into())
    }
}

pub(super) fn first_error(results: Vec<Result<Summary, RankError>>) -> Result<Summary> {
    let (mut summary, mut stopped) = (None, None);
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(s) if rank == 0 => summary = Some(s),
            Ok(_) => {}
            Err(RankError::Own(error)) => return Err(error),
            Err(RankError::Stopped(error)) => stopped = Some(error),
        }
    }
    match (stopped, summary) {
        (Some(error), _) => Err(error),
        (None, summary) => summary.ok_or_else(|| anyhow!("no rank ran")),
    }
}
