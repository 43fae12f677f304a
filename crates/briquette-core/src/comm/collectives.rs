//! Collectives of a session: all-gather, all-reduce, broadcast, all-to-all, barrier.
//!
//! They use only [`send`](Session::send) and [`recv`](Session::recv), and the algorithm of an all-reduce depends only
//! on the vector's length. Threads, sockets and MPI therefore give the same bits.
//!
//! # Cost
//! `W` ranks, `α` seconds of latency, `B` bits per second, `n` bytes at each rank:
//!
//! | collective | method | bytes out of a rank | seconds |
//! |---|---|---|---|
//! | all-gather, small all-reduce | pairwise | `(W-1)·n` | `α + (W-1)·8n/B` |
//! | all-reduce | ring | about `2(W-1)/W·n` | `2(W-1)·(α + 8n/(W·B))`, less where a chunk is several frames |
//! | all-to-all | pairwise | the parts of others | `α + 8·(their sum)/B` |
//! | broadcast | star, a piece to each rank in turn | `(W-1)·n`, the root only | `α + (W-1)·8n/B` |
//! | barrier | all-gather of nothing | 0 | `α` |
//!
//! `briquette-sim` reproduces these times by simulating each frame; its tests check them.
//!
//! # Memory
//! Frames are taken from the pool and returned to a pool, possibly that of another rank. A gather or all-reduce preserves
//! the number of frames at every rank, and permanently enlarges a frame that is too small. A run of repeated steps
//! therefore soon allocates no frames. The ring has four frames of at most 256 KiB per rank in flight. A broadcast, which
//! runs at the start and not in every step, allocates at its root a [piece](super::BROADCAST_PIECE) for each other rank,
//! and waits until these are on their way before it allocates the next. Every collective splits messages longer than a
//! [piece](super::PIECE), whatever the limit of the transport.

use std::ops::Range;

use super::pieces::{receive_first, receive_more, receive_pieces, send_piece, send_pieces};
use super::ring::{Hop, Hops, chunk, ring};
use super::{Frame, PIECE, Scope, Session};
use crate::error::CommError;
use crate::traffic::Traffic;

/// Longest vector, in values, that an all-reduce sends whole to every rank; longer ones use a ring.
///
/// The gather costs one latency `α` and the ring `2(W-1)` of them, but the ring moves `W/2` times fewer bytes. They
/// are equally fast near `α·B/16` values: 3 125 at 1 Gbit/s and 50 µs, 6 250 at 100 Mbit/s and 1 ms, 12 500 at
/// 10 Gbit/s and 20 µs. 1 024 values are below all of these, and bound the bytes of a gather: 127 kB per rank in a
/// world of 32. The limit must be the same on every rank and in every transport, so it is a constant and not a knob.
pub const SMALL_ALL_REDUCE: usize = 1024;

/// Longest frame of the ring, in values: 256 KiB. It fits into a processor's second-level cache while it is added. It
/// takes 2 ms at 1 Gbit/s, so that frames in flight overlap the [latencies](SMALL_ALL_REDUCE).
pub(crate) const RING_FRAME: usize = 1 << 16;

/// Returns the exact bytes that [`all_reduce_sum`](Session::all_reduce_sum) of `len` values moves through `rank`.
///
/// For vectors above [`SMALL_ALL_REDUCE`], this is the dense ring, the usual baseline of compression.
///
/// ```
/// use briquette_core::comm::all_reduce_traffic;
///
/// // A million values over four ranks: 2·3/4 of 4 MB, each way.
/// assert_eq!(all_reduce_traffic(1_000_000, 4, 0).sent, 6_000_000);
/// assert_eq!(all_reduce_traffic(1_000_000, 1, 0).sent, 0);
/// ```
pub fn all_reduce_traffic(len: usize, world: usize, rank: usize) -> Traffic {
    if len <= SMALL_ALL_REDUCE {
        let bytes = (4 * len * world.saturating_sub(1)) as u64;
        return Traffic { sent: bytes, received: bytes };
    }
    if world == 0 {
        return Traffic::default();
    }
    // Sends all chunks but rank+1, then all but rank+2; receives all but rank, then all but rank+1.
    let size = |ahead: usize| chunk((rank + ahead) % world, len, world).len();
    Traffic { sent: (4 * (2 * len - size(1) - size(2))) as u64, received: (4 * (2 * len - size(0) - size(1))) as u64 }
}

