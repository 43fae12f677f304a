//! AG-News rows: `"class","title","description"`, class 1 to 4, inner quotes doubled, one row per line.

use crate::catalog::{AG_NEWS, AG_NEWS_CLASSES};
use crate::error::DataError;
use crate::find::{self, DataFile, PartFiles};
use crate::text::{Row, Rows, TextSource};
use crate::verify;

/// Loads training rows, test rows, class names and notes.
pub(crate) fn load(source: &TextSource) -> Result<Rows, DataError> {
    let mut notes = Vec::new();
    let found = find::find(&AG_NEWS, source.dir.as_deref(), &source.download)?;
    let mut read = |files: &PartFiles, limit| {
        let mut rows = Vec::new();
        verify::read_part(files, limit, &mut notes, |file, wanted, notes| {
            let bytes = verify::read(file, None, notes)?;
            let before = rows.len();
            parse(file, &bytes, wanted, &mut rows)?;
            // Blank lines only.
            if rows.len() == before {
                return Err(DataError::Empty { file: file.path.clone() });
            }
            Ok(rows.len() - before)
        })?;
        Ok::<_, DataError>(rows)
    };
    let train = read(&found.train, source.train_limit)?;
    let test = read(&found.test, source.test_limit)?;
    notes.iter().for_each(|note| tracing::info!("{}: {note}", AG_NEWS.name));
    let class_names = AG_NEWS_CLASSES.iter().map(|&name| name.to_owned()).collect();
    Ok(Rows { train, test, class_names, notes })
}

/// Appends up to `wanted` rows.
fn parse(file: &DataFile, bytes: &[u8], wanted: usize, rows: &mut Vec<Row>) -> Result<(), DataError> {
    let at = |line: u64, problem: String| DataError::Row { file: file.path.clone(), line, problem };
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut record = csv::ByteRecord::new();
    for _ in 0..wanted {
        let start = reader.position().byte() as usize;
        if !reader.read_byte_record(&mut record).map_err(|e| at(0, e.to_string()))? {
            break;
        }
        let raw = &bytes[start..reader.position().byte() as usize];
        // The reader attributes blank lines, and the second character of \r\n, to the row that follows.
        let skipped = raw.len() - raw.trim_ascii_start().len();
        let blank = raw[..skipped].iter().filter(|&&byte| byte == b'\n').count() as u64;
        let line = record.position().map_or(0, csv::Position::line) + blank;
        // The reader treats an unclosed quote as a long field. The format writes a new line as \n, so a row is one line
        // with paired quotes.
        let raw = raw.trim_ascii();
        quotes(raw).map_err(|problem| at(line, problem.to_owned()))?;
        rows.push(row(&record).map_err(|problem| at(line, problem + hint(&record, line)))?);
    }
    Ok(())
}

/// Checks that one row is one line, with paired quotes.
fn quotes(row: &[u8]) -> Result<(), &'static str> {
    let is_even = row.iter().filter(|&&byte| byte == b'"').count() % 2 == 0;
    // The first line alone: with an unclosed quote the reader takes the rows that follow as one field.
    let first = row.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let closes = first.iter().filter(|&&byte| byte == b'"').count() % 2 == 0;
    match (row.contains(&b'\n'), is_even) {
        (false, true) => Ok(()),
        (true, true) if !closes && row.split(|&byte| byte == b'\n').skip(1).all(|line| !line.starts_with(b"\"")) => {
            Err(
                "a quoted field continues on the next line, which the format does not have: write the line break as \\n",
            )
        }
        _ => Err("a quote is not closed in this line"),
    }
}

/// Returns a hint at the likely defect of an unreadable row; empty if there is none.
fn hint(record: &csv::ByteRecord, line: u64) -> &'static str {
    let class = record.get(0).unwrap_or_default().trim_ascii();
    let has = |byte| record.iter().any(|field| field.contains(&byte));
    match record.len() {
        1 if has(b'\t') => ". This looks like tab-separated values: separate columns by commas",
        1 if has(b';') => ". This looks like semicolon-separated values: separate columns by commas",
        3 if class == b"0" => ". Classes are counted from 1: add 1 to each",
        _ if line == 1 && !class.iter().any(u8::is_ascii_digit) => {
            ". This looks like a header: delete the first line, and keep the columns class, title, description"
        }
        _ => "",
    }
}

fn row(record: &csv::ByteRecord) -> Result<Row, String> {
    if record.len() != 3 {
        return Err(format!("the row has {} columns, expected 3 (class, title, description)", record.len()));
    }
    let text = |column: usize, name: &str| {
        std::str::from_utf8(&record[column]).map_err(|_| format!("the {name} is not valid UTF-8"))
    };
    let class = text(0, "class")?;
    let label = match class.trim().parse::<u8>() {
        Ok(class @ 1..=4) => class - 1,
        _ => return Err(format!("the class is {class:?}, expected 1 to 4")),
    };
    Ok(Row { label, text: format!("{} {}", text(1, "title")?, text(2, "description")?) })
}
