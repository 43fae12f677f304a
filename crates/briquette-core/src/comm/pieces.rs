//! Messages of any length, split into pieces that a transport accepts.
//!
//! A message consists of full pieces and then one that is not full, possibly empty, which marks its end. A message
//! shorter than a piece is one frame. Ranks therefore need not send lengths in advance, and queue only a few pieces for
//! each other rank.

use std::ops::Range;

use super::{Frame, Session};
use crate::error::CommError;

/// Longest piece of a message to one rank, or of different messages to each rank.
pub const PIECE: usize = 16 << 20;

/// Longest piece of a message that one rank sends to all: while it is in flight, its sender holds a copy for each other
/// rank.
pub const BROADCAST_PIECE: usize = 1 << 20;

impl Session {
    /// Returns the length of the longest piece, of at most `most` bytes.
    pub(super) fn piece(&self, most: usize) -> usize {
        most.min(self.transport.longest_frame()).max(1)
    }

    /// Sends a message of any length to rank `to`, which receives it by [`recv_long`](Self::recv_long) or
    /// [`recv_any_long`](Self::recv_any_long). If two ranks send to each other, use [`swap_long`](Self::swap_long).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_long(&mut self, to: usize, message: Frame) -> Result<(), CommError> {
        self.timed(|comm| {
            let piece = comm.piece(PIECE);
            if message.len() < piece {
                return comm.send(to, message);
            }
            // The last piece is shorter, and may be empty.
            for start in (0..=message.len()).step_by(piece) {
                let frame = comm.pool().copy_of(&message[start..message.len().min(start + piece)]);
                comm.send(to, frame)?;
            }
            comm.pool().put(message);
            Ok(())
        })
    }

    /// Receives the next message from rank `from`, which sent it by [`send_long`](Self::send_long).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn recv_long(&mut self, from: usize) -> Result<Frame, CommError> {
        self.timed(|comm| {
            let first = comm.recv(from)?;
            comm.recv_rest(from, first)
        })
    }

    /// Receives the next message from any of the ranks `from`, sent by [`send_long`](Self::send_long), and returns the
    /// sender with it.
    ///
    /// # Errors
    /// As for [`recv_any`](Self::recv_any).
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn recv_any_long(&mut self, from: &[usize]) -> Result<(usize, Frame), CommError> {
        let received = self.recv_any_long_until(from, f64::INFINITY)?;
        Ok(received.expect("a wait without a limit"))
    }

    /// Does the same if a message begins to arrive until the second `until` of [`now`](Self::now), as
    /// [`recv_any_until`](Self::recv_any_until).
    ///
    /// # Errors
    /// As for [`recv_any`](Self::recv_any).
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn recv_any_long_until(&mut self, from: &[usize], until: f64) -> Result<Option<(usize, Frame)>, CommError> {
        self.timed(|comm| {
            let Some((from, first)) = comm.recv_any_until(from, until)? else { return Ok(None) };
            comm.recv_rest(from, first).map(|message| Some((from, message)))
        })
    }

    /// Sends a message to each of the ranks `to` and receives one from each of the ranks `from`, in their order, piece
    /// by piece, so that full queues cannot cause a deadlock. Every rank in `to` must receive in the same way.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use briquette_core::error::CommError;
    ///
    /// let sizes = Local::run(3, |mut comm| {
    ///     let (next, previous) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
    ///     comm.swap_long(&[next], vec![7; 1000 * comm.rank()], &[previous]).map(|messages| messages[0].len())
    /// });
    /// assert_eq!(sizes, [Ok::<_, CommError>(2000), Ok(0), Ok(1000)]);
    /// ```
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn swap_long(&mut self, to: &[usize], mut message: Frame, from: &[usize]) -> Result<Vec<Frame>, CommError> {
        self.timed(|comm| {
            let (piece, len, mut at) = (comm.piece(PIECE), message.len(), Some(0));
            let mut incoming: Vec<Incoming> = from.iter().map(|_| Incoming::default()).collect();
            while at.is_some() || incoming.iter().any(|incoming| !incoming.has_ended) {
                if let Some(start) = at {
                    let end = len.min(start + piece);
                    for (index, rank) in to.iter().enumerate() {
                        // The last rank gets a short message itself, not a copy.
                        let is_given = index + 1 == to.len() && end - start == len;
                        let frame = match is_given {
                            true => std::mem::take(&mut message),
                            false => comm.pool().copy_of(message.get(start..end).unwrap_or_default()),
                        };
                        comm.send(*rank, frame)?;
                    }
                    at = (end - start == piece).then_some(end);
                }
                for (from, incoming) in from.iter().zip(&mut incoming).filter(|(_, incoming)| !incoming.has_ended) {
                    incoming.receive(*from, comm)?;
                }
            }
            comm.pool().put(message);
            Ok(incoming.into_iter().map(|incoming| incoming.message).collect())
        })
    }

    fn recv_rest(&mut self, from: usize, first: Frame) -> Result<Frame, CommError> {
        let mut incoming = Incoming::default();
        incoming.take(first, self);
        while !incoming.has_ended {
            incoming.receive(from, self)?;
        }
        Ok(incoming.message)
    }
}

