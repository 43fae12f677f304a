//! Experiments and benches; see `src/bin` and `benches`.

pub mod backends;
pub mod claims;
pub mod experiment;
pub mod methods;
pub mod observed;
pub mod overhead;
pub mod pages;
pub mod paired;
pub mod picture;
pub mod ranks;
pub mod raw;
pub mod tables;
pub mod trainer;
pub mod vectors;
