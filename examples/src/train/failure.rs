//! Refusals, and selection of the ranks' error to show.

use std::fmt;

use anyhow::{Result, anyhow};
use briquette::core::error::CommError;

use crate::record::Summary;

/// The request is invalid, and nothing was changed: another attempt would be refused in the same way.
#[derive(Debug)]
pub struct Refused {
    reason: String,
}

impl Refused {
    /// Creates a refusal with this reason.
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

/// Failure of a rank: its own, or caused by another rank.
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
