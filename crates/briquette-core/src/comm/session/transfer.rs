//! Transfers of a session: waits for frames, with deadline, count and record.

use std::time::Duration;

use super::Session;
use crate::comm::Frame;
use crate::comm::recorder::{Started, Way};
use crate::comm::timeline::Sender;
use crate::error::CommError;

impl Session {
    /// Returns the rank whose frame is received next.
    pub(super) fn first_of(&mut self, from: &[usize], until: f64) -> Result<Sender, CommError> {
        self.call.timeline.receives_any(from, until).or_else(|deadline| {
            let error = CommError::deadline(self.transport.rank(), from, self.call.scope, deadline);
            self.recorder.fails(&error, self.now());
            self.abort(&error.reason());
            self.keep_failure(Err(error))
        })
    }

    /// Receives the next frame from any of these ranks, which are numbered as in the transport's world.
    pub(super) fn receive(&mut self, from: &[usize]) -> Result<(usize, Frame), CommError> {
        let transfer = self.start_transfer(Way::Receive, (from[0], 0));
        let received = self.transport.recv_any(from, &mut self.call);
        let (from, frame) = self.keep_failure(received)?;
        self.count_received(transfer, from, frame)
    }

    pub(super) fn receive_within(&mut self, from: &[usize], seconds: f64) -> Result<Option<(usize, Frame)>, CommError> {
        let longest = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let transfer = self.start_transfer(Way::Receive, (from[0], 0));
        let received = self.transport.recv_any_within(from, longest, &mut self.call);
        let received = self.keep_failure(received)?;
        let Some((from, frame)) = received else {
            self.recorder.cancel(transfer);
            return Ok(None);
        };
        self.count_received(transfer, from, frame).map(Some)
    }

    /// Records the start of a transfer with a rank, numbered as in the transport's world.
    pub(super) fn start_transfer(&self, way: Way, peer: (usize, u64)) -> Started {
        self.recorder.start(way, peer, self.call.scope, self.channel, self.now())
    }

    fn count_received(&mut self, transfer: Started, from: usize, frame: Frame) -> Result<(usize, Frame), CommError> {
        self.traffic.received += frame.len() as u64;
        self.take_turn()?;
        let departure = self.call.departure;
        self.call.timeline.received(from, frame.len(), departure);
        self.recorder.end(transfer, Some((from, frame.len() as u64)), self.now());
        Ok((from, frame))
    }
}
