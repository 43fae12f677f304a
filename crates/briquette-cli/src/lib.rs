//! What the `briquette` command is made of, for other programs that measure compressors.

pub mod file;
pub mod measure;
