//! Traffic: bytes that crossed the transport.

use std::ops::{Add, AddAssign, Sub};

/// Bytes that one rank wrote to and read from the transport, including frame contents and message headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// Bytes written.
    pub sent: u64,
    /// Bytes read.
    pub received: u64,
}

impl Add for Traffic {
    type Output = Traffic;
    /// Saturates, because these numbers may come from other ranks' headers.
    fn add(self, other: Traffic) -> Traffic {
        let (sent, received) = (self.sent.saturating_add(other.sent), self.received.saturating_add(other.received));
        Traffic { sent, received }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        *self = *self + other;
    }
}

impl Sub for Traffic {
    type Output = Traffic;
    fn sub(self, earlier: Traffic) -> Traffic {
        Traffic { sent: self.sent - earlier.sent, received: self.received - earlier.received }
    }
}
