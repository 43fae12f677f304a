//! Policies of an asynchronous server. One file per algorithm.

pub mod async_local_sgd;
pub mod async_lsgd;
pub mod backup;
pub mod decoupled_diloco;
pub mod picky;
pub mod qsvrg;
pub mod synthesis;
