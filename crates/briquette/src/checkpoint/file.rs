//! File format of one rank's file, and durable writes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use briquette_core::files;
use briquette_core::state::State;
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::state::{PREFIX, to_blob, width};
use super::{fail, ids};
use crate::error::Error;
use crate::flat::{self, Part};

/// Burn's records by name, in Burn's own byte format.
pub(crate) type Blobs = Vec<(&'static str, Bytes)>;

/// One rank's file, after reading it and checking that it belongs to this run.
pub(crate) struct Saved {
    pub(crate) path: PathBuf,
    /// Input of [`Synchronizer::prepare`].
    pub(crate) state: State,
    /// Set if a world of this size saved it.
    pub(super) same_world: bool,
    pub(super) blobs: BTreeMap<String, Bytes>,
}

impl Saved {
    /// Takes one of the [`Blobs`] and parses it.
    pub(crate) fn record<R, E: ToString>(
        &mut self,
        name: &str,
        parse: impl FnOnce(Bytes) -> Result<R, E>,
    ) -> Result<R, Error> {
        let bytes = self.blobs.remove(name).ok_or_else(|| fail(&self.path, format!("it has no `{name}`")))?;
        parse(bytes).map_err(|e| fail(&self.path, e.to_string()))
    }

    /// Loads the saved values, including rank-local ones, into `module`. Returns it with the optimizer's state, whose ids are
    /// mapped to those of `module`.
    pub(crate) fn load<M: Module>(&mut self, module: M) -> Result<(M, OptimizerRecord), Error> {
        let model = self.record("model", ModuleRecord::from_bytes)?;
        // A pending update of BatchNorm would replace the loaded values.
        flat::drain(&module);
        let local = ids::ids(&module);
        let module = module.try_load_record(model).map_err(|e| fail(&self.path, e))?;
        let (module, renamed) = ids::keep(module, &local);
        let module = self.own("parameters", module, Part::Trainable)?;
        let module = self.own("buffers", module, Part::Buffers)?;
        let optimizer = self.record("optimizer", |bytes| {
            let bytes = ids::rename(bytes, &renamed).map_err(|e| e.to_string())?;
            OptimizerRecord::from_bytes(bytes).map_err(|e| e.to_string())
        })?;
        Ok((module, optimizer))
    }

    /// Loads this rank's own values. If the file has none, `module` keeps the means.
    fn own<M: Module>(&mut self, name: &str, module: M, part: Part) -> Result<M, Error> {
        let Some(bytes) = self.blobs.remove(name) else { return Ok(module) };
        let problem = || format!("its `{name}` are {} bytes, which is not what the model has", bytes.len());
        flat::write_bytes(module, part, &bytes).map_err(|_| fail(&self.path, problem()))
    }
}

/// Syncs a directory: a new file name is durable only after its directory is synced.
fn sync_directory(directory: &Path) -> std::io::Result<()> {
    if cfg!(unix) { fs::File::open(directory)?.sync_all() } else { Ok(()) }
}

/// Creates a directory and its missing ancestors, and makes each durable in its parent. (The parent is always synced, because
/// another rank may have just created the directory.)
pub(crate) fn make_directory(path: &Path) -> std::io::Result<()> {
    let above =
        |path: &Path| path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new(".")).to_owned();
    let missing: Vec<&Path> = path.ancestors().skip(1).take_while(|p| *p != Path::new("") && !p.is_dir()).collect();
    fs::create_dir_all(path)?;
    [path].into_iter().chain(missing).try_for_each(|made| sync_directory(&above(made)))
}

/// Returns the temporary name of a file. It is always the same, so the next attempt replaces the file of a killed
/// process.
pub(super) fn partial(path: &Path) -> PathBuf {
    path.with_file_name(format!(".partial-{}", path.file_name().unwrap_or_default().to_string_lossy()))
}

/// Writes a file under its [`partial`] name, then syncs it and its name. Returns the seconds of the write and of the
/// syncs.
pub(crate) fn write_partial(path: &Path, bytes: &[u8]) -> Result<[f64; 2], Error> {
    let (directory, partial) = (path.parent().unwrap_or(Path::new(".")), partial(path));
    let write = || -> std::io::Result<[f64; 2]> {
        let begin = Instant::now();
        let mut file = files::create(&partial)?;
        file.write_all(bytes)?;
        let written = begin.elapsed();
        file.sync_all()?;
        sync_directory(directory)?;
        Ok([written.as_secs_f64(), (begin.elapsed() - written).as_secs_f64()])
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&partial);
        fail(path, format!("{e}; the checkpoint before is untouched"))
    })
}

/// Renames a written file to its final name, replacing an existing file. If a directory has that name, it is moved away, because
/// a file cannot replace it.
pub(crate) fn put_in_place(path: &Path) -> Result<(), Error> {
    let put = || {
        files::rename(&partial(path), path)?;
        sync_directory(path.parent().unwrap_or(Path::new(".")))
    };
    put().map_err(|e: std::io::Error| fail(path, format!("{e}; the checkpoint before is untouched")))
}

/// Serializes Burn's records and this crate's state into one file.
pub(super) fn serialize(records: &Blobs, state: &State, metadata: HashMap<String, String>) -> Result<Vec<u8>, String> {
    let state: Vec<(String, Dtype, Vec<u8>)> = state.iter().map(|(name, value)| to_blob(name, value)).collect();
    let records = records.iter().map(|(name, bytes)| (*name, Dtype::U8, &bytes[..]));
    let views = records
        .chain(state.iter().map(|(name, dtype, bytes)| (name.as_str(), *dtype, &bytes[..])))
        .map(|(name, dtype, bytes)| {
            let view = TensorView::new(dtype, vec![bytes.len() / width(dtype)], bytes);
            view.map(|view| (name, view)).map_err(|e| e.to_string())
        })
        .collect::<Result<Vec<_>, _>>()?;
    safetensors::serialize(views, Some(metadata)).map_err(|e| e.to_string())
}

/// Returns Burn's records.
pub(super) fn read_blobs(file: &SafeTensors<'_>) -> BTreeMap<String, Bytes> {
    let blobs = file.tensors().into_iter().filter(|(name, _)| !name.starts_with(PREFIX));
    blobs.map(|(name, view)| (name, Bytes::from_bytes_vec(view.data().to_vec()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_of_a_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        // An interrupted first attempt.
        fs::write(directory.path().join(".partial-file"), "ha").unwrap();
        let path = directory.path().join("file");
        write_partial(&path, b"half no more").unwrap();
        put_in_place(&path).unwrap();
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["file"]);
        assert_eq!(fs::read(directory.path().join("file")).unwrap(), b"half no more");
    }
}
