//! Backends and devices, chosen by name at run time.
//!
//! Each backend is a Cargo feature that forwards to Burn's; a build may contain several. The rest of the crate requires only a
//! [`Device`], so a device made with Burn's own constructors works as well.

mod deprecated;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

#[allow(unused_imports)] // without any backend there is nothing to tell apart
use burn::backend::DispatchDevice;
use burn::tensor::{Device, Tensor};

briquette_core::debug_by_display!(BackendError);

/// A backend of Burn, by the name of its Cargo feature.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use briquette::Backend;
///
/// let device = Backend::Flex.device(0)?.autodiff();
/// assert_eq!(Backend::Flex.devices()?.len(), 1);
/// let error = "abacus".parse::<Backend>().unwrap_err().to_string();
/// assert!(error.starts_with("unknown backend `abacus`; there are flex, ndarray, tch, wgpu"));
/// # let _ = device; }
/// # Ok::<(), briquette::BackendError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Pure Rust on the CPU; the default.
    Flex,
    /// The older pure-Rust CPU backend, slow without a BLAS. Removed in Burn 0.23: use [`Flex`](Backend::Flex).
    NdArray,
    /// libtorch on the CPU, or on CUDA if libtorch supports it. Removed in Burn 0.23: use [`Flex`](Backend::Flex) or
    /// [`Cuda`](Backend::Cuda).
    Tch,
    /// Any GPU through WGSL, and software adapters such as lavapipe. A build with `vulkan` uses SPIR-V here too if the adapter
    /// supports it: leave `vulkan` out of builds for software adapters.
    Wgpu,
    /// GPUs through Vulkan and SPIR-V.
    Vulkan,
    /// Apple GPUs.
    Metal,
    /// NVIDIA GPUs.
    Cuda,
}

/// A device found by a backend, with its name.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FoundDevice {
    /// The device, without autodiff.
    pub device: Device,
    /// The name that the device reports.
    pub name: String,
    /// Set for a CPU, or a software adapter on one.
    pub is_cpu: bool,
}

/// Error for an unavailable backend or device.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The name is not that of a backend.
    #[error("unknown backend `{name}`; there are {}; this build has {}", names(&Backend::ALL), compiled())]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The backend's feature is not enabled.
    #[error("backend `{backend}` is not in this build, which has {}; build with `--features {backend}`", compiled())]
    NotCompiled {
        /// The backend.
        backend: Backend,
    },
    /// The backend found no device.
    #[error("backend `{backend}` finds no device here: {}", backend.advice())]
    NoDevice {
        /// The backend.
        backend: Backend,
    },
    /// The index is larger than the number of devices.
    #[error("backend `{backend}` has no device {index}; it finds {found}")]
    NoSuchDevice {
        /// The backend.
        backend: Backend,
        /// The requested index.
        index: usize,
        /// The available devices.
        found: String,
    },
    /// The device exists but does not work.
    #[error("backend `{backend}` cannot use its device {index} ({name}): {problem}; {}", backend.advice())]
    Broken {
        /// The backend.
        backend: Backend,
        /// The device's index.
        index: usize,
        /// The name that the device reports.
        name: String,
        /// The backend's error message.
        problem: String,
    },
}

fn names(backends: &[Backend]) -> String {
    backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ")
}

fn compiled() -> String {
    names(&Backend::ALL.into_iter().filter(|b| b.is_compiled()).collect::<Vec<_>>())
}

impl Backend {
    /// All supported backends, whether this build contains them or not.
    pub const ALL: [Backend; 7] =
        [Backend::Flex, Backend::NdArray, Backend::Tch, Backend::Wgpu, Backend::Vulkan, Backend::Metal, Backend::Cuda];

