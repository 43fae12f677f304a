//! Saving of checkpoints, in the foreground or in a background thread: each rank's file and the replicated state, then
//! the manifest.

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
use super::{AVERAGE, Blobs, Series, fail, local_blobs};
use crate::error::Error;
use crate::handshake::{RANK, WORLD};
use crate::optimizer::DistributedOptimizer;
use crate::synchronizer::Synchronizer;

/// Seconds of the phases of a save on this rank, by the wall clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SaveReport {
    /// The step that was saved.
    pub step: u64,
    /// Bytes of this rank's file, plus those of the replicated state if this rank writes it. Under background saving, this much
    /// memory is held from `save` until the files are on the disk.
    pub bytes: u64,
    /// Seconds of averaging rank-local state, reading from the device, and serializing. Training always waits for this.
    pub serialize_seconds: f64,
    /// Seconds of passing the bytes to the operating system. Under background saving, training does not wait for this.
    pub write_seconds: f64,
    /// Seconds of syncing the bytes and the file's name to the disk. Under background saving, training does not wait
    /// for this.
    pub sync_seconds: f64,
    /// Seconds of waiting for this rank's file, the other ranks' files, and rank 0's manifest.
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

/// Write of this rank's file. Dropping it waits for the thread, so that the process does not end with a half-written
/// file.
struct Writing(Option<JoinHandle<Outcome>>, Option<Outcome>);

type Outcome = Result<Written, Error>;

struct Written {
    sums: Sums,
    seconds: [f64; 2],
}

/// Checksums of a rank's file and, if this rank writes it, of the replicated state.
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
    /// Saves a checkpoint under `directory`. Every rank must call it at the same step. Ranks that share the directory write
    /// replicated state once. If each machine has its own directory, the first rank of each machine writes it.
    ///
    /// The saved model contains means over ranks, as an [`evaluation_copy`](Synchronizer::evaluation_copy) does; each rank's own
    /// values are saved in addition. `module` does not change, so saving does not affect training. Rank 0's `notes` are saved,
    /// for [`Checkpoint::note`](crate::Checkpoint::note). Once the new checkpoint is complete, only this one and the previous one
    /// are kept.
    ///
    /// Under [background saving](Self::with_background_saving) the call first completes the previous save.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when a file cannot be written: no rank then counts the checkpoint as complete, and training may
    /// continue. Under background saving this is the error of the previous checkpoint, and the new save was not started.
    /// [`SyncError::Replicas`] if replicas must be equal and a rank's parameters or optimizer differ, [`Error::NoMean`] if a mean
    /// would not be finite; in both cases nothing is written.
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
        // Saving takes no simulated time. It leaves the links idle, as they are when the run is resumed.
        let clock = self.sync.comm.hold_clock();
        let blobs = self.sync.with_averages("checkpoint save", module, |averaged, own| -> Result<Blobs, String> {
            let model = averaged.clone().into_record().into_bytes().map_err(|e| e.to_string())?;
            let optimizer = inner.into_bytes().map_err(|e| e.to_string())?;
            let average = average.iter().map(|average| Ok((AVERAGE, average.to_bytes().map_err(|e| e.to_string())?)));
            let average: Blobs = average.collect::<Result<_, String>>()?;
            let blobs = [("model", model), ("optimizer", optimizer)].into_iter();
            Ok(blobs.chain(average).chain(local_blobs(own)).collect())
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

    /// Makes [`save`](Self::save) write its files in a background thread. `save` then returns once this rank's file is in memory.
    /// This copy is as large as the file (the model, the optimizer's state, residuals). The next `save` or
    /// [`finish_saving`](Self::finish_saving) waits for the files and completes the checkpoint. After an earlier crash, the run
    /// resumes from the previous checkpoint. Off by default; must be the same on every rank.
    #[must_use]
    pub fn with_background_saving(mut self, background: bool) -> Self {
        let how = if background { "in the background" } else { "at once" };
        self.sync = self.sync.with_world_setting("saving", how);
        self.background = background;
        self
    }

    /// Waits until every rank's file of the last [`save`](Self::save) is on the disk, and completes the checkpoint. All ranks
    /// must call it. Call it at least at the end of a run. Does nothing if no save is in progress.
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

    /// The report of the last completed save.
    pub fn save_report(&self) -> &SaveReport {
        &self.saved
    }
}

impl Synchronizer {
    /// Writes every rank's file and rank 0's manifest to the directory `path`, at once. Call [`end_saving`](Self::end_saving)
    /// afterwards.
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

    /// Begins to write this rank's files. `begin` is the start time of serialization.
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
        // A rank that could not serialize its records still takes part in the collectives.
        let (blobs, problem) = blobs.map_or_else(|problem| (Blobs::new(), Some(problem)), |blobs| (blobs, None));
        let (common, own) = self.divide(blobs)?;
        // The clock to save excludes the time of these collectives.
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

    /// Agrees that every rank's files are written, and writes the manifest if they are.
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
        // There is one manifest in each directory, so the other ranks must learn whether it could be written.
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
        // The manifest matches these files under either name, so the checkpoint is complete even if the renaming fails.
        let common = mine.common.map(|_| common_name(rank));
        for file in common.into_iter().chain([file_name(rank)]).map(|name| path.join(name)) {
            if let Err(error) = put_in_place(&file).or_else(|_| put_in_place(&file)) {
                tracing::warn!("the checkpoint is complete, but a file keeps the name it was written under: {error}");
            }
        }
        report.complete_seconds = begin.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Returns whether this rank does the work that is needed once in each directory.
    pub(crate) fn leads(&self) -> bool {
        let rank = self.rank();
        self.leaders.as_ref().map_or(rank == 0, |leaders| leaders.of(rank) == rank)
    }

    /// Waits until the manifest is in place, and excludes the time since `clock` from the run's time.
    pub(crate) fn end_saving(&mut self, clock: f64) -> Result<(), Error> {
        self.comm.scope().operation = "checkpoint save";
        self.comm.barrier()?;
        self.set_clock(clock);
        Ok(())
    }

    /// Sends this rank's checksums and receives those of all ranks; `None` for a failed write.
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

    /// Metadata of this rank's file: the run's identity and the rank.
    fn metadata(&self) -> HashMap<String, String> {
        let identity = self.joined.iter().flat_map(|joined| joined.identity.to_save());
        let rank = [(RANK.to_owned(), self.rank().to_string()), (WORLD.to_owned(), self.world().to_string())];
        identity.chain(rank).collect()
    }
}

/// Writes under temporary names: files of an earlier save of this step are valid until the manifest is replaced.
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