impl Session {
    /// Sends every rank's bytes to every rank. `parts[r]` becomes the bytes of rank `r`. `parts[rank()]` stays empty,
    /// because the caller has these bytes. Lengths may differ between ranks. Earlier contents of `parts` return to the
    /// pool.
    ///
    /// Sends `(W-1)·len` bytes and receives the others' bytes, pairwise: it first sends to the ranks `+1`, `+2`, …
    /// relative to this one, then receives from `-1`, `-2`, …. The latency is therefore paid once, and no two ranks
    /// begin with the same target.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn all_gather(&mut self, mine: &[u8], parts: &mut Vec<Frame>) -> Result<(), CommError> {
        self.collective("all_gather", |comm| gather(comm, mine, parts))
    }

    /// Sums `x` over ranks, with the same bits on every rank.
    ///
    /// Up to [`SMALL_ALL_REDUCE`] values, it uses an all-gather, summed in rank order. Above, it uses a ring
    /// (reduce-scatter and all-gather) that moves `2(W-1)/W` of the vector out and in, in frames of at most
    /// 65,536 values. After an error, the contents of `x` are unspecified.
    ///
    /// # Errors
    /// As for [`send`](Self::send); [`CommError::Size`] if the ranks' vectors differ in length.
    pub fn all_reduce_sum(&mut self, x: &mut [f32]) -> Result<(), CommError> {
        self.collective("all_reduce", |comm| match (comm.world(), x.len()) {
            (1, _) => Ok(()),
            (_, ..=SMALL_ALL_REDUCE) => sum_gathered(comm, x),
            _ => ring(comm, x.len(), &mut Sum(x)),
        })
    }

    /// Runs a ring over `len` values with the caller's hops, as [`all_reduce_sum`](Self::all_reduce_sum) does for a
    /// long vector. The hops must be the same on every rank.
    ///
    /// # Errors
    /// As for [`all_reduce_sum`](Self::all_reduce_sum).
    pub(crate) fn all_reduce_by(&mut self, len: usize, hops: &mut impl Hops) -> Result<(), CommError> {
        self.collective("all_reduce", |comm| ring(comm, len, hops))
    }

    /// Sums a few exact numbers in rank order, with the same bits on every rank.
    ///
    /// # Errors
    /// As for [`all_reduce_sum`](Self::all_reduce_sum).
    pub fn all_reduce_sum_f64(&mut self, x: &mut [f64]) -> Result<(), CommError> {
        self.collective("all_reduce", |comm| if comm.world() == 1 { Ok(()) } else { sum_gathered(comm, x) })
    }

    /// Sends rank `root`'s bytes to every rank. On all other ranks, `bytes` is replaced.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<(), CommError> {
        self.collective("broadcast", |comm| {
            if comm.rank() != root {
                // Not returned to the pool: nothing flows back to the root, so this rank's pool would grow with every
                // broadcast.
                bytes.clear();
                return receive_pieces(comm, root, |at, piece| match at {
                    0 => *bytes = piece,
                    _ => bytes.extend_from_slice(&piece),
                });
            }
            send_pieces(comm, bytes.len(), |place, frame| frame.extend_from_slice(&bytes[place]))
        })
    }

    /// Replaces the values on every rank by those of rank `root`.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast); [`CommError::Size`] if the ranks' vectors differ in length.
    pub fn broadcast_values(&mut self, root: usize, values: &mut [f32]) -> Result<(), CommError> {
        let (rank, expected, mut got) = (self.rank(), 4 * values.len(), 0);
        self.collective("broadcast", |comm| {
            if rank == root {
                let encode = |place: Range<usize>, frame: &mut Frame| {
                    frame.extend(values[place.start / 4..place.end / 4].iter().flat_map(|value| value.to_le_bytes()));
                };
                return send_pieces(comm, expected, encode);
            }
            receive_pieces(comm, root, |at, piece| {
                got = at + piece.len();
                if let Some(place) = values.get_mut(at / 4..got / 4) {
                    f32::decode(&piece, place);
                }
            })
        })?;
        if rank != root && got != expected {
            let during = *self.scope();
            return Err(CommError::Size { rank, other: root, during, expected, got });
        }
        Ok(())
    }

    /// Exchanges different bytes between each pair of ranks: `parts[r]` is sent to rank `r`, and replaced by the bytes
    /// that rank `r` sends to this rank. `parts[rank()]` is unchanged. Lengths may differ.
    ///
    /// Moves the others' parts out and in, pairwise, in the order of [`all_gather`](Self::all_gather).
    ///
    /// # Errors
    /// As for [`send`](Self::send); the parts are then lost.
    ///
    /// # Panics
    /// If there are not `world()` parts.
    pub fn all_to_all(&mut self, parts: &mut [Frame]) -> Result<(), CommError> {
        assert_eq!(parts.len(), self.world(), "one part for every rank");
        self.collective("all_to_all", |comm| {
            let (rank, world, piece) = (comm.rank(), comm.world(), comm.piece(PIECE));
            // Remainders of parts longer than a piece, with their targets; usually none.
            let mut rest = Vec::new();
            for to in (1..world).map(|ahead| (rank + ahead) % world) {
                let part = std::mem::take(&mut parts[to]);
                if part.len() < piece {
                    comm.send(to, part)?;
                } else {
                    let first = comm.pool().copy_of(&part[..piece]);
                    rest.push((to, piece, part));
                    comm.send(to, first)?;
                }
            }
            let mut open = receive_first(comm, piece, parts)?;
            while !(rest.is_empty() && open.is_empty()) {
                for (to, at, part) in std::mem::take(&mut rest) {
                    let end = part.len().min(at + piece);
                    let frame = comm.pool().copy_of(&part[at..end]);
                    comm.send(to, frame)?;
                    if end - at == piece {
                        rest.push((to, end, part));
                    } else {
                        comm.pool().put(part);
                    }
                }
                receive_more(comm, piece, &mut open, parts)?;
            }
            Ok(())
        })
    }

    /// Blocks until every rank has called it.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn barrier(&mut self) -> Result<(), CommError> {
        self.collective("barrier", |comm| {
            // These frames own no memory, so the pools are unchanged.
            let (rank, world) = (comm.rank(), comm.world());
            (1..world).try_for_each(|ahead| comm.send((rank + ahead) % world, Frame::new()))?;
            (1..world).try_for_each(|behind| comm.recv((rank + world - behind) % world).map(drop))
        })
    }

    /// Runs `body` as one call, flushes, and sets the scope's operation during the call, so that errors name it. If an
    /// operation is already set (`step header`, `checkpoint save`), it is more specific and is kept.
    fn collective(
        &mut self,
        operation: &'static str,
        body: impl FnOnce(&mut Session) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        self.timed(|comm| {
            let outer = comm.scope().operation;
            if outer.is_empty() || outer == Scope::COMPUTE {
                comm.scope().operation = operation;
            }
            tracing::Span::current().record("operation", comm.scope().operation);
            let result = body(comm).and_then(|()| comm.flush());
            comm.scope().operation = outer;
            result
        })
    }
}

