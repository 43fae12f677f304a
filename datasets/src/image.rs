//! Images of 32 by 32 pixels: sources, loaded data sets, batches.

use std::path::PathBuf;

use briquette_core::Key;

use crate::augment::{Augment, Placement};
use crate::download::Download;
use crate::error::DataError;
use crate::{cifar, generated_images, verify};

/// Color channels: red, green, blue.
pub const CHANNELS: usize = 3;
/// Rows, and columns, of an image.
pub const SIDE: usize = 32;
/// Number of values of an image.
pub const PIXELS: usize = CHANNELS * SIDE * SIDE;

/// Kind of image data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageKind {
    /// CIFAR-10: 50 000 + 10 000 photographs, 10 classes.
    Cifar10,
    /// CIFAR-100: 50 000 + 10 000 photographs, 100 fine classes.
    Cifar100,
    /// Generated shapes whose class is a shape and a color; no files. 4 096 + 1 024 images unless limits are set.
    Generated {
        /// Number of classes, 2 to 100.
        classes: usize,
    },
}

/// Image data set to load, and its location.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSource {
    /// Kind of images.
    pub kind: ImageKind,
    /// Directory with the files; `None` uses the caches.
    pub dir: Option<PathBuf>,
    /// Maximum number of training images, taken from the beginning; files after the last one needed are not read. For
    /// generated images, the number to draw.
    pub train_limit: Option<usize>,
    /// Maximum number of test images.
    pub test_limit: Option<usize>,
    /// Seed of generated images; ignored for files.
    pub seed: u64,
    /// Download settings for missing files.
    pub download: Download,
}

impl ImageSource {
    /// Returns a source of all images, from the usual places, with seed 0.
    pub fn new(kind: ImageKind) -> Self {
        let download = Download::default();
        Self { kind, dir: None, train_limit: None, test_limit: None, seed: 0, download }
    }

    /// Finds, checks and reads the images, or generates them.
    pub fn load(&self) -> Result<Images, DataError> {
        verify::check_limit("train limit", self.train_limit)?;
        verify::check_limit("test limit", self.test_limit)?;
        match self.kind {
            ImageKind::Cifar10 => cifar::FORMAT_10.load(self),
            ImageKind::Cifar100 => cifar::FORMAT_100.load(self),
            ImageKind::Generated { classes } => generated_images::load(self, classes),
        }
    }
}

/// A loaded data set of images.
#[derive(Debug, Clone, PartialEq)]
pub struct Images {
    /// Training images.
    pub train: ImageSet,
    /// Test images.
    pub test: ImageSet,
    /// Number of classes; labels are smaller.
    pub classes: usize,
    /// Class names, in label order.
    pub class_names: Vec<String>,
    /// Remarks for a reader of results: subsets, files that were not checked.
    pub notes: Vec<String>,
}

/// Mean to subtract and standard deviation to divide by, per channel, for pixels from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalization {
    /// Means.
    pub mean: [f32; CHANNELS],
    /// Standard deviations.
    pub deviation: [f32; CHANNELS],
}

impl Normalization {
    /// Normalization of the CIFAR-10 training images.
    pub const CIFAR10: Self = Self { mean: [0.4914, 0.4822, 0.4465], deviation: [0.2470, 0.2435, 0.2616] };
    /// Normalization of the CIFAR-100 training images.
    pub const CIFAR100: Self = Self { mean: [0.5071, 0.4865, 0.4409], deviation: [0.2673, 0.2564, 0.2762] };
    /// Normalization with round numbers near those of the generated images.
    pub const GENERATED: Self = Self { mean: [0.5; CHANNELS], deviation: [0.25; CHANNELS] };

    fn apply(&self, channel: usize, byte: u8) -> f32 {
        (f32::from(byte) / 255.0 - self.mean[channel]) / self.deviation[channel]
    }
}

/// Images and labels, one byte per value as in the files.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSet {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    normalization: Normalization,
}

/// A batch of images and labels for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageBatch {
    /// Normalized pixels, `images * CHANNELS * SIDE * SIDE` values in NCHW order.
    pub pixels: Vec<f32>,
    /// Class of each image.
    pub labels: Vec<i64>,
}

