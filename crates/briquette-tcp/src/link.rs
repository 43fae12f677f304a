//! One data link: frames out of a bounded queue, frames into one.

use std::collections::VecDeque;
use std::io;

use briquette_core::Frame;
use briquette_core::comm::{FramePool, Scope};
use crc32fast::Hasher;

use crate::frame::{FrameError, HEADER, Header, Kind, Tag};
use crate::stream::Stream;

/// Bytes read ahead: whole frames where they are small, a header and a little more where they are large.
const AHEAD: usize = 8 << 10;
/// What a frame grows by before its bytes come: a length alone reserves no more, and what one read brings is still in the
/// cache when its checksum is taken.
const STEP: usize = 256 << 10;

/// What a link is allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Frames that may wait, in each direction.
    pub(crate) queue: usize,
    /// Bytes of a frame.
    pub(crate) frame: usize,
    /// Whether the bytes of frames are checked.
    pub(crate) checksums: bool,
}

/// Why nothing more will come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side said goodbye.
    Left,
    /// It did not.
    Lost(String),
}

/// Bytes and frames that really went over a socket, headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketBytes {
    /// Bytes written: headers and frames. Under TLS, before they are encrypted.
    pub written: u64,
    /// Bytes read, the same way.
    pub read: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received whole.
    pub frames_received: u64,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: Stream,
    limits: Limits,
    outbox: VecDeque<Outgoing>,
    inbox: VecDeque<(Tag, Frame)>,
    incoming: Option<Incoming>,
    ahead: Box<[u8]>,
    /// What of `ahead` is still to be looked at.
    unread: std::ops::Range<usize>,
    /// Whether trying is worth while: the system says so only when it changes.
    readable: bool,
    writable: bool,
    next_out: u64,
    next_in: u64,
    end: Option<End>,
    pub(crate) moved: SocketBytes,
}

#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER],
    frame: Frame,
    /// Bytes of header and frame that are gone.
    written: usize,
}

#[derive(Debug)]
struct Incoming {
    header: Header,
    /// As long as what is expected next, up to [`STEP`]: bytes after `filled` mean nothing yet.
    frame: Frame,
    filled: usize,
    hasher: Hasher,
}

