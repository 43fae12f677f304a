//! Reducers: combine one vector per rank into an average. One file per algorithm.

pub mod artemis;
pub mod dct;
mod downlink;
pub mod hadamard;
mod link;
pub mod mcm;
pub mod multi_step;
pub mod sketched_sgd;
pub mod smooth;
pub mod sparse_all_reduce;
pub mod ternary_all_reduce;
mod transformed;
pub mod two_way;
