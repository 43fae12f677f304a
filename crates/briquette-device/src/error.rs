//! Errors of a device.

use briquette_core::error::WireError;

/// A device cannot do what was requested. Every variant has a fallback: the same work on the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device lacks something that every kernel needs.
    #[error("the device ({device}) lacks {what}: compress on the host")]
    Unsupported {
        /// Name of the runtime.
        device: &'static str,
        /// The missing feature.
        what: String,
    },
    /// A kernel or a copy failed: out of memory, a lost device, a kernel that does not compile.
    #[error(
        "{doing} failed on the device ({device}): {why}: compress on the host, or restart this rank from its checkpoint"
    )]
    Failed {
        /// Name of the runtime.
        device: &'static str,
        /// The operation.
        doing: &'static str,
        /// The driver's reason.
        why: String,
    },
    /// A vector has another length.
    #[error("{what} has {got} values instead of {expected}")]
    Length {
        /// The vector.
        what: &'static str,
        /// Required number of values.
        expected: usize,
        /// Number of values.
        got: usize,
    },
    /// The self-test found other bits than the host's.
    #[error("the device ({device}) computes {what} with other bits than the host: compress on the host")]
    Differs {
        /// Name of the runtime.
        device: &'static str,
        /// The operation.
        what: &'static str,
    },
    /// The device's result is no message: the vector was not finite.
    #[error("the device's result is not a valid message: {0}: check that the vector is finite before it is compressed")]
    Message(#[from] WireError),
}

impl DeviceError {
    /// Keeps the first line of the driver's reason: the rest is a backtrace.
    pub(crate) fn failed(device: &'static str, doing: &'static str, error: impl std::fmt::Display) -> DeviceError {
        let text = error.to_string();
        let reason = text.split("Backtrace").next().unwrap_or_default();
        let why = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        DeviceError::Failed { device, doing, why }
    }
}
