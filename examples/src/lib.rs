//! Models and trainers built on Briquette's public API.

pub mod backend;
pub mod cli;
pub mod directory;
pub mod endpoint;
pub mod hybrid;
pub mod interrupt;
pub mod lr_schedule;
pub mod models;
pub mod output;
pub mod record;
pub mod settings;
pub mod spec;
pub mod subscriber;
pub mod task;
pub mod train;
