//! The compressors of Briquette as CubeCL kernels.
//!
//! A gradient on a GPU is compressed where it is: an encoder ([`top_k()`], [`min_max()`], [`qsgd()`], …) queues kernels, [`Encoded::read`] copies the
//! message to the host, and [`DeviceMessage::add`] adds messages of all ranks to an average on the device. Messages, averages and residuals have
//! the bits that `briquette-core` computes on the host, so ranks with and without a device can train together, and a run can continue on
//! either.
//!
//! The crate is compiled against no runtime: a [`Run`] is created from a client of any runtime of CubeCL (CUDA, HIP, Metal, Vulkan, WGSL, or the
//! CPU). [`Run::check`] compares the device with the host.
//!
//! # Rules of equal bits
//!
//! 1. Magnitudes are compared and moved as whole numbers, so denormal numbers and −0 are not special cases.
//! 2. A product or a sum that enters another sum is sealed (`bits::sealed`). Otherwise CubeCL contracts `a · b + c` to one rounding on
//!    every target. Sealing adds a 0 to the bits that is an argument, so no compiler removes it.
//! 3. Numbers are rounded to whole numbers by their bits, never by adding a large number.
//! 4. WGSL and SPIR-V do not promise correctly rounded divisions: quotients are corrected in whole numbers
//!    (`bits::divided`).
//! 5. No float is added in an order that the device chooses: neither by atomic additions nor by a library's products.
//! 6. Sums that core computes in f64 have the same lanes and the same order. A device without f64 computes them in
//!    whole numbers (module `double`).
//! 7. What needs f64 otherwise (a square root, a mean, Gram–Schmidt) is left to the host, which has its few inputs.
//!
//! One difference remains: a device that flushes denormal *results* of f32 operations to 0 (some drivers of Vulkan and Metal) has other
//! values below 1.2e-38 in averages and residuals; in residuals inside a learning rate (at least 2⁻²⁰), below 1.3e-32.
//!
//! # Work on the device and on the host
//!
//! | compressor | on the device | on the host | waits for the device |
//! |---|---|---|---|
//! | `TopK` | selection | short values, from the kept ones | 1 |
//! | `ChunkTopK` | selection | | 1 |
//! | `HardThreshold` | selection | | 1; 2 if many are kept |
//! | `ThresholdTopK` | sample and selection | threshold | 2; more for a bad sample |
//! | `RandomK` | values | coordinates, by the key; scaling | 1 |
//! | `MinMax` | codes | blocks with a range below 1e-30 or above 1e36 | 1; 2 with such blocks |
//! | `Half` | codes | | 1 |
//! | `Qsgd` | codes of fixed width | square roots of the norm `l2`; Elias codes | 1; `l2`: 2 |
//! | `Natural` | codes | | 1 |
//! | `TernGrad` | codes | limit of clipping | 1; clipped: 2 |
//! | `ScaledSign`, `PlainSign` | codes, sums of magnitudes | means | 1 |
//! | `Coded`, of a sparsifier above | selection | values, from the kept ones | as the sparsifier |
//! | PowerSGD | [products](LowRank) and their subtraction | Gram–Schmidt | 2 |
//!
//! Kernels that take a vector to be written assume that nothing else writes it meanwhile: read the tensors of a framework, write only your own
//! vectors.

// A kernel's arguments are its buffers and scalars, one by one. Its language lacks these methods, and evaluates both sides of `&&`.
#![allow(
    clippy::collapsible_if,
    clippy::manual_div_ceil,
    clippy::manual_is_multiple_of,
    clippy::manual_range_contains,
    clippy::manual_rotate,
    clippy::too_many_arguments
)]

mod add;
mod arrivals;
mod bits;
mod check;
mod chunks;
mod collect;
mod dither;
mod double;
mod encode;
mod encoded;
mod error;
mod feed;
mod finite;
mod frame;
mod gradient;
mod half;
mod low_rank;
mod memory;
mod message;
mod min_max;
mod natural;
mod pack;
#[cfg(all(test, feature = "ptx"))]
mod ptx;
mod random;
mod run;
mod select;
mod sent;
mod sign;
mod sparse;
mod sums;
mod wide;

pub use arrivals::{Arrivals, Arrived};
pub use encode::{
    Norm, chunk_top_k, half, hard_threshold, min_max, natural, plain_sign, qsgd, random_k, scaled_sign, tern_grad,
    threshold_top_k, top_k,
};
pub use encoded::{Encoded, Reading};
pub use error::DeviceError;
pub use feed::{accumulate, clear_range, copy_to, feed, scale, scale_range, take_momentum};
pub use finite::first_not_finite;
pub use gradient::Gradient;
pub use low_rank::LowRank;
pub use message::DeviceMessage;
pub use pack::{pack, unpack};
pub use run::{Run, Vector, Work};
pub use sent::{Sent, Slots, sent};
pub use sums::{Groups, Sums, Terms, sums};
