//! Threads of one connection: for each direction one that reads, and one that disturbs and writes.

use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Direction, Harm, Reset, Shared, Writes};

/// Largest piece read at once, and the maximum number of pieces in transit in one direction: some 4 MB, so that latency
/// does not limit the rate at the speeds of a test.
const PIECE: usize = 16 * 1024;
const PIECES: usize = 256;
/// Interval at which an unlimited wait checks whether the connection still exists.
const LOOK: Duration = Duration::from_millis(20);
/// Number of bytes for which coalesced writes wait.
const COALESCED: usize = 64 * 1024;
const HELD_BACK: Duration = Duration::from_millis(20);

/// The two sockets of a connection. They close when the last of its threads ends.
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    number: u64,
    ended: AtomicBool,
}

/// Message from a reader to its writer.
enum Piece {
    /// Bytes, with their time of arrival.
    Bytes(Instant, Vec<u8>),
    /// The source ended its stream.
    End,
    /// The source was reset.
    Broken,
}

/// The writing half of one direction.
struct Writer {
    shared: Arc<Shared>,
    link: Arc<Link>,
    direction: Direction,
    /// Bytes of this stream that were passed on or swallowed.
    offset: u64,
    /// Time at which the rate allows the next write.
    free: Instant,
    /// Number of draws so far.
    drawn: u64,
}

/// The connection is over, by a reset or because one of its ends is gone.
struct Over;

/// Connects a client to the target and starts the connection's threads.
pub(super) fn start(shared: &Arc<Shared>, client: TcpStream, number: u64) -> io::Result<()> {
    let server = TcpStream::connect_timeout(&shared.target, Duration::from_secs(5)).inspect_err(|_| {
        let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
    })?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
        // A writer whose reader stalls checks periodically whether the connection was reset.
        socket.set_write_timeout(Some(LOOK))?;
    }
    let link = Arc::new(Link { client, server, number, ended: AtomicBool::new(false) });
    let mut state = shared.lock();
    state.links.retain(|link| link.strong_count() > 0);
    state.threads.retain(|thread| !thread.is_finished());
    state.links.push(Arc::downgrade(&link));
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (pieces, arriving) = sync_channel(PIECES);
        let source = Arc::clone(&link);
        let (shared, link) = (Arc::clone(shared), Arc::clone(&link));
        let writer = Writer { shared, link, direction, offset: 0, free: Instant::now(), drawn: 0 };
        let named = |name: &str| thread::Builder::new().name(format!("proxy {name} {direction:?}"));
        state.threads.push(named("reads").spawn(move || read(&source, direction, &pieces))?);
        state.threads.push(named("writes").spawn(move || writer.run(&arriving))?);
    }
    Ok(())
}

impl Link {
    /// Ends the connection so that both ends see a reset, once its threads have released the sockets.
    pub(super) fn reset(&self) {
        self.ended.store(true, Ordering::SeqCst);
        for socket in [&self.client, &self.server] {
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            // Wakes the reader and, unlike ending both directions, puts nothing on the wire.
            let _ = socket.shutdown(Shutdown::Read);
        }
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn source(&self, direction: Direction) -> &TcpStream {
        match direction {
            Direction::ToServer => &self.client,
            Direction::ToClient => &self.server,
        }
    }

    fn sink(&self, direction: Direction) -> &TcpStream {
        match direction {
            Direction::ToServer => &self.server,
            Direction::ToClient => &self.client,
        }
    }
}

/// Reads until the source or the sink ends.
fn read(link: &Link, direction: Direction, pieces: &SyncSender<Piece>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let piece = match link.source(direction).read(&mut buffer) {
            Ok(0) => Piece::End,
            Ok(bytes) => Piece::Bytes(Instant::now(), buffer[..bytes].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => Piece::Broken,
        };
        let last = !matches!(piece, Piece::Bytes(..));
        if pieces.send(piece).is_err() || last {
            return;
        }
    }
}

impl Writer {
    fn run(mut self, arriving: &Receiver<Piece>) {
        if self.pass_all(arriving).is_err() {
            self.link.reset();
            self.shared.changed.notify_all();
        }
    }

    /// Passes on arriving data, and then the end of the source.
    fn pass_all(&mut self, arriving: &Receiver<Piece>) -> Result<(), Over> {
        let mut next = None;
        loop {
            match next.take().map_or_else(|| arriving.recv().map_err(|_| Over), Ok)? {
                Piece::Bytes(arrived, mut bytes) => {
                    let harm = self.late(arrived)?;
                    if harm.writes == Writes::Coalesced {
                        next = self.hold_back(arriving, &mut bytes)?;
                    }
                    if let Some(Reset::Chance { probability, seed }) = harm.reset
                        && self.draw(seed) < probability
                    {
                        return Err(Over);
                    }
                    self.pass(&mut bytes)?;
                }
                Piece::End => {
                    self.open()?;
                    return self.link.sink(self.direction).shutdown(Shutdown::Write).map_err(|_| Over);
                }
                Piece::Broken => {
                    self.open()?;
                    return Err(Over);
                }
            }
        }
    }

