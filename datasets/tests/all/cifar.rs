//! Subsets and invalid files of CIFAR.

use std::fs::{self, File};

use briquette_datasets::{DataError, ImageKind};
use tempfile::tempdir;

use crate::{images, records};

#[test]
fn subset_is_loaded_in_order_and_said_to_be_one() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("train.bin"), records(&[&[19, 99], &[0, 7], &[3, 0]])).unwrap();
    fs::write(dir.path().join("test.bin"), records(&[&[1, 2]])).unwrap();
    let loaded = images(ImageKind::Cifar100, dir.path()).load().unwrap();
    assert_eq!(loaded.train.labels(), [99, 7, 0]); // the fine labels
    assert_eq!(loaded.train.pixels(2), [2; 3072]);
    assert_eq!((loaded.classes, loaded.class_names[99].as_str()), (100, "worm"));
    assert_eq!(
        loaded.notes,
        [
            "train.bin has 3 records, the official file 50000: taken as a subset, without a checksum",
            "test.bin has 1 records, the official file 10000: taken as a subset, without a checksum",
        ]
    );
}

#[test]
fn official_folder_inside_the_directory_is_found_and_missing_batches_are_noted() {
    let dir = tempdir().unwrap();
    let folder = dir.path().join("cifar-10-batches-bin");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("data_batch_1.bin"), records(&[&[1]])).unwrap();
    fs::write(folder.join("data_batch_3.bin"), records(&[&[3]])).unwrap();
    fs::write(folder.join("test_batch.bin"), records(&[&[9]])).unwrap();
    let mut source = images(ImageKind::Cifar10, dir.path());
    let loaded = source.load().unwrap();
    assert_eq!(loaded.train.labels(), [1, 3]);
    let missing = "2 of the 5 official training files are there: taken as a subset";
    assert!(loaded.notes.iter().any(|note| note == missing), "{:?}", loaded.notes);
    // The first batch is enough for one image.
    source.train_limit = Some(1);
    assert!(!source.load().unwrap().notes.iter().any(|note| note == missing));
}

#[test]
fn another_file_name_is_accepted_as_a_subset() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("data_batch_small.bin"), records(&[&[4], &[5]])).unwrap();
    fs::write(dir.path().join("test_batch.bin"), records(&[&[9]])).unwrap();
    let loaded = images(ImageKind::Cifar10, dir.path()).load().unwrap();
    assert_eq!(loaded.train.labels(), [4, 5]);
    assert_eq!(
        loaded.notes[0],
        "data_batch_small.bin is not an official file name: taken as a subset, without a checksum"
    );
}

#[test]
fn limits_keep_the_first_rows_and_do_not_open_files_beyond() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("data_batch_1.bin"), records(&[&[1], &[2], &[3]])).unwrap();
    fs::write(dir.path().join("data_batch_2.bin"), b"broken").unwrap();
    fs::write(dir.path().join("test_batch.bin"), records(&[&[9], &[8]])).unwrap();
    let mut source = images(ImageKind::Cifar10, dir.path());
    (source.train_limit, source.test_limit) = (Some(3), Some(1));
    let loaded = source.load().unwrap();
    assert_eq!((loaded.train.labels(), loaded.test.labels()), ([1, 2, 3].as_slice(), [9].as_slice()));
    source.train_limit = Some(4);
    assert!(matches!(source.load(), Err(DataError::Truncated { .. })));
    source.train_limit = Some(0);
    assert_eq!(source.load().unwrap_err().to_string(), "train limit is 0, expected at least 1");
}

#[test]
fn limit_beyond_the_files_is_noted() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("train.bin"), records(&[&[0, 1]])).unwrap();
    fs::write(dir.path().join("test.bin"), records(&[&[0, 1]])).unwrap();
    let mut source = images(ImageKind::Cifar100, dir.path());
    source.train_limit = Some(5);
    let notes = source.load().unwrap().notes;
    assert!(notes.contains(&"5 training rows were asked for, 1 are there".to_owned()), "{notes:?}");
}

#[test]
fn whole_official_file_with_another_checksum_is_refused() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("data_batch_1.bin");
    File::create(&path).unwrap().set_len(30_730_000).unwrap();
    fs::write(dir.path().join("test_batch.bin"), records(&[&[9]])).unwrap();
    let error = images(ImageKind::Cifar10, dir.path()).load().unwrap_err();
    let DataError::Checksum { file, expected, got } = &error else { panic!("{error}") };
    assert_eq!(*file, path.display().to_string());
    assert_eq!(expected, "5dd7e06a14cb22eb9f671a540d1b7c25");
    assert_eq!(got.len(), 32);
    assert!(error.to_string().contains(&format!("MD5 is {got}, the official one has {expected}")));
}

/// Returns the error for a `train.bin` with these bytes, without its directory.
fn error_for(bytes: &[u8]) -> String {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("train.bin"), bytes).unwrap();
    fs::write(dir.path().join("test.bin"), records(&[&[0, 1]])).unwrap();
    let error = images(ImageKind::Cifar100, dir.path()).load().unwrap_err().to_string();
    error.replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn empty_file_is_refused() {
    assert_eq!(error_for(b""), "train.bin: the file is empty");
}

#[test]
fn file_that_ends_inside_a_record_is_refused() {
    assert_eq!(
        error_for(&records(&[&[0, 1], &[0, 1]])[..4000]),
        "train.bin: 4000 bytes are not a multiple of the record of 3074 bytes; the last 926 bytes are part of \
         a record that was cut off"
    );
}

#[test]
fn labels_out_of_range_are_refused_with_their_place() {
    assert_eq!(
        error_for(&records(&[&[0, 1], &[0, 100]])),
        "train.bin: record 1 (counted from 0) has fine label 100, expected 0 to 99"
    );
    assert_eq!(
        error_for(&records(&[&[20, 1]])),
        "train.bin: record 0 (counted from 0) has coarse label 20, expected 0 to 19"
    );
}

#[test]
fn likely_causes_of_missing_files_are_named() {
    let says = |files: &[&str], problem: &str| {
        let dir = tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, records(&[&[3]])).unwrap();
        }
        let error = images(ImageKind::Cifar10, dir.path()).load().unwrap_err().to_string();
        assert!(error.contains(problem), "{files:?}: {error}");
    };
    says(&["data_batch_1.bin"], ": it has CIFAR-10 training files, but no test files;");
    says(&["cifar-10-batches-bin/test_batch.bin"], ": it has CIFAR-10 test files, but no training files;");
    says(&["cifar-10-batches-py/data_batch_1"], ": cifar-10-batches-py is of the Python version of CIFAR-10");
    says(&["data_batch_1", "test_batch", "batches.meta"], ": data_batch_1 is of the Python version");
    says(&["cifar-10-binary.tar.gz"], ": cifar-10-binary.tar.gz in it is an archive: unpack it there;");
    says(&["Data_Batch_1.bin", "Test_Batch.bin"], ": Data_Batch_1.bin is not in lower case: rename it;");
    says(&["notes.txt"], ": it has no CIFAR-10 files;");
}
