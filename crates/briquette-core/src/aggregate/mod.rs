//! Aggregators: combine the ranks' contributions into one vector. They do not communicate, and give the same bits on every rank.
//!
//! An aggregator combines contributions part by part, so that under the mean no rank holds more than one part of each contribution. An
//! aggregator that rates whole contributions, such as Krum, declares it ([`rates`](Aggregator::rates)). It gets all parts first, and
//! assigns a weight to each rank.

pub mod mean;

pub use crate::seam::{Aggregator, check_ranks};
