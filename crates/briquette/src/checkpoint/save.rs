//! Writing a checkpoint: every rank's file and what is common to all, at once or in a thread beside training, then the manifest.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

use briquette_core::manifest::Manifest;
use briquette_core::state::State;
use burn::module::Module;

use super::common::Leaders;
use super::directory::{MANIFEST, common_name, file_name, remove_old, settle};
use super::file::{self, make_directory, put_in_place, write_partial};
use super::timing::StepTiming;
use super::{AVERAGE, Blobs, Series, fail, own_blobs};
use crate::error::Error;
use crate::handshake::{RANK, WORLD};
use crate::optimizer::DistributedOptimizer;
use crate::synchronizer::Synchronizer;

/// Where the time of a save went: this rank's seconds, by the wall clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SaveReport {
    /// The step that was saved.
    pub step: u64,
    /// Bytes of this rank's file, and of what it writes for all that share its directory; under background saving, memory held from
    /// `save` until they are on the disk.
    pub bytes: u64,
    /// Averaging what is each rank's own, reading from the device, and the file's bytes made of it: training waits.
    pub serialize_seconds: f64,
    /// Handing the bytes to the operating system. In the background, training does not wait.
    pub write_seconds: f64,
    /// Until they and the file's name are on the disk. In the background, training does not wait.
    pub sync_seconds: f64,
    /// Waiting for this rank's file and the others', and rank 0's manifest.
    pub complete_seconds: f64,
}

/// A checkpoint whose files are being written.
pub(crate) struct Pending {
    path: PathBuf,
    notes: BTreeMap<String, String>,
    report: SaveReport,
    leaders: Leaders,
    writing: Writing,
}

/// This rank's file; dropping waits for it, so that no process ends with half of it.
struct Writing(Option<JoinHandle<Outcome>>, Option<Outcome>);

type Outcome = Result<Written, Error>;

struct Written {
    sums: Sums,
    seconds: [f64; 2],
}

/// Checksums of a rank's file, and of the one with what all have alike where this rank writes that.
#[derive(Clone, Copy)]
struct Sums {
    own: u32,
    common: Option<u32>,
}

impl Writing {
    fn begin(background: bool, path: &Path, write: impl FnOnce() -> Outcome + Send + 'static) -> Writing {
        if !background {
            return Writing(None, Some(write()));
        }
        match std::thread::Builder::new().name("checkpoint".to_owned()).spawn(write) {
            Ok(handle) => Writing(Some(handle), None),
            Err(error) => Writing(None, Some(Err(fail(path, format!("no thread to write in: {error}"))))),
        }
    }

    fn end(mut self, path: &Path) -> Outcome {
        let lost = || fail(path, "writing it panicked");
        let joined = self.0.take().map(|handle| handle.join().unwrap_or_else(|_| Err(lost())));
        joined.or_else(|| self.1.take()).unwrap_or_else(|| Err(lost()))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take() {
            let _ = handle.join();
        }
    }
}

impl DistributedOptimizer {
    /// Saves a checkpoint under `directory`; every rank must call it at the same step. Where ranks share the directory, what they have alike is
    /// written once; where each machine has one of its own, the first rank there writes it. What is saved as the model holds means
    /// over ranks, as an [`evaluation_copy`](Synchronizer::evaluation_copy) does; what this rank has in their place is saved
    /// beside them. `module` does not change, so that saving does not change training. `notes` (rank 0's count) come back from
    /// [`Checkpoint::note`](crate::Checkpoint::note). Older checkpoints but one are removed once the new one is complete.
    ///
    /// Under [background saving](Self::with_background_saving) it first finishes the save before.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when a file cannot be written: no rank then counts the checkpoint as complete, and training may
    /// go on. Under background saving that is the one before, and this one was not begun. [`SyncError::Replicas`] where a rank's parameters or
    /// optimizer differ and replicas are to be equal, [`Error::NoMean`] where a mean would not be finite: nothing is then written.
    ///
    /// [`SyncError::Replicas`]: briquette_core::error::SyncError::Replicas
    pub fn save<M: Module>(
        &mut self,
        module: &M,
        directory: &Path,
        notes: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        self.finish_saving()?;
        let (begin, inner, average) = (Instant::now(), &self.inner, &self.average);
        // Saving is outside of simulated time, and leaves the links idle as they are when the run is resumed.
        let clock = self.sync.comm.hold_clock();
        let blobs = self.sync.with_averages("checkpoint save", module, |averaged, own| -> Result<Blobs, String> {
            let model = averaged.clone().into_record().into_bytes().map_err(|e| e.to_string())?;
            let optimizer = inner.into_bytes().map_err(|e| e.to_string())?;
            let average = average.iter().map(|average| Ok((AVERAGE, average.to_bytes().map_err(|e| e.to_string())?)));
            let average: Blobs = average.collect::<Result<_, String>>()?;
            let blobs = [("model", model), ("optimizer", optimizer)].into_iter();
            Ok(blobs.chain(average).chain(own_blobs(own)).collect())
        })?;
        self.sync.comm.set_clock(clock);
        let clock = self.sync.comm.hold_clock();
        let path = Series::steps(directory).path(self.sync.step());
        self.pending = Some(self.sync.begin_checkpoint((path, begin), blobs, notes, self.background)?);
        if self.background {
            return self.sync.end_saving(clock);
        }
        self.finish_saving()?;
        self.sync.set_clock(clock);
        Ok(())
    }

