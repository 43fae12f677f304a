//! Everything a run must remember, one file per rank.
//!
//! ```text
//! checkpoints/step-00000390/rank-0.safetensors   model, inner optimizer, residuals, controller, step
//!                           rank-1.safetensors
//!                           manifest.json        written last, by rank 0: a checkpoint without one is not complete
//! ```
//!
//! Every file is written under a temporary name, synced and renamed, so a full disk or a killed process leaves the checkpoint
//! before whole. Files are safetensors: residuals open in any tool. Resuming is bit-exact in a world of the same size;
//! another size is an explicit [`WorldChange`].

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use briquette_core::reduce::{Facts, Previous};
use briquette_core::state::{State, Value};
use briquette_core::Traffic;
use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::optimizer::DistributedOptimizer;

/// What to do with residuals when the world has another size than the one that saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorldChange {
    /// Another size is an error.
    #[default]
    Refuse,
    /// Residuals start at zero: what they held is lost.
    DropResiduals,
    /// Every rank starts with the mean of the saved residuals. Updates are means over ranks, so nothing is lost.
    SpreadResiduals,
}

/// Checkpoints kept when a new one is complete.
const KEEP: usize = 2;

/// Written when every rank's file is in place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Manifest {
    step: u64,
    world: usize,
    /// CRC-32 of each rank's file.
    checksums: Vec<u32>,
    /// What the training loop wants to know before it loads.
    notes: BTreeMap<String, String>,
}

/// The newest complete checkpoint under a directory.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

fn fail(path: &Path, problem: impl ToString) -> Error {
    Error::Checkpoint { path: path.to_owned(), problem: problem.to_string() }
}

impl Checkpoint {
    /// Finds the newest complete checkpoint in `directory`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when there is none, or a manifest cannot be read.
    pub fn latest(directory: &Path) -> Result<Checkpoint, Error> {
        let path = complete(directory).pop().ok_or_else(|| {
            fail(directory, "no complete checkpoint here (one has a manifest.json); give the directory of a run")
        })?;
        let text = fs::read_to_string(path.join("manifest.json")).map_err(|e| fail(&path, e))?;
        let manifest = serde_json::from_str(&text).map_err(|e| fail(&path, format!("manifest.json: {e}")))?;
        Ok(Checkpoint { path, manifest })
    }

    /// The step to continue with.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Ranks that saved.
    pub fn world(&self) -> usize {
        self.manifest.world
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A note left at saving.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.manifest.notes.get(name).map(String::as_str)
    }

    fn read(&self, rank: usize) -> Result<Vec<u8>, Error> {
        let path = self.path.join(file_name(rank));
        let bytes = fs::read(&path).map_err(|e| fail(&path, e))?;
        if Some(&crc32fast::hash(&bytes)) != self.manifest.checksums.get(rank) {
            return Err(fail(&path, "damaged: its checksum is not the manifest's; use the checkpoint before"));
        }
        Ok(bytes)
    }
}

/// Complete checkpoints, oldest first.
fn complete(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")))
        .filter(|p| p.join("manifest.json").is_file())
        .collect();
    paths.sort();
    paths
}

fn file_name(rank: usize) -> String {
    format!("rank-{rank}.safetensors")
}

/// Writes under a temporary name, syncs, renames.
fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".partial-").tempfile_in(directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|e| fail(path, format!("{e}; the checkpoint before is untouched")))
}

