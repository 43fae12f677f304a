//! The reading half of a data link: bytes that come in any pieces, frames out of them into a bounded queue.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;

use briquette_core::Frame;
use briquette_core::comm::FramePool;
use crc32fast::Hasher;

use crate::frame::{FrameError, HEADER, Header, Kind, Tag};

/// Bytes read ahead: whole frames where they are small, a header and a little more where they are large.
const AHEAD: usize = 8 << 10;
/// What a frame grows by before its bytes come: a length alone reserves no more, and what one read brings is still in the
/// cache when its checksum is taken.
pub(crate) const STEP: usize = 256 << 10;

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

#[derive(Debug)]
pub(crate) struct Reader {
    limits: Limits,
    inbox: VecDeque<(Tag, Frame)>,
    incoming: Option<Incoming>,
    ahead: Box<[u8]>,
    /// What of `ahead` is still to be looked at.
    unread: Range<usize>,
    /// Whether trying is worth while: the system says so only when it changes.
    pub(crate) readable: bool,
    next_in: u64,
    pub(crate) end: Option<End>,
    /// Bytes that came.
    pub(crate) bytes: u64,
    /// Frames that came whole.
    pub(crate) frames: u64,
}

#[derive(Debug)]
struct Incoming {
    header: Header,
    /// As long as what is expected next, up to [`STEP`]: bytes after `filled` mean nothing yet.
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

    /// The next frame that came, with what its sender was doing.
    pub(crate) fn pop(&mut self) -> Option<(Tag, Frame)> {
        self.inbox.pop_front()
    }

    /// Reads as much as goes without waiting and has room.
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

    /// Bytes reserved for frames that have come and for the one that comes.
    pub(crate) fn reserved(&self) -> usize {
        let waiting: usize = self.inbox.iter().map(|(_, frame)| frame.capacity()).sum();
        waiting + self.incoming.as_ref().map_or(0, |incoming| incoming.frame.capacity())
    }

    /// One step; whether another is worth trying.
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

    /// What a read means: whether it brought something.
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
        // The receiver of an empty frame may drop it, so it takes none of the pool's.
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