    /// Has [`save`](Self::save) write its files in a thread while training goes on: it returns when this rank's file is in
    /// memory, as one copy of its bytes (as large as the file: the model, the optimizer's state, residuals), and the checkpoint
    /// is complete at the next `save` or [`finish_saving`](Self::finish_saving), which wait for it. Until then a crash finds
    /// the checkpoint before. Off by default; the same on every rank.
    #[must_use]
    pub fn with_background_saving(mut self, background: bool) -> Self {
        let how = if background { "in the background" } else { "at once" };
        self.sync = self.sync.with_world_setting("saving", how);
        self.background = background;
        self
    }

    /// Waits until every rank's file of the last [`save`](Self::save) is on the disk, and completes the checkpoint. Every rank
    /// must call it where one does: at the end of a run, at least. Does nothing where nothing is being saved.
    ///
    /// # Errors
    /// As for [`save`](Self::save).
    pub fn finish_saving(&mut self) -> Result<(), Error> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let (clock, directory) = (self.sync.comm.hold_clock(), pending.path.parent().map(Path::to_owned));
        self.saved = self.sync.complete_checkpoint(pending)?;
        if let Some(directory) = directory.filter(|_| self.sync.leads()) {
            remove_old(Series::steps(&directory), self.saved.step);
        }
        self.sync.end_saving(clock)
    }

    /// Where the time of the last save went that was completed.
    pub fn save_report(&self) -> &SaveReport {
        &self.saved
    }
}

impl Synchronizer {
    /// Every rank's file and rank 0's manifest in the directory `path`, at once; [`end_saving`](Self::end_saving) follows.
    #[cfg(feature = "train")]
    pub(crate) fn write_checkpoint(
        &mut self,
        path: &Path,
        blobs: Result<Blobs, String>,
        notes: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        let pending = self.begin_checkpoint((path.to_owned(), Instant::now()), blobs, notes, false)?;
        self.complete_checkpoint(pending).map(drop)
    }

    /// Begins to write this rank's files; `begin` is when their bytes began to be gathered.
    fn begin_checkpoint(
        &mut self,
        (path, begin): (PathBuf, Instant),
        blobs: Result<Blobs, String>,
        notes: &BTreeMap<String, String>,
        background: bool,
    ) -> Result<Pending, Error> {
        let (clock, computing) = (self.comm.hold_clock(), self.comm.now() - self.last_end);
        let directory = path.parent().unwrap_or(Path::new("."));
        let notes = self.agree_on_save(directory, notes)?;
        let leaders = self.leaders(directory)?;
        let rank = self.rank();
        // A rank that has nothing to save takes part in what is agreed on.
        let (blobs, problem) = blobs.map_or_else(|problem| (Blobs::new(), Some(problem)), |blobs| (blobs, None));
        let (common, own) = self.divide(blobs)?;
        // What was agreed on to save is no part of what is saved.
        self.comm.set_clock(clock);
        self.last_end = self.comm.now() - computing;
        let own = problem.map_or_else(|| self.to_bytes(&own), Err);
        let common = (leaders.of(rank) == rank && !common.is_empty())
            .then(|| file::serialize(&common, &State::default(), HashMap::new()));
        let size = |bytes: &Result<Vec<u8>, String>| bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let report = SaveReport {
            step: self.step(),
            bytes: size(&own) + common.as_ref().map_or(0, size),
            serialize_seconds: begin.elapsed().as_secs_f64(),
            ..SaveReport::default()
        };
        let to = path.clone();
        let writing = Writing::begin(background, &path, move || write_files(&to, rank, own, common));
        Ok(Pending { path, notes, report, leaders, writing })
    }