impl DistributedOptimizer {
    /// Saves a checkpoint under `directory`; every rank must call it at the same step. Buffers are averaged over ranks
    /// first and the averaged model is returned. `notes` (rank 0's count) come back from [`Checkpoint::note`]. Older
    /// checkpoints but one are removed once the new one is complete.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when a file cannot be written: no rank then counts the checkpoint as complete.
    pub fn save<M: Module>(
        &mut self,
        module: M,
        directory: &Path,
        notes: &BTreeMap<String, String>,
    ) -> Result<M, Error> {
        // Saving is outside of simulated time, and leaves the links idle as they are when the run is resumed.
        let clock = self.sync.comm.now();
        let module = self.sync.average_buffers(module)?;
        self.sync.comm.set_clock(clock);
        let path = directory.join(format!("step-{:08}", self.sync.step));
        let written = self.write_rank(&module, &path);
        let checksums = self.agree_on_files(&written)?;
        written?;
        if checksums.contains(&None) {
            let rank = checksums.iter().position(Option::is_none).unwrap_or_default();
            return Err(fail(&path, format!("rank {rank} could not write its file; the checkpoint before is untouched")));
        }
        if self.sync.rank() == 0 {
            let manifest = Manifest {
                step: self.sync.step,
                world: self.sync.world(),
                checksums: checksums.into_iter().flatten().collect(),
                notes: notes.clone(),
            };
            let text = serde_json::to_string_pretty(&manifest).map_err(|e| fail(&path, e))?;
            write_atomically(&path.join("manifest.json"), text.as_bytes())?;
            remove_old(directory);
        }
        self.sync.comm.scope().operation = "checkpoint save";
        self.sync.comm.barrier()?;
        self.sync.set_clock(clock);
        Ok(module)
    }

    fn write_rank<M: Module>(&self, module: &M, path: &Path) -> Result<u32, Error> {
        fs::create_dir_all(path).map_err(|e| fail(path, e))?;
        let bytes = self.to_bytes(module).map_err(|e| fail(path, e))?;
        write_atomically(&path.join(file_name(self.sync.rank())), &bytes)?;
        Ok(crc32fast::hash(&bytes))
    }

    /// Each rank's checksum, or `None` where writing failed.
    fn agree_on_files(&mut self, written: &Result<u32, Error>) -> Result<Vec<Option<u32>>, Error> {
        self.sync.comm.scope().operation = "checkpoint save";
        let mine = written.as_ref().map(|sum| sum.to_le_bytes().to_vec()).unwrap_or_default();
        let mut frames = Vec::new();
        self.sync.comm.all_gather(&mine, &mut frames)?;
        let rank = self.sync.rank();
        let sum = |bytes: &[u8]| bytes.first_chunk().map(|b| u32::from_le_bytes(*b));
        Ok(frames.iter().enumerate().map(|(r, f)| sum(if r == rank { &mine } else { f })).collect())
    }

