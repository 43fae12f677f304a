//! Reducers: combine one vector per rank into an average with the same bits on every rank.
//!
//! A [`Reducer`] takes this rank's vector and a session, and writes the average over ranks. Each reducer chooses its own method: an
//! all-gather of compressed messages ([`Gather`](gather::Gather)), a dense ring ([`Dense`](dense::Dense)), an all-reduce of `k` shared coordinates ([`SharedRandomK`](shared_random_k::SharedRandomK)) or
//! of low-rank factors ([`PowerSgd`](power_sgd::PowerSgd)). Wrappers ([`wrapper`](crate::wrapper)) are reducers that contain another reducer.

pub mod dense;
pub mod gather;
pub mod hierarchical;
pub mod incoming;
pub mod ladder;
pub mod power_sgd;
pub mod ring;
pub mod shared_random_k;

pub use crate::math::{LowRankPlan, Mask, Matrix, SentStatistics, Velocity};
pub use crate::seam::{
    AgreedStep, Arriving, CompleteVector, DeviceCopies, DeviceInput, DeviceMemory, DevicePart, DevicePlace,
    DeviceVector, Energies, Exchanged, Knob, LastExchange, OnDevice, Probe, ProbeInput, Ratios, Reducer, Round,
    Selection, SentInput, SentVelocity, check_average, gain,
};
