//! Opening of regular files without blocking.
//!
//! Code that reads or writes a run's directory opens its files here. Another kind of file may have the expected name: a
//! FIFO, on which opening blocks until a writer appears; a device, from which reading never ends; a directory. Only
//! regular files, and links to them, are opened. For everything else, the error names the kind of file at once, and the
//! caller treats it as a damaged file.
//!
//! ```
//! use briquette_core::files;
//! let directory = std::env::temp_dir();
//! let error = files::read(&directory).unwrap_err();
//! assert!(files::is_irregular(&error));
//! assert_eq!(error.to_string(), "it is a directory, not a regular file");
//! ```

use std::ffi::OsString;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Error for a name that is not a regular file, with the kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is {0}, not a regular file")]
struct Irregular(&'static str);

/// Opens a regular file for reading.
///
/// # Errors
/// System errors, and an [irregular](is_irregular) file.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file for reading and writing. Creates it if the name is free; existing content stays.
///
/// # Errors
/// As for [`open`].
pub fn open_or_create(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))
}

/// Creates an empty regular file for writing, in place of any file with that name except a directory. A link is
/// replaced, not followed.
///
/// # Errors
/// System errors.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => fs::remove_file(path)?,
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    without_waiting(&mut options, true);
    regular(options.open(path)?)
}

/// Returns the bytes of a regular file.
///
/// # Errors
/// As for [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the text of a regular file.
///
/// # Errors
/// As for [`open`], and [`ErrorKind::InvalidData`] if the file is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns whether the error is that of this module for a name that is not a regular file.
pub fn is_irregular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Irregular>)
}

/// Renames a file of any kind, to free its name without loss. The new name has the ending `.damaged`, or the first free
/// one of `.damaged-2`, `.damaged-3`, ….
///
/// # Errors
/// System errors.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut aside = with_ending(path, ".damaged");
    for number in 2.. {
        match fs::symlink_metadata(&aside) {
            Ok(_) => aside = with_ending(path, &format!(".damaged-{number}")),
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(ending);
    path.with_file_name(name)
}

/// Renames a written file, replacing any file with the new name. A directory cannot be replaced by a file, so it is
/// [set aside](set_aside) first.
///
/// # Errors
/// System errors.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    if fs::symlink_metadata(to).is_ok_and(|found| found.is_dir()) {
        set_aside(to)?;
    }
    fs::rename(from, to)
}

fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Check first, because opening a device may have side effects.
    match fs::metadata(path) {
        Ok(found) => check(found.file_type())?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    without_waiting(options, false);
    regular(options.open(path)?)
}

/// Checks the opened file: the name may refer to another file by now.
fn regular(file: File) -> io::Result<File> {
    check(file.metadata()?.file_type())?;
    Ok(file)
}

fn check(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidData, Irregular(describe(kind))))
}

#[cfg(unix)]
fn describe(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "of a special kind",
    }
}

#[cfg(not(unix))]
fn describe(kind: FileType) -> &'static str {
    if kind.is_dir() { "a directory" } else { "of a special kind" }
}

#[cfg(unix)]
fn without_waiting(options: &mut OpenOptions, replaces_links: bool) {
    use std::os::unix::fs::OpenOptionsExt;
    let links = if replaces_links { libc::O_NOFOLLOW } else { 0 };
    options.custom_flags(libc::O_NONBLOCK | links);
}

#[cfg(not(unix))]
fn without_waiting(_: &mut OpenOptions, _: bool) {}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("briquette-files-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Creates one file of each irregular kind, each under its own name.
    fn special(directory: &Path) -> Vec<(PathBuf, &'static str)> {
        let at = |name: &str| directory.join(name);
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        symlink("fifo", at("link")).unwrap();
        [
            ("fifo", "a FIFO"),
            ("socket", "a socket"),
            ("directory", "a directory"),
            ("zero", "a device"),
            ("link", "a FIFO"),
        ]
        .map(|(name, kind)| (at(name), kind))
        .to_vec()
    }

    #[test]
    fn what_is_no_regular_file_is_named_at_once() {
        let at = directory("named");
        for (path, kind) in special(&at) {
            for error in [read(&path).unwrap_err(), open_or_create(&path).unwrap_err()] {
                assert!(is_irregular(&error) && error.to_string().contains(kind), "{}: {error}", path.display());
            }
        }
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn a_new_file_takes_the_place_of_all_but_a_directory_and_no_link_is_followed() {
        let at = directory("new");
        fs::write(at.join("kept"), "as it was").unwrap();
        symlink("kept", at.join("to a file")).unwrap();
        let found = special(&at).into_iter().map(|(path, _)| path).chain([at.join("to a file"), at.join("free")]);
        for path in found {
            match create(&path) {
                Ok(mut file) => file.write_all(b"new").unwrap(),
                Err(_) => {
                    assert!(path.is_dir());
                    continue;
                }
            }
            assert_eq!(read(&path).unwrap(), b"new");
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
        }
        assert_eq!(read_to_string(&at.join("kept")).unwrap(), "as it was");
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn regular_files_and_links_to_them_are_read_and_what_is_absent_is_not_irregular() {
        let at = directory("plain");
        let path = at.join("file");
        assert_eq!(read(&path).unwrap_err().kind(), ErrorKind::NotFound);
        open_or_create(&path).unwrap().write_all(b"text").unwrap();
        symlink("file", at.join("link")).unwrap();
        assert_eq!(read_to_string(&at.join("link")).unwrap(), "text");
        open_or_create(&path).unwrap();
        assert_eq!(read(&path).unwrap(), b"text", "what is in it stays");
        let aside = set_aside(&path).unwrap();
        assert_eq!((path.exists(), read(&aside).unwrap()), (false, b"text".to_vec()));
        fs::remove_dir_all(at).unwrap();
    }

    /// Two consecutive runs each find a file of another kind at their file's name.
    #[test]
    fn what_was_set_aside_before_stays() {
        let at = directory("aside");
        let (path, aside) = (at.join("file"), |name: &str| at.join(format!("file.{name}")));
        symlink("nowhere", aside("damaged-3")).unwrap();
        for (resume, name) in [(0, "damaged"), (1, "damaged-2"), (2, "damaged-4")] {
            fs::write(&path, [resume]).unwrap();
            assert_eq!(set_aside(&path).unwrap(), aside(name));
        }
        for (resume, name) in [(0, "damaged-5"), (1, "damaged-6")] {
            fs::create_dir_all(path.join("inside")).unwrap();
            fs::write(at.join("new"), [resume]).unwrap();
            rename(&at.join("new"), &path).unwrap();
            assert_eq!((read(&path).unwrap(), aside(name).join("inside").is_dir()), (vec![resume], true));
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(["damaged", "damaged-2", "damaged-4"].map(|name| read(&aside(name)).unwrap()), [[0], [1], [2]]);
        fs::remove_dir_all(at).unwrap();
    }
}
