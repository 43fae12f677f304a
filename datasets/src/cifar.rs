//! The official binary format of CIFAR: label bytes, then 3 072 pixel bytes (red, green, blue plane; row-major).

use crate::catalog::{CIFAR10, CIFAR10_CLASSES, CIFAR100, CIFAR100_CLASSES, Catalog, Part};
use crate::error::DataError;
use crate::find::{self, DataFile};
use crate::image::{ImageSet, ImageSource, Images, Normalization, PIXELS};
use crate::verify;

/// The label bytes of a record: what each is called and how many values it has. The last one is the class.
type Fields = &'static [(&'static str, usize)];

pub(crate) fn load_10(source: &ImageSource) -> Result<Images, DataError> {
    load(source, &CIFAR10, &[("label", 10)], &CIFAR10_CLASSES, Normalization::CIFAR10)
}

pub(crate) fn load_100(source: &ImageSource) -> Result<Images, DataError> {
    let fields: Fields = &[("coarse label", 20), ("fine label", 100)];
    load(source, &CIFAR100, fields, &CIFAR100_CLASSES, Normalization::CIFAR100)
}

fn load(
    source: &ImageSource,
    catalog: &'static Catalog,
    fields: Fields,
    names: &[&str],
    normalization: Normalization,
) -> Result<Images, DataError> {
    let mut notes = Vec::new();
    let found = find::find(catalog, source.dir.as_deref(), &source.download, &mut notes)?;
    let mut read = |part: &Part, files: &[DataFile], limit| {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        verify::read_part(part, files, limit, &mut notes, |file, wanted, notes| {
            let bytes = verify::read(file, Some(fields.len() + PIXELS), notes)?;
            append(file, &bytes, fields, wanted, (&mut pixels, &mut labels))
        })?;
        Ok::<_, DataError>(ImageSet::from_parts(pixels, labels, normalization))
    };
    let train = read(&catalog.train, &found.train, source.train_limit)?;
    let test = read(&catalog.test, &found.test, source.test_limit)?;
    notes.iter().for_each(|note| tracing::info!("{}: {note}", catalog.name));
    let class_names = names.iter().map(|&name| name.to_owned()).collect();
    Ok(Images { train, test, classes: names.len(), class_names, notes })
}

/// Appends up to `wanted` records to pixels and labels, and returns how many there were.
fn append(
    file: &DataFile,
    bytes: &[u8],
    fields: Fields,
    wanted: usize,
    (pixels, labels): (&mut Vec<u8>, &mut Vec<u8>),
) -> Result<usize, DataError> {
    let length = fields.len() + PIXELS;
    let count = wanted.min(bytes.len() / length);
    pixels.reserve_exact(count * PIXELS);
    for (index, record) in bytes.chunks_exact(length).take(count).enumerate() {
        for (&label, &(field, classes)) in record.iter().zip(fields) {
            if usize::from(label) >= classes {
                let file = file.path.clone();
                return Err(DataError::Label { file, record: index, field, label, classes });
            }
        }
        labels.push(record[fields.len() - 1]);
        pixels.extend_from_slice(&record[fields.len()..]);
    }
    Ok(count)
}
