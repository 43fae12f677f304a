//! TCP transport: the calling thread drives the data sockets.

mod wait;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use briquette_core::Frame;
use briquette_core::comm::{AbortCause, Call, Clock, FramePool, Scope, Transport};
use briquette_core::error::CommError;
use mio::{Events, Interest};
use tokio::sync::mpsc::UnboundedSender;

use crate::control::Command;
use crate::frame::{Kind, Tag};
use crate::link::{Link, SocketBytes};
use crate::meter::{SocketMeter, sum};
use crate::reader::{End, Limits};
use crate::shared::{Shared, Stop};

/// Time for which a rank whose link broke waits for an explanation on its control line.
const GRACE: Duration = Duration::from_millis(500);
/// Maximum characters of a reason that is sent to the other ranks.
const LONGEST_REASON: usize = 100_000;
/// Time for which a rank that leaves waits for its control thread to announce it.
const LEAVING: Duration = Duration::from_secs(3);

/// Endpoint of one rank in a world of processes, connected to every other rank; made by [`TcpBuilder`](crate::TcpBuilder).
pub struct Tcp {
    rank: usize,
    /// Channel number: 0, or that of a background endpoint.
    channel: usize,
    shared: Arc<Shared>,
    links: Vec<Option<Link>>,
    /// Frames from this rank to itself.
    own: VecDeque<Frame>,
    poll: mio::Poll,
    events: Events,
    commands: UnboundedSender<Command>,
    control: Option<JoinHandle<()>>,
    deadline: Duration,
    limits: Limits,
    clock: Option<Arc<dyn Clock + Sync>>,
    meter: SocketMeter,
    /// Background channels that are not open.
    spare: Vec<Option<Channel>>,
}

/// Sockets of a channel.
pub(crate) struct Channel {
    links: Vec<Option<Link>>,
    poll: mio::Poll,
}

pub(crate) struct Parts {
    /// Channels; at least one.
    pub(crate) channels: VecDeque<Channel>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: UnboundedSender<Command>,
    pub(crate) control: JoinHandle<()>,
    pub(crate) deadline: Duration,
    pub(crate) limits: Limits,
    pub(crate) clock: Option<Arc<dyn Clock + Sync>>,
}

impl Channel {
    pub(crate) fn new(mut links: Vec<Option<Link>>, poll: mio::Poll) -> io::Result<Channel> {
        for (rank, link) in links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(link.stream.socket(), mio::Token(rank), interest)?;
        }
        Ok(Channel { links, poll })
    }
}

impl Tcp {
    pub(crate) fn new(parts: Parts) -> Tcp {
        let Parts { mut channels, shared, commands, control, deadline, limits, clock } = parts;
        let meter = SocketMeter::new(channels.len());
        let Channel { links, poll } = channels.pop_front().expect("the first channel");
        Tcp {
            rank: shared.rank,
            channel: 0,
            shared,
            links,
            own: VecDeque::new(),
            poll,
            events: Events::with_capacity(64),
            commands,
            control: Some(control),
            deadline,
            limits,
            clock,
            meter,
            spare: channels.into_iter().map(Some).collect(),
        }
    }

    /// Returns the bytes transferred over the sockets of this channel, including the frame headers.
    /// [`traffic`](briquette_core::Session::traffic) does not include the headers: it is smaller by
    /// [`HEADER`](crate::frame::HEADER) bytes per frame.
    pub fn socket_bytes(&self) -> SocketBytes {
        sum(self.links.iter().flatten().map(Link::moved))
    }

    /// Opens the endpoint of a background channel that is not open yet.
    fn opened(&mut self, channel: usize) -> Option<Tcp> {
        let Channel { links, poll } = self.spare.get_mut(channel.checked_sub(1)?)?.take()?;
        Some(Tcp {
            rank: self.rank,
            channel,
            shared: Arc::clone(&self.shared),
            links,
            own: VecDeque::new(),
            poll,
            events: Events::with_capacity(64),
            commands: self.commands.clone(),
            control: None,
            deadline: self.deadline,
            limits: self.limits,
            clock: self.clock.clone(),
            meter: self.meter.clone(),
            spare: Vec::new(),
        })
    }

