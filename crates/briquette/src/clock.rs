//! Wall clock for sessions and simulations; core reads no clock.

use std::time::Instant;

use briquette_core::comm::Clock;

/// Clock that counts the seconds since its creation.
#[derive(Debug, Clone, Copy)]
pub struct WallClock(Instant);

impl WallClock {
    /// Starts a clock at 0.
    pub fn start() -> Self {
        WallClock(Instant::now())
    }
}

impl Clock for WallClock {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
