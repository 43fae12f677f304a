//! Error types. Each names the rank, slot and step, with the expected and the actual value.

mod aggregate;
mod comm;
mod conflict;
mod device;
mod sync;

use std::fmt;

pub use aggregate::AggregateError;
pub use comm::CommError;
pub use conflict::{Conflict, world_of};
pub use device::DeviceError;
pub use sync::SyncError;

/// Implements `Debug` for an error as readable text, since `?` in `main` prints `Debug`: its `Display` text, then each cause that this
/// text does not already quote.
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

debug_by_display!(WireError, AggregateError, ReduceError, SyncError, ConfigError, Conflict, StateError, CommError);

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

/// Invalid bytes: not a message of this library.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message is truncated.
    #[error("message truncated: {what} needs {needed} bytes, {left} left")]
    Truncated {
        /// The field that did not fit.
        what: &'static str,
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes left.
        left: usize,
    },
    /// Bytes remain after the message.
    #[error("message has {extra} bytes too many")]
    Trailing {
        /// The number of extra bytes.
        extra: usize,
    },
    /// Not a message of this library, or one of another wire version.
    #[error("not a message of wire version {expected}: got {got:?}")]
    Version {
        /// The wire version of this build.
        expected: u8,
        /// Magic and version found.
        got: [u8; 3],
    },
    /// The checksum does not match.
    #[error("message damaged: checksum {got:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The checksum stated in the message.
        expected: u32,
        /// The checksum computed from the message's bytes.
        got: u32,
    },
    /// A field has a value that no encoder writes.
    #[error("message invalid: {what} is {value}")]
    Field {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The message encodes a vector of another length.
    #[error("message is for {got} values, expected {expected}")]
    Length {
        /// Length of the receiving vector.
        expected: usize,
        /// Length of the vector in the message.
        got: usize,
    },
}

/// A reduction failed. This rank's state is the same as before the call.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// The transport failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A contribution could not be decoded or combined.
    #[error(transparent)]
    Aggregate(#[from] AggregateError),
    /// The sum of the residual and the gradient is not finite. Nothing was exchanged.
    #[error(
        "rank {rank}: the sum of gradient and residual is not finite in `{slot}`. Lower the learning rate, or \
         clip gradients"
    )]
    NonFinite {
        /// The rank whose vector it is.
        rank: usize,
        /// The slot's path.
        slot: String,
    },
    /// The device that holds this rank's vector failed.
    #[error("rank {rank}: {source}")]
    Device {
        /// The rank.
        rank: usize,
        /// The failure.
        source: DeviceError,
    },
    /// Error feedback inside the learning rate needs the learning rate, which was not recorded.
    #[error(
        "step {step}: the exchange needs the learning rate, and none was recorded. `DistributedOptimizer::step` records it; \
         with a `Synchronizer` call `record_learning_rate` before the exchange"
    )]
    NoLearningRate {
        /// The optimizer step.
        step: u64,
    },
    /// This rank has recorded no loss, but the strategy compares the losses of the ranks.
    #[error(
        "step {step}: rank {rank} recorded no loss, which the choice of a leader requires: call `record_loss` before the step"
    )]
    NoLoss {
        /// The optimizer step.
        step: u64,
        /// The rank.
        rank: usize,
    },
    /// The learning rate is outside the range in which a residual can be stored in units of the learning rate.
    #[error(
        "step {step}: the learning rate is {rate}, error feedback inside it requires 0 or a value from 1e-30 to 1e30"
    )]
    LearningRate {
        /// The optimizer step.
        step: u64,
        /// The rate.
        rate: f64,
    },
    /// The average is not finite although every rank's vector was. Every rank reports the same error.
    #[error(
        "the average over ranks is not finite in `{slot}`: the sum overflowed. Lower the learning rate, \
         or clip gradients"
    )]
    Overflow {
        /// The slot's path.
        slot: String,
    },
    /// The vector's length is not the one that this reducer was built for.
    #[error("vector has {got} values, expected {expected}")]
    Length {
        /// Values the reducer was built for.
        expected: usize,
        /// Values it was given.
        got: usize,
    },
}

/// An invalid setting, found before any communication.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value outside its range.
    #[error("{what} must be {range}, got {got}")]
    Range {
        /// The setting.
        what: &'static str,
        /// The valid values.
        range: &'static str,
        /// The value given.
        got: String,
    },
    /// The name is unknown.
    #[error("unknown {what} `{got}`; valid are: {valid}")]
    Unknown {
        /// The setting.
        what: &'static str,
        /// The value given.
        got: String,
        /// The valid values.
        valid: String,
    },
    /// An algorithm of another crate cannot be in the catalogue.
    #[error("{what} {name} cannot be in the catalogue: {why}")]
    Catalogue {
        /// The family.
        what: &'static str,
        /// The name of the algorithm.
        name: &'static str,
        /// The reason, and a remedy.
        why: String,
    },
    /// A text that cannot be read as a setting.
    #[error("{what} `{text}`: {why}")]
    Text {
        /// The setting.
        what: &'static str,
        /// The text.
        text: String,
        /// The reason.
        why: String,
    },
    /// Two settings cannot be combined.
    #[error(transparent)]
    Conflict(#[from] Conflict),
}

impl ConfigError {
    /// Creates the [conflict](Conflict::new) between `left` and `right`.
    pub fn conflict(
        left: impl Into<String>,
        right: impl Into<String>,
        why: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Conflict::new(left, right, why, instead).into()
    }

    /// Returns the error of a text that is not one of `what`, with the reason.
    pub fn text(what: &'static str, text: impl Into<String>, why: impl fmt::Display) -> Self {
        ConfigError::Text { what, text: text.into(), why: why.to_string() }
    }

    /// Returns the error of a value outside its range.
    pub fn range(what: &'static str, range: &'static str, got: impl std::fmt::Display) -> Self {
        ConfigError::Range { what, range, got: got.to_string() }
    }

    /// Returns an error unless `valid`.
    ///
    /// # Errors
    /// [`ConfigError::Range`] of these arguments.
    pub fn unless(
        valid: bool,
        what: &'static str,
        range: &'static str,
        got: impl std::fmt::Display,
    ) -> Result<(), Self> {
        if valid { Ok(()) } else { Err(ConfigError::range(what, range, got)) }
    }
}

/// Saved state does not match the configuration.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// An entry is missing.
    #[error("saved state has no `{0}`: it was written by another configuration")]
    Missing(String),
    /// An entry has another type or length.
    #[error("saved state `{name}` is {got}, expected {expected}")]
    Mismatch {
        /// The entry.
        name: String,
        /// The type and length that this configuration expects.
        expected: String,
        /// The saved type and length.
        got: String,
    },
}

impl StateError {
    /// Returns the error of an entry that is not as `expected`.
    pub fn mismatch(name: &str, expected: &str, got: impl std::fmt::Debug) -> Self {
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
