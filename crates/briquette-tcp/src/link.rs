//! Data link: sends frames from a bounded queue and receives frames into another.

use std::collections::VecDeque;
use std::io;

use briquette_core::Frame;
use briquette_core::comm::{FramePool, Scope};

use crate::frame::{HEADER, Header, Kind, Tag};
use crate::reader::{End, Limits, Reader};
use crate::stream::Stream;

/// Bytes and frames transferred over a socket, headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketBytes {
    /// Bytes written: headers and frames. Under TLS, counted before encryption.
    pub written: u64,
    /// Bytes read, counted the same way.
    pub read: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Complete frames received.
    pub frames_received: u64,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: Stream,
    limits: Limits,
    reader: Reader,
    outbox: VecDeque<Outgoing>,
    /// Set if writing may succeed, as [`Reader::readable`] does for reading.
    writable: bool,
    next_out: u64,
    written: u64,
    frames_sent: u64,
}

#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER],
    frame: Frame,
    /// Bytes of header and frame already written.
    written: usize,
}

impl Link {
    pub(crate) fn new(stream: Stream, limits: Limits) -> Link {
        Link {
            stream,
            limits,
            reader: Reader::new(limits),
            outbox: VecDeque::new(),
            writable: true,
            next_out: 0,
            written: 0,
            frames_sent: 0,
        }
    }

    pub(crate) fn moved(&self) -> SocketBytes {
        let Link { written, frames_sent, .. } = *self;
        SocketBytes { written, read: self.reader.bytes, frames_sent, frames_received: self.reader.frames }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.outbox.len() >= self.limits.queue
    }

    pub(crate) fn is_flushed(&self) -> bool {
        (self.outbox.is_empty() && self.stream.is_flushed()) || self.reader.end.is_some()
    }

    pub(crate) fn end(&self) -> Option<&End> {
        self.reader.end.as_ref()
    }

    /// Records that the system reports the socket as readable or writable.
    pub(crate) fn wake(&mut self, readable: bool, writable: bool) {
        self.reader.readable |= readable;
        self.writable |= writable;
    }

    /// Queues a frame.
    pub(crate) fn push(&mut self, kind: Kind, scope: Scope, frame: Frame) {
        let checksum = if self.limits.checksums { crc32fast::hash(&frame) } else { 0 };
        let header = Header { kind, len: frame.len(), number: self.next_out, tag: scope.into(), checksum };
        self.next_out += 1;
        self.outbox.push_back(Outgoing { header: header.encode(), frame, written: 0 });
    }

    /// Returns the next received frame, with the operation of its sender.
    pub(crate) fn pop(&mut self) -> Option<(Tag, Frame)> {
        self.reader.pop()
    }

    /// Writes and reads as much as possible without blocking.
    pub(crate) fn pump(&mut self, pool: &mut FramePool) {
        self.pump_out(pool);
        self.pump_in(pool);
    }

    pub(crate) fn pump_out(&mut self, pool: &mut FramePool) {
        if self.reader.end.is_some() || !self.writable {
            return;
        }
        match self.write_queued(pool) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
            // Data that arrived before the link broke can still be read, and explains more: it may be a goodbye.
            Err(error) => {
                self.pump_in(pool);
                self.reader.lose(error.to_string());
            }
        }
    }

    fn write_queued(&mut self, pool: &mut FramePool) -> io::Result<()> {
        while let Some(Outgoing { header, frame, written }) = self.outbox.front_mut() {
            let head = header.get(*written..).unwrap_or_default();
            let body = &frame[written.saturating_sub(HEADER)..];
            let count = match self.stream.write(head, body) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if count == 0 && head.len() + body.len() > 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            *written += count;
            self.written += count as u64;
            if *written == HEADER + frame.len() {
                self.frames_sent += 1;
                let done = self.outbox.pop_front();
                pool.put(done.map(|done| done.frame).unwrap_or_default());
            }
        }
        self.stream.flush()
    }

    pub(crate) fn pump_in(&mut self, pool: &mut FramePool) {
        self.reader.pump(&mut self.stream, pool);
    }
}
