//! Integration tests of the `briquette` command, in one binary.

mod cert;
mod check;
mod command;
mod files;
mod golden_errors;
mod launch;
mod report;