    fn to_bytes<M: Module>(&self, module: &M) -> Result<Vec<u8>, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let model = module.clone().into_record().into_bytes().map_err(|e| text(&e))?;
        let optimizer = self.inner.into_bytes().map_err(|e| text(&e))?;
        let mut state = State::default();
        if let Some(joined) = &self.sync.joined {
            state.put_part("strategy", &*joined.strategy);
        }
        save_books(self, &mut state);
        let mut blobs: Vec<(String, Dtype, Vec<u8>)> = vec![
            ("model".into(), Dtype::U8, model.to_vec()),
            ("optimizer".into(), Dtype::U8, optimizer.to_vec()),
        ];
        blobs.extend(state.iter().map(|(name, value)| to_blob(name, value)));
        let views = blobs
            .iter()
            .map(|(name, dtype, bytes)| {
                let view = TensorView::new(*dtype, vec![bytes.len() / width(*dtype)], bytes);
                view.map(|view| (name.as_str(), view)).map_err(|e| text(&e))
            })
            .collect::<Result<Vec<_>, _>>()?;
        safetensors::serialize(views, Some(self.metadata())).map_err(|e| text(&e))
    }

    fn metadata(&self) -> HashMap<String, String> {
        let layout = self.sync.joined.as_ref().map(|j| j.inventory.layout.clone()).unwrap_or_default();
        HashMap::from([
            ("version".into(), env!("CARGO_PKG_VERSION").into()),
            ("rank".into(), self.sync.rank().to_string()),
            ("world".into(), self.sync.world().to_string()),
            ("seed".into(), self.sync.seed.to_string()),
            ("layout".into(), format!("{layout} ({:016x})", layout.fingerprint())),
            ("configuration".into(), serde_json::to_string(&self.sync.config).unwrap_or_default()),
        ])
    }

    /// Continues from a checkpoint: call it on every rank after [`join`](DistributedOptimizer::join), with the module that
    /// joined. In a world of the same size, what follows is bit for bit what would have followed without the break.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when a file is damaged or was saved by another model, configuration or world (what differs is
    /// named). On an error neither module nor optimizer has changed; the module is gone with the error.
    pub fn load<M: Module>(&mut self, module: M, checkpoint: &Checkpoint, change: WorldChange) -> Result<M, Error> {
        let (rank, world, saved) = (self.sync.rank(), self.sync.world(), checkpoint.world());
        if saved != world && change == WorldChange::Refuse {
            let problem = format!(
                "saved by {saved} ranks, this world has {world}: resume with {saved}, or choose what becomes of the residuals \
                 (DropResiduals or SpreadResiduals)"
            );
            return Err(fail(&checkpoint.path, problem));
        }
        let source = if saved == world { rank } else { rank % saved };
        let path = checkpoint.path.join(file_name(source));
        let bytes = checkpoint.read(source)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| fail(&path, e))?;
        self.check_metadata(&bytes, &path, saved == world)?;
        let mut state = read_state(&file).map_err(|e| fail(&path, e))?;
        if saved != world {
            spread(&mut state, checkpoint, change)?;
        }
        let blob = |name: &str| -> Result<Bytes, Error> {
            let view = file.tensor(name).map_err(|e| fail(&path, e))?;
            Ok(Bytes::from_bytes_vec(view.data().to_vec()))
        };
        let model = ModuleRecord::from_bytes(blob("model")?).map_err(|e| fail(&path, e))?;
        let optimizer = OptimizerRecord::from_bytes(blob("optimizer")?).map_err(|e| fail(&path, e))?;
        let module = module.try_load_record(model).map_err(|e| fail(&path, e))?;
        let joined = self.sync.joined.as_mut().ok_or(Error::NotJoined { rank })?;
        state.load_part("strategy", &mut *joined.strategy)?;
        let empty = ModuleOptimizer::clone(&self.inner);
        self.inner = empty.load_record(optimizer);
        load_books(self, &state)?;
        Ok(module)
    }

    /// What differs between the run that saved and this one.
    fn check_metadata(&self, bytes: &[u8], path: &Path, same_world: bool) -> Result<(), Error> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| fail(path, e))?;
        let saved = header.metadata().clone().unwrap_or_default();
        let ours = self.metadata();
        let mut fields = vec!["version", "layout", "configuration", "seed"];
        if same_world {
            fields.extend(["rank", "world"]);
        }
        for field in fields {
            let theirs = saved.get(field).map_or("absent", String::as_str);
            if theirs != ours[field] {
                let what = if field == "layout" { "model" } else { field };
                let problem = format!("saved by another {what}: {theirs} there, {} here", ours[field]);
                return Err(fail(path, problem));
            }
        }
        Ok(())
    }
}

fn remove_old(directory: &Path) {
    let mut paths = complete(directory);
    paths.truncate(paths.len().saturating_sub(KEEP));
    for path in paths {
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!("cannot remove the old checkpoint {}: {error}", path.display());
        }
    }
}

/// Step, clock, and what the next step's header must repeat.
fn save_books(optimizer: &DistributedOptimizer, state: &mut State) {
    let sync = &optimizer.sync;
    state.put("step", sync.step);
    state.put("clock", sync.comm.now());
    if let (Some(facts), Some(previous)) = (sync.facts, sync.previous) {
        state.put("facts/samples", facts.samples);
        state.put("facts/compute_seconds", facts.compute_seconds);
        state.put("previous/seconds", vec![previous.compress_seconds, previous.exchange_seconds]);
        state.put("previous/sent", previous.traffic.sent);
        state.put("previous/received", previous.traffic.received);
    }
}

