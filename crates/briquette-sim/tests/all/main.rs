//! Tests of simulated networks, in one binary.

mod arrivals;
mod background;
mod groups;
mod membership;
mod recording;
mod simulated;
mod traces;
