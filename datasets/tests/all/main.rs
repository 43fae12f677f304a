//! Public guarantees of the data crate. No test accesses the network beyond this machine.

mod ag_news;
mod cifar;
mod download;
mod generated;
mod real;
mod shards;

use std::path::Path;

use briquette_datasets::{Download, ImageKind, ImageSource, TextKind, TextSource};

/// Returns settings that never download, with `cache` instead of the user's cache.
fn offline(cache: &Path) -> Download {
    Download { allowed: false, quiet: true, cache: Some(cache.join("cache")), ..Download::default() }
}

/// Returns a source of images in a directory, without a network.
fn images(kind: ImageKind, dir: &Path) -> ImageSource {
    ImageSource { dir: Some(dir.into()), download: offline(dir), ..ImageSource::new(kind) }
}

/// Returns a source of texts in a directory, without a network.
fn texts(dir: &Path) -> TextSource {
    TextSource { dir: Some(dir.into()), download: offline(dir), ..TextSource::new(TextKind::AgNews) }
}

/// Creates binary records: `labels`, then pixels that all have the value of the record's number.
fn records(labels: &[&[u8]]) -> Vec<u8> {
    let record = |(number, labels): (usize, &&[u8])| [*labels, &[number as u8; 3072]].concat();
    labels.iter().enumerate().flat_map(record).collect()
}
