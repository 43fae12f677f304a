//! File format detection from a file's first bytes and the ending of its name.

use std::path::Path;

use anyhow::{Result, bail};

/// A readable file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Named tensors in Hugging Face's safetensors format.
    Safetensors,
    /// One NumPy array.
    Npy,
    /// Little-endian `f32` values without a header.
    Raw,
}

/// Endings of raw files. A name without an ending counts as raw as well.
const RAW: [&str; 5] = ["", "bin", "dat", "f32", "raw"];

/// First bytes of unsupported formats that users may try, with the name of each and how to export its values.
const FOREIGN: [(&[u8], &str, &str); 8] = [
    (b"PK\x03\x04", "a ZIP archive, as torch.save and numpy.savez write", TENSORS),
    (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", "a file of torch.save before PyTorch 1.6", TENSORS),
    (b"\x89HDF\r\n", "an HDF5 file", TENSORS),
    (b"GGUF", "a GGUF file", TENSORS),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"(\xb5/\xfd", "a Zstandard archive", "unpack it first"),
    (b"PAR1", "a Parquet file", "save the column with numpy.save"),
    (b"burnpack", "a Burn record", "store the module with burn-store's SafetensorsStore"),
];

const TENSORS: &str = "save its tensors with safetensors.torch.save_file, or one array with numpy.save";

/// Returns the lower-case ending of a file's name; empty if it has none.
pub(super) fn ending(path: &Path) -> String {
    path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Detects the format of `bytes`, read from a file of this name. The first bytes decide; the ending matters only for
/// raw values, which have no header.
///
/// # Errors
/// For an empty file, a known format that cannot be read, and an ending that is not one of raw values.
pub(super) fn detect(path: &Path, bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        bail!("the file is empty");
    }
    if let Some((_, name, export)) = FOREIGN.iter().find(|(magic, ..)| bytes.starts_with(magic)) {
        bail!("the file is {name}, which cannot be read: {export}");
    }
    let ending = ending(path);
    if bytes.starts_with(b"\x93NUMPY") || ending == "npy" {
        return Ok(Format::Npy);
    }
    if has_safetensors_header(bytes) || ending == "safetensors" {
        return Ok(Format::Safetensors);
    }
    if is_pickle(bytes) {
        bail!("the file is a Python pickle, which cannot be read: {TENSORS}");
    }
    if is_text(bytes) {
        bail!("the file is text, not values in binary form: read it in Python and save the array with numpy.save");
    }
    if !RAW.contains(&ending.as_str()) {
        bail!(
            "the content is neither safetensors nor .npy, and .{ending} is not an ending of raw values: {TENSORS}; \
             name raw little-endian 32-bit floats .f32"
        );
    }
    Ok(Format::Raw)
}

/// Returns whether the file begins as a safetensors file does: with the length of its JSON header in 8 bytes, then `{`.
fn has_safetensors_header(bytes: &[u8]) -> bool {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else { return false };
    rest.first() == Some(&b'{') && u64::from_le_bytes(*len) <= rest.len() as u64
}

/// Returns whether the file is a pickle: protocol 2 to 5, and the opcode that ends every pickle.
fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, .., b'.'])
}

/// Returns whether the beginning consists of printable characters and white space, which 8 or more bytes of floats almost never do.
fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(512)];
    let bytes = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    start.len() >= 8 && bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(name: &str, bytes: &[u8]) -> Result<Format, String> {
        detect(Path::new(name), bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn content_decides_whatever_the_name() {
        let safetensors = [&2_u64.to_le_bytes()[..], b"{}"].concat();
        for name in ["x.npy", "UPPER.NPY", "x", "x.bin", "x.pth", "x.safetensors"] {
            assert_eq!(detected(name, b"\x93NUMPY\x01\x00"), Ok(Format::Npy), "{name}");
        }
        for name in ["x.safetensors", "model.SafeTensors", "x", "x.bin"] {
            assert_eq!(detected(name, &safetensors), Ok(Format::Safetensors), "{name}");
        }
        for name in ["x", "x.f32", "x.BIN", "x.raw", "x.dat"] {
            assert_eq!(detected(name, &1.5_f32.to_le_bytes()), Ok(Format::Raw), "{name}");
        }
    }

    #[test]
    fn other_formats_are_named_with_a_way_out() {
        let says = |name: &str, bytes: &[u8], words: &[&str]| {
            let error = detected(name, bytes).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
        };
        says("model.pth", b"PK\x03\x04rest", &["torch.save", "save_file"]);
        says("pytorch_model.bin", b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a", &["before PyTorch 1.6"]);
        says("array.pkl", b"\x80\x04\x95\x0a\x00.", &["pickle"]);
        says("list.json", b"[0.1, 0.2, 0.3]", &["text", "numpy.save"]);
        says("list.bin", b"0.1 0.2\n0.3 0.4\n", &["text"]);
        says("x.gz", b"\x1f\x8b\x08", &["gzip", "unpack"]);
        says("x.f32", b"", &["empty"]);
        says("x.npy", b"", &["empty"]);
        says("x.pth", &[0; 8], &[".pth is not an ending of raw values", ".f32"]);
    }
}
