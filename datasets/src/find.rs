//! Where the files of a data set are, downloading them if need be.

use std::path::{Path, PathBuf};

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

/// Finds the files: `given` directory, caches, download.
pub(crate) fn find(
    catalog: &'static Catalog,
    given: Option<&Path>,
    download: &Download,
    notes: &mut Vec<String>,
) -> Result<Found, DataError> {
    let cache = download.cache_dir();
    let own = cache.as_ref().map(|cache| cache.join("briquette").join(catalog.folder));
    let burn = cache.as_ref().zip(catalog.burn_folder).map(|(cache, folder)| cache.join(folder));
    let looked: Vec<PathBuf> = given.map(Path::to_path_buf).into_iter().chain(own.clone()).chain(burn).collect();
    let mut found = looked.iter().find_map(|dir| look(catalog, dir).map(|found| (found, dir)));
    if found.is_none() {
        download::fetch(catalog, own.as_deref(), &looked, download)?;
        let own = own.as_ref().expect("fetch fails without a cache directory");
        found = look(catalog, own).map(|found| (found, own));
    }
    let (files, dir) = found.ok_or_else(|| DataError::Archive {
        url: download.url(catalog),
        problem: "its files vanished after they were unpacked".to_owned(),
    })?;
    tracing::info!("reading {} from {}", catalog.name, dir.display());
    if let Some(given) = given.filter(|given| given != dir) {
        notes.push(format!("{} has no {} files; read from {} instead", given.display(), catalog.name, dir.display()));
    }
    Ok(files)
}

/// The files below one directory: in itself, or in a folder with the archive's or this crate's name.
pub(crate) fn look(catalog: &'static Catalog, dir: &Path) -> Option<Found> {
    let folders = [dir.to_path_buf(), dir.join(catalog.archive_folder), dir.join(catalog.folder)];
    folders.iter().find_map(|folder| {
        let train = files(&catalog.train, catalog.extension, folder)?;
        let test = files(&catalog.test, catalog.extension, folder)?;
        Some(Found { train, test })
    })
}

/// Official names win; others that begin alike are used only where no official one is there.
fn files(part: &'static Part, extension: &str, folder: &Path) -> Option<PartFiles> {
    let mut files: Vec<DataFile> = part
        .official
        .iter()
        .map(|official| DataFile { path: folder.join(official.name), official: Some(official) })
        .filter(|file| file.path.is_file())
        .collect();
    if files.is_empty() {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file() && path.extension().is_some_and(|e| e == extension))
            .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(part.prefix)))
            .collect();
        paths.sort();
        files.extend(paths.into_iter().map(|path| DataFile { path, official: None }));
    }
    (!files.is_empty()).then_some(PartFiles { part, files })
}
