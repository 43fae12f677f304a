//! Facts about worlds that end before their ranks are done.

use briquette_core::Session;
use briquette_core::comm::Scope;
use briquette_core::error::CommError;

use super::{Launch, every_world};

/// An abort ends pending and later calls on every rank, with its rank, operation and reason; the first reason stays.
pub fn abort_reaches_pending_and_later_calls_of_every_rank<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| -> Result<(), CommError> {
        let last = comm.world() - 1;
        comm.begin_step(3);
        comm.barrier()?;
        if comm.rank() == last {
            comm.scope().operation = "thinking";
            comm.abort("had enough");
            comm.abort("not the first reason");
        } else {
            comm.recv(last).expect_err("nothing was sent");
        }
        comm.send(0, vec![1])
    };
    every_world(launch, body, |world, _, result| {
        let text = format!("rank {} stopped the run during thinking at step 3: had enough", world - 1);
        assert_eq!(result.unwrap_err().to_string(), text);
    });
}

/// A rank that panics stops the others, whose errors name its number.
pub fn panic_of_a_rank_stops_the_others_and_names_it<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| {
        comm.barrier()?;
        assert!(comm.rank() + 1 < comm.world(), "the last rank falls over");
        (0..1000).try_for_each(|_| comm.barrier())
    };
    every_world(launch, body, |world, rank, result| {
        let Err(CommError::Aborted { by, reason, .. }) = &result else { panic!("{result:?}") };
        assert_eq!((*by, reason.starts_with("panicked")), (world - 1, true), "{reason}");
        assert!(rank + 1 < world || reason == "panicked: the last rank falls over", "{reason}");
    });
}

/// Ranks whose vectors differ in length all fail, by their own check or by another rank's abort.
pub fn vectors_of_different_lengths_stop_every_rank<L: Launch>(launch: &L) {
    for len in [10, 3000] {
        let body = |comm: &mut Session| {
            let longer = usize::from(comm.rank() + 1 == comm.world());
            comm.all_reduce_sum(&mut vec![1.0; len + longer])?;
            comm.barrier()
        };
        every_world(launch, body, |world, rank, result| match result {
            Ok(()) => assert_eq!(world, 1),
            Err(CommError::Size { rank: who, expected, got, .. }) => {
                assert_eq!(who, rank);
                assert_ne!(expected, got);
            }
            Err(CommError::Aborted { by, reason, .. }) => {
                assert_ne!(by, rank);
                assert!(reason.contains(" bytes from rank ") && reason.contains(", expected "), "{reason}");
            }
            Err(error) => panic!("{error}"),
        });
    }
}

/// Ranks in different calls all fail, with an error that names both calls.
pub fn ranks_in_different_calls_get_both_names<L: Launch>(launch: &L) {
    let at = |operation, step| Scope { operation, step, bucket: None };
    let (header, save) = (at("step header", 3), at("checkpoint save", 3));
    for (first, second) in [(header, save), (header, at("step header", 4)), (save, Scope { bucket: Some(1), ..save })] {
        let body = |comm: &mut Session| {
            *comm.scope() = if comm.rank() + 1 < comm.world() { first } else { second };
            comm.all_gather(&[1], &mut Vec::new())
        };
        every_world(launch, body, |world, _, result| {
            if world > 1 {
                let text = result.unwrap_err().to_string();
                assert!(text.contains(&first.to_string()) && text.contains(&second.to_string()), "{text}");
                assert!(text.contains("every rank must make the same calls in the same order"), "{text}");
            }
        });
    }
}

/// Data that a rank sent before it left can still be received; only then is the rank lost.
pub fn frames_of_a_rank_that_left_arrive_before_the_news<L: Launch>(launch: &L) {
    let body = |comm: &mut Session| {
        let last = comm.world() - 1;
        if comm.rank() == last {
            return (0..last).try_for_each(|to| comm.send(to, vec![7]));
        }
        assert_eq!(comm.recv(last)?, [7]);
        comm.recv(last).map(drop)
    };
    every_world(launch, body, |world, rank, result| match result {
        Ok(()) => assert_eq!(rank, world - 1),
        // The first to notice stops the others.
        Err(CommError::Lost { other, .. }) => assert_eq!(other, world - 1),
        Err(error) => assert!(error.to_string().contains(&format!("lost rank {}", world - 1)), "{error}"),
    });
}

/// Sending to or receiving from a rank outside the world is an error.
pub fn a_rank_outside_the_world_is_an_error<L: Launch>(launch: &L) {
    every_world(launch, |comm| comm.send(comm.world(), vec![1]), |_, _, result| assert!(result.is_err()));
    every_world(launch, |comm| comm.recv(comm.world()), |_, _, result| assert!(result.is_err()));
}

/// A wait in vain ends at the deadline, with an error that names the waiting rank and the rank it waited for; the
/// others receive it.
///
/// Needs worlds with a short deadline, of a second at most, so it is not in the list of facts. A transport calls it
/// with a separate launcher.
pub fn a_deadline_error_names_both_ranks<L: Launch>(launch: &L) {
    let awaited = |rank: usize, world: usize| (rank + 1) % world;
    let body = |comm: &mut Session| comm.recv(awaited(comm.rank(), comm.world()));
    every_world(launch, body, |world, rank, result| {
        let error = result.expect_err("nobody sends anything");
        let (who, text) = match &error {
            CommError::Deadline { rank: who, others, .. } => {
                assert_eq!((*who, &**others), (rank, &[awaited(rank, world)][..]));
                (rank, error.to_string())
            }
            CommError::Aborted { by, reason, .. } => {
                assert_ne!(*by, rank);
                (*by, reason.clone())
            }
            other => panic!("{other}"),
        };
        assert!(
            text.contains(&format!("for rank {}", awaited(who, world))) && text.contains("deadline passed"),
            "{text}"
        );
    });
}
