//! Codes stored inside a frame.

use std::ops::{Deref, Range};

use crc32fast::Hasher;

/// Bytes in front of a message in a frame: its length.
pub(crate) const PREFIX: usize = 4;
/// Bytes of the header of a message: magic, version, kind, length.
pub(crate) const HEADER: usize = 8;
const CHECKSUM: usize = 4;

/// Codes with space around them for a frame that holds only their message: a length and the message's fields in front,
/// the checksum behind. So a message can lend its bytes for sending, and keep the frame from which it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Codes {
    frame: Vec<u8>,
    place: Range<usize>,
    /// Checksum of the codes, if it was computed while they were in the cache.
    checksum: Option<Hasher>,
}

impl Codes {
    /// Returns storage for `len` bytes after `fields` bytes of the message; all of it must be written.
    pub(crate) fn sized(&mut self, fields: usize, len: usize) -> &mut [u8] {
        self.checksum = None;
        self.place = PREFIX + fields..PREFIX + fields + len;
        self.frame.resize(self.place.end + CHECKSUM, 0);
        &mut self.frame[self.place.clone()]
    }

    /// Replaces the codes by the first bytes of `room`, after `fields` bytes of the message: as many as `write` returns.
    pub(crate) fn write(&mut self, fields: usize, room: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        let written = write(self.sized(fields, room));
        self.place.end = self.place.start + written;
        self.frame.truncate(self.place.end + CHECKSUM);
    }

    /// Sets the checksum of the written codes.
    pub(crate) fn summed(&mut self, checksum: Option<Hasher>) {
        self.checksum = checksum;
    }

    /// Keeps `frame`, whose codes lie at `place`, and returns the previous frame in it, emptied.
    pub(crate) fn keep(&mut self, frame: &mut Vec<u8>, place: Range<usize>) {
        std::mem::swap(&mut self.frame, frame);
        frame.clear();
        (self.place, self.checksum) = (place, None);
    }

    /// Returns the whole frame: the length, the fields written by `write`, the codes, and the checksum of all but the
    /// length.
    pub(crate) fn frame(&mut self, write: impl FnOnce(&mut [u8])) -> &[u8] {
        let Codes { frame, place, checksum } = self;
        let len = (frame.len() - PREFIX) as u32;
        frame[..PREFIX].copy_from_slice(&len.to_le_bytes());
        write(&mut frame[PREFIX..place.start]);
        let mut sum = Hasher::new();
        sum.update(&frame[PREFIX..place.start]);
        let codes = checksum.get_or_insert_with(|| {
            let mut codes = Hasher::new();
            codes.update(&frame[place.clone()]);
            codes
        });
        sum.combine(codes);
        frame[place.end..].copy_from_slice(&sum.finalize().to_le_bytes());
        frame
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.frame.capacity()
    }
}

impl Deref for Codes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.frame[self.place.clone()]
    }
}

impl PartialEq for Codes {
    fn eq(&self, other: &Codes) -> bool {
        **self == **other
    }
}
