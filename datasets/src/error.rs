//! Everything that can be wrong with data, in words that say where.

use std::path::PathBuf;

/// Why data could not be found, read or divided.
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
        /// The data set, as a person would write it.
        dataset: &'static str,
        /// Directories looked in, in order.
        looked: Vec<PathBuf>,
        /// The files that one of them should hold.
        wanted: String,
        /// The address of the archive.
        tried: String,
        /// Why the archive did not come.
        reason: String,
    },
    /// The directory that was named does not hold the data set. No other is read in its place.
    #[error("--data {}: {problem}; files wanted: {wanted}. Without --data, the cache's or downloaded files are used", directory.display())]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// The files that it should hold.
        wanted: String,
    },
    /// More samples than memory holds.
    #[error("{count} {what} do not fit into memory: ask for fewer")]
    Memory {
        /// Number of samples.
        count: usize,
        /// Of what.
        what: &'static str,
    },
    /// A file could not be opened, read, written or renamed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file or archive is whole but not the official one.
    #[error("{file}: MD5 is {got}, the official one has {expected}; delete it and fetch it again")]
    Checksum {
        /// A path or an address.
        file: String,
        /// The official MD5.
        expected: String,
        /// The MD5 of what is there.
        got: String,
    },
    /// The archive came, and is not what it should be.
    #[error("archive {url}: {problem}")]
    Archive {
        /// Where it came from.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file without a byte, or without a row.
    #[error("{}: the file is empty", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A file in another format than its name says.
    #[error("{}: the file is {format}: {advice}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// The format found.
        format: &'static str,
        /// The suggested remedy.
        advice: &'static str,
    },
    /// A binary file that ends inside a record.
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
    /// A label that the data set does not have.
    #[error(
        "{}: record {record} (counted from 0) has {field} {label}, expected 0 to {}",
        file.display(), classes - 1
    )]
    Label {
        /// The file.
        file: PathBuf,
        /// The record, counted from 0.
        record: usize,
        /// Which label: `label`, `coarse label` or `fine label`.
        field: &'static str,
        /// The value found.
        label: u8,
        /// How many classes there are.
        classes: usize,
    },
    /// A row of a CSV file that does not have the form `"class","title","description"`.
    #[error("{}, line {line}: {problem}", file.display())]
    Row {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A setting that no data set can satisfy.
    #[error("{setting} is {got}, expected {expected}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        got: String,
        /// The values that are possible.
        expected: &'static str,
    },
    /// Labels that do not belong to the samples.
    #[error("{labels} labels were given for {samples} samples, expected one each")]
    LabelCount {
        /// Number of labels.
        labels: usize,
        /// Number of samples.
        samples: usize,
    },
}

impl DataError {
    /// Whether another attempt may find what this one did not: a download that failed, a file that could not be read.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Archive { .. } | Self::Io { .. })
    }

    pub(crate) fn setting(setting: &'static str, got: impl ToString, expected: &'static str) -> Self {
        Self::Setting { setting, got: got.to_string(), expected }
    }

    /// For `map_err`: an input or output error with its place.
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
