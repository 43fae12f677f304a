//! Reading half of a data link: assembles frames from bytes that arrive in arbitrary pieces, into a bounded queue.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;

use briquette_core::Frame;
use briquette_core::comm::FramePool;
use crc32fast::Hasher;

use crate::frame::{FrameError, HEADER, Header, Kind, Tag};

/// Read-ahead in bytes. It holds whole frames if they are small, and a header and a little more if they are large.
const AHEAD: usize = 8 << 10;
/// Bytes by which the buffer of a frame grows before its data arrives. A length in a header therefore never reserves
/// more, and the bytes of one read are still in the cache when their checksum is computed.
pub(crate) const STEP: usize = 256 << 10;

/// Limits of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Capacity of the queue in frames, in each direction.
    pub(crate) queue: usize,
    /// Maximum bytes of a frame.
    pub(crate) frame: usize,
    /// Set if the bytes of frames are checked.
    pub(crate) checksums: bool,
}

/// Reason why a link ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side said goodbye.
    Left,
    /// The link broke without a goodbye.
    Lost(String),
}

#[derive(Debug)]
pub(crate) struct Reader {
    limits: Limits,
    inbox: VecDeque<(Tag, Frame)>,
    incoming: Option<Incoming>,
    ahead: Box<[u8]>,
    /// Range of `ahead` that is not yet parsed.
    unread: Range<usize>,
    /// Set if a read may succeed: the system reports readiness only when it changes.
    pub(crate) readable: bool,
    next_in: u64,
    pub(crate) end: Option<End>,
    /// Bytes received.
    pub(crate) bytes: u64,
    /// Complete frames received.
    pub(crate) frames: u64,
}

#[derive(Debug)]
struct Incoming {
    header: Header,
    /// Buffer as long as the data expected next, up to [`STEP`]: bytes after `filled` are not valid yet.
    frame: Frame,
    filled: usize,
    hasher: Hasher,
}

impl Reader {
    pub(crate) fn new(limits: Limits) -> Reader {
        Reader {
            limits,
            inbox: VecDeque::new(),
            incoming: None,
            ahead: vec![0; AHEAD].into(),
            unread: 0..0,
            readable: true,
            next_in: 0,
            end: None,
            bytes: 0,
            frames: 0,
        }
    }

    /// Returns the next received frame, with the operation of its sender.
    pub(crate) fn pop(&mut self) -> Option<(Tag, Frame)> {
        self.inbox.pop_front()
    }

    /// Reads as much as possible without blocking and without exceeding the queue.
    pub(crate) fn pump(&mut self, source: &mut impl Read, pool: &mut FramePool) {
        while self.end.is_none() && self.inbox.len() < self.limits.queue {
            match self.read_some(source, pool) {
                Ok(true) => {}
                Ok(false) => return,
                Err(cause) => self.lose(cause),
            }
        }
    }

    pub(crate) fn lose(&mut self, cause: String) {
        self.end.get_or_insert(End::Lost(cause));
    }

    /// Returns the bytes reserved for received frames and for the one in progress.
    pub(crate) fn reserved(&self) -> usize {
        let waiting: usize = self.inbox.iter().map(|(_, frame)| frame.capacity()).sum();
        waiting + self.incoming.as_ref().map_or(0, |incoming| incoming.frame.capacity())
    }

    /// Performs one read, and returns whether another is worth trying.
    fn read_some(&mut self, source: &mut impl Read, pool: &mut FramePool) -> Result<bool, String> {
        let Some(incoming) = &mut self.incoming else {
            if self.unread.len() < HEADER {
                return self.read_ahead(source);
            }
            return self.begin(pool).map_err(|error| error.to_string()).map(|()| true);
        };
        let (before, missing) = (incoming.filled, incoming.header.len - incoming.filled);
        if missing == 0 {
            return self.complete().map_err(|error| error.to_string()).map(|()| true);
        }
        if self.unread.is_empty() && missing < AHEAD {
            return self.read_ahead(source);
        }
        if incoming.filled == incoming.frame.len() {
            incoming.frame.resize(before + missing.min(STEP), 0);
        }
        let room = &mut incoming.frame[before..];
        let count = if self.unread.is_empty() {
            if !self.readable {
                return Ok(false);
            }
            let read = source.read(room);
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

    fn read_ahead(&mut self, source: &mut impl Read) -> Result<bool, String> {
        if !self.readable {
            return Ok(false);
        }
        self.ahead.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let read = source.read(&mut self.ahead[self.unread.end..]);
        self.unread.end += *read.as_ref().unwrap_or(&0);
        self.came(read)
    }

    /// Interprets the result of a read, and returns whether it delivered data.
    fn came(&mut self, read: io::Result<usize>) -> Result<bool, String> {
        match read {
            Ok(0) => Err("connection closed".to_owned()),
            Ok(count) => {
                self.bytes += count as u64;
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
        // The receiver may drop an empty frame without returning it, so an empty frame is not taken from the pool.
        let frame = if header.len == 0 { Frame::new() } else { pool.take_for(header.len.min(STEP)) };
        self.incoming = Some(Incoming { header, frame, filled: 0, hasher: Hasher::new() });
        Ok(())
    }

    fn complete(&mut self) -> Result<(), FrameError> {
        let Some(Incoming { header, frame, hasher, .. }) = self.incoming.take() else { return Ok(()) };
        let got = hasher.finalize();
        if self.limits.checksums && got != header.checksum {
            return Err(FrameError::Checksum { number: header.number, expected: header.checksum, got });
        }
        self.frames += 1;
        match header.kind {
            Kind::Data => self.inbox.push_back((header.tag, frame)),
            Kind::Goodbye => self.end = Some(End::Left),
        }
        Ok(())
    }
}
