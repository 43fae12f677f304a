//! Vectors in files: `.safetensors`, `.npy`, or raw little-endian `f32`.

mod format;
mod npy;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use briquette_core::files;
use half::{bf16, f16};
use npyz::WriterBuilder;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

pub use npy::parse_npy;

use crate::memory;
use format::Format;

/// A vector, with the tensors from which it is concatenated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vector {
    /// All values, tensor after tensor.
    pub values: Vec<f32>,
    /// Name and shape of each tensor; their sizes add up to the number of values.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// Remarks for the reader, such as the tensors that were skipped.
    pub notes: Vec<String>,
}

/// Reads a vector. The first bytes of the file determine its format, whatever its name. A `.safetensors` file may hold
/// several tensors, of `f16`, `bf16`, `f32` or `f64`: they are concatenated in the order of their names, and tensors of
/// integers and booleans are skipped with a note. A `.npy` file holds one of `f16`, `f32` or `f64`, in C or Fortran
/// order. Other content is raw little-endian `f32` if the name ends in `.f32`, `.bin`, `.raw` or `.dat`, or has no
/// ending.
///
/// # Errors
/// If the file cannot be read, does not fit into the available memory, is empty, or has another format or type, or if a
/// value is not finite: the error names the value and its position.
pub fn read(path: &Path) -> Result<Vector> {
    let vector = read_bytes(path).and_then(|bytes| {
        let format = format::detect(path, &bytes)?;
        let vector = match format {
            Format::Safetensors => parse_safetensors(&bytes),
            Format::Npy => parse_npy(&bytes),
            Format::Raw => parse_raw(&bytes),
        }?;
        ensure!(!vector.values.is_empty(), "the file holds no values");
        match check(&vector) {
            Err(error) if format == Format::Raw => {
                bail!("{error}; is the file little-endian 32-bit floats without a header, as raw files are read?")
            }
            checked => checked.map(|()| vector),
        }
    });
    vector.with_context(|| format!("{}", path.display()))
}

/// Reads the whole file, if there is memory for it and for its values.
fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let len = fs::metadata(path)?.len();
    memory::check("its bytes and the values in them take", len.saturating_mul(2))?;
    // Fails rather than aborts if even that is too much.
    Ok(files::read(path)?)
}

/// Reserves room for `len` values, or fails if there is not enough memory.
fn reserved(len: usize) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).with_context(|| format!("{len} values do not fit into memory"))?;
    Ok(values)
}

fn check(vector: &Vector) -> Result<()> {
    let Some(place) = vector.values.iter().position(|v| !v.is_finite()) else { return Ok(()) };
    let (mut start, value) = (0, vector.values[place]);
    for (name, shape) in &vector.tensors {
        let len: usize = shape.iter().product();
        if place < start + len {
            bail!("value {} of tensor `{name}` is {value}: a compressor needs finite values", place - start);
        }
        start += len;
    }
    bail!("value {place} is {value}: a compressor needs finite values")
}

