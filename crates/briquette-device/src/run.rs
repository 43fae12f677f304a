//! A device: its queue, its limits, and vectors in its memory.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use cubecl::bytes::Bytes;
use cubecl::client::Client;
use cubecl::features::AtomicUsage;
use cubecl::future::reader::read_sync;
use cubecl::ir::{ElemType, FloatKind, UIntKind};
use cubecl::prelude::*;
use cubecl::server::{Handle, ServerError};
use cubecl::std::tensor::TensorHandle;

use crate::error::DeviceError;

/// Number of values that one cube processes: core's block of random numbers.
pub(crate) const TILE: usize = 4096;
/// Shared memory that a kernel uses at most: the counts of a histogram, and two numbers for each unit.
const SHARED: usize = 2048 * 4 + 2 * 4 * UNITS as usize;
/// Units of a cube: a power of two, because scans double their stride.
const UNITS: u32 = 256;

/// A vector of 32-bit numbers in the memory of a device. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Vector {
    handle: Handle,
    len: usize,
}

impl Vector {
    /// Wraps memory of a device that holds at least `len` 32-bit numbers: that of a contiguous tensor.
    ///
    /// # Errors
    /// [`DeviceError::Length`] if the memory is shorter.
    pub fn new(handle: Handle, len: usize) -> Result<Vector, DeviceError> {
        let got = handle.size_in_used() as usize / 4;
        match got >= len {
            true => Ok(Vector { handle, len }),
            false => Err(DeviceError::Length { what: "memory of a tensor", expected: len, got }),
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the memory.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn arg(&self) -> BufferArg {
        let tensor = TensorHandle::new_contiguous([self.len], self.handle.clone(), ElemType::Float(FloatKind::F32));
        tensor.into_arg().into_buffer_arg()
    }
}

/// Work of a device since its [`Run`] was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// Kernels launched.
    pub launches: usize,
    /// Times that the host waited for the queue.
    pub waits: usize,
    /// Bytes read by the host.
    pub down: usize,
    /// Bytes written by the host.
    pub up: usize,
}

#[derive(Debug, Default)]
struct Counts {
    launches: AtomicUsize,
    waits: AtomicUsize,
    down: AtomicUsize,
    up: AtomicUsize,
}

type Read = Result<Vec<Bytes>, ServerError>;

/// A copy to the host that has been started. If it is not waited for, its end is awaited before its memory is used again.
pub(crate) struct Copying(Option<Pin<Box<dyn Future<Output = Read> + Send>>>);

impl Drop for Copying {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|read| drop(read_sync(read)));
    }
}

impl std::fmt::Debug for Copying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Copying")
    }
}

/// A device on which kernels run. Clones share the queue and the counts.
#[derive(Clone)]
pub struct Run {
    client: Client,
    counts: Arc<Counts>,
    units: u32,
    divides: bool,
    doubles: bool,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Run({}, {} units)", self.client.name(), self.units)
    }
}

impl Run {
    /// Uses a device.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the device has no atomic integers or too little shared memory, or its driver cannot compile kernels.
    pub fn new(client: Client) -> Result<Run, DeviceError> {
        let device = client.name();
        let unsupported = |what: String| Err(DeviceError::Unsupported { device, what });
        let properties = client.properties();
        let atomics = properties.atomic_type_usage(Type::atomic(UIntKind::U32));
        if !atomics.contains(AtomicUsage::Add) {
            return unsupported("atomic integers".into());
        }
        // Mesa's software adapter ends the process when it compiles atomic integers in shared memory from SPIR-V. From WGSL it does not.
        if device.contains("spirv") && properties.identity.name.contains("llvmpipe") {
            return unsupported(
                "atomic integers in shared memory from SPIR-V (build without the feature vulkan)".into(),
            );
        }
        let shared = properties.hardware.max_shared_memory_size;
        if shared < SHARED {
            return unsupported(format!("{SHARED} bytes of shared memory, it has {shared}"));
        }
        let most = properties.hardware.max_units_per_cube.min(properties.hardware.max_cube_dim.0);
        let units = 1 << most.clamp(1, UNITS).ilog2();
        let is_exact = matches!(device, "cuda" | "cpu");
        let doubles = is_exact && properties.features.supports_type(ElemType::Float(FloatKind::F64));
        Ok(Run { client, counts: Arc::default(), units, divides: is_exact, doubles })
    }

    /// Relies on the device for nothing but additions and products of f32 numbers: divisions are corrected, and sums in f64 computed, in whole
    /// numbers. That is the default except for CUDA and CPUs.
    #[must_use]
    pub fn in_whole_numbers(self) -> Run {
        Run { divides: false, doubles: false, ..self }
    }

