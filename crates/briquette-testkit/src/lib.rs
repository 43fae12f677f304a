//! What every transport is tested with.
//!
//! [`suite`] is one list of facts about a [`Communicator`](briquette_core::Communicator), for ranks that are threads
//! and for ranks that are processes.

pub mod suite;
