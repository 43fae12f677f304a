//! Library of the `briquette` command, for other programs that start ranks or measure compressors.

pub mod allocator;
pub mod cert;
pub mod check;
pub mod checkpoint;
pub mod file;
pub mod launch;
pub mod measure;
pub mod memory;
pub mod plan;
pub mod probe;
pub mod report;
#[cfg(unix)]
pub mod signals;
pub mod terminal;
pub mod token;
