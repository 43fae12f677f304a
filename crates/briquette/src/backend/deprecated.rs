//! The backends that Burn 0.22 deprecates and 0.23 removes; no other file names them. To remove them, delete this file, the
//! features `ndarray` and `tch`, and the uses that the compiler then reports.
#![allow(deprecated)]

#[cfg(any(feature = "ndarray", feature = "tch"))]
use burn::tensor::Device;

#[cfg(feature = "ndarray")]
pub(super) fn ndarray() -> Device {
    Device::ndarray()
}

/// The CUDA devices of libtorch, if any, then the CPU.
#[cfg(feature = "tch")]
pub(super) fn libtorch() -> Vec<Device> {
    let mut devices = Device::enumerate(burn::tensor::DeviceType::LibTorch).into_vec();
    devices.push(Device::libtorch());
    devices
}

#[cfg(feature = "tch")]
pub(super) fn is_libtorch_cpu(device: &burn::backend::LibTorchDevice) -> bool {
    matches!(device, burn::backend::LibTorchDevice::Cpu)
}
