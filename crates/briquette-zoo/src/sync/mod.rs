//! Synchronization strategies: at which steps ranks exchange gradients or parameters. One file per algorithm.

pub mod bmuf;
pub mod cocod;
pub mod delayed;
pub mod demo;
pub mod des_loc;
pub mod eager_diloco;
pub mod easgd;
pub mod graph;
pub mod lsgd;
pub mod minibatch;
pub mod no_loco;
pub mod overlap_local_sgd;
pub mod parle;
mod periods;
pub mod sgp;
pub mod slow_mo;
pub mod sparse_loco;
pub mod sparta;
pub mod streaming_diloco;
pub mod two_level;