impl ImageSet {
    /// Creates a set; the caller has one image per label.
    pub(crate) fn from_parts(pixels: Vec<u8>, labels: Vec<u8>, normalization: Normalization) -> Self {
        debug_assert_eq!(pixels.len(), labels.len() * PIXELS);
        Self { pixels, labels, normalization }
    }

    pub(crate) fn reserve(&mut self, images: usize) {
        self.pixels.reserve_exact(images * PIXELS);
        self.labels.reserve_exact(images);
    }

    /// Appends an image; `pixels` has [`PIXELS`] bytes.
    pub(crate) fn push(&mut self, pixels: &[u8], label: u8) {
        self.pixels.extend_from_slice(pixels);
        self.labels.push(label);
    }

    /// Returns a fingerprint of the images and labels.
    pub fn fingerprint(&self) -> String {
        let [pixels, labels] = [&self.pixels, &self.labels].map(|bytes| crc32fast::hash(bytes));
        format!("{} images with CRC-32 {pixels:08x}, of their classes {labels:08x}", self.len())
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the class of every image.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Returns the bytes of one image: red, green, blue plane, each row by row.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn pixels(&self, index: usize) -> &[u8] {
        &self.pixels[index * PIXELS..(index + 1) * PIXELS]
    }

    /// Returns the normalization of batches.
    pub fn normalization(&self) -> Normalization {
        self.normalization
    }

    /// Returns normalized images, augmented on request; see [`Augment`] for the key.
    ///
    /// # Panics
    /// If an index is not below [`ImageSet::len`].
    pub fn batch(&self, indices: &[usize], augment: Option<(&Augment, Key)>) -> ImageBatch {
        let mut pixels = vec![0.0; indices.len() * PIXELS];
        for (&index, out) in indices.iter().zip(pixels.chunks_exact_mut(PIXELS)) {
            let placement = augment.map_or(Placement::IDENTITY, |(how, key)| how.draw(key, index));
            placement.place(self.pixels(index), out, |channel, byte| self.normalization.apply(channel, byte));
        }
        let labels = indices.iter().map(|&index| i64::from(self.labels[index])).collect();
        ImageBatch { pixels, labels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_images() -> ImageSet {
        let pixels = (0..2 * PIXELS).map(|i| if i < PIXELS { 255 } else { (i % 256) as u8 }).collect();
        ImageSet::from_parts(pixels, vec![3, 7], Normalization::CIFAR10)
    }

    #[test]
    fn white_is_one_minus_mean_over_deviation() {
        let batch = two_images().batch(&[1, 0], None);
        assert_eq!(batch.labels, [7, 3]);
        let white = &batch.pixels[PIXELS..];
        // (1 - .4914) / .2470 = 2.0591 · (1 - .4822) / .2435 = 2.1265 · (1 - .4465) / .2616 = 2.1158
        for (channel, expected) in [2.0591, 2.1265, 2.1158].into_iter().enumerate() {
            let plane = &white[channel * SIDE * SIDE..(channel + 1) * SIDE * SIDE];
            assert!(plane.iter().all(|value| (value - expected).abs() < 1e-3), "{}", plane[0]);
        }
    }

    #[test]
    fn augmentation_does_not_depend_on_the_rest_of_the_batch() {
        let (images, augment, key) = (two_images(), Augment::crop_and_flip(), Key::new(5));
        let both = images.batch(&[0, 1], Some((&augment, key)));
        let alone = images.batch(&[1], Some((&augment, key)));
        assert_eq!(both.pixels[PIXELS..], alone.pixels);
        let next_epoch: Vec<_> = (0..8).map(|e| images.batch(&[1], Some((&augment, key.step(e))))).collect();
        assert!(next_epoch.iter().any(|batch| *batch != alone));
    }

    #[test]
    fn empty_slice_gives_an_empty_batch() {
        let batch = two_images().batch(&[], None);
        assert!(batch.pixels.is_empty() && batch.labels.is_empty());
    }
}