    /// Returns a meter of [`socket_bytes`](Self::socket_bytes), for code that has passed the endpoint to a session. The
    /// meter shows the totals at the end of the last collective.
    pub fn meter(&self) -> SocketMeter {
        self.meter.clone()
    }

    /// Returns the address at which a rank accepts connections.
    pub fn address(&self, rank: usize) -> Option<&str> {
        self.shared.addresses.get(rank).map(String::as_str)
    }

    /// Publishes the current operation of this rank, and fails if the world has stopped.
    fn check(&mut self, during: Scope) -> Result<(), CommError> {
        self.shared.publish(during);
        self.shared.abort_cause(during).map_or(Ok(()), Err)
    }

    /// Returns why these ranks send nothing more: the first broken link, or a goodbye if all of them have sent one.
    fn end_of(&self, others: &[usize]) -> Option<(usize, End)> {
        let end = |rank: usize| self.links[rank].as_ref().and_then(Link::end);
        let broke = others.iter().find(|rank| matches!(end(**rank), Some(End::Lost(_))));
        let left = others.first().filter(|_| others.iter().all(|rank| end(*rank).is_some()));
        broke.or(left).and_then(|rank| Some((*rank, end(*rank)?.clone())))
    }

    /// Handles the end of a link that this rank needs. The control thread's message explains more than a broken link.
    fn ended(&mut self, other: usize, end: End, call: &mut Call) -> CommError {
        let cause = match end {
            End::Left => return self.lost(other, call.scope, CommError::LEFT.to_owned()),
            End::Lost(cause) => cause,
        };
        let until = Instant::now() + GRACE;
        while self.shared.stopped().is_none() && Instant::now() < until {
            if self.wait(until, &mut call.pool).is_err() {
                break;
            }
        }
        self.shared.abort_cause(call.scope).unwrap_or_else(|| self.lost(other, call.scope, cause))
    }

    fn lost(&mut self, rank: usize, during: Scope, cause: String) -> CommError {
        self.stop(during, Stop::Lost { by: self.rank, rank, cause })
    }

    fn overdue(&mut self, others: &[usize], call: &Call) -> CommError {
        let mut error = CommError::deadline(self.rank, others, call.scope, call.longest(self.deadline));
        if let CommError::Deadline { others, last_seen, .. } = &mut error {
            let seen: Vec<_> = others.iter().filter_map(|other| self.shared.last_seen(*other)).collect();
            *last_seen = (!seen.is_empty()).then(|| seen.join("; "));
        }
        self.abort(call.scope, &error.to_string());
        error
    }

    /// Stops all ranks, and returns the first reason as an error of this rank.
    fn stop(&mut self, during: Scope, stop: Stop) -> CommError {
        if self.shared.stop(stop) {
            drop(self.commands.send(Command::Stopped));
        }
        self.shared.abort_cause(during).expect("it has just been stopped")
    }

    fn out_of_step(&mut self, other: usize, during: Scope, tag: Tag) -> CommError {
        let error = CommError::OutOfStep { rank: self.rank, other, during, theirs: tag.to_string() };
        self.abort(during, &error.to_string());
        error
    }

    /// Sends a goodbye on every link, after all pending data.
    fn leave(&mut self) {
        let (until, mut pool) = (Instant::now() + self.deadline, FramePool::default());
        for link in self.links.iter_mut().flatten() {
            link.push(Kind::Goodbye, Scope::default(), Frame::new());
        }
        self.pump(&mut pool);
        while !self.is_flushed() && self.shared.stopped().is_none() && Instant::now() < until {
            if self.wait(until, &mut pool).is_err() {
                break;
            }
        }
        self.links.iter_mut().flatten().for_each(|link| link.stream.end());
    }

