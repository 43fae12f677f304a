//! Wire format of a data link: a header of 68 bytes, then the bytes of the frame.
//!
//! | bytes | content |
//! |---|---|
//! | 2 | `bq` |
//! | 1 | version, 2 |
//! | 1 | kind: 0 data, 1 goodbye |
//! | 4 | number of bytes after the header |
//! | 8 | number of the frame on this link and in this direction, from 0 |
//! | 8 | step |
//! | 4 | bucket, `0xffff_ffff` for none |
//! | 4 | CRC-32 of the bytes after the header, 0 if checksums are off |
//! | 32 | operation, UTF-8 padded with zeros; a longer name is cut and ends in `…` |
//! | 4 | CRC-32 of the 64 bytes before |
//!
//! Numbers are little-endian. The checksum of a header is verified before its length is used.

use briquette_core::comm::Scope;

briquette_core::debug_by_display!(FrameError);

/// Length of a header in bytes.
pub const HEADER: usize = 68;
/// Protocol version. Both sides must have the same.
pub(crate) const VERSION: u8 = 2;
/// Bytes for the name of an operation; the names in this library are shorter.
const OPERATION: usize = 32;
const NO_BUCKET: u32 = u32::MAX;

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Data for the receiver.
    Data,
    /// The sender has left, and nothing follows.
    Goodbye,
}

/// Header of 68 bytes before each frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Number of bytes that follow.
    pub len: usize,
    /// Sequence number of the frame on this link and in this direction.
    pub number: u64,
    /// Operation of the sender.
    pub tag: Tag,
    /// CRC-32 of the bytes that follow, or 0.
    pub checksum: u32,
}

/// Operation, step and bucket of a sender, shortened to fit into a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    operation: [u8; OPERATION],
    step: u64,
    bucket: u32,
}

impl From<Scope> for Tag {
    fn from(scope: Scope) -> Tag {
        const CUT: &str = "…";
        let mut operation = [0; OPERATION];
        let text = scope.operation;
        if text.len() <= OPERATION {
            operation[..text.len()].copy_from_slice(text.as_bytes());
        } else {
            let end = text.floor_char_boundary(OPERATION - CUT.len());
            operation[..end].copy_from_slice(&text.as_bytes()[..end]);
            operation[end..end + CUT.len()].copy_from_slice(CUT.as_bytes());
        }
        let bucket = scope.bucket.and_then(|bucket| u32::try_from(bucket).ok()).unwrap_or(NO_BUCKET);
        Tag { operation, step: scope.step, bucket }
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let operation = String::from_utf8_lossy(&self.operation);
        let bucket = (self.bucket != NO_BUCKET).then_some(self.bucket as usize);
        Scope::show(f, operation.trim_end_matches('\0'), self.step, bucket)
    }
}

/// Errors of header and frame decoding.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes do not begin with the magic number and version of a header.
    #[error("received data is not a Briquette frame (it begins with {0:02x?})")]
    Magic([u8; 3]),
    /// The header's own checksum is wrong.
    #[error("a frame header is damaged (CRC-32 {got:#010x}, expected {expected:#010x})")]
    Damaged {
        /// Checksum in the header.
        expected: u32,
        /// Checksum of its bytes.
        got: u32,
    },
    /// The frame kind is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The length exceeds the limit of this side.
    #[error("a frame of {len} bytes exceeds the limit of {limit} bytes")]
    Long {
        /// Length in the header.
        len: usize,
        /// Maximum length.
        limit: usize,
    },
    /// The sequence number does not follow that of the frame before.
    #[error("received frame {got}, expected frame {expected}")]
    Number {
        /// Expected number.
        expected: u64,
        /// Received number.
        got: u64,
    },
    /// The bytes differ from those that were sent.
    #[error("frame {number} is damaged (CRC-32 {got:#010x}, expected {expected:#010x})")]
    Checksum {
        /// Number of the frame.
        number: u64,
        /// Checksum in the header.
        expected: u32,
        /// Checksum of the bytes.
        got: u32,
    },
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(b"bq");
        put(&[VERSION, self.kind as u8]);
        put(&(self.len as u32).to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.tag.step.to_le_bytes());
        put(&self.tag.bucket.to_le_bytes());
        put(&self.checksum.to_le_bytes());
        put(&self.tag.operation);
        let own = crc32fast::hash(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Decodes a header from untrusted bytes.
    ///
    /// # Errors
    /// [`FrameError`]; `limit` bounds the length.
    pub fn decode(bytes: &[u8; HEADER], limit: usize) -> Result<Header, FrameError> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(number(at)) | u64::from(number(at + 4)) << 32;
        if bytes[..3] != [b'b', b'q', VERSION] {
            return Err(FrameError::Magic([bytes[0], bytes[1], bytes[2]]));
        }
        let (expected, got) = (number(HEADER - 4), crc32fast::hash(&bytes[..HEADER - 4]));
        if expected != got {
            return Err(FrameError::Damaged { expected, got });
        }
        let kind = match bytes[3] {
            0 => Kind::Data,
            1 => Kind::Goodbye,
            other => return Err(FrameError::Kind(other)),
        };
        let len = number(4) as usize;
        if len > limit {
            return Err(FrameError::Long { len, limit });
        }
        let mut operation = [0; OPERATION];
        operation.copy_from_slice(&bytes[32..32 + OPERATION]);
        let tag = Tag { operation, step: long(16), bucket: number(24) };
        Ok(Header { kind, len, number: long(8), tag, checksum: number(28) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let scope = Scope { operation: "checkpoint save", step: 1841, bucket: Some(2) };
        Header { kind: Kind::Data, len: 300_000, number: 1 << 40, tag: scope.into(), checksum: 0xdead_beef }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        assert_eq!(Header::decode(&header().encode(), 300_000), Ok(header()));
        assert_eq!(header().tag.to_string(), "checkpoint save of bucket 2 at step 1841");
    }

    #[test]
    fn names_of_operations_are_whole_and_one_that_is_too_long_says_so() {
        let shown = |operation| Tag::from(Scope { operation, step: 0, bucket: None }).to_string();
        for operation in ["average of buffers", "re-broadcast of parameters", "thirty-two letters and no more, ok"] {
            let cut = if operation.len() > 32 { "thirty-two letters and no mor…" } else { operation };
            assert_eq!(shown(operation), format!("{cut} at step 0"));
        }
        // Not within a character.
        assert_eq!(shown("ääääääääääääääääää"), "ääääääääääääää… at step 0");
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..8 * HEADER {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes, usize::MAX).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_length_is_not_believed_beyond_the_limit() {
        let error = Header::decode(&header().encode(), 299_999).unwrap_err();
        assert_eq!(error, FrameError::Long { len: 300_000, limit: 299_999 });
    }

    #[test]
    fn a_header_has_these_bytes() {
        let header = Header { kind: Kind::Goodbye, len: 0, number: 3, tag: Scope::default().into(), checksum: 0 };
        let bytes = header.encode();
        assert_eq!(bytes[..9], [b'b', b'q', 2, 1, 0, 0, 0, 0, 3]);
        assert_eq!(bytes[24..28], [0xff; 4]);
        assert_eq!(bytes[64..], crc32fast::hash(&bytes[..64]).to_le_bytes());
    }
}
