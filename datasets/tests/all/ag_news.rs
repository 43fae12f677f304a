//! Subsets and invalid files of AG-News.

use std::fs;

use briquette_datasets::{TextSource, UNKNOWN};
use tempfile::{TempDir, tempdir};

use crate::texts;

const TEST: &str = "\"1\",\"Vote\",\"The vote\"\n";

fn source(train: &[u8]) -> (TempDir, TextSource) {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("train_partial.csv"), train).unwrap();
    fs::write(dir.path().join("test.csv"), TEST).unwrap();
    let source = texts(dir.path());
    (dir, source)
}

/// Returns the error for these training rows, without the directory.
fn error_for(train: &[u8]) -> String {
    let (dir, source) = source(train);
    let error = source.load().unwrap_err().to_string();
    error.replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn quoted_rows_become_words_of_title_and_description() {
    let train = "\"3\",\"Oil, \"\"up\"\"\",\"Prices\\rise\"\r\n4,Chips,faster\n";
    let (_dir, mut source) = source(train.as_bytes());
    source.length = 5;
    let loaded = source.load().unwrap();
    let batch = loaded.train.batch(&[0, 1]);
    assert_eq!((batch.labels, batch.lengths), (vec![2, 3], vec![4, 2]));
    let first: Vec<_> = batch.tokens[..4].iter().map(|&id| loaded.vocabulary.word(id)).collect();
    assert_eq!(first, [Some("oil"), Some("up"), Some("prices"), Some("rise")]);
    assert_eq!(batch.tokens[4], 0);
    assert_eq!((loaded.classes, loaded.class_names[3].as_str()), (4, "Sci/Tech"));
    assert_eq!(
        loaded.notes,
        [
            "train_partial.csv is not an official file name: taken as a subset, without a checksum",
            "test.csv has 22 bytes, the official file 1857427: taken as a subset, without a checksum",
        ]
    );
}

#[test]
fn test_words_are_not_in_the_vocabulary() {
    let (_dir, source) = source(b"\"2\",\"Cup\",\"the final\"\n");
    let loaded = source.load().unwrap();
    assert_eq!(loaded.vocabulary.id("vote"), UNKNOWN);
    assert_eq!(loaded.vocabulary.size(), 5); // padding, unknown, cup, final, the
    let the = loaded.vocabulary.id("the");
    assert_eq!(loaded.test.batch(&[0]).tokens[..4], [UNKNOWN, the, UNKNOWN, 0]);
}

#[test]
fn limit_does_not_read_the_rows_behind_it() {
    let (_dir, mut source) = source(b"\"2\",\"a\",\"b\"\n\"9\",\"wrong\",\"class\"\n");
    source.train_limit = Some(1);
    assert_eq!(source.load().unwrap().train.len(), 1);
}

#[test]
fn rows_with_a_wrong_number_of_columns_are_refused() {
    assert_eq!(
        error_for(b"\"2\",\"a\",\"b\"\n\n\"2\",\"only a title\"\n"),
        "train_partial.csv, line 3: the row has 2 columns, expected 3 (class, title, description)"
    );
    assert_eq!(
        error_for(b"2,a,b\r\n2,a\r\n"),
        "train_partial.csv, line 2: the row has 2 columns, expected 3 (class, title, description)"
    );
    assert_eq!(
        error_for(b"2,a,b,c\n"),
        "train_partial.csv, line 1: the row has 4 columns, expected 3 (class, title, description)"
    );
}

#[test]
fn classes_other_than_one_to_four_are_refused() {
    for class in ["5", "x", ""] {
        assert_eq!(
            error_for(format!("1,a,b\n\"{class}\",\"a\",\"b\"\n").as_bytes()),
            format!("train_partial.csv, line 2: the class is {class:?}, expected 1 to 4")
        );
    }
}

#[test]
fn likely_causes_of_a_malformed_row_are_named() {
    let says = |train: &[u8], line: u64, hint: &str| {
        let error = error_for(train);
        let place = format!("train_partial.csv, line {line}: ");
        assert!(error.starts_with(&place) && error.contains(hint), "{error}");
    };
    says(b"Class Index,Title,Description\n1,a,b\n", 1, "a header: delete the first line");
    says(b"\"Class Index\",\"Title\",\"Description\"\n1,a,b\n", 1, "a header");
    says(b"text,label\n\"a b\",1\n", 1, "columns class, title, description");
    says(b"1,a,b\n0,a,b\n", 2, "counted from 1");
    says(b"1\ta\tb\n", 1, "tab-separated");
    says(b"1;a;b\n", 1, "semicolon-separated");
    says(
        b"1,a,b\n\"1\",\"Title\",\"first line\nsecond line\"\n2,a,b\n",
        2,
        "a quoted field continues on the next line",
    );
    assert_eq!(error_for(b"\x1f\x8b\x08..."), "train_partial.csv: the file is a gzip archive: unpack it");
    assert_eq!(error_for(b"<!DOCTYPE html>\n"), "train_partial.csv: the file is a web page: download the file again");
}

#[test]
fn rows_that_were_cut_off_inside_a_quote_are_refused() {
    let expected = "train_partial.csv, line 2: a quote is not closed in this line";
    assert_eq!(error_for(b"1,a,b\n\"2\",\"cut\",\"off he"), expected);
    assert_eq!(error_for(b"1,a,b\n\"2\",\"open,\"b\"\n\"3\",\"c\",\"d\"\n"), expected);
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    assert_eq!(error_for(b"1,a,b\n2,a,\"caf\xe9\"\n"), "train_partial.csv, line 2: the description is not valid UTF-8");
}

#[test]
fn empty_file_is_refused() {
    assert_eq!(error_for(b""), "train_partial.csv: the file is empty");
}

#[test]
fn zero_words_are_refused() {
    let (_dir, mut source) = source(b"1,a,b\n");
    source.length = 0;
    assert_eq!(source.load().unwrap_err().to_string(), "text length is 0, expected at least 1");
}

#[test]
fn a_file_of_blank_lines_is_empty() {
    for blank in ["\n", "\n\n\n", "\r\n\r\n"] {
        assert_eq!(error_for(blank.as_bytes()), "train_partial.csv: the file is empty");
        let (dir, source) = source(TEST.as_bytes());
        fs::write(dir.path().join("test.csv"), blank).unwrap();
        let error = source.load().unwrap_err().to_string();
        assert!(error.ends_with("test.csv: the file is empty"), "{error}");
    }
}