    /// Waits until the time that the harm sets, or indefinitely while it sets none; returns that harm.
    fn wait(&self, until: impl Fn(&Harm) -> Option<Instant>) -> Result<Harm, Over> {
        let mut state = self.shared.lock();
        loop {
            if self.link.is_over() {
                return Err(Over);
            }
            let early = until(&state.harm).map(|moment| moment.saturating_duration_since(Instant::now()));
            if early == Some(Duration::ZERO) {
                return Ok(state.harm);
            }
            state = self.shared.wait(state, early.unwrap_or(LOOK));
        }
    }

    /// Waits until data that arrived at that time may pass.
    fn late(&self, arrived: Instant) -> Result<Harm, Over> {
        self.wait(|harm| (!harm.frozen).then(|| arrived + harm.latency))
    }

    /// Waits until the connection is no longer half-open.
    fn open(&self) -> Result<Harm, Over> {
        let now = Instant::now();
        self.wait(|harm| (!harm.frozen && !harm.half_open).then_some(now))
    }

    /// Adds arriving bytes to `bytes` until they are many or old; returns the first piece that was not bytes.
    fn hold_back(&self, arriving: &Receiver<Piece>, bytes: &mut Vec<u8>) -> Result<Option<Piece>, Over> {
        let until = Instant::now() + HELD_BACK;
        while bytes.len() < COALESCED {
            match arriving.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Piece::Bytes(arrived, more)) => {
                    self.late(arrived)?;
                    bytes.extend(more);
                }
                Ok(end) => return Ok(Some(end)),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Err(Over),
            }
        }
        Ok(None)
    }

    /// Writes the bytes in pieces, or swallows them, according to the current harm.
    fn pass(&mut self, bytes: &mut [u8]) -> Result<(), Over> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let harm = self.wait(|harm| (!harm.frozen).then_some(self.free))?;
            let most = self.most(&harm)?;
            let (piece, later) = rest.split_at_mut(most.min(rest.len()));
            if let Some(flip) = harm.flip
                && flip.direction == self.direction
                && let Some(at) = flip.offset.checked_sub(self.offset)
                && let Some(byte) = usize::try_from(at).ok().and_then(|at| piece.get_mut(at))
            {
                *byte ^= 1;
            }
            if harm.half_open {
                self.shared.lock().swallowed += piece.len() as u64;
            } else {
                self.write(piece)?;
            }
            self.offset += piece.len() as u64;
            if let Some(rate) = harm.rate {
                let seconds = piece.len() as f64 / rate.get() as f64;
                self.free = self.free.max(Instant::now()) + Duration::from_secs_f64(seconds);
            }
            rest = later;
        }
        // A reset that is due comes now, not with the next byte.
        let harm = self.shared.lock().harm;
        self.most(&harm).map(drop)
    }

    /// Returns the maximum bytes of one write.
    fn most(&mut self, harm: &Harm) -> Result<usize, Over> {
        let mut most = usize::MAX;
        if harm.writes == Writes::Split {
            most = 1 + (self.draw(0) * 7.0) as usize;
        }
        if let Some(rate) = harm.rate {
            // Pieces of 10 ms, so that the bytes trickle.
            most = most.min(usize::try_from(rate.get() / 100).unwrap_or(usize::MAX).max(1));
        }
        if let Some(Reset::After(bytes)) = harm.reset {
            let left = bytes.saturating_sub(self.offset);
            most = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if most == 0 { Err(Over) } else { Ok(most) }
    }

    fn write(&self, mut bytes: &[u8]) -> Result<(), Over> {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        while !bytes.is_empty() {
            match self.link.sink(self.direction).write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if matches!(error.kind(), Interrupted | TimedOut | WouldBlock) && !self.link.is_over() => {}
                Err(_) => return Err(Over),
            }
        }
        Ok(())
    }

    /// Returns the next number from 0 to 1 of this stream (SplitMix64 of seed, stream and number of draws).
    fn draw(&mut self, seed: u64) -> f64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        self.drawn += 1;
        let stream = 2 * self.link.number + u64::from(self.direction == Direction::ToClient);
        let mut z = seed ^ stream.wrapping_mul(0xd129_0d1b_9e3d_5a47);
        z = z.wrapping_add(self.drawn.wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
