//! One thread a rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::Communicator;
use crate::error::CommError;

/// Runs `body` once per rank, each in a thread of its own (`rank 0`, `rank 1`, …), and returns the results in order.
///
/// A panic becomes [`CommError::Aborted`] with the rank's number and the panic's message; the other ranks are stopped
/// as its endpoint is dropped. A rank that returns early leaves, so ranks that wait for it fail instead of hanging;
/// [`abort`](Communicator::abort) first to give them a better reason. Use
/// `.into_iter().collect::<Result<Vec<_>, _>>()` where one failure is the failure of all.
///
/// # Panics
/// When the system starts no more threads.
pub fn run_ranks<C, T, E>(world: Vec<C>, body: impl Fn(C) -> Result<T, E> + Sync) -> Vec<Result<T, E>>
where
    C: Communicator,
    T: Send,
    E: From<CommError> + Send,
{
    let body = &body;
    let run = |mut comm: C| {
        let (by, before, verdict) = (comm.rank(), *comm.scope(), comm.verdict());
        catch_unwind(AssertUnwindSafe(|| body(comm))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let reason = text.map_or("panicked".to_owned(), |text| format!("panicked: {text}"));
            // The endpoint went with the panic, and left word of what the rank was doing.
            let during = match verdict() {
                Some(CommError::Aborted { by: first, during, .. }) if first == by => during,
                _ => before,
            };
            Err(CommError::Aborted { by, during, reason }.into())
        })
    };
    thread::scope(|threads| {
        let start = |comm: C| {
            let thread = thread::Builder::new().name(format!("rank {}", comm.rank()));
            thread.spawn_scoped(threads, move || run(comm)).expect("the system starts one thread per rank")
        };
        let ranks: Vec<_> = world.into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().expect("panics are caught inside")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::{Local, Scope};

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
