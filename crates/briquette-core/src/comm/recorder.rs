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

#[cfg(test)]
mod tests {
    use super::super::blame::last_words;
    use super::*;
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
        assert_eq!(last_words(&record), "computing, after it had received from rank 0 in barrier at step 1500");
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

    /// Three ranks gather five bytes each, and reduce three values.
    #[test]
    fn every_transfer_of_a_collective_is_recorded_with_its_peer_bytes_and_end() {
        let records = Local::run(3, |mut comm| {
            comm.begin_step(7);
            comm.all_gather(&[1; 5], &mut Vec::new())?;
            comm.all_reduce_sum(&mut [1.0; 3])?;
            Ok::<_, CommError>((comm.rank(), comm.traffic(), comm.recorder().record()))
        });
        for (rank, traffic, record) in records.into_iter().map(Result::unwrap) {
            let of = |way, operation: &str| {
                let of = record.transfers.iter().filter(|of| of.way == way && of.operation == operation);
                of.map(|of| (of.peer, of.bytes)).collect::<Vec<_>>()
            };
            let peers = |step: usize| [(rank + step) % 3, (rank + 2 * step) % 3];
            for (operation, bytes) in [("all_gather", 5), ("all_reduce", 12)] {
                assert_eq!(of(Way::Send, operation), peers(1).map(|peer| (peer, bytes)));
                assert_eq!(of(Way::Receive, operation), peers(2).map(|peer| (peer, bytes)));
            }
            assert!(record.transfers.iter().all(|of| of.end.is_some() && of.step == 7 && of.channel == 0));
            let bytes = |way| record.transfers.iter().filter(|of| of.way == way).map(|of| of.bytes).sum::<u64>();
            assert_eq!((bytes(Way::Send), bytes(Way::Receive)), (traffic.sent, traffic.received));
        }
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
