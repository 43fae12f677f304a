#![doc = include_str!(concat!(env!("OUT_DIR"), "/index.md"))]

include!(concat!(env!("OUT_DIR"), "/guide.rs"));
