//! Claims about untrusted bytes: frames, settings, and exchanges with other ranks. The fuzz targets and core's integration tests
//! assert them.
//!
//! They count memory with [`asked`]; a binary that uses them declares its allocator:
//!
//! ```
//! use briquette_testkit::wire::asked::{Counting, asked};
//!
//! #[global_allocator]
//! static COUNTING: Counting = Counting;
//!
//! let before = asked();
//! drop(Vec::<u8>::with_capacity(100));
//! assert_eq!(asked() - before, 100);
//! ```

pub mod asked;
pub mod claims;
pub mod exchanges;
pub mod golden;
