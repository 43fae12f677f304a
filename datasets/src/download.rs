//! Download of an official archive: stream, verify, unpack next to the target, rename.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use md5::{Digest, Md5};
use ureq::Agent;

use crate::catalog::Catalog;
use crate::error::DataError;
use crate::find;

/// Download settings, used if no directory has the files: permission, server and target.
#[derive(Debug, Clone, PartialEq)]
pub struct Download {
    /// `false` makes missing files an immediate error.
    pub allowed: bool,
    /// Hides the progress bar, which is only shown on a terminal in any case.
    pub quiet: bool,
    /// Cache directory; `None` is the user's, as reported by the operating system.
    pub cache: Option<PathBuf>,
    /// Server to use instead of the official one.
    pub mirror: Option<Mirror>,
    /// Time limit of the whole download. Connecting is limited to 10 s, and silence within the download to 30 s.
    pub timeout: Duration,
}

/// A server that has the archives under their official names.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirror {
    /// Address of the directory that holds the archive.
    pub base_url: String,
    /// MD5 of its archive; `None` if it is the official archive.
    pub md5: Option<String>,
}

impl Default for Download {
    fn default() -> Self {
        Self { allowed: true, quiet: false, cache: None, mirror: None, timeout: Duration::from_secs(3600) }
    }
}

impl Download {
    pub(crate) fn cache_dir(&self) -> Option<PathBuf> {
        let user = || Some(directories::BaseDirs::new()?.cache_dir().to_path_buf());
        self.cache.clone().or_else(user)
    }

    pub(crate) fn url(&self, catalog: &Catalog) -> String {
        let base = self.mirror.as_ref().map_or(catalog.base_url, |mirror| &mirror.base_url);
        format!("{}/{}", base.trim_end_matches('/'), catalog.archive)
    }

    fn md5<'a>(&'a self, catalog: &'a Catalog) -> &'a str {
        let mirrored = self.mirror.as_ref().and_then(|mirror| mirror.md5.as_deref());
        mirrored.unwrap_or(catalog.archive_md5)
    }
}

/// Downloads the data set into `target`. Does nothing if another process has just downloaded it.
pub(crate) fn fetch(
    catalog: &'static Catalog,
    target: Option<&Path>,
    looked: &[PathBuf],
    download: &Download,
) -> Result<(), DataError> {
    let url = download.url(catalog);
    let not_found = |reason: String| DataError::NotFound {
        dataset: catalog.name,
        looked: looked.to_vec(),
        wanted: catalog.wanted(),
        tried: url.clone(),
        reason,
    };
    if !download.allowed {
        return Err(not_found("downloading is switched off".to_owned()));
    }
    let Some((target, parent)) = target.and_then(|target| Some((target, target.parent()?))) else {
        return Err(not_found("this system names no cache directory to download to".to_owned()));
    };
    fs::create_dir_all(parent).map_err(DataError::io("create", parent))?;
    let deadline = Instant::now() + download.timeout;
    let lock_path = parent.join(format!(".{}.lock", catalog.folder));
    let (_lock, is_alone) = lock(&lock_path, deadline).map_err(DataError::io("lock", &lock_path))?;
    let prefix = format!(".{}-", catalog.folder);
    if is_alone {
        remove_leftovers(parent, &prefix, download.timeout);
    }
    if find::look(catalog, target)?.is_some() {
        return Ok(());
    }
    let aside = tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(parent)
        .map_err(DataError::io("create a temporary directory in", parent))?;
    let archive = aside.path().join(catalog.archive);
    let got = transfer(&url, &archive, download, deadline).map_err(|problem| not_found(problem.to_string()))?;
    if got != download.md5(catalog) {
        let expected = download.md5(catalog).to_owned();
        return Err(DataError::Checksum { file: url, expected, got });
    }
    install(catalog, &archive, target, &url)
}

