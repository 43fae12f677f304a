//! Errors of finding, reading and dividing data; each names its location.

use std::path::PathBuf;

/// Error of finding, reading or dividing data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// No directory holds the data set and it could not be downloaded.
    #[error(
        "{dataset} was not found, and could not be downloaded\n  \
         looked in: {}\n  \
         files wanted: {wanted}\n  \
         source tried: {tried}: {reason}\n  \
         what to do: put the files into one of these directories, name another with --data DIR, \
         or run with --dataset generated, which needs no files",
        directories(looked)
    )]
    NotFound {
        /// Display name of the data set.
        dataset: &'static str,
        /// Searched directories, in order.
        looked: Vec<PathBuf>,
        /// Files that one of them should hold.
        wanted: String,
        /// Address of the archive.
        tried: String,
        /// Reason why the download failed.
        reason: String,
    },
    /// The given directory does not hold the data set. No other directory is used instead.
    #[error("--data {}: {problem}; files wanted: {wanted}. Without --data, the cache's or downloaded files are used", directory.display())]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// Its defect.
        problem: String,
        /// Files that it should hold.
        wanted: String,
    },
    /// The samples do not fit into memory.
    #[error("{count} {what} do not fit into memory: ask for fewer")]
    Memory {
        /// Number of samples.
        count: usize,
        /// Kind of samples.
        what: &'static str,
    },
    /// A file could not be opened, read, written or renamed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Failed operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// System error.
        source: std::io::Error,
    },
    /// The checksum of a complete file or archive is not the official one.
    #[error("{file}: MD5 is {got}, the official one has {expected}; delete it and fetch it again")]
    Checksum {
        /// Path or address.
        file: String,
        /// Official MD5.
        expected: String,
        /// Actual MD5.
        got: String,
    },
    /// The downloaded archive is invalid.
    #[error("archive {url}: {problem}")]
    Archive {
        /// Address of the archive.
        url: String,
        /// Its defect.
        problem: String,
    },
    /// A file has no bytes, or no row.
    #[error("{}: the file is empty", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The content of a file has another format than its name implies.
    #[error("{}: the file is {format}: {advice}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// Detected format.
        format: &'static str,
        /// Suggested remedy.
        advice: &'static str,
    },
    /// A binary file ends inside a record.
    #[error(
        "{}: {bytes} bytes are not a multiple of the record of {record} bytes; the last {} bytes \
         are part of a record that was cut off",
        file.display(), bytes % record
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: usize,
        /// The length of one record.
        record: usize,
    },
    /// A label is out of range.
    #[error(
        "{}: record {record} (counted from 0) has {field} {label}, expected 0 to {}",
        file.display(), classes - 1
    )]
    Label {
        /// The file.
        file: PathBuf,
        /// Number of the record, counted from 0.
        record: usize,
        /// Kind of label: `label`, `coarse label` or `fine label`.
        field: &'static str,
        /// Actual value.
        label: u8,
        /// Number of classes.
        classes: usize,
    },
    /// A row of a CSV file does not have the form `"class","title","description"`.
    #[error("{}, line {line}: {problem}", file.display())]
    Row {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// Its defect.
        problem: String,
    },
    /// The value of a setting is impossible for any data set.
    #[error("{setting} is {got}, expected {expected}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        got: String,
        /// Possible values.
        expected: &'static str,
    },
    /// The labels do not match the samples.
    #[error("{labels} labels were given for {samples} samples, expected one each")]
    LabelCount {
        /// Number of labels.
        labels: usize,
        /// Number of samples.
        samples: usize,
    },
}

impl DataError {
    /// Returns whether another attempt may succeed: for a failed download, or a file that could not be read.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Archive { .. } | Self::Io { .. })
    }

    pub(crate) fn setting(setting: &'static str, got: impl ToString, expected: &'static str) -> Self {
        Self::Setting { setting, got: got.to_string(), expected }
    }

    /// Returns a closure for `map_err` that adds the action and path to an input or output error.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

fn directories(looked: &[PathBuf]) -> String {
    if looked.is_empty() {
        return "no directory (none given, and this system names no cache directory)".to_owned();
    }
    let names: Vec<_> = looked.iter().map(|dir| dir.display().to_string()).collect();
    names.join(", ")
}
