//! Experiments and benches; see `src/bin` and `benches`.

pub mod backends;
pub mod claims;
pub mod methods;
pub mod observed;
pub mod overhead;
pub mod paired;
pub mod picture;
pub mod ranks;
pub mod raw;
pub mod tables;
pub mod trainer;
pub mod tuned;
pub mod vectors;
