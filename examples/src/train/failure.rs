//! What is refused, and which of the ranks' errors is the one to show.

use std::fmt;

use anyhow::{Result, anyhow};
use briquette::core::error::{CommError, ReduceError, SyncError};

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
        let by_another = |cause: &CommError| matches!(cause, CommError::Aborted { .. } | CommError::Lost { .. });
        let stopped = error.chain().filter_map(transport).any(by_another);
        if stopped { RankError::Stopped(error) } else { RankError::Own(error) }
    }
}

/// The transport's part of an error: a transparent error hides it from the chain.
fn transport<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a CommError> {
    let reduce = |error: &'a ReduceError| if let ReduceError::Comm(error) = error { Some(error) } else { None };
    match cause.downcast_ref() {
        Some(briquette::Error::Comm(error)) => Some(error),
        Some(briquette::Error::Sync(SyncError::Reduce { source, .. })) => reduce(source),
        _ => cause.downcast_ref().or_else(|| cause.downcast_ref().and_then(reduce)),
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
