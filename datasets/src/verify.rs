//! Reads a whole file and checks whether it is the official one.

use md5::{Digest, Md5};

use crate::error::DataError;
use crate::find::{DataFile, PartFiles};

/// First bytes of files whose format differs from their name, the format's name, and a remedy. No record and no row
/// begins with these: a label is below 100, and a class is a digit.
const FOREIGN: [(&[u8], &str, &str); 5] = [
    (b"\x1f\x8b", "a gzip archive", "unpack it"),
    (b"PK\x03\x04", "a ZIP archive", "unpack it"),
    (b"<!DOCTYPE", "a web page", "download the file again"),
    (b"<html", "a web page", "download the file again"),
    (b"\xff\xfe", "text in UTF-16", "convert it to UTF-8"),
];

/// Reads a file. With the official name and length its MD5 must match; anything else is noted as a subset. `record` is
/// the length of a record in bytes, of which a binary file must hold a whole number.
pub(crate) fn read(file: &DataFile, record: Option<usize>, notes: &mut Vec<String>) -> Result<Vec<u8>, DataError> {
    let bytes = std::fs::read(&file.path).map_err(DataError::io("read", &file.path))?;
    if bytes.is_empty() {
        return Err(DataError::Empty { file: file.path.clone() });
    }
    if let Some((_, format, advice)) = FOREIGN.iter().find(|(magic, ..)| bytes.starts_with(magic)) {
        return Err(DataError::Format { file: file.path.clone(), format, advice });
    }
    if let Some(record) = record.filter(|record| bytes.len() % record != 0) {
        return Err(DataError::Truncated { file: file.path.clone(), bytes: bytes.len(), record });
    }
    let (unit, divisor) = record.map_or(("bytes", 1), |record| ("records", record));
    match file.official {
        Some(official) if official.bytes == bytes.len() => {
            let got = format!("{:x}", Md5::digest(&bytes));
            if got != official.md5 {
                return Err(DataError::Checksum {
                    file: file.path.display().to_string(),
                    expected: official.md5.to_owned(),
                    got,
                });
            }
        }
        Some(official) => notes.push(format!(
            "{} has {} {unit}, the official file {}: taken as a subset, without a checksum",
            file.name(),
            bytes.len() / divisor,
            official.bytes / divisor
        )),
        None => {
            notes.push(format!("{} is not an official file name: taken as a subset, without a checksum", file.name()))
        }
    }
    Ok(bytes)
}

/// Reads files until `limit` rows are read; `add` appends those of one file, up to a number, and returns how many it
/// appended. Files after the last one needed are not opened.
pub(crate) fn read_part(
    files: &PartFiles,
    limit: Option<usize>,
    notes: &mut Vec<String>,
    mut add: impl FnMut(&DataFile, usize, &mut Vec<String>) -> Result<usize, DataError>,
) -> Result<usize, DataError> {
    let PartFiles { part, files } = files;
    let (mut rows, mut used) = (0, 0);
    for file in files {
        let wanted = limit.map_or(usize::MAX, |limit| limit - rows);
        if wanted == 0 {
            break;
        }
        rows += add(file, wanted, notes)?;
        used += 1;
    }
    let short = limit.is_none_or(|limit| rows < limit);
    let in_order = files[..used].iter().zip(part.official).all(|(file, official)| file.official == Some(official));
    if files[0].official.is_some() && files.len() < part.official.len() && (short || !in_order) {
        notes.push(format!(
            "{} of the {} official {} files are there: taken as a subset",
            files.len(),
            part.official.len(),
            part.role
        ));
    }
    if let Some(limit) = limit.filter(|limit| rows < *limit) {
        notes.push(format!("{limit} {} rows were asked for, {rows} are there", part.role));
    }
    Ok(rows)
}

/// Refuses a limit of 0 rows, which leaves nothing to train or test on.
pub(crate) fn check_limit(setting: &'static str, limit: Option<usize>) -> Result<(), DataError> {
    match limit {
        Some(0) => Err(DataError::setting(setting, 0, "at least 1")),
        _ => Ok(()),
    }
}
