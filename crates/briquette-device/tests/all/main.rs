//! Host and device: what kernels make has the bits of `briquette-core`, on every runtime of this build.

mod arrivals;
mod devices;
mod packed;
mod twins;
mod vectors;
mod worlds;
