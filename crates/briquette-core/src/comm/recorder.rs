//! Recorder of a rank's last transfers, to find the rank that caused a failure.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::Scope;
use crate::error::CommError;
use crate::files;

/// Number of transfers that are kept.
const KEPT: usize = 1000;

/// One frame sent or received, or the wait for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Transfer {
    /// Direction.
    pub way: Way,
    /// The other rank; of several awaited ones, the first until a frame arrives.
    pub peer: usize,
    /// Bytes of the frame; 0 until it has arrived.
    pub bytes: u64,
    /// The collective or exchange, `all_gather`.
    pub operation: String,
    /// The optimizer step.
    pub step: u64,
    /// The bucket, if the exchange has several.
    pub bucket: Option<usize>,
    /// Channel of the session: 0, or that of a background exchange.
    pub channel: usize,
    /// Start, in seconds of the session's clock.
    pub start: f64,
    /// End; `None` if it was not completed.
    pub end: Option<f64>,
}

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// To another rank.
    Send,
    /// From another rank.
    Receive,
}

/// The first failure on a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// Error message, or the reason for which this rank stopped the run.
    pub message: String,
    /// The ranks that this rank waited for in vain, or lost.
    pub blames: Vec<usize>,
    /// The rank that stopped the run, if another one did.
    pub stopped_by: Option<usize>,
    /// Seconds of the session's clock.
    pub at: f64,
}

/// Last transfers of a rank. The file format is JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The rank, in the whole world.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// The failure, if there was one.
    pub failure: Option<Failure>,
    /// Transfers in the order of their starts, at most 1 000.
    pub transfers: Vec<Transfer>,
}

/// Handle to a session's record, which its background channels share. Recording is always on: a transfer costs two readings of the clock and
/// uncontended locks, and allocates nothing after the first.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    rank: usize,
    world: usize,
    /// Number of the first transfer that is kept.
    first: u64,
    transfers: VecDeque<Entry>,
    failure: Option<Failure>,
    /// Set when the failure has been written.
    is_written: bool,
    file: Option<PathBuf>,
}

#[derive(Debug)]
struct Entry {
    way: Way,
    peer: usize,
    bytes: u64,
    scope: Scope,
    channel: usize,
    start: f64,
    end: Option<f64>,
}

/// A transfer that has started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started(u64);

impl Recorder {
    pub(super) fn new(rank: usize, world: usize) -> Recorder {
        let state = Mutex::new(State { rank, world, ..State::default() });
        Recorder(Arc::new(Shared { state, writing: Mutex::default() }))
    }

    /// Sets the file that is written at the first failure, and whose folder is made then.
    pub fn write_at_failure(&self, file: PathBuf) {
        self.state().file = Some(file);
    }

