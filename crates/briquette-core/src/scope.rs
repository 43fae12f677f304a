//! The operation that a rank is in, for error messages.

use std::fmt;

/// A rank's current operation, for error messages: `all_gather of bucket 2 at step 1841`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scope {
    /// The collective or exchange, `all_gather`.
    pub operation: &'static str,
    /// The optimizer step.
    pub step: u64,
    /// The bucket, if the exchange has several.
    pub bucket: Option<usize>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Scope::show(f, self.operation, self.step, self.bucket)
    }
}

impl Scope {
    /// Name of the operation between exchanges: the rank computes.
    pub const COMPUTE: &str = "compute";

    /// Writes an operation in the format of [`Scope`]. For operations of other ranks, whose name is no `&'static str`.
    ///
    /// # Errors
    /// Errors of the formatter.
    pub fn show(f: &mut fmt::Formatter<'_>, operation: &str, step: u64, bucket: Option<usize>) -> fmt::Result {
        f.write_str(if operation.is_empty() { "idle" } else { operation })?;
        if let Some(bucket) = bucket {
            write!(f, " of bucket {bucket}")?;
        }
        write!(f, " at step {step}")
    }
}
