//! Wire form of messages, as bytes: what a device reads and writes is what a message has on the wire.

use briquette_core::Message;

use crate::error::DeviceError;

/// Bytes before the payload: magic, version, kind, length.
const HEADER: usize = 8;
const CHECKSUM: usize = 4;

/// A message that is being written, with its length in front.
pub(crate) struct Frame(Vec<u8>);

impl Frame {
    pub(crate) fn new(kind: u8, len: usize) -> Frame {
        Frame([&[0, 0, 0, 0, b'B', b'Q', 1, kind][..], &(len as u32).to_le_bytes()].concat())
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Frame {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn word(self, word: u32) -> Frame {
        self.bytes(&word.to_le_bytes())
    }

    pub(crate) fn floats(mut self, values: &[f32]) -> Frame {
        self.0.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    /// Reads the message, which checks every number.
    pub(crate) fn finish(mut self, out: &mut Message) -> Result<(), DeviceError> {
        let checksum = crc32fast::hash(&self.0[4..]);
        self = self.word(checksum);
        let len = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        Ok(out.read_frame(&mut self.0)?)
    }
}

/// Wire form of a message, for reading.
pub(crate) struct Wire(Vec<u8>);

impl Wire {
    pub(crate) fn of(message: &Message) -> Wire {
        let mut bytes = Vec::new();
        message.encode_into(&mut bytes);
        Wire(bytes)
    }

    pub(crate) fn kind(&self) -> u8 {
        self.0[3]
    }

    pub(crate) fn payload(&self) -> Fields<'_> {
        Fields(&self.0[HEADER..self.0.len() - CHECKSUM])
    }
}

/// Fields of a payload, in order.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(count);
        self.0 = rest;
        first
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1)[0]
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().expect("four bytes"))
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
