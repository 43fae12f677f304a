//! Handshake by which two processes verify that they belong to the same world.
//!
//! ```text
//! caller   "BRIQTCP2" + 32 random bytes + 32 bytes of the world's tag
//! listener "BRIQTCP2" + 32 random bytes + 32 bytes of the world's tag
//! caller   introduction (JSON, 4 bytes of length before it) + proof("caller",   tag, both random numbers, introduction)
//! listener answer       (JSON, 4 bytes of length before it) + proof("listener", tag, both random numbers, introduction, answer)
//! ```
//!
//! The tag is a digest of the [world's name](crate::world). Both sides compare it before they send anything else. They
//! do so on every connection, to rank 0 and between other ranks, plain and under TLS. This separates ranks of different
//! jobs that meet on one port. The tag is not a secret and does not keep intruders out; the proofs do. Version 1 had no
//! tag.
//!
//! A proof is an HMAC-SHA-256 under the token. If the caller's proof is wrong, the listener refuses and sends zeros in
//! place of its own proof, so that intruders get no material against which to test guessed tokens. The introduction
//! names the rank that is called, so that an intermediary between two ranks cannot redirect a call to a third. Both
//! sides draw a fresh number each time, so that recorded messages cannot be replayed. Under TLS the proofs also cover a
//! value of the TLS session, so that no intermediary can relay them. Without a token the proofs use the empty token and
//! prove nothing, which is acceptable only on loopback.

use std::io;
use std::time::Duration;

use briquette_core::membership::MemberId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::token::{PROOF, Token};
use crate::world::TAG;

pub(crate) const MAGIC: &[u8; 8] = b"BRIQTCP2";
/// Magic bytes with which all versions of the handshake begin.
const FAMILY: &[u8; 7] = b"BRIQTCP";
/// Time limit for writing an answer. Nothing else is in transit on the connection.
const ANSWER: Duration = Duration::from_secs(1);
/// Maximum bytes of an introduction or answer.
const LONGEST: usize = 4 << 10;

/// Identity of the caller, and purpose of its call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub(crate) rank: usize,
    /// Rank that is called.
    pub(crate) to: usize,
    pub(crate) world: usize,
    /// Version of this library.
    pub(crate) version: String,
    pub(crate) role: Role,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Sent to rank 0: this rank requests to join. States the address at which it accepts connections, its number of
    /// background channels, and its machine.
    Join {
        address: String,
        #[serde(default)]
        channels: usize,
        #[serde(default)]
        machine: usize,
    },
    /// Sent to member `to` of an elastic world: the connection carries the messages of an election.
    Member { member: MemberId, to: MemberId },
    /// Sent to an address of member `to` of an elastic world: another process there refuses the call. The member itself does not answer.
    Probe { to: MemberId },
    /// Sent to any member of an elastic world: asks to become a member, which accepts connections at this port.
    Candidate { member: MemberId, port: u16 },
    /// Sent to any rank of a complete world with this session name: the connection carries frames of this channel.
    Data {
        session: String,
        #[serde(default)]
        channel: usize,
    },
}

impl Role {
    /// Returns why process `me` refuses a call that is meant for another one: the caller takes that one for lost. A process that is started
    /// in the place of a lost member may listen at its address.
    pub(crate) fn misses(&self, me: MemberId) -> Option<String> {
        match self {
            Role::Member { to, .. } | Role::Probe { to } if *to != me => Some(format!("this is {me}, and not {to}")),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Welcome,
    Refused(String),
}

/// Reasons why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side uses another protocol.
    #[error("{}", unknown_protocol(.0))]
    UnknownProtocol(Vec<u8>),
    /// The other side echoes its input.
    #[error("the peer is not a rank: it echoes what it receives")]
    Echo,
    /// The other side belongs to a job with another name.
    #[error("the peer belongs to another job: its job name or id differs from this rank's")]
    OtherWorld,
    /// A message exceeds the maximum length.
    #[error("a handshake message of {0} bytes exceeds the limit")]
    Long(usize),
    /// The JSON is invalid.
    #[error("malformed handshake message: {0}")]
    Senseless(#[from] serde_json::Error),
    /// The other side does not know the token.
    #[error("the peer has another token: give every rank the same token")]
    Proof,
    /// The other side refused, with a proof, or with the protocol's fixed text for callers with a wrong token.
    #[error("{0}")]
    Refused(String),
}

fn unknown_protocol(bytes: &[u8]) -> String {
    // TLS record types: handshake or alert.
    if bytes.starts_with(&[0x16, 0x03]) || bytes.starts_with(&[0x15, 0x03]) {
        return "the other side speaks TLS and this one does not: give every rank the certificates, or none".to_owned();
    }
    if bytes.starts_with(FAMILY) {
        let [ours, theirs] = [MAGIC.as_slice(), bytes].map(|magic| String::from_utf8_lossy(&magic[FAMILY.len()..]));
        return format!(
            "version of the handshake differs: {ours} here, {theirs} there. Start all ranks with the same program"
        );
    }
    format!("what answers there is not a rank of this library's (it begins with {:?})", String::from_utf8_lossy(bytes))
}

/// Answer of a listener to callers whose proof is wrong.
const WRONG_TOKEN: &str = "the token is wrong or missing: give every rank the same one";

/// Values that both sides of a connection must agree on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) token: &'a Token,
    /// The tag of the world's name.
    pub(crate) world: &'a [u8; TAG],
    /// Value that only the two sides of a TLS session know; empty without TLS.
    pub(crate) binding: &'a [u8],
}

/// Runs the caller's side.
pub(crate) async fn call<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    Terms { token, world, binding }: Terms<'_>,
    introduction: &Introduction,
) -> Result<(), HandshakeError> {
    let ours = drawn()?;
    stream.write_all(&[&MAGIC[..], &ours, world].concat()).await?;
    let (theirs, tag) = opening(stream).await?;
    if theirs == ours {
        return Err(HandshakeError::Echo);
    }
    if tag != *world {
        return Err(HandshakeError::OtherWorld);
    }
    let introduction = serde_json::to_vec(introduction)?;
    let proof = token.prove(&[b"caller", binding, world, &ours, &theirs, &introduction]);
    write(stream, &introduction, &proof).await?;
    let (text, proof) = read(stream).await?;
    if !token.verify(&[b"listener", binding, world, &ours, &theirs, &introduction, &text], &proof) {
        // A side that refuses because of the token cannot prove that it knows this rank's. Its text may come from an intruder,
        // so it is not shown.
        return Err(match parse(&text) {
            Ok(Answer::Refused(_)) => HandshakeError::Refused(WRONG_TOKEN.to_owned()),
            _ => HandshakeError::Proof,
        });
    }
    match parse(&text)? {
        Answer::Welcome => Ok(()),
        Answer::Refused(reason) => Err(HandshakeError::Refused(reason)),
    }
}

