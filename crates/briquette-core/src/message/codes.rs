//! Codes where they stand in a frame.

use std::ops::{Deref, Range};

use crc32fast::Hasher;

/// Bytes before a message in a frame: its length.
pub(crate) const PREFIX: usize = 4;
const CHECKSUM: usize = 4;

/// Codes with room around them for the rest of a frame that holds nothing but their message: a length and the message's fields
/// before them, its checksum after them. So a message lends its bytes to be sent, and keeps the frame that it is read from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Codes {
    frame: Vec<u8>,
    place: Range<usize>,
    /// Of the codes, where they were summed while they were near.
    checksum: Option<Hasher>,
}

impl Codes {
    /// Storage for `len` bytes that must all be written, after `fields` bytes of the message.
    pub(crate) fn sized(&mut self, fields: usize, len: usize) -> &mut [u8] {
        self.checksum = None;
        self.place = PREFIX + fields..PREFIX + fields + len;
        self.frame.resize(self.place.end + CHECKSUM, 0);
        &mut self.frame[self.place.clone()]
    }

    /// The checksum of what was written.
    pub(crate) fn summed(&mut self, checksum: Option<Hasher>) {
        self.checksum = checksum;
    }

    /// Keeps `frame`, whose codes stand at `place`, and leaves the frame before, emptied.
    pub(crate) fn keep(&mut self, frame: &mut Vec<u8>, place: Range<usize>) {
        std::mem::swap(&mut self.frame, frame);
        frame.clear();
        (self.place, self.checksum) = (place, None);
    }

    /// The whole frame: the length, what `write` puts in front of the codes, the codes, the checksum of all but the length.
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