    /// The name of its Cargo feature, which command lines also use.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Flex => "flex",
            Backend::NdArray => "ndarray",
            Backend::Tch => "tch",
            Backend::Wgpu => "wgpu",
            Backend::Vulkan => "vulkan",
            Backend::Metal => "metal",
            Backend::Cuda => "cuda",
        }
    }

    /// Returns whether this build contains the backend.
    pub fn is_compiled(self) -> bool {
        match self {
            Backend::Flex => cfg!(feature = "flex"),
            Backend::NdArray => cfg!(feature = "ndarray"),
            Backend::Tch => cfg!(feature = "tch"),
            Backend::Wgpu => cfg!(feature = "wgpu"),
            Backend::Vulkan => cfg!(feature = "vulkan"),
            Backend::Metal => cfg!(feature = "metal"),
            Backend::Cuda => cfg!(feature = "cuda"),
        }
    }

    /// Advice for a backend without a device.
    fn advice(self) -> &'static str {
        match self {
            Backend::Flex | Backend::NdArray => "it runs on the CPU, and needs nothing",
            Backend::Tch => {
                "build and run it with one libtorch, 2.9.0: set LIBTORCH and LD_LIBRARY_PATH alike for both, as \
                 scripts/libtorch.sh prints them"
            }
            Backend::Wgpu => {
                "install the GPU's Vulkan driver (or mesa-vulkan-drivers and libvulkan1, which bring the software adapter \
                 lavapipe), or use flex"
            }
            Backend::Vulkan => "install the GPU's Vulkan driver and libvulkan1, or use flex",
            Backend::Metal => "it is for Apple's GPUs; elsewhere use vulkan, cuda or flex",
            Backend::Cuda => {
                "install NVIDIA's driver and the CUDA toolkit (`nvidia-smi` shows what the driver sees), or use flex"
            }
        }
    }

    /// Lists the backend's devices on this machine, GPUs before CPUs. Opens the devices to read their names.
    ///
    /// # Errors
    /// [`BackendError::NotCompiled`], and [`BackendError::NoDevice`] if there is none.
    pub fn devices(self) -> Result<Vec<FoundDevice>, BackendError> {
        let found = self.enumerate()?.into_iter();
        Ok(found.map(|device| FoundDevice { name: describe(&device), is_cpu: is_cpu(&device), device }).collect())
    }

    /// The backend's devices, unopened.
    // A build without any backend always returns an error.
    #[allow(unreachable_code, unused_variables)]
    fn enumerate(self) -> Result<Vec<Device>, BackendError> {
        #[allow(unused_imports)]
        use burn::tensor::DeviceType;
        let mut devices: Vec<Device> = match self {
            #[cfg(feature = "flex")]
            Backend::Flex => vec![Device::flex()],
            #[cfg(feature = "ndarray")]
            Backend::NdArray => vec![deprecated::ndarray()],
            #[cfg(feature = "tch")]
            Backend::Tch => deprecated::libtorch(),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu => Device::enumerate(DeviceType::Wgpu).into_vec(),
            #[cfg(feature = "vulkan")]
            Backend::Vulkan => Device::enumerate(DeviceType::Vulkan).into_vec(),
            #[cfg(feature = "metal")]
            Backend::Metal => Device::enumerate(DeviceType::Metal).into_vec(),
            #[cfg(feature = "cuda")]
            Backend::Cuda => Device::enumerate(DeviceType::Cuda).into_vec(),
            #[allow(unreachable_patterns)]
            _ => return Err(BackendError::NotCompiled { backend: self }),
        };
        devices.sort_by_key(is_cpu);
        if devices.is_empty() { Err(BackendError::NoDevice { backend: self }) } else { Ok(devices) }
    }

    /// Returns the device with this index among [`devices`](Backend::devices), after testing it with a computation.
    ///
    /// # Errors
    /// [`BackendError`], with the remedy.
    pub fn device(self, index: usize) -> Result<Device, BackendError> {
        self.pick(&self.enumerate()?, index)
    }

    fn pick(self, devices: &[Device], index: usize) -> Result<Device, BackendError> {
        let Some(device) = devices.get(index) else {
            let found = devices.iter().enumerate().map(|(i, d)| format!("{i} ({})", describe(d)));
            let found = found.collect::<Vec<_>>().join(", ");
            return Err(BackendError::NoSuchDevice { backend: self, index, found });
        };
        let broken = |problem| BackendError::Broken { backend: self, index, name: describe(device), problem };
        works(device).map_err(broken)?;
        Ok(device.clone())
    }

    /// Returns the default device of a rank: the GPUs of a machine are assigned to its ranks in turn. Without a GPU it is the
    /// first device.
    ///
    /// # Errors
    /// As for [`device`](Backend::device).
    pub fn device_for(self, local_rank: usize) -> Result<Device, BackendError> {
        let devices = self.enumerate()?;
        let gpus = devices.iter().filter(|device| !is_cpu(device)).count();
        self.pick(&devices, local_rank % gpus.max(1))
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Backend, BackendError> {
        let found = Backend::ALL.into_iter().find(|backend| backend.name() == name);
        found.ok_or_else(|| BackendError::Unknown { name: name.to_owned() })
    }
}

