//! Search for the rank that caused a failure, in the [records](Record) of all ranks.

use super::{Record, Way};

/// Returns the ranks that caused a failure, and a sentence about each, from the records of the ranks that left one.
///
/// A rank that detected the failure blames the ranks that it waited for or lost. A blamed rank that was stopped by another one passes the blame on to the rank
/// that it was receiving from. The blame ends at a rank that stopped the run for a reason of its own, that left no record of the failure, or that was
/// not receiving. If no rank has failed, as in records that were written on request, it begins at every rank that is receiving.
pub fn culprits(records: &[Record]) -> Vec<(usize, String)> {
    let is_failed = records.iter().any(|record| record.failure.is_some());
    // Without a failure, a record next to those of a failure is an earlier one.
    let of = |rank: usize| records.iter().find(|record| record.rank == rank && record.failure.is_some() == is_failed);
    let mut found: Vec<(usize, String)> = Vec::new();
    for first in records.iter().filter(|record| record.failure.is_some() == is_failed) {
        let stopped_by = first.failure.as_ref().and_then(|failure| failure.stopped_by);
        let mut waiting = stopped_by.map_or_else(|| next(first), |by| vec![by]);
        if is_failed && waiting.is_empty() {
            // It stopped the run itself.
            waiting.push(first.rank);
        }
        let (mut seen, mut blame) = (vec![], waiting.into_iter().map(|rank| (rank, first)).collect::<Vec<_>>());
        while let Some((rank, accuser)) = blame.pop() {
            if seen.contains(&rank) {
                continue;
            }
            seen.push(rank);
            let Some(record) = of(rank) else {
                let said = accuser
                    .failure
                    .as_ref()
                    .map_or(String::new(), |failure| format!("; rank {} says: {}", accuser.rank, failure.message));
                found.push((rank, format!("rank {rank} left no record{said}")));
                continue;
            };
            let next = next(record);
            let own =
                record.failure.as_ref().filter(|failure| failure.stopped_by.is_none() && failure.blames.is_empty());
            match own {
                Some(failure) => found.push((rank, format!("rank {rank} stopped the run: {}", failure.message))),
                None if next.iter().all(|next| *next == rank) => {
                    found.push((rank, format!("rank {rank} was {}", last_words(record))))
                }
                None => blame.extend(next.into_iter().map(|next| (next, record))),
            }
        }
    }
    found.sort();
    found.dedup_by_key(|(rank, _)| *rank);
    if found.is_empty() && is_failed {
        // Each of them blames another one.
        let failed = records.iter().filter_map(|record| Some((record.rank, record.failure.as_ref()?.message.clone())));
        found.extend(failed);
    }
    found
}

/// Returns the ranks that a rank blames, or else the one that it was receiving from.
fn next(record: &Record) -> Vec<usize> {
    let blames = record.failure.iter().flat_map(|failure| failure.blames.iter().copied()).collect::<Vec<_>>();
    let awaited = record.transfers.iter().rev().find(|transfer| transfer.end.is_none() && transfer.way == Way::Receive);
    if blames.is_empty() { awaited.map(|transfer| transfer.peer).into_iter().collect() } else { blames }
}

/// Returns the last transfer of a rank, in words.
pub(super) fn last_words(record: &Record) -> String {
    let Some(last) = record.transfers.last() else { return "without any transfer".into() };
    let (doing, peer) = match (last.way, last.end) {
        (Way::Send, None) => ("sending to", last.peer),
        (Way::Receive, None) => ("waiting for", last.peer),
        (Way::Send, Some(_)) => ("computing, after it had sent to", last.peer),
        (Way::Receive, Some(_)) => ("computing, after it had received from", last.peer),
    };
    let bucket = last.bucket.map_or(String::new(), |bucket| format!(" of bucket {bucket}"));
    format!("{doing} rank {peer} in {}{bucket} at step {}", last.operation, last.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Session;
    use crate::comm::recorder::{Failure, Recorder};
    use crate::comm::{Local, Scope};
    use crate::error::CommError;

    /// Runs three ranks of which rank 1 fails in `fails`, and returns the records.
    fn records(fails: impl Fn(&mut Session) + Sync) -> Vec<Record> {
        Local::run(3, |mut comm| {
            let recorder = comm.recorder().clone();
            comm.begin_step(4);
            // The others may still be in it when rank 1 fails.
            let _ = comm.barrier();
            if comm.rank() == 1 {
                fails(&mut comm);
            }
            // A rank that has left is lost to the others.
            let _ = comm.all_reduce_sum(&mut [1.0; 2000]);
            Ok::<_, CommError>(recorder.record())
        })
        .into_iter()
        .map(Result::unwrap)
        .collect()
    }

    #[test]
    fn a_rank_that_stops_the_run_is_named_with_its_reason() {
        let records = records(|comm| comm.abort("its disk is full"));
        assert_eq!(culprits(&records), [(1, "rank 1 stopped the run: its disk is full".to_owned())]);
        assert!(records.iter().all(|record| record.failure.is_some()));
    }

    #[test]
    fn a_rank_without_a_record_is_named() {
        let mut records = records(|comm| comm.abort("gone"));
        records.remove(1);
        let found = culprits(&records);
        assert_eq!((found.len(), found[0].0), (1, 1));
        assert!(found[0].1.starts_with("rank 1 left no record; rank 0 says: rank 1 stopped the run"), "{found:?}");
    }

    /// Rank 0 waits for rank 2, which waits for rank 1, which computes. Rank 0 gives up and stops the run.
    #[test]
    fn a_rank_that_computes_for_too_long_is_named_with_its_last_transfer() {
        let record = |rank, blames: &[usize], stopped_by, way, end| {
            let recorder = Recorder::new(rank, 3);
            let scope = Scope { operation: "all_reduce", step: 9, bucket: Some(0) };
            let started = recorder.start(way, ((rank + 2) % 3, 5), scope, 0, 0.0);
            if end {
                recorder.end(started, None, 0.5);
            }
            let failure = Failure { message: "deadline".into(), blames: blames.to_vec(), stopped_by, at: 1.0 };
            Record { failure: Some(failure), ..recorder.record() }
        };
        let records = [
            record(0, &[2], None, Way::Receive, false),
            record(1, &[], Some(0), Way::Send, true),
            record(2, &[], Some(0), Way::Receive, false),
        ];
        let said = "rank 1 was computing, after it had sent to rank 0 in all_reduce of bucket 0 at step 9";
        assert_eq!(culprits(&records), [(1, said.to_owned())]);
        // On request, without a failure.
        let requested = records.clone().map(|record| Record { failure: None, ..record });
        assert_eq!(culprits(&requested), [(1, said.to_owned())]);
        // A request is older than a failure.
        let mixed = [records[0].clone(), requested[1].clone(), records[2].clone()];
        assert_eq!(culprits(&mixed), [(1, "rank 1 left no record; rank 2 says: deadline".to_owned())]);
        // A link fails: both of its ranks say so.
        let both = [record(0, &[1], None, Way::Send, true), record(1, &[0], None, Way::Send, true)];
        assert_eq!(culprits(&both).into_iter().map(|(rank, _)| rank).collect::<Vec<_>>(), [0, 1]);
    }
}
