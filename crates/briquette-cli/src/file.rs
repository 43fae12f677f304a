//! Vectors in files: `.safetensors`, `.npy`, or raw little-endian `f32`.

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

/// A vector, and the tensors it is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vector {
    /// Every value, tensor after tensor.
    pub values: Vec<f32>,
    /// Name and shape of each tensor; their sizes add up to the values'.
    pub tensors: Vec<(String, Vec<usize>)>,
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default()
}

/// Reads a vector. A `.safetensors` file may hold several tensors, of `f32`, `f16` or `bf16`: they are put one after the
/// other, sorted by name. A `.npy` file holds one of `f32` or `f64`, in C or Fortran order. Any other file is raw
/// little-endian `f32`.
///
/// # Errors
/// When the file cannot be read, does not fit into the memory that is available, holds another type, or a value that is not
/// finite: it and its place are named.
pub fn read(path: &Path) -> Result<Vector> {
    let parse = match extension(path) {
        "safetensors" => parse_safetensors,
        "npy" => parse_npy,
        _ => parse_raw,
    };
    let vector = read_bytes(path).and_then(|bytes| parse(&bytes)).with_context(|| format!("{}", path.display()))?;
    check(&vector).with_context(|| format!("{}", path.display()))?;
    Ok(vector)
}

/// The whole file, if there is memory for it and for the values in it.
fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let len = fs::metadata(path)?.len();
    memory::check("its bytes and the values in them take", len.saturating_mul(2))?;
    // Fails rather than aborts where even that is too much.
    Ok(files::read(path)?)
}

/// Room for `len` values, or an error where there is none.
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

/// A vector from the bytes of a safetensors file: its tensors, sorted by name.
///
/// # Errors
/// When the bytes are not such a file, or a tensor is of another type than `f32`, `f16` and `bf16`.
pub fn parse_safetensors(bytes: &[u8]) -> Result<Vector> {
    let file = SafeTensors::deserialize(bytes)?;
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let len = tensors.iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
    let mut vector = Vector { values: reserved(len)?, tensors: Vec::new() };
    for (name, view) in tensors {
        let data = view.data();
        match view.dtype() {
            Dtype::F32 => vector.values.extend(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            Dtype::F16 => vector.values.extend(data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
            Dtype::BF16 => vector.values.extend(data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
            other => bail!("tensor `{name}` is of type {other:?}; f32, f16 and bf16 can be read"),
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
    Ok(Vector { values, tensors: vec![("values".into(), shape)] })
}

/// Writes a vector in the form that the name's ending asks for.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, vector: &Vector) -> Result<()> {
    let bytes: Vec<u8> = vector.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let encoded = match extension(path) {
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
        let vector = Vector { values: vec![1.0, -2.5, 0.0, 3e-8, 7.0], tensors };
        for name in ["x.safetensors", "x.npy", "x.bin"] {
            let path = directory.path().join(name);
            write(&path, &vector).unwrap();
            let back = read(&path).unwrap();
            assert_eq!(back.values, vector.values, "{name}");
            assert_eq!(back.tensors == vector.tensors, name == "x.safetensors");
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
        says("nan.bin", &[1.0_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat(), &["value 1", "NaN"]);
        says("short.npy", b"\x93NUMPY", &["short.npy"]);
        says("text.safetensors", b"hello", &["text.safetensors"]);
        assert!(format!("{:#}", read(&directory.path().join("none")).unwrap_err()).contains("none"));
    }
}