/// Sends to all ranks first, then receives: one latency instead of `W-1`, and no more frames than the parts need.
fn gather(comm: &mut Session, mine: &[u8], parts: &mut Vec<Frame>) -> Result<(), CommError> {
    let world = comm.world();
    for part in parts.drain(..) {
        comm.pool().put(part);
    }
    parts.resize_with(world, Frame::new);
    let piece = comm.piece(PIECE);
    let mut at = send_piece(comm, mine, 0, piece)?;
    let mut open = receive_first(comm, piece, parts)?;
    while at.is_some() || !open.is_empty() {
        if let Some(start) = at {
            at = send_piece(comm, mine, start, piece)?;
        }
        receive_more(comm, piece, &mut open, parts)?;
    }
    Ok(())
}

/// Gathers the values of all ranks and sums them in rank order.
fn sum_gathered<N: Number>(comm: &mut Session, x: &mut [N]) -> Result<(), CommError> {
    let rank = comm.rank();
    let mut own = comm.pool().take_for(N::BYTES * x.len());
    N::encode(x, &mut own);
    let mut parts = comm.pool().take_list();
    gather(comm, &own, &mut parts)?;
    std::mem::swap(&mut parts[rank], &mut own);
    for (from, part) in parts.iter().enumerate() {
        expect_size(comm, from, N::BYTES * x.len(), part)?;
        if from == 0 {
            N::decode(part, x);
        } else {
            N::add(part, x);
        }
    }
    comm.pool().put_list(parts);
    Ok(())
}