impl Link {
    pub(crate) fn new(stream: Stream, limits: Limits) -> Link {
        Link {
            stream,
            limits,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            incoming: None,
            ahead: vec![0; AHEAD].into(),
            unread: 0..0,
            readable: true,
            writable: true,
            next_out: 0,
            next_in: 0,
            end: None,
            moved: SocketBytes::default(),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.outbox.len() >= self.limits.queue
    }

    pub(crate) fn is_flushed(&self) -> bool {
        (self.outbox.is_empty() && self.stream.is_flushed()) || self.end.is_some()
    }

    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// The system says that something may be possible again.
    pub(crate) fn wake(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// Queues a frame.
    pub(crate) fn push(&mut self, kind: Kind, scope: Scope, frame: Frame) {
        let checksum = if self.limits.checksums { crc32fast::hash(&frame) } else { 0 };
        let header = Header { kind, len: frame.len(), number: self.next_out, tag: scope.into(), checksum };
        self.next_out += 1;
        self.outbox.push_back(Outgoing { header: header.encode(), frame, written: 0 });
    }

    /// The next frame that came, with what its sender was doing.
    pub(crate) fn pop(&mut self) -> Option<(Tag, Frame)> {
        self.inbox.pop_front()
    }

    /// Writes and reads as much as goes without waiting.
    pub(crate) fn pump(&mut self, pool: &mut FramePool) {
        self.pump_out(pool);
        self.pump_in(pool);
    }

    pub(crate) fn pump_out(&mut self, pool: &mut FramePool) {
        if self.end.is_some() || !self.writable {
            return;
        }
        match self.write_queued(pool) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
            // What came before the break may still be read, and says more: a goodbye, for one.
            Err(error) => {
                self.pump_in(pool);
                self.lose(error.to_string());
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
            self.moved.written += count as u64;
            if *written == HEADER + frame.len() {
                self.moved.frames_sent += 1;
                let done = self.outbox.pop_front();
                pool.put(done.map(|done| done.frame).unwrap_or_default());
            }
        }
        self.stream.flush()
    }

    pub(crate) fn pump_in(&mut self, pool: &mut FramePool) {
        while self.end.is_none() && self.inbox.len() < self.limits.queue {
            match self.read_some(pool) {
                Ok(true) => {}
                Ok(false) => return,
                Err(cause) => self.lose(cause),
            }
        }
    }

    /// One step; whether another is worth trying.
    fn read_some(&mut self, pool: &mut FramePool) -> Result<bool, String> {
        let Some(incoming) = &mut self.incoming else {
            if self.unread.len() < HEADER {
                return self.read_ahead();
            }
            return self.begin(pool).map_err(|error| error.to_string()).map(|()| true);
        };
        let (before, missing) = (incoming.filled, incoming.header.len - incoming.filled);
        if missing == 0 {
            return self.complete().map_err(|error| error.to_string()).map(|()| true);
        }
        if self.unread.is_empty() && missing < AHEAD {
            return self.read_ahead();
        }
        if incoming.filled == incoming.frame.len() {
            incoming.frame.resize(before + missing.min(STEP), 0);
        }
        let room = &mut incoming.frame[before..];
        let count = if self.unread.is_empty() {
            if !self.readable {
                return Ok(false);
            }
            let read = self.stream.read(room);
            let count = *read.as_ref().unwrap_or(&0);
            if !self.came(read)? {
                return Ok(false);
            }
            count
        } else {
            let count = room.len().min(self.unread.len());
            room[..count].copy_from_slice(&self.ahead[self.unread.start..][..count]);
            self.unread.start += count;
            count
        };
        if let Some(Incoming { frame, filled, hasher, .. }) = &mut self.incoming {
            *filled += count;
            if self.limits.checksums {
                hasher.update(&frame[before..*filled]);
            }
        }
        Ok(true)
    }

    fn read_ahead(&mut self) -> Result<bool, String> {
        if !self.readable {
            return Ok(false);
        }
        self.ahead.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let read = self.stream.read(&mut self.ahead[self.unread.end..]);
        self.unread.end += *read.as_ref().unwrap_or(&0);
        self.came(read)
    }

    /// What a read means: whether it brought something.
    fn came(&mut self, read: io::Result<usize>) -> Result<bool, String> {
        match read {
            Ok(0) => Err("connection closed".to_owned()),
            Ok(count) => {
                self.moved.read += count as u64;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn begin(&mut self, pool: &mut FramePool) -> Result<(), FrameError> {
        let mut bytes = [0; HEADER];
        bytes.copy_from_slice(&self.ahead[self.unread.start..][..HEADER]);
        self.unread.start += HEADER;
        let header = Header::decode(&bytes, self.limits.frame)?;
        if header.number != self.next_in {
            return Err(FrameError::Number { expected: self.next_in, got: header.number });
        }
        self.next_in += 1;
        let frame = pool.take_for(header.len.min(STEP));
        self.incoming = Some(Incoming { header, frame, filled: 0, hasher: Hasher::new() });
        Ok(())
    }

    fn complete(&mut self) -> Result<(), FrameError> {
        let Some(Incoming { header, frame, hasher, .. }) = self.incoming.take() else { return Ok(()) };
        let got = hasher.finalize();
        if self.limits.checksums && got != header.checksum {
            return Err(FrameError::Checksum { number: header.number, expected: header.checksum, got });
        }
        self.moved.frames_received += 1;
        match header.kind {
            Kind::Data => self.inbox.push_back((header.tag, frame)),
            Kind::Goodbye => self.end = Some(End::Left),
        }
        Ok(())
    }

    fn lose(&mut self, cause: String) {
        self.end.get_or_insert(End::Lost(cause));
    }
}