    fn is_flushed(&self) -> bool {
        self.links.iter().flatten().all(Link::is_flushed)
    }
}

impl Transport for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }
    fn world(&self) -> usize {
        self.links.len()
    }
    fn machine(&self, rank: usize) -> usize {
        self.shared.machines[rank]
    }
    fn longest_frame(&self) -> usize {
        self.limits.frame
    }

    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.check(call.scope)?;
        if frame.len() > self.limits.frame {
            let (len, longest) = (frame.len(), self.limits.frame);
            let cause = format!("a frame of {len} bytes for it; ranks take {longest} at most (`longest_frame`)");
            return Err(self.lost(to, call.scope, cause));
        }
        if to == self.rank {
            if self.own.len() >= self.limits.queue {
                return Err(self.overdue(&[to], call));
            }
            self.own.push_back(frame);
            return Ok(());
        }
        self.until(&[to], call, |comm, _| {
            let link = comm.links[to].as_ref()?;
            (!link.is_full() && link.end().is_none()).then_some(())
        })?;
        if let Some(link) = &mut self.links[to] {
            link.push(Kind::Data, call.scope, frame);
            link.pump_out(&mut call.pool);
        }
        Ok(())
    }

    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        let received = self.receive(from, None, call)?;
        received.ok_or_else(|| self.overdue(from, call))
    }

    fn recv_any_within(
        &mut self,
        from: &[usize],
        longest: Duration,
        call: &mut Call,
    ) -> Result<Option<(usize, Frame)>, CommError> {
        let deadline = call.longest(self.deadline);
        self.receive(from, Some(Instant::now() + longest.min(deadline)), call)
    }

    fn flush(&mut self, call: &mut Call) -> Result<(), CommError> {
        while let Some(rank) = self.links.iter().position(|link| link.as_ref().is_some_and(|l| !l.is_flushed())) {
            self.check(call.scope)?;
            self.until(&[rank], call, |comm, _| comm.links[rank].as_ref().is_none_or(Link::is_flushed).then_some(()))?;
        }
        self.meter.set(self.channel, self.socket_bytes());
        Ok(())
    }

    fn abort(&mut self, during: Scope, reason: &str) {
        // As many characters as a control message can hold.
        let reason = reason.chars().take(LONGEST_REASON).collect();
        self.stop(during, Stop::Aborted { by: self.rank, during, reason });
    }

    fn abort_cause(&self) -> AbortCause {
        let shared = Arc::clone(&self.shared);
        Box::new(move || shared.abort_cause(shared.doing()))
    }

    fn open(&mut self, channel: usize) -> Result<Box<dyn Transport>, CommError> {
        let (rank, channels) = (self.rank, self.spare.len());
        let opened = self.opened(channel).map(|endpoint| Box::new(endpoint) as _);
        opened.ok_or_else(|| {
            let cause =
                format!("it joined with {channels} in the background; set `TcpBuilder::channels` on every rank");
            CommError::Channel { rank, channel, cause }
        })
    }

    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        self.clock.clone()
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        // Opens unused channels, so that the ranks that use them detect that this rank has left.
        (1..=self.spare.len()).for_each(|channel| drop(self.opened(channel)));
        if self.shared.stopped().is_none() {
            self.leave();
        }
        if let Some(control) = self.control.take() {
            drop(self.commands.send(Command::Leave));
            join_within(control, LEAVING);
        }
    }
}

/// Joins a thread, with a time limit.
pub(crate) fn join_within(thread: JoinHandle<()>, limit: Duration) {
    let (done, ended) = channel::<()>();
    // When the waiting thread ends, it drops its sender, which ends the wait.
    let waiter = move || {
        let _done = done;
        thread.join()
    };
    if thread::Builder::new().name("leaving".to_owned()).spawn(waiter).is_ok() {
        ended.recv_timeout(limit).unwrap_or_default();
    }
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tcp(rank {} of {}, channel {})", self.rank, self.world(), self.channel)
    }
}
