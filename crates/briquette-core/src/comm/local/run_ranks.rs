//! Runs one thread per rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

use crate::comm::{Scope, Session};
use crate::error::CommError;

/// Runs `body` once per rank, each in a separate thread (`rank 0`, `rank 1`, …), and returns the results in order.
///
/// A panic becomes [`CommError::Aborted`] with the rank's number and the panic's message; the drop of its session stops
/// the other ranks. A rank that returns early leaves the world, so ranks that wait for it fail instead of hanging. Call
/// [`abort`](Session::abort) first to give them a better reason. Use `.into_iter().collect::<Result<Vec<_>, _>>()` if
/// one failure is the failure of all.
///
/// If the system cannot start another thread, that rank's result is [`CommError::Aborted`], and the other ranks are
/// stopped.
pub fn run_ranks<S, T, E>(world: Vec<S>, body: impl Fn(Session) -> Result<T, E> + Sync) -> Vec<Result<T, E>>
where
    S: Into<Session>,
    T: Send,
    E: From<CommError> + Send,
{
    let body = &body;
    let run = |mut comm: Session| {
        let (by, before, abort_cause) = (comm.rank(), *comm.scope(), comm.abort_cause());
        catch_unwind(AssertUnwindSafe(|| body(comm))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let reason = text.map_or("panicked".to_owned(), |text| format!("panicked: {text}"));
            // The panic dropped the session, and the transport kept the rank's operation.
            let during = match abort_cause() {
                Some(CommError::Aborted { by: first, during, .. }) if first == by => during,
                _ => before,
            };
            Err(CommError::Aborted { by, during, reason }.into())
        })
    };
    thread::scope(|threads| {
        let start = |comm: S| {
            let comm: Session = comm.into();
            let (by, during) = (comm.rank(), Scope { operation: "start", ..Scope::default() });
            let thread = thread::Builder::new().name(format!("rank {by}"));
            // Shared with the thread, so that it can stop the other ranks even if the thread does not start.
            let comm = Arc::new(Mutex::new(Some(comm)));
            let own = Arc::clone(&comm);
            let take = |comm: &Mutex<Option<Session>>| comm.lock().unwrap_or_else(PoisonError::into_inner).take();
            thread.spawn_scoped(threads, move || take(&own).map(run)).map_err(|error| {
                let reason = format!("the system starts no thread for it: {error}");
                take(&comm).into_iter().for_each(|mut comm| comm.abort(&reason));
                CommError::Aborted { by, during, reason }
            })
        };
        let ranks: Vec<_> = world.into_iter().map(start).collect();
        let end = |rank: ScopedJoinHandle<'_, _>| rank.join().ok().flatten().expect("panics are caught inside");
        ranks.into_iter().map(|rank| rank.map_err(E::from).and_then(end)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Local;

    #[test]
    fn a_panic_says_who_and_what_that_rank_was_doing_to_everyone() {
        let results = Local::run(2, |mut comm| {
            *comm.scope() = Scope { operation: "compute", step: 7, bucket: None };
            assert!(comm.rank() == 0, "out of luck");
            comm.barrier()
        });
        let texts: Vec<_> = results.into_iter().map(|result| result.unwrap_err().to_string()).collect();
        assert_eq!(texts[0], "rank 1 stopped the run during compute at step 7: panicked");
        assert_eq!(texts[1], "rank 1 stopped the run during compute at step 7: panicked: out of luck");
    }
}