    /// Writes the record to its [file](Self::write_at_failure) now. Does nothing without a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self) -> io::Result<()> {
        let Some(file) = self.state().file.clone() else { return Ok(()) };
        let _writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_vec(&self.record()).map_err(io::Error::other)?;
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // A reader never sees half a file.
        let new = file.with_extension("new");
        std::fs::write(&new, text)?;
        files::rename(&new, &file)
    }

    /// Returns the record.
    pub fn record(&self) -> Record {
        let state = self.state();
        let transfer = |entry: &Entry| Transfer {
            way: entry.way,
            peer: entry.peer,
            bytes: entry.bytes,
            operation: entry.scope.operation.to_owned(),
            step: entry.scope.step,
            bucket: entry.scope.bucket,
            channel: entry.channel,
            start: entry.start,
            end: entry.end,
        };
        let (rank, world, failure) = (state.rank, state.world, state.failure.clone());
        Record { rank, world, failure, transfers: state.transfers.iter().map(transfer).collect() }
    }

    pub(super) fn start(
        &self,
        way: Way,
        (peer, bytes): (usize, u64),
        scope: Scope,
        channel: usize,
        start: f64,
    ) -> Started {
        let mut state = self.state();
        if state.transfers.is_empty() {
            state.transfers.reserve_exact(KEPT);
        }
        if state.transfers.len() == KEPT {
            state.transfers.pop_front();
            state.first += 1;
        }
        state.transfers.push_back(Entry { way, peer, bytes, scope, channel, start, end: None });
        Started(state.first + state.transfers.len() as u64 - 1)
    }

    /// Records the end of a transfer, with the peer and the bytes of a frame that was received.
    pub(super) fn end(&self, Started(number): Started, received: Option<(usize, u64)>, end: f64) {
        let mut state = self.state();
        let Some(place) = number.checked_sub(state.first) else { return };
        if let Some(entry) = state.transfers.get_mut(place as usize) {
            (entry.peer, entry.bytes) = received.unwrap_or((entry.peer, entry.bytes));
            entry.end = Some(end);
        }
    }

    /// Removes a wait that has ended without a frame, if no transfer has started since.
    pub(super) fn cancel(&self, Started(number): Started) {
        let mut state = self.state();
        if number + 1 == state.first + state.transfers.len() as u64 {
            state.transfers.pop_back();
        }
    }

    /// Records an error of a call, unless there was a failure before. The caller stops the run, which [writes](Self::stopped) the file.
    pub(super) fn fails(&self, error: &CommError, at: f64) {
        let (blames, stopped_by) = match error {
            CommError::Deadline { others, .. } => (others.to_vec(), None),
            CommError::Lost { other, .. } | CommError::OutOfStep { other, .. } | CommError::Size { other, .. } => {
                (vec![*other], None)
            }
            CommError::Aborted { by, .. } => (Vec::new(), Some(*by)),
            _ => Default::default(),
        };
        self.state().failure.get_or_insert_with(|| Failure { message: error.to_string(), blames, stopped_by, at });
    }

    /// As [`fails`](Self::fails), and writes the file.
    pub(super) fn failed(&self, error: &CommError, at: f64) {
        self.fails(error, at);
        self.write_failure();
    }

    /// Records that this rank stops the run, unless there was a failure before, and writes the file.
    pub(super) fn stopped(&self, reason: &str, at: f64) {
        let failure = || Failure { message: reason.to_owned(), blames: Vec::new(), stopped_by: None, at };
        self.state().failure.get_or_insert_with(failure);
        self.write_failure();
    }

    fn write_failure(&self) {
        if std::mem::replace(&mut self.state().is_written, true) {
            return;
        }
        // A record that cannot be written must not hide the failure itself.
        if let Err(error) = self.write() {
            tracing::warn!("the record of the last transfers cannot be written: {error}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the ranks that caused a failure, and a sentence about each, from the records of the ranks that left one.
///
/// A rank that detected the failure blames the ranks that it waited for or lost. A blamed rank that was told to stop passes the blame on to the rank
/// that it was receiving from. The blame ends at a rank that stopped the run for a reason of its own, that left no record of the failure, or that was
/// not receiving. If no rank has failed, as in records that were written on request, it begins at every rank that is receiving.
pub fn culprits(records: &[Record]) -> Vec<(usize, String)> {
    let is_failed = records.iter().any(|record| record.failure.is_some());
    // Without a failure, a record next to those of a failure is an earlier one.
    let of = |rank: usize| records.iter().find(|record| record.rank == rank && record.failure.is_some() == is_failed);
    let mut found: Vec<(usize, String)> = Vec::new();
    for first in records.iter().filter(|record| record.failure.is_some() == is_failed) {
        let told = first.failure.as_ref().and_then(|failure| failure.stopped_by);
        let mut waiting = told.map_or_else(|| next(first), |by| vec![by]);
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
                    found.push((rank, format!("rank {rank} was {}", last(record))))
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
fn last(record: &Record) -> String {
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
    use crate::comm::Local;

    #[test]
    fn the_last_transfers_are_kept_in_order() {
        let recorder = Recorder::new(1, 3);
        for number in 0..1500 {
            let scope = Scope { operation: "all_gather", step: number, bucket: Some(2) };
            let started = recorder.start(Way::Send, (0, number), scope, 0, number as f64);
            recorder.end(started, None, number as f64 + 0.5);
        }
        let scope = Scope { operation: "barrier", step: 1500, bucket: None };
        let waiting = recorder.start(Way::Receive, (2, 0), scope, 1, 1500.0);
        let record = recorder.record();
        assert_eq!((record.rank, record.world, record.transfers.len()), (1, 3, KEPT));
        assert_eq!((record.transfers[0].step, record.transfers[998].end), (501, Some(1499.5)));
        assert_eq!((record.transfers[999].end, record.transfers[999].channel), (None, 1));
        recorder.end(waiting, Some((0, 7)), 1501.0);
        let record = recorder.record();
        let last = &record.transfers[999];
        assert_eq!((last.peer, last.bytes, last.end), (0, 7, Some(1501.0)));
        assert_eq!(super::last(&record), "computing, after it had received from rank 0 in barrier at step 1500");
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    /// The end of a transfer that is no longer kept is ignored.
    #[test]
    fn a_transfer_that_ends_after_a_thousand_others_is_forgotten() {
        let recorder = Recorder::new(0, 2);
        let old = recorder.start(Way::Receive, (1, 0), Scope::default(), 0, 0.0);
        for _ in 0..KEPT {
            recorder.start(Way::Send, (1, 8), Scope::default(), 0, 1.0);
        }
        recorder.end(old, Some((1, 4)), 2.0);
        assert!(recorder.record().transfers.iter().all(|transfer| transfer.end.is_none() && transfer.way == Way::Send));
    }

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

    /// Rank 0 waits for rank 2, which waits for rank 1, which computes. Rank 0 gives up and tells the others.
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

    #[test]
    fn the_file_is_written_at_the_first_failure_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("transfers/rank-0.json");
        let mut comm = Local::world(1).remove(0);
        comm.recorder().write_at_failure(file.clone());
        assert!(!file.exists());
        comm.abort("first");
        comm.abort("second");
        let record: Record = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(record.failure.map(|failure| failure.message).as_deref(), Some("first"));
    }
}