/// Stops every rank if a frame's size differs from that implied by this rank's own vector.
pub(crate) fn expect_size(comm: &mut Session, from: usize, expected: usize, frame: &[u8]) -> Result<(), CommError> {
    if frame.len() == expected {
        return Ok(());
    }
    let (rank, other) = (comm.number(comm.rank()), comm.number(from));
    let error = CommError::Size { rank, other, during: *comm.scope(), expected, got: frame.len() };
    comm.recorder.fails(&error, comm.now());
    comm.abort(&format!("got {} bytes from rank {other}, expected {expected}", frame.len()));
    Err(error)
}

/// Plain sums of numbers.
struct Sum<'a>(&'a mut [f32]);

impl Hops for Sum<'_> {
    fn bytes(&self, values: usize) -> usize {
        4 * values
    }
    fn send(&mut self, place: Range<usize>, _: Hop, frame: &mut Frame) {
        f32::encode(&self.0[place], frame);
    }
    fn collect(&mut self, place: Range<usize>, frame: &[u8]) {
        f32::add(frame, &mut self.0[place]);
    }
    fn deliver(&mut self, place: Range<usize>, frame: &[u8]) {
        f32::decode(frame, &mut self.0[place]);
    }
}

/// A number sent as little-endian bytes. All three functions iterate over arrays of its size, which compilers
/// vectorize; they do not vectorize slices of that size.
trait Number: Sized {
    const BYTES: usize;
    /// Replaces the contents of `frame`.
    fn encode(values: &[Self], frame: &mut Frame);
    fn decode(frame: &[u8], values: &mut [Self]);
    fn add(frame: &[u8], values: &mut [Self]);
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            const BYTES: usize = size_of::<$type>();
            fn encode(values: &[Self], frame: &mut Frame) {
                frame.clear();
                frame.resize(Self::BYTES * values.len(), 0);
                frame.as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
            }
            fn decode(frame: &[u8], values: &mut [Self]) {
                values
                    .iter_mut()
                    .zip(frame.as_chunks().0)
                    .for_each(|(value, bytes)| *value = Self::from_le_bytes(*bytes));
            }
            fn add(frame: &[u8], values: &mut [Self]) {
                values.iter_mut().zip(frame.as_chunks().0).for_each(|(sum, bytes)| *sum += Self::from_le_bytes(*bytes));
            }
        }
    };
}
number!(f32);
number!(f64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Local;

    #[test]
    fn pools_stay_as_they_are_after_warm_up() {
        let held = |comm: &mut Session| (comm.pool().frames(), comm.pool().capacity(), comm.pool().allocations());
        let sizes = Local::run(5, |mut comm| {
            let mut parts = Vec::new();
            let mut big = vec![1.0f32; 5003];
            let mut step = |comm: &mut Session| -> Result<(), CommError> {
                comm.all_reduce_sum_f64(&mut [1.0, 2.0])?;
                comm.all_gather(&vec![0; 100 * comm.rank()], &mut parts)?;
                comm.all_reduce_sum(&mut big)?;
                comm.all_reduce_sum(&mut [0.5; 30])?;
                comm.barrier()
            };
            (0..100).try_for_each(|_| step(&mut comm))?;
            let warm = held(&mut comm);
            (0..300).try_for_each(|_| step(&mut comm))?;
            Ok::<_, CommError>((warm, held(&mut comm)))
        });
        for rank in sizes {
            let (warm, after) = rank.unwrap();
            assert_eq!((after.0, after.2), (warm.0, warm.2));
            assert!(after.0 <= 2 * 5 && after.1 <= 5 * 4 * 5003, "{after:?}");
        }
    }

    #[test]
    fn collectives_put_the_scope_back() {
        let scopes = Local::run(2, |mut comm| {
            *comm.scope() = Scope { operation: "header", step: 7, bucket: Some(1) };
            comm.all_reduce_sum(&mut [1.0])?;
            comm.barrier()?;
            Ok::<_, CommError>(*comm.scope())
        });
        for scope in scopes {
            assert_eq!(scope.unwrap().to_string(), "header of bucket 1 at step 7");
        }
    }
}