/// A caller that knows the token and waits for an answer.
#[derive(Debug)]
pub(crate) struct Caller<S> {
    stream: S,
    token: Token,
    transcript: Vec<Vec<u8>>,
    pub(crate) introduction: Introduction,
}

/// Runs the listener's side, up to the answer.
pub(crate) async fn listen<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    Terms { token, world, binding }: Terms<'_>,
) -> Result<Caller<S>, HandshakeError> {
    let (theirs, tag) = opening(&mut stream).await?;
    let ours = drawn()?;
    stream.write_all(&[&MAGIC[..], &ours, world].concat()).await?;
    if tag != *world {
        // The caller detects the mismatch from the tag that it has just received.
        stream.flush().await?;
        return Err(HandshakeError::OtherWorld);
    }
    let (text, proof) = read(&mut stream).await?;
    let known = token.verify(&[b"caller", binding, world, &theirs, &ours, &text], &proof);
    let transcript =
        [b"listener".as_slice(), binding, world, &theirs, &ours, &text].iter().map(|part| part.to_vec()).collect();
    if !known {
        write(&mut stream, &serde_json::to_vec(&Answer::Refused(WRONG_TOKEN.to_owned()))?, &[0; PROOF]).await?;
        return Err(HandshakeError::Refused(WRONG_TOKEN.to_owned()));
    }
    let introduction = parse(&text)?;
    Ok(Caller { stream, token: token.clone(), transcript, introduction })
}

impl<S: AsyncRead + AsyncWrite + Unpin> Caller<S> {
    pub(crate) async fn welcome(mut self) -> Result<S, HandshakeError> {
        answer(&mut self.stream, &self.token, &self.transcript, &Answer::Welcome).await?;
        Ok(self.stream)
    }

    pub(crate) async fn refuse(mut self, reason: impl Into<String>) -> Result<(), HandshakeError> {
        answer(&mut self.stream, &self.token, &self.transcript, &Answer::Refused(reason.into())).await
    }
}

async fn answer<S: AsyncWrite + Unpin>(
    stream: &mut S,
    token: &Token,
    transcript: &[Vec<u8>],
    answer: &Answer,
) -> Result<(), HandshakeError> {
    let text = serde_json::to_vec(answer)?;
    let parts: Vec<&[u8]> = transcript.iter().map(Vec::as_slice).chain([text.as_slice()]).collect();
    let proof = token.prove(&parts);
    let slow = |_| io::Error::from(io::ErrorKind::TimedOut);
    timeout(ANSWER, write(stream, &text, &proof)).await.map_err(slow)?
}

/// Reads the other side's number and tag.
async fn opening<S: AsyncRead + Unpin>(stream: &mut S) -> Result<([u8; PROOF], [u8; TAG]), HandshakeError> {
    let mut magic = [0; MAGIC.len()];
    let mut got = 0;
    // A TLS alert is shorter than the expected message, and explains more than the end of the stream that follows it.
    while got < magic.len() {
        match stream.read(&mut magic[got..]).await? {
            0 if got > 0 => return Err(HandshakeError::UnknownProtocol(magic[..got].to_vec())),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => got += count,
        }
    }
    if magic != *MAGIC {
        return Err(HandshakeError::UnknownProtocol(magic.to_vec()));
    }
    let (mut number, mut tag) = ([0; PROOF], [0; TAG]);
    stream.read_exact(&mut number).await?;
    stream.read_exact(&mut tag).await?;
    Ok((number, tag))
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, text: &[u8], proof: &[u8]) -> Result<(), HandshakeError> {
    let len = u32::try_from(text.len()).map_err(|_| HandshakeError::Long(text.len()))?;
    stream.write_all(&[&len.to_le_bytes()[..], text, proof].concat()).await?;
    Ok(stream.flush().await?)
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(Vec<u8>, [u8; PROOF]), HandshakeError> {
    let len = stream.read_u32_le().await? as usize;
    if len > LONGEST {
        return Err(HandshakeError::Long(len));
    }
    let (mut text, mut proof) = (vec![0; len], [0; PROOF]);
    stream.read_exact(&mut text).await?;
    stream.read_exact(&mut proof).await?;
    Ok((text, proof))
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, HandshakeError> {
    Ok(serde_json::from_slice(text)?)
}

fn drawn() -> Result<[u8; PROOF], HandshakeError> {
    let mut number = [0; PROOF];
    getrandom::fill(&mut number).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(number)
}
