//! Which device a name means.

use anyhow::{Result, bail};
use burn::tensor::Device;

/// The device of a backend that this build has.
///
/// # Errors
/// Lists the backends this build has.
pub fn device(name: &str) -> Result<Device> {
    match name {
        #[cfg(feature = "flex")]
        "flex" => Ok(Device::flex()),
        _ => bail!("unknown --backend `{name}`; this build has: {}", available().join(", ")),
    }
}

/// Names of the backends in this build.
pub fn available() -> Vec<&'static str> {
    vec![
        #[cfg(feature = "flex")]
        "flex",
    ]
}
