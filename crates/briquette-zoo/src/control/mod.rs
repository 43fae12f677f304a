//! Controllers: choose the compression ratio at run time. One file per algorithm.

pub mod accordion;
pub mod adaqs;
pub mod dq_sgd;
pub mod gravac;
pub mod l_greco;
