//! Control lines: small messages between rank 0 and every other rank, separate from the data links.
//!
//! A message is 4 bytes of length, 4 bytes of CRC-32, and JSON.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use briquette_core::membership::{self, MemberId};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::secure::Secure;
use crate::shared::Doing;

/// Maximum bytes of a message: a roster or a heartbeat of a few thousand ranks.
const LONGEST: usize = 1 << 20;
/// Time limit for writing a message. Lines have room unless the other side is frozen.
const WRITING: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Sent by rank 0: all ranks have joined, at these addresses and on these machines.
    Roster { session: String, addresses: Vec<String>, machines: Vec<usize> },
    /// This rank has all its links.
    Ready,
    /// Sent by rank 0: all ranks have all their links.
    Go,
    /// This rank has not reached another one yet, at this address and for this cause.
    Stuck { other: usize, address: String, cause: String },
    /// This rank has reached the one that it reported as not reached.
    Reached { other: usize },
    /// Initialization of the process group failed.
    Fail(String),
    /// This rank can never join, so the others need not wait for it.
    Unable(String),
    /// Heartbeat; rank 0 adds the state of the other ranks.
    Beat { doing: Doing, others: Vec<(usize, Duration, Doing)> },
    /// A rank stops all ranks.
    Abort { by: usize, during: Doing, reason: String },
    /// A rank is lost.
    Lost { by: usize, rank: usize, cause: String },
    /// This rank leaves.
    Bye,
    /// A message of an election.
    Membership(membership::Message),
    /// From the coordinator to a candidate: the generation to form, the addresses of members, and the name of their run.
    Admit { next: membership::Next, known: Vec<(MemberId, String)>, run: String },
}

#[derive(Debug)]
pub(crate) enum Event {
    Said(Message),
    Closed(String),
}

/// Lines of this rank: on rank 0 to all other ranks, on other ranks to rank 0.
#[derive(Debug)]
pub(crate) struct Lines {
    writers: BTreeMap<usize, (WriteHalf<Secure>, AbortHandle)>,
    sender: mpsc::Sender<(usize, Event)>,
    events: mpsc::Receiver<(usize, Event)>,
    /// Ranks whose lines accepted no data for too long.
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

    /// Returns the next event on any line.
    pub(crate) async fn next(&mut self) -> (usize, Event) {
        if let Some(rank) = self.cut.pop_front() {
            let cause = format!("its control line took nothing for {:.1} s", WRITING.as_secs_f64());
            return (rank, Event::Closed(cause));
        }
        match self.events.recv().await {
            Some(event) => event,
            // `self` holds a sender, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn send(&mut self, rank: usize, message: &Message) {
        self.tell(message, |other| other == rank).await;
    }

    /// Closes all lines: announces the end, and waits for the other sides to do the same. A line that is closed at once
    /// would answer a heartbeat in transit with a reset, which may overtake the goodbye.
    pub(crate) async fn close(mut self) {
        let until = Instant::now() + WRITING;
        for (writer, _) in self.writers.values_mut() {
            // The wait below does not include a side that does not accept even this.
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
        self.tell(message, |_| true).await;
    }

    pub(crate) async fn tell_others(&mut self, message: &Message, but: Option<usize>) {
        self.tell(message, |rank| Some(rank) != but).await;
    }

    /// Writes to several lines concurrently, so that the time limit of one holds for all of them together.
    async fn tell(&mut self, message: &Message, whom: impl Fn(usize) -> bool) {
        // Encoding fails only through a bug.
        let Ok(bytes) = encode(message) else { return };
        let lines = self.writers.iter_mut().filter(|(rank, _)| whom(**rank));
        let mut writing: Vec<_> = lines.map(|(rank, (writer, _))| (*rank, Box::pin(write(writer, &bytes)))).collect();
        let mut broken = Vec::new();
        let all = poll_fn(|context| {
            writing.retain_mut(|(rank, written)| {
                let result = written.as_mut().poll(context);
                broken.extend(matches!(result, Poll::Ready(Err(_))).then_some(*rank));
                result.is_pending()
            });
            if writing.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        // Lines that are not written by then are handled below.
        timeout(WRITING, all).await.unwrap_or_default();
        let stuck: Vec<usize> = writing.into_iter().map(|(rank, _)| rank).collect();
        // Their readers report the cause.
        broken.into_iter().for_each(|rank| self.remove(rank));
        // A line that accepts no data is cut: half a message on it would corrupt the next one. A frozen side cannot
        // report this, so it is logged here.
        for rank in stuck {
            if let Some((_, reading)) = self.writers.remove(&rank) {
                reading.abort();
                self.cut.push_back(rank);
            }
        }
    }
}

async fn write(writer: &mut WriteHalf<Secure>, bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
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
        return Err(io::Error::other("a control message is damaged"));
    }
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Creates a line from rank 0 to rank 1, and its other end.
    async fn line() -> (Lines, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut lines = Lines::new();
        lines.add(1, Secure::Plain(listener.accept().await.unwrap().0));
        (lines, far)
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn a_line_that_takes_nothing_ends_by_itself() {
        run(async {
            let (mut lines, far) = line().await;
            let long = Message::Fail("?".repeat(LONGEST / 2));
            // More than the system holds for a side that does not read.
            for _ in 0..200 {
                lines.send(1, &long).await;
            }
            assert!(!lines.has(1));
            let (rank, event) = lines.next().await;
            assert!(rank == 1 && matches!(&event, Event::Closed(cause) if cause.contains("took nothing")), "{event:?}");
            drop(far);
        });
    }

    #[test]
    fn several_lines_that_take_nothing_cost_the_time_of_one() {
        run(async {
            let (mut lines, far) = line().await;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut all = vec![far];
            for rank in 2..13 {
                all.push(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
                lines.add(rank, Secure::Plain(listener.accept().await.unwrap().0));
            }
            let long = Message::Fail("?".repeat(LONGEST / 2));
            let begin = Instant::now();
            while lines.has(1) || lines.has(12) {
                lines.tell_all(&long).await;
            }
            // One after the other, they would take twelve times that.
            assert!(begin.elapsed() < 8 * WRITING, "{:?}", begin.elapsed());
        });
    }

    #[test]
    fn closing_waits_for_the_other_side_but_not_for_ever() {
        run(async {
            let (mut lines, mut far) = line().await;
            lines.send(1, &Message::Bye).await;
            let begin = Instant::now();
            // A heartbeat in transit is received.
            far.write_all(&encode(&Message::Ready).unwrap()).await.unwrap();
            let ending = async {
                let mut heard = Vec::new();
                far.read_to_end(&mut heard).await.unwrap();
                drop(far);
                heard
            };
            let ((), heard) = tokio::join!(lines.close(), ending);
            assert_eq!(heard, encode(&Message::Bye).unwrap());
            let (lines, far) = line().await;
            lines.close().await;
            assert!(begin.elapsed() >= WRITING);
            drop(far);
        });
    }
}
