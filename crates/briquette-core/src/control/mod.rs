//! Controllers: choose compression ratios from numbers that all ranks agree on.
//!
//! A [`Controller`] states the measurements that it [needs](Needs), and receives only numbers on which all ranks agree ([`Agreed`]).
//! Its copies on all ranks therefore make the same decisions. It never communicates: [`Adaptive`](crate::wrapper::adaptive::Adaptive)
//! measures and makes the ranks agree.

pub mod auto;
pub mod cost_aware;
pub mod delay_limit;
pub mod loss_guard;
pub mod no_controller;
pub mod schedule;

pub use crate::seam::{Agreed, Controller, Decision, Moments, Needs};

/// Joins the texts of a part and of its inner part.
pub(crate) fn both(own: String, inner: Option<String>) -> Option<String> {
    Some([Some(own), inner].into_iter().flatten().collect::<Vec<_>>().join("; "))
}