    /// Agrees on every rank's files, and writes the manifest where all are there.
    fn complete_checkpoint(&mut self, pending: Pending) -> Result<SaveReport, Error> {
        let Pending { path, notes, mut report, leaders, writing } = pending;
        let begin = Instant::now();
        let written = writing.end(&path);
        let sums = self.agree_on_files(written.as_ref().map(|written| written.sums).ok())?;
        let Written { seconds, sums: mine } = written?;
        [report.write_seconds, report.sync_seconds] = seconds;
        let could_not = |rank: usize, what: &str| {
            fail(&path, format!("rank {rank} could not write {what}; the checkpoint before is untouched"))
        };
        if let Some(rank) = sums.iter().position(Option::is_none) {
            return Err(could_not(rank, "its file"));
        }
        // One in each directory: the others must receive whether it could be written.
        let rank = self.rank();
        let complete = match leaders.of(rank) == rank {
            true => {
                let sums = sums.iter().flatten();
                let common = sums.clone().enumerate().filter_map(|(rank, sums)| Some((rank, sums.common?))).collect();
                let checksums = sums.map(|sums| sums.own).collect();
                let (step, world) = (report.step, self.world());
                write_manifest(&path, &Manifest { step, world, checksums, common, notes, crc32: None })
            }
            false => Ok(()),
        };
        let agreed = self.agree_on_files(complete.is_ok().then_some(mine))?;
        complete?;
        if let Some(rank) = agreed.iter().position(Option::is_none) {
            return Err(could_not(rank, "manifest.json"));
        }
        // The manifest is of these files, by whichever of their names they are found: the checkpoint is complete in any case.
        let common = mine.common.map(|_| common_name(rank));
        for file in common.into_iter().chain([file_name(rank)]).map(|name| path.join(name)) {
            if let Err(error) = put_in_place(&file).or_else(|_| put_in_place(&file)) {
                tracing::warn!("the checkpoint is complete, but a file keeps the name it was written under: {error}");
            }
        }
        report.complete_seconds = begin.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Whether this rank does what is done once in a directory.
    pub(crate) fn leads(&self) -> bool {
        let rank = self.rank();
        self.leaders.as_ref().map_or(rank == 0, |leaders| leaders.of(rank) == rank)
    }

    /// Waits until the manifest is in place, and leaves the time since `clock` out of the run's.
    pub(crate) fn end_saving(&mut self, clock: f64) -> Result<(), Error> {
        self.comm.scope().operation = "checkpoint save";
        self.comm.barrier()?;
        self.set_clock(clock);
        Ok(())
    }

    /// What each rank wrote, or `None` where writing failed.
    fn agree_on_files(&mut self, mine: Option<Sums>) -> Result<Vec<Option<Sums>>, Error> {
        let sums = mine.into_iter().flat_map(|sums| [Some(sums.own), sums.common]).flatten();
        let heard = self.gather_bytes("checkpoint save", &sums.flat_map(u32::to_le_bytes).collect::<Vec<_>>())?;
        let read = |bytes: &Vec<u8>| {
            let mut sums = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b));
            Some(Sums { own: sums.next()?, common: sums.next() })
        };
        Ok(heard.iter().map(read).collect())
    }

    fn to_bytes(&self, records: &Blobs) -> Result<Vec<u8>, String> {
        let mut state = State::default();
        state.put_part("strategy", self.driver.strategy());
        StepTiming::of(self).save(&mut state);
        file::serialize(records, &state, self.metadata())
    }

    /// The run's identity, and whose file it is.
    fn metadata(&self) -> HashMap<String, String> {
        let identity = self.joined.iter().flat_map(|joined| joined.identity.to_save());
        let rank = [(RANK.to_owned(), self.rank().to_string()), (WORLD.to_owned(), self.world().to_string())];
        identity.chain(rank).collect()
    }
}

/// Beside what an earlier save of this step left, which counts until the manifest is replaced.
fn write_files(
    path: &Path,
    rank: usize,
    own: Result<Vec<u8>, String>,
    common: Option<Result<Vec<u8>, String>>,
) -> Outcome {
    make_directory(path).map_err(|e| fail(path, e))?;
    settle(path, rank)?;
    let mut seconds = [0.0; 2];
    let mut write = |name: String, bytes: Result<Vec<u8>, String>| {
        let bytes = bytes.map_err(|e| fail(path, e))?;
        let took = write_partial(&path.join(name), &bytes)?;
        seconds.iter_mut().zip(took).for_each(|(sum, took)| *sum += took);
        Ok::<u32, Error>(crc32fast::hash(&bytes))
    };
    let common = common.map(|bytes| write(common_name(rank), bytes)).transpose()?;
    let sums = Sums { own: write(file_name(rank), own)?, common };
    Ok(Written { sums, seconds })
}

fn write_manifest(path: &Path, manifest: &Manifest) -> Result<(), Error> {
    let text = manifest.to_text().map_err(|e| fail(path, e))?;
    let path = path.join(MANIFEST);
    write_partial(&path, text.as_bytes())?;
    put_in_place(&path)
}
