//! Ranks that make different calls: the rank that notices reports both operations, and the other rank receives the error.

use briquette_core::comm::{Scope, Session, run_ranks};
use briquette_core::error::CommError;

use crate::common::world;

/// Scope of a rank's call.
const fn at(operation: &'static str, step: u64, bucket: Option<usize>) -> Scope {
    Scope { operation, step, bucket }
}

/// Makes the call of that name; the scope sets step and bucket.
fn call(comm: &mut Session, scope: Scope) -> Result<(), CommError> {
    *comm.scope() = Scope { operation: "", ..scope };
    match scope.operation {
        "all_gather" => comm.all_gather(&[7; 100], &mut Vec::new()),
        // Its root does not receive, so that only the other rank can notice.
        "broadcast" => comm.broadcast(0, &mut vec![7; 100]),
        other => panic!("there is no {other} here"),
    }
}

/// Runs rank 0 in one scope and rank 1, which receives from it, in another.
fn differ(zero: Scope, one: Scope) {
    let results = run_ranks(world(2, |rank| rank), |mut comm| {
        let scope = if comm.rank() == 0 { zero } else { one };
        let mut result = call(&mut comm, scope);
        if comm.rank() == 0 && result.is_ok() {
            // A root is done when its bytes are in transit: here it receives the outcome.
            result = comm.recv(1).map(drop);
        }
        let again = comm.barrier();
        assert_eq!(result, again, "the first reason stays");
        // Both keep their links until both have failed, so that no rank takes the other for lost.
        Ok::<_, CommError>((comm, result))
    });
    let said: Vec<CommError> = results.into_iter().map(|rank| rank.unwrap().1.unwrap_err()).collect();
    let theirs = zero.to_string();
    assert_eq!(said[1], CommError::OutOfStep { rank: 1, other: 0, during: one, theirs });
    let words = format!("rank 1 is at {one}, rank 0 at {zero}: every rank must make the same calls in the same order");
    assert_eq!(said[1].to_string(), words);
    assert_eq!(said[0], CommError::Aborted { by: 1, during: one, reason: words });
}

#[test]
fn different_calls_are_named() {
    differ(at("all_gather", 3, None), at("broadcast", 3, None));
}

/// Threat R4.
#[test]
fn the_same_call_at_different_steps_is_named() {
    differ(at("broadcast", 3, None), at("broadcast", 4, None));
}

#[test]
fn the_same_call_for_different_buckets_is_named() {
    differ(at("broadcast", 3, Some(0)), at("broadcast", 3, Some(1)));
    differ(at("broadcast", 3, None), at("broadcast", 3, Some(0)));
}
