//! Claims about links and handshakes over TCP for arbitrary bytes. The fuzz targets `tcp_*` and the TCP crate's integration tests
//! assert them.

use std::io::{self, Read};

use briquette_core::Frame;
use briquette_core::comm::Scope;
use briquette_tcp::frame::{HEADER, Header, Kind};
use briquette_tcp::fuzz::{self, AHEAD, Frames, SECRET};

/// Maximum frame length accepted here.
pub const LONGEST: usize = 1 << 30;

/// Bytes that arrive in pieces of pseudo-random length, with pauses between.
struct Pieces<'a> {
    bytes: &'a [u8],
    state: u32,
    longest: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let drawn = (self.state >> 16) as usize;
        match drawn % 8 {
            0 => return Err(io::ErrorKind::WouldBlock.into()),
            1 => return Err(io::ErrorKind::Interrupted.into()),
            _ => {}
        }
        let count = (1 + drawn % self.longest).min(room.len()).min(self.bytes.len());
        room[..count].copy_from_slice(&self.bytes[..count]);
        self.bytes = &self.bytes[count..];
        Ok(count)
    }
}

/// Complete result of a reader on a stream: the frames, and the end.
type Made = (Vec<(String, Frame)>, Result<(), String>);

fn read(bytes: &[u8], checksums: bool, (seed, longest): (u32, usize)) -> Made {
    let mut source = Pieces { bytes, state: seed, longest };
    let mut reader = Frames::new(LONGEST, checksums);
    let mut frames = Vec::new();
    loop {
        let before = bytes.len() - source.bytes.len();
        frames.extend(reader.read(&mut source));
        let come = bytes.len() - source.bytes.len();
        // A length alone reserves one step. What has come may have been doubled, as vectors are.
        assert!(reader.reserved() <= 2 * (come + AHEAD), "{} bytes reserved after {come}", reader.reserved());
        if let Some(end) = reader.end() {
            return (frames, end);
        }
        assert!(come >= before);
    }
}

/// Checks arbitrary bytes on a data link: the link ends with a reason, and the division into pieces makes no difference.
pub fn check_stream(bytes: &[u8]) {
    for checksums in [true, false] {
        let made = read(bytes, checksums, (1, 100_000));
        assert_eq!(made, read(bytes, checksums, (7, 7)));
        let (frames, end) = made;
        if let Err(cause) = end {
            assert!(!cause.is_empty() && cause.len() < 300, "{cause}");
        }
        let come: usize = frames.iter().map(|(_, frame)| HEADER + frame.len()).sum();
        assert!(come <= bytes.len(), "{come} bytes of frames out of {}", bytes.len());
    }
}

/// Checks frames made of the input: kinds, lengths, false values. Valid frames are read as sent, up to the first false value.
pub fn check_frames(mut input: &[u8]) {
    let mut take = |count: usize| {
        let (taken, rest) = input.split_at(count.min(input.len()));
        input = rest;
        taken
    };
    let (mut stream, mut expected, mut number, mut is_true) = (Vec::new(), Vec::new(), 0, true);
    while let [lie, len, step] = *take(3) {
        let frame = take(usize::from(len)).repeat(1 + usize::from(step) % 50);
        let scope = Scope { operation: "exchange", step: u64::from(step), bucket: None };
        let kind = if lie == 255 { Kind::Goodbye } else { Kind::Data };
        let checksum = crc32fast::hash(&frame);
        let mut header = Header { kind, len: frame.len(), number, tag: scope.into(), checksum };
        match lie {
            1 => header.len += 1 + usize::from(step),
            2 => header.number += 1,
            3 => header.checksum ^= 1,
            4 => header.len = LONGEST + 1,
            5 => header.len = LONGEST,
            _ => {}
        }
        let tag = header.tag.to_string();
        stream.extend_from_slice(&header.encode());
        stream.extend_from_slice(&frame);
        number += 1;
        is_true &= !(1..=5).contains(&lie);
        if is_true && kind == Kind::Data {
            expected.push((tag, frame));
        }
        is_true &= kind == Kind::Data;
    }
    let (frames, _) = read(&stream, true, (3, 5000));
    // A length that is one too long is made true by what follows only where the checksum is, too.
    assert_eq!(frames, expected);
    check_stream(&stream);
}

/// Checks a listener and a caller on arbitrary bytes: neither accepts them, and neither discloses the secret.
pub fn check_handshake(bytes: &[u8]) {
    let piece = bytes.first().map_or(1, |first| usize::from(*first));
    let answer = [
        b"BRIQTCP2",
        &[5; 32][..],
        &[0; 32],
        &(bytes.len() as u32 + 10).to_le_bytes(),
        b"\"nonsense",
        bytes,
        b"\"",
        &[9; 32],
    ];
    for said in [bytes.to_vec(), [b"BRIQTCP2", bytes].concat(), answer.concat()] {
        // A fuzzer reads in the comparisons what it is compared with, and says that.
        if has_secret(&said) {
            return;
        }
        let (result, heard) = fuzz::listen(&said, piece);
        refuses(result.map(drop), &heard);
        let (result, heard) = fuzz::call(&said, piece);
        refuses(result, &heard);
    }
}

fn refuses(result: Result<(), String>, heard: &[u8]) {
    let text = result.expect_err("nobody who does not know the secret is believed");
    assert!(!text.is_empty() && text.len() < 300 && !text.contains("malformed handshake message"), "{text}");
    assert!(!has_secret(text.as_bytes()) && !has_secret(heard));
    // Magic, number and tag, at most a message with its length and proof.
    assert!(heard.len() <= 72 + 4 + 4096 + 32);
}

fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
}

/// Checks arbitrary introductions and answers of a peer that knows the secret.
pub fn check_introduction(text: &[u8]) {
    let result = fuzz::listen_to(text);
    let problem =
        |error: &str| error.contains("malformed handshake message") || error.contains("a handshake message of");
    match &result {
        Ok(introduction) => assert!(introduction.contains("rank") && text.len() <= 4096),
        Err(error) => assert!(problem(error), "{error}"),
    }
    match fuzz::call_and_hear(text) {
        Ok(()) => assert!(String::from_utf8_lossy(text).contains("Welcome")),
        Err(error) => assert!(problem(&error) || String::from_utf8_lossy(text).contains("Refused"), "{error}"),
    }
}
