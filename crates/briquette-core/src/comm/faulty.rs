//! Test double of a transport that fails, or vanishes, at a chosen call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{AbortCause, Call, Clock, Frame, Scope, Session, Transport};
use crate::error::CommError;

/// Wraps any transport, and fails at a chosen call of [`send`](Transport::send), [`recv`](Transport::recv) or
/// [`recv_any`](Transport::recv_any).
///
/// Run once over the transport itself and read [`Session::calls`]. Then run once for every index below that, and check
/// that each failure leaves the state unchanged.
///
/// ```
/// use briquette_core::comm::{Faulty, Local, run_ranks};
///
/// let world = Faulty::world(Local::builder(2).endpoints(), 1, 0);
/// let results = run_ranks(world, |mut comm| comm.barrier());
/// for result in results {
///     assert!(result.unwrap_err().to_string().starts_with("rank 1 stopped the run during barrier"));
/// }
/// ```
pub struct Faulty {
    /// Absent once the rank has vanished.
    inner: Option<Box<dyn Transport>>,
    /// Rank and world.
    place: (usize, usize),
    fail_at: Option<u64>,
    vanishes: bool,
    /// Number of calls on all channels, in order of time.
    calls: Arc<AtomicU64>,
}

impl Faulty {
    /// Fails at the call with this index, counted from 0, and stops the other ranks. Calls of all channels count, in
    /// order of time.
    pub fn at(inner: impl Transport + 'static, call: u64) -> Self {
        Faulty { fail_at: Some(call), ..Faulty::never(inner) }
    }

    /// Never fails.
    pub fn never(inner: impl Transport + 'static) -> Self {
        let place = (inner.rank(), inner.world());
        Faulty { inner: Some(Box::new(inner)), place, fail_at: None, vanishes: false, calls: Arc::default() }
    }

    /// Drops the transport at the call with this index, as if the rank's process had been killed: nothing is sent to the other
    /// ranks any more, not even a reason.
    pub fn vanishing_at(inner: impl Transport + 'static, call: u64) -> Self {
        Faulty { fail_at: Some(call), vanishes: true, ..Faulty::never(inner) }
    }

    /// Creates a world in which `rank` fails at its call with index `call`.
    pub fn world(endpoints: Vec<impl Transport + 'static>, rank: usize, call: u64) -> Vec<Session> {
        let endpoints = endpoints.into_iter().map(|inner| (inner.rank(), Faulty::never(inner)));
        let fail = |(own, faulty)| Faulty { fail_at: (own == rank).then_some(call), ..faulty };
        endpoints.map(|endpoint| fail(endpoint).into()).collect()
    }

    /// Drops the transport if the rank has vanished on another channel.
    fn vanish(&mut self, calls: u64) {
        if self.vanishes && self.fail_at.is_some_and(|call| calls > call) {
            self.inner = None;
        }
    }

    /// Counts a call, and returns the transport unless it fails.
    fn count(&mut self, during: Scope) -> Result<&mut dyn Transport, CommError> {
        let (call, rank) = (self.calls.fetch_add(1, Ordering::Relaxed), self.place.0);
        let fails = self.fail_at == Some(call);
        self.vanish(call + 1);
        let Some(inner) = &mut self.inner else {
            let cause = "it has vanished, as the test wants".to_owned();
            return Err(CommError::Lost { rank, other: rank, address: None, during, cause });
        };
        if !fails {
            return Ok(&mut **inner);
        }
        let reason = format!("injected failure at call {call}");
        inner.abort(during, &reason);
        Err(CommError::Aborted { by: rank, during, reason })
    }
}

impl Transport for Faulty {
    fn rank(&self) -> usize {
        self.place.0
    }
    fn world(&self) -> usize {
        self.place.1
    }
    fn machine(&self, rank: usize) -> usize {
        self.inner.as_ref().map_or(rank, |inner| inner.machine(rank))
    }
    fn longest_frame(&self) -> usize {
        self.inner.as_ref().map_or(usize::MAX, |inner| inner.longest_frame())
    }
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.count(call.scope)?.send(to, frame, call)
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.count(call.scope)?.recv_any(from, call)
    }
    fn recv_any_within(
        &mut self,
        from: &[usize],
        longest: Duration,
        call: &mut Call,
    ) -> Result<Option<(usize, Frame)>, CommError> {
        self.count(call.scope)?.recv_any_within(from, longest, call)
    }
    fn flush(&mut self, call: &mut Call) -> Result<(), CommError> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.flush(call))
    }
    fn abort(&mut self, during: Scope, reason: &str) {
        self.vanish(self.calls.load(Ordering::Relaxed));
        self.inner.iter_mut().for_each(|inner| inner.abort(during, reason));
    }
    fn abort_cause(&self) -> AbortCause {
        self.inner.as_ref().map_or_else(|| Box::new(|| None) as AbortCause, |inner| inner.abort_cause())
    }
    fn open(&mut self, channel: usize) -> Result<Box<dyn Transport>, CommError> {
        let Faulty { place, fail_at, vanishes, ref calls, .. } = *self;
        let calls = Arc::clone(calls);
        let inner = self.inner.as_mut().map(|inner| inner.open(channel)).transpose()?;
        Ok(Box::new(Faulty { inner, place, fail_at, vanishes, calls }))
    }
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        self.inner.as_ref().and_then(|inner| inner.clock())
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty(rank {}, fails at call {:?})", self.place.0, self.fail_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::comm::{Local, run_ranks};
    use std::time::Duration;

    /// Creates a world whose tests fail, rather than hang, if a rank deadlocks.
    fn local(ranks: usize) -> Vec<Local> {
        Local::builder(ranks).deadline(Duration::from_secs(20)).endpoints()
    }

    fn exchange(comm: &mut Session) -> Result<(), CommError> {
        comm.all_gather(&[1, 2, 3], &mut Vec::new())?;
        comm.all_reduce_sum(&mut vec![1.0; 3000])
    }

    #[test]
    fn a_failure_at_every_call_stops_every_rank_and_names_the_failing_one() {
        let count = |mut comm: Session| exchange(&mut comm).map(|()| comm.calls());
        let calls = run_ranks(local(3), count);
        // Gather: two out, two in. Ring: 2·2 steps of one out, one in.
        assert!(calls.iter().all(|calls| *calls == Ok(12)), "{calls:?}");
        for rank in 0..3 {
            for call in 0..12 {
                let run = |mut comm: Session| {
                    let result = exchange(&mut comm);
                    // A rank may be done before another one fails; its next call then reports the failure.
                    result.and_then(|()| comm.barrier())
                };
                for result in run_ranks(Faulty::world(local(3), rank, call), run) {
                    let Err(CommError::Aborted { by, reason, .. }) = result else { panic!("{result:?}") };
                    assert_eq!((by, reason), (rank, format!("injected failure at call {call}")));
                }
            }
        }
    }
}