/// Checks that the device computes a sum. Drivers fail at the first use, by panicking.
fn works(device: &Device) -> Result<(), String> {
    let sum = || Tensor::<1>::ones([2], device).sum().try_into_data();
    match catch_unwind(AssertUnwindSafe(sum)) {
        Ok(Ok(data)) if data.as_slice::<f32>().is_ok_and(|sum| sum == [2.0]) => Ok(()),
        Ok(Ok(data)) => Err(format!("1 + 1 came out as {data}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(panic_text(&*panic)),
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked").to_owned()
}

/// A description of a device.
pub(crate) fn describe(device: &Device) -> String {
    let device = device.clone().without_autodiff();
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    if let DispatchDevice::Cube(_) = device.as_dispatch()
        && let Ok(Some(identity)) = catch_unwind(AssertUnwindSafe(|| device.identity()))
    {
        return identity.name;
    }
    format!("{:?}", device.as_dispatch())
}

fn is_cpu(device: &Device) -> bool {
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "wgpu")]
        DispatchDevice::Cube(burn::backend::CubeDevice::Wgpu(wgpu)) => wgpu.kind == burn::backend::WgpuDeviceKind::Cpu,
        _ => in_host_memory(device),
    }
}

/// Returns whether the gradients of all parameters are visible during the backward pass.
#[cfg(feature = "overlap-backward")]
pub(crate) fn is_tapped<M: burn::module::Module>(module: &M) -> bool {
    module.devices().iter().all(|device| match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "ndarray")]
        DispatchDevice::NdArray(_) => true,
        #[cfg(feature = "tch")]
        DispatchDevice::LibTorch(_) => true,
        #[cfg(feature = "device")]
        DispatchDevice::Cube(_) => true,
        #[allow(unreachable_patterns)]
        _ => false,
    })
}

/// Returns whether the device's tensors are in this process's memory.
pub(crate) fn in_host_memory(device: &Device) -> bool {
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "ndarray")]
        DispatchDevice::NdArray(_) => true,
        #[cfg(feature = "tch")]
        DispatchDevice::LibTorch(device) => deprecated::is_libtorch_cpu(device),
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for backend in Backend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let error = "abacus".parse::<Backend>().unwrap_err().to_string();
        assert!(error.contains("unknown backend `abacus`; there are flex, ndarray, tch, wgpu"), "{error}");
    }

    #[test]
    fn a_backend_that_is_not_in_the_build_names_its_feature() {
        for backend in Backend::ALL.into_iter().filter(|backend| !backend.is_compiled()) {
            let error = backend.device(0).unwrap_err().to_string();
            assert!(error.contains(&format!("`--features {backend}`")), "{error}");
            assert_eq!(backend.devices().unwrap_err(), BackendError::NotCompiled { backend });
        }
    }

    #[test]
    #[cfg(feature = "flex")]
    fn flex_is_one_cpu() {
        let found = Backend::Flex.devices().unwrap();
        assert_eq!((found.len(), found[0].is_cpu), (1, true));
        assert_eq!(
            Backend::Flex.device_for(5).unwrap(),
            Device::flex(),
            "without GPUs every rank has the first device"
        );
        let error = Backend::Flex.device(1).unwrap_err().to_string();
        assert_eq!(error, "backend `flex` has no device 1; it finds 0 (Flex(Cpu))");
    }
}
