//! Tests with the real files, if they are next to the workspace; otherwise these tests report that they were skipped.

use std::path::{Path, PathBuf};

use briquette_datasets::ImageKind;

use crate::{images, texts};

fn real(folder: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/datasets").join(folder);
    if !dir.is_dir() {
        println!("skipped: {} is not there", dir.display());
        return None;
    }
    Some(dir)
}

#[test]
fn official_cifar10_is_whole_and_balanced() {
    let Some(dir) = real("cifar10") else { return };
    let loaded = images(ImageKind::Cifar10, &dir).load().unwrap();
    assert_eq!(loaded.notes, [""; 0]);
    assert_eq!((loaded.train.len(), loaded.test.len()), (50_000, 10_000));
    let frogs = loaded.train.labels().iter().filter(|&&label| label == 6).count();
    assert_eq!((frogs, loaded.class_names[6].as_str()), (5000, "frog"));
    // The published means of the training images normalize their mean to about 0.
    let batch = loaded.train.batch(&(0..50_000).step_by(25).collect::<Vec<_>>(), None);
    let mean = batch.pixels.iter().map(|&p| f64::from(p)).sum::<f64>() / batch.pixels.len() as f64;
    assert!(mean.abs() < 0.05, "{mean}"); // 2 000 images: sd about 0.01
}

#[test]
fn ten_thousand_cifar10_images_need_no_note() {
    let Some(dir) = real("cifar10") else { return };
    let mut source = images(ImageKind::Cifar10, dir.parent().unwrap()); // found in the folder `cifar10`
    (source.train_limit, source.test_limit) = (Some(10_000), Some(1000));
    let loaded = source.load().unwrap();
    assert_eq!((loaded.train.len(), loaded.test.len(), loaded.notes.len()), (10_000, 1000, 0));
}

#[test]
fn cifar100_subset_is_said_to_be_one() {
    let Some(dir) = real("cifar100-subset") else { return };
    let loaded = images(ImageKind::Cifar100, &dir).load().unwrap();
    assert_eq!((loaded.train.len(), loaded.test.len()), (10_000, 2000));
    assert_eq!(loaded.notes.len(), 2);
    assert!(loaded.notes[0].starts_with("train.bin has 10000 records, the official file 50000"));
    let names = std::fs::read_to_string(dir.join("fine_label_names.txt")).unwrap();
    assert!(names.lines().filter(|line| !line.is_empty()).eq(loaded.class_names.iter()));
}

#[test]
fn ag_news_partial_training_rows_are_said_to_be_partial() {
    let Some(dir) = real("ag_news") else { return };
    let loaded = texts(&dir).load().unwrap();
    assert_eq!((loaded.train.len(), loaded.test.len()), (37_937, 7600));
    let count = |class| loaded.train.labels().iter().filter(|&&label| label == class).count();
    assert_eq!([0, 1, 2, 3].map(count), [9470, 9400, 9502, 9565]);
    assert_eq!(
        loaded.notes, // the test file is the official one
        ["train_partial.csv is not an official file name: taken as a subset, without a checksum"]
    );
    assert_eq!(loaded.vocabulary.size(), 20_002);
    assert_eq!(loaded.vocabulary.id("the"), 2);
    let first = loaded.train.batch(&[0]);
    let words: Vec<_> = first.tokens[..5].iter().filter_map(|&id| loaded.vocabulary.word(id)).collect();
    assert_eq!((words.join(" ").as_str(), first.labels[0]), ("wall st bears claw back", 2));
}