fn load_books(optimizer: &mut DistributedOptimizer, state: &State) -> Result<(), Error> {
    let sync = &mut optimizer.sync;
    sync.step = state.u64("step")?;
    sync.set_clock(state.f64("clock")?);
    (sync.facts, sync.previous) = (None, None);
    if state.contains("facts/samples") {
        let seconds = state.f64s("previous/seconds")?;
        sync.facts = Some(Facts {
            samples: state.u64("facts/samples")?,
            compute_seconds: state.f64("facts/compute_seconds")?,
            ..Facts::default()
        });
        sync.previous = Some(Previous {
            compress_seconds: seconds.first().copied().unwrap_or_default(),
            exchange_seconds: seconds.get(1).copied().unwrap_or_default(),
            traffic: Traffic { sent: state.u64("previous/sent")?, received: state.u64("previous/received")? },
            ..Previous::default()
        });
    }
    Ok(())
}

/// Residuals of a world of another size: zero, or the mean over the ranks that saved.
fn spread(state: &mut State, checkpoint: &Checkpoint, change: WorldChange) -> Result<(), Error> {
    let world = checkpoint.world();
    let mut others = Vec::new();
    for rank in (0..world).filter(|_| change == WorldChange::SpreadResiduals) {
        let path = checkpoint.path.join(file_name(rank));
        let bytes = checkpoint.read(rank)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| fail(&path, e))?;
        others.push(read_state(&file).map_err(|e| fail(&path, e))?);
    }
    for suffix in ["residual", "velocity"] {
        state.for_each_f32s(suffix, |name, values| {
            let mut sums = vec![0.0_f64; values.len()];
            for other in &others {
                let theirs = other.f32s(name, Some(sums.len())).unwrap_or_default();
                sums.iter_mut().zip(theirs).for_each(|(sum, v)| *sum += f64::from(*v));
            }
            values.iter_mut().zip(sums).for_each(|(v, sum)| *v = (sum / world as f64) as f32);
        });
    }
    Ok(())
}

const PREFIX: &str = "state/";

fn width(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => 4,
        Dtype::F64 | Dtype::U64 => 8,
        _ => 1,
    }
}

/// A lone number is told from a vector of one by its name.
fn to_blob(name: &str, value: &Value) -> (String, Dtype, Vec<u8>) {
    let named = |kind: &str| format!("{PREFIX}{kind}{name}");
    match value {
        Value::F32s(v) => (named(""), Dtype::F32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Value::F64s(v) => (named(""), Dtype::F64, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Value::F64(x) => (named("one:"), Dtype::F64, x.to_le_bytes().to_vec()),
        Value::U64(x) => (named("one:"), Dtype::U64, x.to_le_bytes().to_vec()),
        other => unreachable!("a state value without a file form: {other:?}"),
    }
}

fn read_state(file: &SafeTensors<'_>) -> Result<State, String> {
    let mut state = State::default();
    for (name, view) in file.tensors() {
        let Some(name) = name.strip_prefix(PREFIX) else { continue };
        let f64s = || view.data().as_chunks().0.iter().map(|b| f64::from_le_bytes(*b));
        let value: Value = match (view.dtype(), name.starts_with("one:")) {
            (Dtype::F32, false) => {
                view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>().into()
            }
            (Dtype::F64, false) => f64s().collect::<Vec<_>>().into(),
            (Dtype::F64, true) => f64s().next().unwrap_or_default().into(),
            (Dtype::U64, true) => {
                view.data().first_chunk().map(|b| u64::from_le_bytes(*b)).unwrap_or_default().into()
            }
            (dtype, _) => return Err(format!("`{name}` has the unexpected type {dtype:?}")),
        };
        state.put(name.strip_prefix("one:").unwrap_or(name), value);
    }
    Ok(state)
}
