//! Waits for other ranks: MPI's own have no timeout.

use std::thread;
use std::time::{Duration, Instant};

/// Polling wait: first spins, then yields to other threads, then sleeps briefly.
pub(crate) struct Wait {
    began: Instant,
    deadline: Duration,
    rounds: u32,
}

impl Wait {
    pub(crate) fn new(deadline: Duration) -> Wait {
        Wait { began: Instant::now(), deadline, rounds: 0 }
    }

    /// Pauses; returns false once the deadline has passed.
    pub(crate) fn pause(&mut self) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        match self.rounds {
            0..50 => std::hint::spin_loop(),
            50..2000 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros(50)),
        }
        self.began.elapsed() < self.deadline
    }
}
