#![doc = include_str!(concat!(env!("OUT_DIR"), "/index.md"))]
// Fragments leave out what does not matter to them.
#![allow(rustdoc::invalid_rust_codeblocks)]

include!(concat!(env!("OUT_DIR"), "/guide.rs"));
