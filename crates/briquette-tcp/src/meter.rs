//! Meter of socket traffic, for code without access to the endpoint.

use std::sync::{Arc, Mutex, PoisonError};

use crate::link::SocketBytes;

/// Meter of the bytes transferred over a rank's sockets; see [`Tcp::meter`](crate::Tcp::meter).
#[derive(Debug, Clone)]
pub struct SocketMeter(Arc<Mutex<Vec<SocketBytes>>>);

impl SocketMeter {
    pub(crate) fn new(channels: usize) -> SocketMeter {
        SocketMeter(Arc::new(Mutex::new(vec![SocketBytes::default(); channels])))
    }

    /// Returns the totals over all channels, as of the end of the last collective on each.
    pub fn read(&self) -> SocketBytes {
        sum(self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied())
    }

    pub(crate) fn set(&self, channel: usize, bytes: SocketBytes) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[channel] = bytes;
    }
}

pub(crate) fn sum(all: impl Iterator<Item = SocketBytes>) -> SocketBytes {
    all.fold(SocketBytes::default(), |sum, SocketBytes { written, read, frames_sent, frames_received }| SocketBytes {
        written: sum.written + written,
        read: sum.read + read,
        frames_sent: sum.frames_sent + frames_sent,
        frames_received: sum.frames_received + frames_received,
    })
}
