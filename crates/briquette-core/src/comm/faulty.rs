//! A test double that fails when told to.

use super::{Communicator, Frame, forward};
use crate::error::CommError;

/// Any communicator, failing at a chosen call of [`send`](Communicator::send) or [`recv`](Communicator::recv).
///
/// Run once with [`never`](Faulty::never) and ask for [`calls`](Faulty::calls); then run once for every index below
/// that, and see that each failure leaves no trace.
///
/// ```
/// use briquette_core::Communicator;
/// use briquette_core::comm::{Faulty, Local, run_ranks};
///
/// let world = Faulty::world(Local::world(2), 1, 0);
/// let results = run_ranks(world, |mut comm| comm.barrier());
/// for result in results {
///     assert!(result.unwrap_err().to_string().starts_with("rank 1 stopped the run during barrier"));
/// }
/// ```
#[derive(Debug)]
pub struct Faulty<C> {
    inner: C,
    fail_at: Option<u64>,
    calls: u64,
}

impl<C: Communicator> Faulty<C> {
    /// Fails at the call with this index, counted from 0, and stops the other ranks.
    pub fn at(inner: C, call: u64) -> Self {
        Faulty { inner, fail_at: Some(call), calls: 0 }
    }

    /// Only counts calls.
    pub fn never(inner: C) -> Self {
        Faulty { inner, fail_at: None, calls: 0 }
    }

    /// A world in which `rank` fails at its call with index `call`.
    pub fn world(comms: Vec<C>, rank: usize, call: u64) -> Vec<Self> {
        let fail = |comm: C| if comm.rank() == rank { Faulty::at(comm, call) } else { Faulty::never(comm) };
        comms.into_iter().map(fail).collect()
    }

    /// Calls of `send` and `recv` so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    fn count(&mut self) -> Result<(), CommError> {
        let call = self.calls;
        self.calls += 1;
        if self.fail_at != Some(call) {
            return Ok(());
        }
        let reason = format!("injected failure at call {call}");
        self.inner.abort(&reason);
        Err(CommError::Aborted { by: self.inner.rank(), during: *self.inner.scope(), reason })
    }
}

impl<C: Communicator> Communicator for Faulty<C> {
    forward!(self => self.inner; rank world flush abort verdict now set_clock traffic scope pool overlaps finished begin_step);

    fn send(&mut self, to: usize, frame: Frame) -> Result<(), CommError> {
        self.count()?;
        self.inner.send(to, frame)
    }
    fn recv(&mut self, from: usize) -> Result<Frame, CommError> {
        self.count()?;
        self.inner.recv(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::comm::{Local, run_ranks};
    use std::time::Duration;

    /// A world whose tests fail, rather than hang, when a rank waits in vain.
    fn local(ranks: usize) -> Vec<Local> {
        Local::builder(ranks).deadline(Duration::from_secs(20)).build()
    }

    fn exchange(comm: &mut Faulty<Local>) -> Result<(), CommError> {
        comm.all_gather(&[1, 2, 3], &mut Vec::new())?;
        comm.all_reduce_sum(&mut vec![1.0; 3000])
    }

    #[test]
    fn a_failure_at_every_call_stops_every_rank_and_names_the_failing_one() {
        let count = |mut comm: Faulty<Local>| exchange(&mut comm).map(|()| comm.calls());
        let calls = run_ranks(local(3).into_iter().map(Faulty::never).collect(), count);
        // Gather: two out, two in. Ring: 2·2 steps of one out, one in.
        assert!(calls.iter().all(|calls| *calls == Ok(12)), "{calls:?}");
        for rank in 0..3 {
            for call in 0..12 {
                let run = |mut comm: Faulty<Local>| {
                    let result = exchange(&mut comm);
                    // A rank may be done before another one fails; its next call then says so.
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
