//! Integration tests of the trainers and programs, in one binary, since each binary links all of Burn.

mod absurd;
mod bad_input;
mod common;
mod ends;
mod golden_errors;
mod hybrid;
mod options;
mod quickstart;
mod small_programs;
mod trainers;
