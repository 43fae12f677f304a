//! Integration tests of the zoo, in one binary.

mod catalogue;
