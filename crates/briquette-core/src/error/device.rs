//! Failures of a device that holds a vector.

/// A device failed: lost, out of memory, or refusing a kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {operation} failed: {reason}")]
#[non_exhaustive]
pub struct DeviceError {
    /// The device.
    pub device: String,
    /// The operation.
    pub operation: &'static str,
    /// The reason that the device gave.
    pub reason: String,
}

impl DeviceError {
    /// Creates the failure of `operation`.
    pub fn new(device: impl Into<String>, operation: &'static str, reason: impl Into<String>) -> Self {
        DeviceError { device: device.into(), operation, reason: reason.into() }
    }
}
