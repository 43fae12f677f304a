//! The wall clock, for sessions and simulations: the core reads none.

use std::time::Instant;

use briquette_core::comm::Clock;

/// Seconds since it was made.
#[derive(Debug, Clone, Copy)]
pub struct WallClock(Instant);

impl WallClock {
    /// Starts at 0 now.
    pub fn start() -> Self {
        WallClock(Instant::now())
    }
}

impl Clock for WallClock {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
