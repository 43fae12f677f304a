//! Control lines: small messages between rank 0 and every other rank, beside the data links.
//!
//! A message is 4 bytes of length, 4 bytes of CRC-32, and JSON.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::secure::Secure;
use crate::shared::Doing;

/// Longest message, in bytes: a roster or a beat of a few thousand ranks.
const LONGEST: usize = 1 << 20;
/// What a message may take to be written: lines are empty unless the other side is frozen.
const WRITING: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Rank 0: everyone is here, at these addresses.
    Roster { session: String, addresses: Vec<String> },
    /// This rank has its links.
    Ready,
    /// Rank 0: everyone has.
    Go,
    /// The world will not come about.
    Fail(String),
    /// Still here; rank 0 adds what it knows of the others.
    Beat { doing: Doing, others: Vec<(usize, Duration, Doing)> },
    /// A rank stops everyone.
    Abort { by: usize, during: Doing, reason: String },
    /// A rank is gone.
    Lost { by: usize, rank: usize, cause: String },
    /// This rank leaves.
    Bye,
}

#[derive(Debug)]
pub(crate) enum Event {
    Said(Message),
    Closed(String),
}

/// The lines of this rank: to everyone on rank 0, to rank 0 elsewhere.
#[derive(Debug)]
pub(crate) struct Lines {
    writers: BTreeMap<usize, (WriteHalf<Secure>, AbortHandle)>,
    sender: mpsc::Sender<(usize, Event)>,
    events: mpsc::Receiver<(usize, Event)>,
    /// Ranks whose lines took nothing for too long.
    cut: VecDeque<usize>,
}

impl Lines {
    pub(crate) fn new() -> Lines {
        let (sender, events) = mpsc::channel(64);
        Lines { writers: BTreeMap::new(), sender, events, cut: VecDeque::new() }
    }

    pub(crate) fn add(&mut self, rank: usize, stream: Secure) {
        let (reader, writer) = tokio::io::split(stream);
        let sender = self.sender.clone();
        let reading = tokio::spawn(async move {
            let mut reader = reader;
            loop {
                let event = match read(&mut reader).await {
                    Ok(message) => Event::Said(message),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Event::Closed("connection closed".to_owned())
                    }
                    Err(error) => Event::Closed(error.to_string()),
                };
                let closed = matches!(event, Event::Closed(_));
                if sender.send((rank, event)).await.is_err() || closed {
                    return;
                }
            }
        });
        self.writers.insert(rank, (writer, reading.abort_handle()));
    }

    pub(crate) fn remove(&mut self, rank: usize) {
        self.writers.remove(&rank);
    }

    pub(crate) fn has(&self, rank: usize) -> bool {
        self.writers.contains_key(&rank)
    }

    /// The next thing that happens on any line.
    pub(crate) async fn next(&mut self) -> (usize, Event) {
        if let Some(rank) = self.cut.pop_front() {
            let cause = format!("its control line took nothing for {:.1} s", WRITING.as_secs_f64());
            return (rank, Event::Closed(cause));
        }
        match self.events.recv().await {
            Some(event) => event,
            // A sender is kept here, so this does not come to pass.
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn send(&mut self, rank: usize, message: &Message) {
        self.send_until(rank, message, Instant::now() + WRITING).await;
    }

    async fn send_until(&mut self, rank: usize, message: &Message, until: Instant) {
        let Some((writer, reading)) = self.writers.get_mut(&rank) else { return };
        let written = async {
            writer.write_all(&encode(message)?).await?;
            writer.flush().await
        };
        match timeout_at(until, written).await {
            Ok(Ok(())) => {}
            // Its reader says what happened.
            Ok(Err(_)) => self.remove(rank),
            // A line that takes nothing is cut: half a message on it would spoil the next. Nobody hears of it from a side
            // that is frozen, so it is said here.
            Err(_) => {
                reading.abort();
                self.remove(rank);
                self.cut.push_back(rank);
            }
        }
    }

    /// Ends all lines: says that nothing more will come, and waits for the other sides to say so, too. A line that is
    /// closed at once answers a heartbeat on its way with a reset, which may overtake the goodbye.
    pub(crate) async fn close(mut self) {
        let until = Instant::now() + WRITING;
        for (writer, _) in self.writers.values_mut() {
            // Who does not take even this is not waited for below.
            drop(timeout_at(until, writer.shutdown()).await);
        }
        while !self.writers.is_empty() {
            match timeout_at(until, self.next()).await {
                Ok((rank, Event::Closed(_))) => self.remove(rank),
                Ok((_, Event::Said(_))) => {}
                Err(_) => return,
            }
        }
    }

    pub(crate) async fn tell_all(&mut self, message: &Message) {
        self.tell_others(message, None).await;
    }

    pub(crate) async fn tell_others(&mut self, message: &Message, but: Option<usize>) {
        let ranks: Vec<usize> = self.writers.keys().copied().filter(|rank| Some(*rank) != but).collect();
        // Together they may take as long as one: what goes at once goes even when the time is up.
        let until = Instant::now() + WRITING;
        for rank in ranks {
            self.send_until(rank, message, until).await;
        }
    }
}

fn encode(message: &Message) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(message)?;
    let len = u32::try_from(text.len()).map_err(io::Error::other)?;
    Ok([&len.to_le_bytes()[..], &crc32fast::hash(&text).to_le_bytes(), &text].concat())
}

async fn read(reader: &mut ReadHalf<Secure>) -> io::Result<Message> {
    let (len, checksum) = (reader.read_u32_le().await? as usize, reader.read_u32_le().await?);
    if len > LONGEST {
        return Err(io::Error::other(format!("a control message of {len} bytes")));
    }
    let mut text = vec![0; len];
    reader.read_exact(&mut text).await?;
    if crc32fast::hash(&text) != checksum {
        return Err(io::Error::other("a control message came damaged"));
    }
    Ok(serde_json::from_slice(&text)?)
}
