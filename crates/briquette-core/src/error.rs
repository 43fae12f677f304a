//! Errors that say who, what and where: rank, slot, step, expected, got.

mod aggregate;
mod comm;
mod sync;

use std::fmt;

pub use aggregate::AggregateError;
pub use comm::CommError;
pub use sync::SyncError;

/// Makes `Debug` of an error what a person is to read, as `?` in `main` prints it: what it displays, then each cause that this does
/// not quote already.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_by_display {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::error::write_with_causes(self, f)
            }
        }
    )+};
}

debug_by_display!(WireError, AggregateError, ReduceError, SyncError, ConfigError, StateError, CommError);

/// See [`debug_by_display!`](crate::debug_by_display).
#[doc(hidden)]
pub fn write_with_causes(error: &dyn std::error::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (mut said, mut cause) = (error.to_string(), error.source());
    f.write_str(&said)?;
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            write!(f, "\ncaused by: {text}")?;
            said.push_str(&text);
        }
        cause = error.source();
    }
    Ok(())
}

/// Bytes that are not a message.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the message does.
    #[error("message truncated: {what} needs {needed} bytes, {left} left")]
    Truncated {
        /// The field that did not fit.
        what: &'static str,
        /// Bytes it needs.
        needed: usize,
        /// Bytes there are.
        left: usize,
    },
    /// Bytes remain after the message.
    #[error("message has {extra} bytes too many")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// Not this library's message, or another version's.
    #[error("not a message of wire version {expected}: got {got:?}")]
    Version {
        /// The version this build speaks.
        expected: u8,
        /// Magic and version found.
        got: [u8; 3],
    },
    /// The checksum does not match.
    #[error("message damaged: checksum {got:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What the message says.
        expected: u32,
        /// What its bytes give.
        got: u32,
    },
    /// A field has a value that no encoder writes.
    #[error("message invalid: {what} is {value}")]
    Field {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The message describes a vector of another length.
    #[error("message is for {got} values, expected {expected}")]
    Length {
        /// Values of the receiving vector.
        expected: usize,
        /// Values of the message.
        got: usize,
    },
}

/// A reduction failed; this rank's state is as it was before the call.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// The transport failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A contribution could not be decoded or combined.
    #[error(transparent)]
    Aggregate(#[from] AggregateError),
    /// Adding what was not sent before gave a value that is not finite; nothing was exchanged.
    #[error(
        "rank {rank}: gradient and residual add up to a value that is not finite in `{slot}`. Lower the learning rate, or \
         clip gradients"
    )]
    NonFinite {
        /// Whose vector.
        rank: usize,
        /// The slot's path.
        slot: String,
    },
    /// Error feedback inside the learning rate needs to know it.
    #[error(
        "step {step}: the exchange needs the learning rate, and none was recorded. `DistributedOptimizer::step` records it; \
         with a `Synchronizer` call `record_learning_rate` before the exchange"
    )]
    NoLearningRate {
        /// The optimizer step.
        step: u64,
    },
    /// A strategy that compares the ranks' losses needs this rank's.
    #[error(
        "step {step}: rank {rank} has recorded no loss, by which ranks choose a leader: call `record_loss` before the step"
    )]
    NoLoss {
        /// The optimizer step.
        step: u64,
        /// The rank.
        rank: usize,
    },
    /// A memory cannot be kept in such a learning rate.
    #[error("step {step}: the learning rate is {rate}, and error feedback inside it needs 0 or one from 1e-30 to 1e30")]
    LearningRate {
        /// The optimizer step.
        step: u64,
        /// The rate.
        rate: f64,
    },
    /// The average is not finite though every rank's vector was; every rank finds the same.
    #[error(
        "the average over ranks is not finite in `{slot}`: their sum exceeds the largest number. Lower the learning rate, \
         or clip gradients"
    )]
    Overflow {
        /// The slot's path.
        slot: String,
    },
    /// The vector is not the one this reducer was built for.
    #[error("vector has {got} values, expected {expected}")]
    Length {
        /// Values the reducer was built for.
        expected: usize,
        /// Values it was given.
        got: usize,
    },
}

/// A setting that cannot work, found before any rank talks.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value outside its range.
    #[error("{what} must be {range}, got {got}")]
    Range {
        /// The setting.
        what: &'static str,
        /// The values it may take.
        range: &'static str,
        /// The value given.
        got: String,
    },
    /// An unknown name.
    #[error("unknown {what} `{got}`; valid are: {valid}")]
    Unknown {
        /// The setting.
        what: &'static str,
        /// The value given.
        got: String,
        /// The values it may take.
        valid: String,
    },
    /// Settings that do not go together.
    #[error("{0}")]
    Conflict(String),
}

impl ConfigError {
    pub(crate) fn range(what: &'static str, range: &'static str, got: impl std::fmt::Display) -> Self {
        ConfigError::Range { what, range, got: got.to_string() }
    }

    /// The same as a result: an error unless `valid`.
    pub(crate) fn unless(
        valid: bool,
        what: &'static str,
        range: &'static str,
        got: impl std::fmt::Display,
    ) -> Result<(), Self> {
        if valid { Ok(()) } else { Err(ConfigError::range(what, range, got)) }
    }
}

/// Saved state does not fit.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// An entry is absent.
    #[error("saved state has no `{0}`: it was written by another configuration")]
    Missing(String),
    /// An entry has another type or length.
    #[error("saved state `{name}` is {got}, expected {expected}")]
    Mismatch {
        /// The entry.
        name: String,
        /// What this configuration wants.
        expected: String,
        /// What was saved.
        got: String,
    },
}

impl StateError {
    pub(crate) fn mismatch(name: &str, expected: &str, got: impl std::fmt::Debug) -> Self {
        StateError::Mismatch { name: name.into(), expected: expected.into(), got: format!("{got:?}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_is_what_a_person_reads_with_each_cause_once() {
        #[derive(thiserror::Error)]
        #[error("cannot begin")]
        struct Outer(#[source] ReduceError);
        debug_by_display!(Outer);
        let message = AggregateError::Message { rank: 2, source: WireError::Trailing { extra: 3 } };
        let error = Outer(ReduceError::Aggregate(message));
        assert_eq!(
            format!("{error:?}"),
            "cannot begin\ncaused by: contribution of rank 2: message has 3 bytes too many"
        );
    }
}
