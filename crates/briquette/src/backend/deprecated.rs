//! The only names of the backends that Burn 0.22 deprecates and 0.23 drops: delete this file, the features `ndarray` and
//! `tch`, and what the compiler then misses.
#![allow(deprecated)]

#[cfg(any(feature = "ndarray", feature = "tch"))]
use burn::tensor::Device;

#[cfg(feature = "ndarray")]
pub(super) fn ndarray() -> Device {
    Device::ndarray()
}

/// CUDA's devices where libtorch has them, then the CPU.
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
