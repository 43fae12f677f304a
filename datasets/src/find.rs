//! Locates the files of a data set, and downloads them if needed.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::catalog::{Catalog, Official, Part};
use crate::download::{self, Download};
use crate::error::DataError;

/// A file to read, with the official file it is claimed to be.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub(crate) path: PathBuf,
    pub(crate) official: Option<&'static Official>,
}

impl DataFile {
    /// The file's name without its directory, for notes.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Files of a data set in one directory.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) train: PartFiles,
    pub(crate) test: PartFiles,
}

/// Files of one part, at least one, in the order of their rows.
#[derive(Debug)]
pub(crate) struct PartFiles {
    pub(crate) part: &'static Part,
    pub(crate) files: Vec<DataFile>,
}

/// Finds the files: in the `given` directory and nowhere else, or in the caches, downloading them if needed.
pub(crate) fn find(catalog: &'static Catalog, given: Option<&Path>, download: &Download) -> Result<Found, DataError> {
    if let Some(given) = given {
        let found = look(catalog, given)?.ok_or_else(|| missing(catalog, given))?;
        tracing::info!("reading {} from {}", catalog.name, given.display());
        return Ok(found);
    }
    let cache = download.cache_dir();
    let own = cache.as_ref().map(|cache| cache.join("briquette").join(catalog.folder));
    let burn = cache.as_ref().zip(catalog.burn_folder).map(|(cache, folder)| cache.join(folder));
    let looked: Vec<PathBuf> = own.clone().into_iter().chain(burn).collect();
    for dir in &looked {
        if let Some(found) = look(catalog, dir)? {
            tracing::info!("reading {} from {}", catalog.name, dir.display());
            return Ok(found);
        }
    }
    download::fetch(catalog, own.as_deref(), &looked, download)?;
    let own = own.expect("fetch fails without a cache directory");
    look(catalog, &own)?.ok_or_else(|| DataError::Archive {
        url: download.url(catalog),
        problem: "its files vanished after they were unpacked".to_owned(),
    })
}

/// Creates the error for a directory that has no files of a data set.
fn missing(catalog: &'static Catalog, directory: &Path) -> DataError {
    let problem = match (directory.exists(), directory.is_dir()) {
        (false, _) => "there is no such directory".to_owned(),
        (true, false) => "it is not a directory".to_owned(),
        (true, true) => hint(catalog, directory).unwrap_or_else(|| format!("it has no {} files", catalog.name)),
    };
    DataError::Missing { directory: directory.to_owned(), problem, wanted: catalog.wanted() }
}

/// Returns the likeliest reason why a directory does not hold the data set: one part is missing, or it has another
/// version, an archive, or names in another case.
fn hint(catalog: &'static Catalog, directory: &Path) -> Option<String> {
    let Catalog { name, train, test, extension, .. } = catalog;
    for folder in folders(catalog, directory) {
        let has = |part| files(part, extension, &folder).ok().flatten().is_some();
        let (there, absent) = match (has(train), has(test)) {
            (true, false) => (train.role, test.role),
            (false, true) => (test.role, train.role),
            _ => continue,
        };
        return Some(format!("it has {name} {there} files, but no {absent} files"));
    }
    let mut names: Vec<String> = folders(catalog, directory).iter().flat_map(|folder| names(folder)).collect();
    names.sort();
    let found = |is: &dyn Fn(&str) -> bool| names.iter().find(|name| is(name));
    let is_part = |name: &str| [train, test].iter().any(|part| name.to_lowercase().starts_with(part.prefix));
    let is_python = |name: &str| {
        *extension == "bin"
            && (name.ends_with("-batches-py") || name.ends_with("-python") || is_part(name) && !name.contains('.'))
    };
    if let Some(python) = found(&is_python) {
        return Some(format!(
            "{python} is of the Python version of {name}, not of the binary version in {}",
            catalog.archive
        ));
    }
    let ends = |name: &str, endings: &[&str]| endings.iter().any(|ending| name.to_lowercase().ends_with(ending));
    if let Some(archive) = found(&|name| ends(name, &[".tar.gz", ".tgz", ".tar", ".zip", ".gz"])) {
        return Some(format!("{archive} in it is an archive: unpack it there"));
    }
    if let Some(table) = found(&|name| is_part(name) && ends(name, &[".parquet", ".arrow", ".json", ".jsonl"])) {
        return Some(format!("{table} is of another format: convert it to .{extension}"));
    }
    let other = found(&|name| is_part(name) && ends(name, &[extension]))?;
    Some(format!("{other} is not in lower case: rename it"))
}

/// Returns the names in a directory; empty if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the folders that may hold the files: the directory itself, and those in it with the archive's or this crate's name.
fn folders(catalog: &Catalog, dir: &Path) -> [PathBuf; 3] {
    [dir.to_path_buf(), dir.join(catalog.archive_folder), dir.join(catalog.folder)]
}

/// Finds the files below one directory, in the first of its [`folders`] that has both parts.
pub(crate) fn look(catalog: &'static Catalog, dir: &Path) -> Result<Option<Found>, DataError> {
    for folder in folders(catalog, dir) {
        let train = files(&catalog.train, catalog.extension, &folder)?;
        let test = files(&catalog.test, catalog.extension, &folder)?;
        if let (Some(train), Some(test)) = (train, test) {
            return Ok(Some(Found { train, test }));
        }
    }
    Ok(None)
}

/// Finds the files of a part. Official names take precedence; other names with the same prefix are used only if no
/// official one is present.
fn files(part: &'static Part, extension: &str, folder: &Path) -> Result<Option<PartFiles>, DataError> {
    let mut files = Vec::new();
    for official in part.official {
        let path = folder.join(official.name);
        if is_file(&path)? {
            files.push(DataFile { path, official: Some(official) });
        }
    }
    if files.is_empty() {
        let entries = match fs::read_dir(folder) {
            Err(error) if is_absent(&error) => return Ok(None),
            entries => entries.map_err(DataError::io("read the directory", folder))?,
        };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file() && path.extension().is_some_and(|e| e == extension))
            .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(part.prefix)))
            .collect();
        paths.sort();
        files.extend(paths.into_iter().map(|path| DataFile { path, official: None }));
    }
    Ok((!files.is_empty()).then_some(PartFiles { part, files }))
}

/// Returns whether a file exists. If it cannot be determined, that is an error with the system's reason.
fn is_file(path: &Path) -> Result<bool, DataError> {
    match fs::metadata(path) {
        Ok(found) => Ok(found.is_file()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(DataError::io("look at", path)(error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind())
}
