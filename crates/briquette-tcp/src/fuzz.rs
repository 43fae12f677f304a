//! Entry points for fuzz targets and for their counterparts under `cargo test`. Not part of the public interface.

use std::io::Read;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use briquette_core::Frame;
use briquette_core::comm::FramePool;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};

use crate::handshake::{self, Introduction, MAGIC, Role, Terms};
use crate::reader::{End, Limits, Reader};
use crate::token::{PROOF, Token};
use crate::world::TAG;

/// Bytes that a frame may reserve before its data arrives.
pub const AHEAD: usize = crate::reader::STEP;
/// Token of all handshakes here.
pub const SECRET: &str = "a secret that no input holds";

/// The tag of a world without a name.
const UNNAMED: [u8; TAG] = [0; TAG];

fn terms(token: &Token) -> Terms<'_> {
    Terms { token, world: &UNNAMED, binding: b"binding" }
}

/// The reading half of a link.
#[derive(Debug)]
pub struct Frames {
    reader: Reader,
    pool: FramePool,
}

impl Frames {
    /// Creates a reading half that accepts frames of up to this many bytes.
    pub fn new(longest: usize, checksums: bool) -> Frames {
        let limits = Limits { queue: 4, frame: longest, checksums };
        Frames { reader: Reader::new(limits), pool: FramePool::default() }
    }

    /// Reads all available frames, each with the operation of its sender.
    pub fn read(&mut self, source: &mut impl Read) -> Vec<(String, Frame)> {
        self.reader.readable = true;
        self.reader.pump(source, &mut self.pool);
        std::iter::from_fn(|| self.reader.pop()).map(|(tag, frame)| (tag.to_string(), frame)).collect()
    }

    /// Returns the bytes reserved for the frame being received.
    pub fn reserved(&self) -> usize {
        self.reader.reserved()
    }

    /// Returns why the stream ended: a goodbye, or an error.
    pub fn end(&self) -> Option<Result<(), String>> {
        self.reader.end.clone().map(|end| match end {
            End::Left => Ok(()),
            End::Lost(cause) => Err(cause),
        })
    }
}

/// Runs a listener on these bytes, delivered in pieces of this size, and returns its result and its output.
pub fn listen(said: &[u8], piece: usize) -> (Result<String, String>, Vec<u8>) {
    let token = Token::new(SECRET);
    converse(said, piece, async |stream| {
        let caller = handshake::listen(stream, terms(&token)).await;
        caller.map(|caller| format!("{:?}", caller.introduction)).map_err(|error| error.to_string())
    })
}

/// Runs a caller on these bytes, delivered in pieces of this size.
pub fn call(said: &[u8], piece: usize) -> (Result<(), String>, Vec<u8>) {
    let token = Token::new(SECRET);
    converse(said, piece, async |mut stream| {
        handshake::call(&mut stream, terms(&token), &introduction()).await.map_err(|error| error.to_string())
    })
}

/// Runs a listener whose caller knows the token and introduces itself with these bytes.
pub fn listen_to(introduction: &[u8]) -> Result<String, String> {
    let token = Token::new(SECRET);
    let (mut theirs, ours) = duplex(1 << 16);
    at_once(async {
        let caller = async {
            theirs.write_all(&[&MAGIC[..], &[1; PROOF], &UNNAMED].concat()).await?;
            let number = skip_opening(&mut theirs).await?;
            let proof = token.prove(&[b"caller", b"binding", &UNNAMED, &[1; PROOF], &number, introduction]);
            say(&mut theirs, introduction, &proof).await
        };
        let listener = async {
            let caller = handshake::listen(ours, terms(&token)).await;
            caller.map(|caller| format!("{:?}", caller.introduction)).map_err(|error| error.to_string())
        };
        tokio::join!(caller, listener).1
    })
}

/// Runs a caller whose listener knows the token and answers with these bytes.
pub fn call_and_hear(answer: &[u8]) -> Result<(), String> {
    let token = Token::new(SECRET);
    let (mut theirs, mut ours) = duplex(1 << 16);
    let introduction = introduction();
    at_once(async {
        let listener = async {
            let number = skip_opening(&mut theirs).await?;
            theirs.write_all(&[&MAGIC[..], &[1; PROOF], &UNNAMED].concat()).await?;
            let text = serde_json::to_vec(&introduction)?;
            let proof = token.prove(&[b"listener", b"binding", &UNNAMED, &number, &[1; PROOF], &text, answer]);
            say(&mut theirs, answer, &proof).await
        };
        let caller = handshake::call(&mut ours, terms(&token), &introduction);
        tokio::join!(listener, caller).1.map_err(|error| error.to_string())
    })
}

fn introduction() -> Introduction {
    let role = Role::Data { session: "session".to_owned(), channel: 0 };
    Introduction { rank: 1, to: 0, world: 2, version: "0".to_owned(), role }
}

async fn skip_opening(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<[u8; PROOF]> {
    let (mut magic, mut number) = ([0; MAGIC.len()], [0; PROOF]);
    stream.read_exact(&mut magic).await?;
    stream.read_exact(&mut number).await?;
    stream.read_exact(&mut [0; TAG]).await?;
    Ok(number)
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), text: &[u8], proof: &[u8]) -> std::io::Result<()> {
    stream.write_all(&[&(text.len() as u32).to_le_bytes()[..], text, proof].concat()).await
}

/// Runs one side on a stream that delivers bytes in pieces and then ends; returns its result and its output.
fn converse<T>(said: &[u8], piece: usize, side: impl AsyncFnOnce(DuplexStream) -> T) -> (T, Vec<u8>) {
    let (mut theirs, ours) = duplex(1 << 16);
    let mut side = pin!(side(ours));
    let mut context = Context::from_waker(Waker::noop());
    let mut result = Poll::Pending;
    for piece in said.chunks(piece.max(1)) {
        // A side that has hung up receives nothing more.
        let _ = at_once(theirs.write_all(piece));
        if result.is_pending() {
            result = side.as_mut().poll(&mut context);
        }
    }
    at_once(theirs.shutdown()).expect("a stream in memory can be shut down");
    let result = match result {
        Poll::Ready(result) => result,
        Poll::Pending => at_once(side),
    };
    let mut heard = vec![0; 1 << 16];
    let count = at_once(theirs.read(&mut heard)).unwrap_or(0);
    heard.truncate(count);
    (result, heard)
}

/// Runs a future that needs no outside peer: a few polls are enough for both sides to have sent everything.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..100 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("it waits, and nothing can wake it")
}