/// Sends every other rank the piece from `start` on. Returns the start of the next piece, unless this was the last.
pub(super) fn send_piece(
    comm: &mut Session,
    mine: &[u8],
    start: usize,
    piece: usize,
) -> Result<Option<usize>, CommError> {
    let (rank, world) = (comm.rank(), comm.world());
    let end = mine.len().min(start + piece);
    for ahead in 1..world {
        let frame = comm.pool().copy_of(&mine[start..end]);
        comm.send((rank + ahead) % world, frame)?;
    }
    Ok((end - start == piece).then_some(end))
}

/// Receives the first piece of every other rank's message. Returns the ranks whose messages have more pieces.
pub(super) fn receive_first(comm: &mut Session, piece: usize, parts: &mut [Frame]) -> Result<Vec<usize>, CommError> {
    let (rank, world, mut open) = (comm.rank(), comm.world(), Vec::new());
    for from in (1..world).map(|behind| (rank + world - behind) % world) {
        parts[from] = comm.recv(from)?;
        if parts[from].len() >= piece {
            open.push(from);
        }
    }
    Ok(open)
}

/// Receives the next piece of each rank whose message has not ended.
pub(super) fn receive_more(
    comm: &mut Session,
    piece: usize,
    open: &mut Vec<usize>,
    parts: &mut [Frame],
) -> Result<(), CommError> {
    for from in std::mem::take(open) {
        let frame = comm.recv(from)?;
        if frame.len() >= piece {
            open.push(from);
        }
        parts[from].extend_from_slice(&frame);
        comm.pool().put(frame);
    }
    Ok(())
}

/// Sends `len` bytes to every other rank, which calls [`receive_pieces`]. At most one piece for each is queued.
pub(super) fn send_pieces(
    comm: &mut Session,
    len: usize,
    mut encode: impl FnMut(Range<usize>, &mut Frame),
) -> Result<(), CommError> {
    let (rank, world) = (comm.rank(), comm.world());
    let piece = broadcast_piece(comm);
    let mut at = Some(0);
    while let Some(start) = at {
        let end = len.min(start + piece);
        for ahead in 1..world {
            let mut frame = comm.pool().take_for(end - start);
            encode(start..end, &mut frame);
            comm.send((rank + ahead) % world, frame)?;
        }
        at = (end - start == piece).then_some(end);
        if at.is_some() {
            comm.flush()?;
        }
    }
    Ok(())
}

/// Receives the pieces that the root sends by [`send_pieces`]; `take` gets the offset of each piece and the piece.
pub(super) fn receive_pieces(
    comm: &mut Session,
    root: usize,
    mut take: impl FnMut(usize, Frame),
) -> Result<(), CommError> {
    let (piece, mut at) = (broadcast_piece(comm), 0);
    loop {
        let frame = comm.recv(root)?;
        let len = frame.len();
        take(at, frame);
        at += len;
        if len < piece {
            return Ok(());
        }
    }
}

/// Returns the length of a broadcast piece, a multiple of a number's 4 bytes where possible.
fn broadcast_piece(comm: &Session) -> usize {
    let piece = comm.piece(BROADCAST_PIECE);
    if piece < 4 { piece } else { piece / 4 * 4 }
}

/// A partially received message.
#[derive(Debug, Default)]
struct Incoming {
    message: Frame,
    has_ended: bool,
    has_begun: bool,
}

impl Incoming {
    fn receive(&mut self, from: usize, comm: &mut Session) -> Result<(), CommError> {
        let frame = comm.recv(from)?;
        self.take(frame, comm);
        Ok(())
    }

    fn take(&mut self, frame: Frame, comm: &mut Session) {
        self.has_ended = frame.len() < comm.piece(PIECE);
        if std::mem::replace(&mut self.has_begun, true) {
            self.message.extend_from_slice(&frame);
            comm.pool().put(frame);
        } else {
            self.message = frame;
        }
    }
}