    /// Returns the number of values that a vector may have.
    pub fn most(&self) -> usize {
        // Kernels compute places in 32 bits.
        (self.client.properties().memory.max_page_size / 4).min(1 << 29) as usize
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the work so far.
    pub fn work(&self) -> Work {
        let Counts { launches, waits, down, up } = &*self.counts;
        Work {
            launches: launches.load(Relaxed),
            waits: waits.load(Relaxed),
            down: down.load(Relaxed),
            up: up.load(Relaxed),
        }
    }

    /// Returns the client for one launch.
    pub(crate) fn launch(&self) -> &Client {
        self.counts.launches.fetch_add(1, Relaxed);
        &self.client
    }

    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Returns whether sums use the device's f64.
    pub(crate) fn doubles(&self) -> bool {
        self.doubles
    }

    /// Returns whether the device's division is correctly rounded.
    pub(crate) fn divides(&self) -> bool {
        self.divides
    }

    pub(crate) fn dim(&self) -> CubeDim {
        CubeDim::new_1d(self.units)
    }

    /// Returns at least `count` cubes, spread over two axes; kernels check their position.
    pub(crate) fn cubes(&self, count: usize) -> CubeCount {
        let most = self.client.properties().hardware.max_cube_count.0.min(65_535) as usize;
        let rows = count.div_ceil(most).max(1);
        CubeCount::new_2d(count.div_ceil(rows).max(1) as u32, rows as u32)
    }

    /// Returns as many cubes as give each of `work` a unit.
    pub(crate) fn cubes_for(&self, work: usize) -> CubeCount {
        self.cubes(work.div_ceil(self.units as usize))
    }

    /// Allocates `len` numbers, which are not initialized.
    pub fn empty(&self, len: usize) -> Vector {
        // No device has a buffer of nothing.
        Vector { handle: self.client.empty(4 * len.max(1)), len }
    }

    /// Copies values to the device.
    pub fn upload(&self, values: &[f32]) -> Vector {
        self.upload_words(u32::from_bytes(f32::as_bytes(values)))
    }

    /// Allocates `len` zeros.
    pub fn zeros(&self, len: usize) -> Vector {
        let out = self.empty(len);
        crate::feed::clear(self, &out);
        out
    }

    pub(crate) fn upload_words(&self, words: &[u32]) -> Vector {
        if words.is_empty() {
            return self.empty(0);
        }
        self.counts.up.fetch_add(4 * words.len(), Relaxed);
        Vector { handle: self.client.create_from_slice(u32::as_bytes(words)), len: words.len() }
    }

    /// Copies bytes to the device, filled up to whole words.
    pub(crate) fn upload_bytes(&self, bytes: &[u8]) -> Vector {
        let mut words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let rest = bytes.as_chunks::<4>().1;
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            words.push(u32::from_le_bytes(last));
        }
        self.upload_words(&words)
    }

    /// Starts to copy vectors to the host, when the kernels queued so far are done.
    pub(crate) fn start_reading(&self, vectors: &[&Vector]) -> Copying {
        let handles = vectors.iter().map(|vector| vector.handle.clone()).collect();
        self.counts.down.fetch_add(vectors.iter().map(|vector| 4 * vector.len).sum(), Relaxed);
        let client = self.client.clone();
        let mut read: Pin<Box<dyn Future<Output = Read> + Send>> = Box::pin(async move {
            let read = client.read_async(handles);
            // Some runtimes wait for the copy in the first poll of their own future.
            let mut is_queued = false;
            std::future::poll_fn(
                |_| if std::mem::replace(&mut is_queued, true) { Poll::Ready(()) } else { Poll::Pending },
            )
            .await;
            read.await
        });
        // The first poll queues the copy.
        let polled = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(polled.is_pending(), "the copy is only queued");
        Copying(Some(read))
    }

    /// Waits for a copy: the bytes of its vectors.
    pub(crate) fn wait(&self, mut copying: Copying) -> Result<Vec<Bytes>, DeviceError> {
        self.counts.waits.fetch_add(1, Relaxed);
        let read = read_sync(copying.0.take().expect("a copy is waited for once"));
        read.map_err(|error| DeviceError::failed(self.client.name(), "reading from the device", error))
    }

    /// Waits for the queue, and copies vectors to the host.
    pub(crate) fn read_words(&self, vectors: &[&Vector]) -> Result<Vec<Vec<u32>>, DeviceError> {
        let read = self.wait(self.start_reading(vectors))?;
        Ok(read.iter().zip(vectors).map(|(bytes, vector)| u32::from_bytes(bytes)[..vector.len].to_vec()).collect())
    }

    /// Waits for the queue, and copies a vector to the host.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel before it failed, or the device is lost.
    pub fn read(&self, vector: &Vector) -> Result<Vec<f32>, DeviceError> {
        let words = self.read_words(&[vector])?.swap_remove(0);
        Ok(words.into_iter().map(f32::from_bits).collect())
    }

    /// Returns a part of a vector for reading: the same memory where the device can address it, else a copy.
    ///
    /// # Panics
    /// If the range is not inside the vector.
    pub fn part(&self, vector: &Vector, range: Range<usize>) -> Vector {
        assert!(range.start <= range.end && range.end <= vector.len, "{range:?} is not in a vector of {}", vector.len);
        let (from, behind) = (4 * range.start as u64, 4 * (vector.len - range.end) as u64);
        if range == (0..vector.len) {
            return vector.clone();
        }
        if !range.is_empty() && from.is_multiple_of(self.client.properties().memory.alignment) {
            let handle = vector.handle.clone().offset_start(from).offset_end(behind);
            return Vector { handle, len: range.len() };
        }
        crate::feed::copy(self, vector, range)
    }
}
