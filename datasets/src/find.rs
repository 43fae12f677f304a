//! Where the files of a data set are, downloading them if need be.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::catalog::{Catalog, Official, Part};
use crate::download::{self, Download};
use crate::error::DataError;

/// A file to read, with the official one it claims to be.
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

/// The files of a data set in one directory.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) train: PartFiles,
    pub(crate) test: PartFiles,
}

/// The files of one part, at least one, in the order of their rows.
#[derive(Debug)]
pub(crate) struct PartFiles {
    pub(crate) part: &'static Part,
    pub(crate) files: Vec<DataFile>,
}

/// Finds the files: in the `given` directory and nowhere else, or in the caches, downloading them if need be.
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

/// What is wrong with a directory that has no files of a data set.
fn missing(catalog: &'static Catalog, directory: &Path) -> DataError {
    let problem = match (directory.exists(), directory.is_dir()) {
        (false, _) => "there is no such directory".to_owned(),
        (true, false) => "it is not a directory".to_owned(),
        (true, true) => format!("it has no {} files", catalog.name),
    };
    DataError::Missing { directory: directory.to_owned(), problem, wanted: catalog.wanted() }
}

/// The files below one directory: in itself, or in a folder with the archive's or this crate's name.
pub(crate) fn look(catalog: &'static Catalog, dir: &Path) -> Result<Option<Found>, DataError> {
    for folder in [dir.to_path_buf(), dir.join(catalog.archive_folder), dir.join(catalog.folder)] {
        let train = files(&catalog.train, catalog.extension, &folder)?;
        let test = files(&catalog.test, catalog.extension, &folder)?;
        if let (Some(train), Some(test)) = (train, test) {
            return Ok(Some(Found { train, test }));
        }
    }
    Ok(None)
}

/// Official names win; others that begin alike are used only where no official one is there.
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

/// Whether a file is there. One that cannot be looked at may be: that is an error, with the system's reason.
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