/// Unpacks next to the archive, then renames: `target` is either absent or complete.
fn install(catalog: &'static Catalog, archive: &Path, target: &Path, url: &str) -> Result<(), DataError> {
    let unpacked = archive.with_file_name(catalog.folder);
    unpack(catalog, archive, &unpacked, url)?;
    match fs::rename(&unpacked, target) {
        Err(_) if find::look(catalog, target)?.is_some() => Ok(()), // another process was faster
        done => done.map_err(DataError::io("rename the unpacked files to", target)),
    }
}

/// Removes leftovers of killed downloads, that is, files older than a download may take: locks of some network file
/// systems do not reach other hosts. Files that cannot be removed stay, without harm.
fn remove_leftovers(parent: &Path, prefix: &str, timeout: Duration) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        let begun = entry.metadata().ok().filter(fs::Metadata::is_dir).and_then(|entry| entry.modified().ok());
        if is_named && begun.and_then(|time| time.elapsed().ok()).is_some_and(|age| age > timeout) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Takes the lock that permits one download at a time per data set and cache directory; the operating system releases
/// the lock of a dead process. `false`: locks are not supported here.
fn lock(path: &Path, deadline: Instant) -> io::Result<(File, bool)> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok((file, true)),
            // Some network file systems have no locks. Two downloads are then wasteful but still safe.
            Err(TryLockError::Error(_)) => return Ok((file, false)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let text = "another process is still downloading the same data";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Streams an address into a file and returns the MD5 of the received bytes.
fn transfer(
    url: &str,
    to: &Path,
    download: &Download,
    deadline: Instant,
) -> Result<String, Box<dyn std::error::Error>> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    let mut response = agent(url, remaining).get(url).call()?;
    let length = response.body().content_length();
    let bar = progress_bar(length, download.quiet);
    let mut body = response.body_mut().as_reader();
    let (mut file, mut digest) = (File::create(to)?, Md5::new());
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    loop {
        let count = body.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count])?;
        digest.update(&buffer[..count]);
        total += count as u64;
        bar.set_position(total);
    }
    bar.finish_and_clear();
    match length {
        Some(length) if length != total => Err(format!("the connection ended after {total} of {length} bytes").into()),
        _ => Ok(format!("{:x}", digest.finalize())),
    }
}

fn agent(url: &str, limit: Duration) -> Agent {
    let mut config = Agent::config_builder()
        .timeout_global(Some(limit))
        .timeout_connect(Some(limit.min(Duration::from_secs(10))))
        .timeout_per_read(Some(limit.min(Duration::from_secs(30))))
        // The archive's own bytes are wanted: a decoded transfer would not have its MD5.
        .accept_encoding("identity");
    if url.starts_with("http://127.0.0.1") || url.starts_with("http://localhost") {
        config = config.proxy(None); // a proxy would look on its own machine
    }
    config.build().new_agent()
}

fn progress_bar(length: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left").expect("the template is valid");
    length.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_style(style)
}

/// Unpacks only the official files of an archive, into a new directory without folders.
fn unpack(catalog: &Catalog, archive: &Path, to: &Path, url: &str) -> Result<(), DataError> {
    let broken = |problem: io::Error| DataError::Archive {
        url: url.to_owned(),
        problem: format!("cannot be unpacked: {problem}"),
    };
    fs::create_dir(to).map_err(DataError::io("create", to))?;
    let file = File::open(archive).map_err(DataError::io("open", archive))?;
    let mut entries = tar::Archive::new(GzDecoder::new(file));
    for entry in entries.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        let wanted = catalog.official().find(|official| path.ends_with(official.name));
        // Only bare, known names are ever joined to `to`, so no entry can write elsewhere.
        if let Some(official) = wanted.filter(|_| entry.header().entry_type().is_file()) {
            let path = to.join(official.name);
            let mut file = File::create(&path).map_err(DataError::io("create", &path))?;
            io::copy(&mut entry, &mut file).map_err(broken)?;
        }
    }
    match catalog.official().find(|official| !to.join(official.name).is_file()) {
        Some(missing) => Err(DataError::Archive { url: url.to_owned(), problem: format!("holds no {}", missing.name) }),
        None => Ok(()),
    }
}
