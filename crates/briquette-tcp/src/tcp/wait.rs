//! Waits of an endpoint for its links.

use std::io;
use std::time::Instant;

use briquette_core::Frame;
use briquette_core::comm::{Call, FramePool};
use briquette_core::error::CommError;

use super::Tcp;
use crate::frame::Tag;

impl Tcp {
    /// Lets every link make progress, and waits for events until `until` if there was nothing to do.
    pub(super) fn wait(&mut self, until: Instant, pool: &mut FramePool) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        match self.poll.poll(&mut self.events, Some(left)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &self.events {
            if let Some(Some(link)) = self.links.get_mut(event.token().0) {
                let broken = event.is_error() || event.is_read_closed();
                link.wake(event.is_readable() || broken, event.is_writable() || event.is_error());
            }
        }
        self.pump(pool);
        Ok(())
    }

    pub(super) fn pump(&mut self, pool: &mut FramePool) {
        for link in self.links.iter_mut().flatten() {
            link.pump(pool);
        }
    }

    /// Runs until `done` returns a value. Fails at the deadline, if the link to one of `others` breaks, if all of
    /// `others` leave, or if any rank stops.
    pub(super) fn until<T>(
        &mut self,
        others: &[usize],
        call: &mut Call,
        done: impl FnMut(&mut Tcp, &mut FramePool) -> Option<T>,
    ) -> Result<T, CommError> {
        let done = self.until_or(others, call, None, done)?;
        done.ok_or_else(|| self.overdue(others, call))
    }

    /// Does the same; returns `None` at `end` or the deadline, if no value is there.
    fn until_or<T>(
        &mut self,
        others: &[usize],
        call: &mut Call,
        end: Option<Instant>,
        mut done: impl FnMut(&mut Tcp, &mut FramePool) -> Option<T>,
    ) -> Result<Option<T>, CommError> {
        let until = end.unwrap_or_else(|| Instant::now() + call.longest(self.deadline));
        loop {
            if let Some(error) = self.shared.abort_cause(call.scope) {
                return Err(error);
            }
            if let Some(value) = done(self, &mut call.pool) {
                return Ok(Some(value));
            }
            if let Some((other, end)) = self.end_of(others) {
                return Err(self.ended(other, end, call));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            if let Err(error) = self.wait(until, &mut call.pool) {
                return Err(self.lost(others[0], call.scope, format!("cannot watch its sockets: {error}")));
            }
        }
    }

    /// Receives the next frame of any of these ranks; returns `None` at `end`, or at the deadline.
    pub(super) fn receive(
        &mut self,
        from: &[usize],
        end: Option<Instant>,
        call: &mut Call,
    ) -> Result<Option<(usize, Frame)>, CommError> {
        self.check(call.scope)?;
        if from.contains(&self.rank)
            && let Some(frame) = self.own.pop_front()
        {
            return Ok(Some((self.rank, frame)));
        }
        if from == [self.rank] {
            return Ok(None);
        }
        let received =
            self.until_or(from, call, end, |comm, pool| from.iter().find_map(|rank| comm.pop(*rank, pool)))?;
        let Some((rank, tag, frame)) = received else { return Ok(None) };
        if tag == Tag::from(call.scope) {
            Ok(Some((rank, frame)))
        } else {
            Err(self.out_of_step(rank, call.scope, tag))
        }
    }

    /// Returns the next frame from another rank, if one has arrived.
    fn pop(&mut self, from: usize, pool: &mut FramePool) -> Option<(usize, Tag, Frame)> {
        let link = self.links[from].as_mut()?;
        let popped = link.pop().or_else(|| {
            link.pump_in(pool);
            link.pop()
        });
        popped.map(|(tag, frame)| (from, tag, frame))
    }
}
