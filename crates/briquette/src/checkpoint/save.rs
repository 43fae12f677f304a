//! Writing a checkpoint: every rank's file, at once or in a thread beside training, then rank 0's manifest.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

use briquette_core::state::State;
use burn::module::Module;

use super::directory::{MANIFEST, file_name, remove_old, settle};
use super::file::{self, make_directory, put_in_place, write_partial};
use super::manifest::Manifest;
use super::timing::StepTiming;
use super::{Blobs, Series, fail, own_blobs};
use crate::error::Error;
use crate::handshake::{RANK, WORLD};
use crate::optimizer::DistributedOptimizer;
use crate::synchronizer::Synchronizer;

/// Where the time of a save went: this rank's seconds, by the wall clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SaveReport {
    /// The step that was saved.
    pub step: u64,
    /// Bytes of this rank's file; under background saving, memory held from `save` until the file is on the disk.
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
    writing: Writing,
}

/// This rank's file; dropping waits for it, so that no process ends with half of it.
struct Writing(Option<JoinHandle<Outcome>>, Option<Outcome>);

type Outcome = Result<Written, Error>;

struct Written {
    checksum: u32,
    seconds: [f64; 2],
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
    /// Saves a checkpoint under `directory`; every rank must call it at the same step. What is saved as the model holds means
    /// over ranks, as an [`evaluation_copy`](Synchronizer::evaluation_copy) does; what this rank has in their place is saved
    /// beside them. `module` does not change, so that saving does not change training. `notes` (rank 0's count) come back from
    /// [`Checkpoint::note`](crate::Checkpoint::note). Older checkpoints but one are removed once the new one is complete.
    ///
    /// Under [background saving](Self::with_background_saving) it first finishes the save before.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when a file cannot be written: no rank then counts the checkpoint as complete, and training may
    /// go on. Under background saving that is the one before, and this one was not begun.
    pub fn save<M: Module>(
        &mut self,
        module: &M,
        directory: &Path,
        notes: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        self.finish_saving()?;
        let (begin, inner) = (Instant::now(), &self.inner);
        // Saving is outside of simulated time, and leaves the links idle as they are when the run is resumed.
        let clock = self.sync.comm.hold_clock();
        let blobs = self.sync.with_averages(module, |averaged, own| -> Result<Blobs, String> {
            let model = averaged.clone().into_record().into_bytes().map_err(|e| e.to_string())?;
            let optimizer = inner.into_bytes().map_err(|e| e.to_string())?;
            Ok([("model", model), ("optimizer", optimizer)].into_iter().chain(own_blobs(own)).collect())
        })?;
        self.sync.comm.set_clock(clock);
        let clock = self.sync.comm.hold_clock();
        let path = Series::steps(directory).path(self.sync.step);
        self.pending = Some(self.sync.begin_checkpoint((path, begin), blobs, notes, self.background));
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
        if let Some(directory) = directory.filter(|_| self.sync.rank() == 0) {
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
        let pending = self.begin_checkpoint((path.to_owned(), Instant::now()), blobs, notes, false);
        self.complete_checkpoint(pending).map(drop)
    }

    /// Begins to write this rank's file; `begin` is when its bytes began to be gathered.
    fn begin_checkpoint(
        &self,
        (path, begin): (PathBuf, Instant),
        blobs: Result<Blobs, String>,
        notes: &BTreeMap<String, String>,
        background: bool,
    ) -> Pending {
        let bytes = blobs.and_then(|blobs| self.to_bytes(&blobs));
        let report = SaveReport {
            step: self.step,
            bytes: bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            serialize_seconds: begin.elapsed().as_secs_f64(),
            ..SaveReport::default()
        };
        let (to, rank) = (path.clone(), self.rank());
        let writing = Writing::begin(background, &path, move || write_file(&to, rank, bytes));
        Pending { path, notes: notes.clone(), report, writing }
    }

    /// Agrees on every rank's file, and writes the manifest where all are there.
    fn complete_checkpoint(&mut self, pending: Pending) -> Result<SaveReport, Error> {
        let Pending { path, notes, mut report, writing } = pending;
        let begin = Instant::now();
        let written = writing.end(&path);
        let checksums = self.agree_on_files(written.as_ref().map(|written| written.checksum).ok())?;
        [report.write_seconds, report.sync_seconds] = written?.seconds;
        let Some(checksums) = checksums.iter().copied().collect::<Option<Vec<u32>>>() else {
            let rank = checksums.iter().position(Option::is_none).unwrap_or_default();
            return Err(fail(
                &path,
                format!("rank {rank} could not write its file; the checkpoint before is untouched"),
            ));
        };
        // Rank 0 alone writes the manifest: the others must receive whether it could.
        let (step, world) = (report.step, self.world());
        let complete = match self.rank() {
            0 => write_manifest(&path, &Manifest { step, world, checksums, notes, crc32: None }),
            _ => Ok(()),
        };
        let agreed = self.agree_on_files(complete.is_ok().then_some(0))?;
        complete?;
        if agreed[0].is_some() {
            // The manifest is of these files, by whichever of their names they are found: the checkpoint is complete in any case.
            let file = path.join(file_name(self.rank()));
            if let Err(error) = put_in_place(&file).or_else(|_| put_in_place(&file)) {
                tracing::warn!("the checkpoint is complete, but a file keeps the name it was written under: {error}");
            }
        }
        report.complete_seconds = begin.elapsed().as_secs_f64();
        match agreed[0] {
            Some(_) => Ok(report),
            None => Err(fail(&path, "rank 0 could not write manifest.json; the checkpoint before is untouched")),
        }
    }

    /// Waits until rank 0's manifest is in place, and leaves the time since `clock` out of the run's.
    pub(crate) fn end_saving(&mut self, clock: f64) -> Result<(), Error> {
        self.comm.scope().operation = "checkpoint save";
        self.comm.barrier()?;
        self.set_clock(clock);
        Ok(())
    }

    /// What each rank wrote, as a checksum, or `None` where writing failed.
    fn agree_on_files(&mut self, mine: Option<u32>) -> Result<Vec<Option<u32>>, Error> {
        let mine = mine.map(|sum| sum.to_le_bytes().to_vec()).unwrap_or_default();
        let heard = self.gather_bytes("checkpoint save", &mine)?;
        Ok(heard.iter().map(|bytes| bytes.first_chunk().map(|b| u32::from_le_bytes(*b))).collect())
    }

    fn to_bytes(&self, records: &Blobs) -> Result<Vec<u8>, String> {
        let mut state = State::default();
        if let Some(joined) = &self.joined {
            state.put_part("strategy", &*joined.strategy);
        }
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
fn write_file(path: &Path, rank: usize, bytes: Result<Vec<u8>, String>) -> Outcome {
    make_directory(path).map_err(|e| fail(path, e))?;
    settle(path, rank)?;
    let bytes = bytes.map_err(|e| fail(path, e))?;
    let seconds = write_partial(&path.join(file_name(rank)), &bytes)?;
    Ok(Written { checksum: crc32fast::hash(&bytes), seconds })
}

fn write_manifest(path: &Path, manifest: &Manifest) -> Result<(), Error> {
    let text = manifest.to_text().map_err(|e| fail(path, e))?;
    let path = path.join(MANIFEST);
    write_partial(&path, text.as_bytes())?;
    put_in_place(&path)
}
