//! The official binary format of CIFAR: label bytes, then 3 072 pixel bytes (red, green, blue plane; row-major).

use crate::catalog::{CIFAR10, CIFAR10_CLASSES, CIFAR100, CIFAR100_CLASSES, Catalog};
use crate::error::DataError;
use crate::find::{self, DataFile, PartFiles};
use crate::image::{ImageSet, ImageSource, Images, Normalization, PIXELS};
use crate::verify;

/// Differences between the two CIFAR formats.
pub(crate) struct Format {
    catalog: &'static Catalog,
    /// Label bytes of a record, each with its name and number of values. The last one is the class.
    labels: &'static [(&'static str, usize)],
    class_names: &'static [&'static str],
    normalization: Normalization,
}

pub(crate) static FORMAT_10: Format = Format {
    catalog: &CIFAR10,
    labels: &[("label", 10)],
    class_names: &CIFAR10_CLASSES,
    normalization: Normalization::CIFAR10,
};

pub(crate) static FORMAT_100: Format = Format {
    catalog: &CIFAR100,
    labels: &[("coarse label", 20), ("fine label", 100)],
    class_names: &CIFAR100_CLASSES,
    normalization: Normalization::CIFAR100,
};

impl Format {
    pub(crate) fn load(&self, source: &ImageSource) -> Result<Images, DataError> {
        let mut notes = Vec::new();
        let found = find::find(self.catalog, source.dir.as_deref(), &source.download)?;
        let train = self.read(&found.train, source.train_limit, &mut notes)?;
        let test = self.read(&found.test, source.test_limit, &mut notes)?;
        notes.iter().for_each(|note| tracing::info!("{}: {note}", self.catalog.name));
        let class_names: Vec<String> = self.class_names.iter().map(|&name| name.to_owned()).collect();
        Ok(Images { train, test, classes: class_names.len(), class_names, notes })
    }

    fn read(&self, files: &PartFiles, limit: Option<usize>, notes: &mut Vec<String>) -> Result<ImageSet, DataError> {
        let mut images = ImageSet::from_parts(Vec::new(), Vec::new(), self.normalization);
        verify::read_part(files, limit, notes, |file, wanted, notes| {
            let bytes = verify::read(file, Some(self.record()), notes)?;
            self.append(file, &bytes[..bytes.len().min(wanted.saturating_mul(self.record()))], &mut images)
        })?;
        Ok(images)
    }

    /// Returns the bytes of one record.
    fn record(&self) -> usize {
        self.labels.len() + PIXELS
    }

    /// Appends whole records and returns their number.
    fn append(&self, file: &DataFile, bytes: &[u8], images: &mut ImageSet) -> Result<usize, DataError> {
        let count = bytes.len() / self.record();
        images.reserve(count);
        for (index, record) in bytes.chunks_exact(self.record()).enumerate() {
            let (labels, pixels) = record.split_at(self.labels.len());
            for (&label, &(field, classes)) in labels.iter().zip(self.labels) {
                if usize::from(label) >= classes {
                    let file = file.path.clone();
                    return Err(DataError::Label { file, record: index, field, label, classes });
                }
            }
            images.push(pixels, labels[labels.len() - 1]);
        }
        Ok(count)
    }
}
