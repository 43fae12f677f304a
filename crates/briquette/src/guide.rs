#![doc = include_str!(concat!(env!("OUT_DIR"), "/index.md"))]
// Fragments omit irrelevant lines.
#![allow(rustdoc::invalid_rust_codeblocks)]

include!(concat!(env!("OUT_DIR"), "/guide.rs"));
