//! Generated data can be learned and is not trivial.

use briquette_core::Key;
use briquette_datasets::{Augment, ImageKind, ImageSet, ImageSource, TextKind, TextSource};

/// Returns the share of `test` rows whose nearest class mean over `train` rows is that of their own class.
fn nearest_mean_accuracy(train: &[(Vec<f32>, i64)], test: &[(Vec<f32>, i64)], classes: usize) -> f64 {
    let width = train[0].0.len();
    let mut means = vec![vec![0.0f32; width]; classes];
    for (row, label) in train {
        let members = train.iter().filter(|(_, other)| other == label).count() as f32;
        means[*label as usize].iter_mut().zip(row).for_each(|(mean, value)| *mean += value / members);
    }
    let distance = |mean: &[f32], row: &[f32]| -> f32 { mean.iter().zip(row).map(|(a, b)| (a - b) * (a - b)).sum() };
    let nearest =
        |row: &[f32]| (0..classes).min_by(|&a, &b| distance(&means[a], row).total_cmp(&distance(&means[b], row)));
    let right = test.iter().filter(|(row, label)| nearest(row) == Some(*label as usize)).count();
    right as f64 / test.len() as f64
}

fn image_rows(set: &ImageSet) -> Vec<(Vec<f32>, i64)> {
    let row = |index| {
        let batch = set.batch(&[index], None);
        (batch.pixels, batch.labels[0])
    };
    (0..set.len()).map(row).collect()
}

fn images(classes: usize, train: usize, test: usize) -> ImageSource {
    ImageSource {
        train_limit: Some(train),
        test_limit: Some(test),
        ..ImageSource::new(ImageKind::Generated { classes })
    }
}

#[test]
fn class_means_tell_ten_image_classes_only_partly() {
    let loaded = images(10, 1500, 400).load().unwrap();
    let (train, test) = (image_rows(&loaded.train), image_rows(&loaded.test));
    let accuracy = nearest_mean_accuracy(&train, &test, 10);
    println!("nearest class mean, 10 classes: {accuracy}");
    assert!((0.25..0.8).contains(&accuracy), "{accuracy}"); // chance 0.1
    let pixel = |rows: &[(Vec<f32>, i64)]| -> Vec<(Vec<f32>, i64)> {
        let middle = 16 * 32 + 16;
        rows.iter().map(|(row, label)| ([0, 1, 2].map(|c| row[c * 1024 + middle]).to_vec(), *label)).collect()
    };
    let one_pixel = nearest_mean_accuracy(&pixel(&train), &pixel(&test), 10);
    assert!(one_pixel < 0.35, "{one_pixel}");
}

#[test]
fn class_means_tell_hundred_image_classes_only_partly() {
    let loaded = images(100, 2000, 400).load().unwrap();
    let accuracy = nearest_mean_accuracy(&image_rows(&loaded.train), &image_rows(&loaded.test), 100);
    println!("nearest class mean, 100 classes: {accuracy}");
    assert!((0.05..0.6).contains(&accuracy), "{accuracy}"); // chance 0.01
}

#[test]
fn word_counts_tell_text_classes_mostly_but_not_always() {
    let mut source = TextSource::new(TextKind::Generated);
    (source.train_limit, source.test_limit) = (Some(2000), Some(500));
    let loaded = source.load().unwrap();
    let rows = |set: &briquette_datasets::TextSet| -> Vec<(Vec<f32>, i64)> {
        let row = |index| {
            let batch = set.batch(&[index]);
            let mut counts = vec![0.0; loaded.vocabulary.size()];
            batch.tokens[..batch.lengths[0]].iter().for_each(|&id| counts[id as usize] += 1.0);
            (counts, batch.labels[0])
        };
        (0..set.len()).map(row).collect()
    };
    let accuracy = nearest_mean_accuracy(&rows(&loaded.train), &rows(&loaded.test), 4);
    println!("nearest class mean, texts: {accuracy}");
    assert!((0.6..0.99).contains(&accuracy), "{accuracy}"); // chance 0.25
}

#[test]
fn sizes_and_classes_are_as_documented() {
    let texts = TextSource::new(TextKind::Generated).load().unwrap();
    assert_eq!((texts.train.len(), texts.test.len(), texts.classes), (4096, 1024, 4));
    assert_eq!(texts.train.length(), 48);
    let loaded = ImageSource::new(ImageKind::Generated { classes: 10 }).load().unwrap();
    assert_eq!((loaded.train.len(), loaded.test.len(), loaded.class_names.len()), (4096, 1024, 10));
    for class in 0..10 {
        let count = loaded.test.labels().iter().filter(|&&label| label == class).count();
        assert!((102..=103).contains(&count), "class {class}: {count}");
    }
}

#[test]
fn seed_and_index_alone_decide_an_image() {
    let small = images(10, 20, 5).load().unwrap();
    let large = images(10, 40, 5).load().unwrap();
    assert_eq!(small.train.pixels(19), large.train.pixels(19));
    assert_ne!(small.train.pixels(0), small.test.pixels(0));
    let other = ImageSource { seed: 1, ..images(10, 20, 5) }.load().unwrap();
    assert_ne!(small.train.pixels(0), other.train.pixels(0));
}

#[test]
fn augmentation_changes_images_and_keeps_labels() {
    let set = images(10, 20, 5).load().unwrap().train;
    let indices: Vec<usize> = (0..20).collect();
    let plain = set.batch(&indices, None);
    let augmented = set.batch(&indices, Some((&Augment::crop_and_flip(), Key::new(0))));
    assert_eq!(plain.labels, augmented.labels);
    assert_ne!(plain.pixels, augmented.pixels);
}

#[test]
fn more_samples_than_memory_holds_are_refused() {
    for limit in [1 << 50, 1 << 63, usize::MAX] {
        let images = ImageSource { train_limit: Some(limit), ..ImageSource::new(ImageKind::Generated { classes: 10 }) };
        let error = images.load().unwrap_err().to_string();
        assert_eq!(error, format!("{limit} generated images do not fit into memory: ask for fewer"));
        let texts = TextSource { test_limit: Some(limit), ..TextSource::new(TextKind::Generated) };
        let error = texts.load().unwrap_err().to_string();
        assert_eq!(error, format!("{limit} generated texts do not fit into memory: ask for fewer"));
    }
}