/// Returns whether values of this type are never part of a gradient: counters, masks and indices.
fn is_discrete(dtype: Dtype) -> bool {
    use Dtype::{BOOL, I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, BOOL | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
}

/// Parses the bytes of a safetensors file: its floating-point tensors, sorted by name. `f64` values are rounded to `f32`.
///
/// # Errors
/// If the bytes are not such a file, a tensor is of another floating-point type than `f16`, `bf16`, `f32` and `f64`, or
/// no tensor has values of these types.
pub fn parse_safetensors(bytes: &[u8]) -> Result<Vector> {
    let file = SafeTensors::deserialize(bytes)?;
    let (skipped, mut tensors): (Vec<_>, Vec<_>) =
        file.tensors().into_iter().partition(|(_, view)| is_discrete(view.dtype()));
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let notes: Vec<String> = skipped
        .iter()
        .map(|(name, view)| {
            format!("tensor `{name}` of type {:?} is skipped: only floating-point values are read", view.dtype())
        })
        .collect();
    ensure!(!tensors.is_empty() || skipped.is_empty(), "no tensor is of a floating-point type");
    let len = tensors.iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
    let mut vector = Vector { values: reserved(len)?, tensors: Vec::new(), notes };
    for (name, view) in tensors {
        let data = view.data();
        match view.dtype() {
            Dtype::F32 => vector.values.extend(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            Dtype::F16 => vector.values.extend(data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
            Dtype::BF16 => vector.values.extend(data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
            Dtype::F64 => vector.values.extend(data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32)),
            other => bail!("tensor `{name}` is of type {other:?}; f16, bf16, f32 and f64 can be read"),
        }
        vector.tensors.push((name, view.shape().to_vec()));
    }
    Ok(vector)
}

fn parse_raw(bytes: &[u8]) -> Result<Vector> {
    let (chunks, rest) = bytes.as_chunks();
    ensure!(rest.is_empty(), "{} bytes are not a whole number of 32-bit floats", bytes.len());
    let mut values = reserved(chunks.len())?;
    values.extend(chunks.iter().map(|b| f32::from_le_bytes(*b)));
    let shape = vec![values.len()];
    Ok(Vector { values, tensors: vec![("values".into(), shape)], notes: Vec::new() })
}

/// Writes a vector in the format given by the name's ending, in upper or lower case: `.safetensors`, `.npy`, and raw
/// `f32` for any other.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, vector: &Vector) -> Result<()> {
    let bytes: Vec<u8> = vector.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let encoded = match format::ending(path).as_str() {
        "safetensors" => {
            let mut start = 0;
            let mut views = Vec::new();
            for (name, shape) in &vector.tensors {
                let len = 4 * shape.iter().product::<usize>();
                views.push((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), &bytes[start..start + len])?));
                start += len;
            }
            safetensors::serialize(views, None)?
        }
        "npy" => {
            let mut out = Vec::new();
            let shape: Vec<u64> = match vector.tensors.as_slice() {
                [(_, shape)] => shape.iter().map(|n| *n as u64).collect(),
                _ => vec![vector.values.len() as u64],
            };
            let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut out).begin_nd()?;
            writer.extend(vector.values.iter().copied())?;
            writer.finish()?;
            out
        }
        _ => bytes,
    };
    fs::write(path, encoded).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_back_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let tensors = vec![("a.weight".to_owned(), vec![2, 2]), ("b".to_owned(), vec![1])];
        let vector = Vector { values: vec![1.0, -2.5, 0.0, 3e-8, 7.0], tensors, notes: vec![] };
        for name in ["x.safetensors", "x.npy", "x.bin", "X.NPY", "X.SafeTensors"] {
            let path = directory.path().join(name);
            write(&path, &vector).unwrap();
            let back = read(&path).unwrap();
            assert_eq!(back.values, vector.values, "{name}");
            assert_eq!(back.tensors == vector.tensors, name.to_lowercase() == "x.safetensors");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let says = |name: &str, bytes: &[u8], parts: &[&str]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        says("odd.bin", &[0; 6], &["odd.bin", "6 bytes", "whole number"]);
        says(
            "nan.bin",
            &[1.0_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat(),
            &["value 1", "NaN", "little-endian"],
        );
        says("empty.bin", b"", &["empty.bin", "the file is empty"]);
        says("weights.pth", &[0; 8], &["weights.pth", "not an ending of raw values"]);
        says("short.npy", b"\x93NUMPY", &["short.npy"]);
        says("text.safetensors", b"hello", &["text.safetensors"]);
        assert!(format!("{:#}", read(&directory.path().join("none")).unwrap_err()).contains("none"));
    }

    /// Builds a safetensors file of one-dimensional tensors: name, type, bytes of a value, values' bytes.
    fn safetensors(tensors: &[(&str, Dtype, usize, &[u8])]) -> Vec<u8> {
        let views = tensors.iter().map(|(name, dtype, size, bytes)| {
            (*name, TensorView::new(*dtype, vec![bytes.len() / size], bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    #[test]
    fn doubles_are_rounded_and_integers_skipped_with_a_note() {
        let doubles: Vec<u8> = [0.1_f64, -3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let file = safetensors(&[
            ("w", Dtype::F64, 8, &doubles),
            ("num_batches_tracked", Dtype::I64, 8, &7_i64.to_le_bytes()),
            ("mask", Dtype::BOOL, 1, &[1, 0]),
        ]);
        let mut vector = parse_safetensors(&file).unwrap();
        vector.notes.sort();
        assert_eq!((vector.values, vector.tensors), (vec![0.1_f32, -3.0], vec![("w".into(), vec![2])]));
        assert_eq!(vector.notes.len(), 2);
        assert!(vector.notes[0].contains("`mask`") && vector.notes[1].contains("I64 is skipped"), "{:?}", vector.notes);
        let error = |file: &[u8]| parse_safetensors(file).unwrap_err().to_string();
        assert!(
            error(&safetensors(&[("n", Dtype::I64, 8, &[0; 8])])).contains("no tensor is of a floating-point type")
        );
        assert!(error(&safetensors(&[("q", Dtype::F8_E4M3, 1, &[0])])).contains("`q` is of type F8_E4M3"));
    }

    #[test]
    fn a_file_without_values_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none.safetensors");
        fs::write(&path, safetensors(&[])).unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("holds no values"));
    }
}
