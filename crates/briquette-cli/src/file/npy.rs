//! Reads NumPy's `.npy`: a header that is a Python literal, then the values.
//!
//! Parsed by hand, since the header of a file of unknown origin is not trusted: nothing is reserved and no product is
//! computed before it has been compared with the bytes available.

use anyhow::{Context, Result, bail, ensure};
use half::f16;

use super::{Vector, reserved};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum number of dimensions, as in NumPy.
const DIMENSIONS: usize = 64;

/// Contents of a header.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header {
    descr: Option<String>,
    fortran: Option<bool>,
    shape: Option<Vec<usize>>,
}

/// Parses the bytes of a `.npy` file: `f2`, `f4` or `f8`, of either byte order. Values in Fortran order (the first
/// index varies fastest) are returned in C order (the last one does), like all others.
///
/// # Errors
/// If the bytes are not such a file, or are more or fewer than its shape needs.
pub fn parse_npy(bytes: &[u8]) -> Result<Vector> {
    let (text, data) = split(bytes)?;
    let header = Header::parse(text)?;
    let descr = header.descr.context("the header has no 'descr'")?;
    let fortran = header.fortran.context("the header has no 'fortran_order'")?;
    let shape = header.shape.context("the header has no 'shape'")?;
    let (size, decode) = decoder(&descr)?;
    let count = count(&shape)?;
    let needed = count.checked_mul(size).with_context(|| format!("shape {shape:?} is more than a file can hold"))?;
    if data.len() != needed {
        let (verb, by) =
            if data.len() < needed { ("lacks", needed - data.len()) } else { ("has", data.len() - needed) };
        let more = if verb == "has" { " more" } else { "" };
        bail!(
            "the file {verb} {by} bytes{more}: shape {shape:?} of '{descr}' takes {needed}, {} follow the header",
            data.len()
        );
    }
    let values = data.chunks_exact(size).map(decode);
    let mut out = reserved(count)?;
    if fortran && shape.len() > 1 {
        out.resize(count, 0.0);
        CPlaces::new(&shape).zip(values).for_each(|(place, value)| out[place] = value);
    } else {
        out.extend(values);
    }
    Ok(Vector { values: out, tensors: vec![("array".into(), shape)], notes: Vec::new() })
}

/// Splits a file into the header's text and the bytes after it.
fn split(bytes: &[u8]) -> Result<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC).context("it does not begin as a .npy file does")?;
    let short = "the file ends within its header";
    let (version, rest) = rest.split_first_chunk::<2>().context(short)?;
    let (len, rest) = match version {
        [1, _] => rest.split_first_chunk().map(|(len, rest)| (usize::from(u16::from_le_bytes(*len)), rest)),
        [2 | 3, _] => rest.split_first_chunk().map(|(len, rest)| (u32::from_le_bytes(*len) as usize, rest)),
        [major, minor] => bail!("version {major}.{minor} of the format; 1, 2 and 3 can be read"),
    }
    .context(short)?;
    let (text, data) = rest.split_at_checked(len).context(short)?;
    Ok((std::str::from_utf8(text).context("the header is not text")?, data))
}

/// Returns the number of values. A shape with a size of 0 has none, but its other sizes must still be valid, as in NumPy.
fn count(shape: &[usize]) -> Result<usize> {
    ensure!(shape.len() <= DIMENSIONS, "{} dimensions; there are {DIMENSIONS} at most", shape.len());
    let product = shape.iter().filter(|size| **size > 0).try_fold(1, |product: usize, size| product.checked_mul(*size));
    let product = product.with_context(|| format!("shape {shape:?} is more than a file can hold"))?;
    Ok(if shape.contains(&0) { 0 } else { product })
}

type Decode = fn(&[u8]) -> f32;

/// Returns the bytes of a value and its decoder.
fn decoder(descr: &str) -> Result<(usize, Decode)> {
    fn single(bytes: &[u8], read: fn([u8; 4]) -> f32) -> f32 {
        bytes.try_into().map_or(f32::NAN, read)
    }
    fn double(bytes: &[u8], read: fn([u8; 8]) -> f64) -> f32 {
        bytes.try_into().map_or(f32::NAN, |bytes| read(bytes) as f32)
    }
    fn half(bytes: &[u8], read: fn([u8; 2]) -> f16) -> f32 {
        bytes.try_into().map_or(f32::NAN, |bytes| read(bytes).to_f32())
    }
    Ok(match descr {
        "<f2" => (2, |b| half(b, f16::from_le_bytes)),
        ">f2" => (2, |b| half(b, f16::from_be_bytes)),
        "<f4" => (4, |b| single(b, f32::from_le_bytes)),
        ">f4" => (4, |b| single(b, f32::from_be_bytes)),
        "<f8" => (8, |b| double(b, f64::from_le_bytes)),
        ">f8" => (8, |b| double(b, f64::from_be_bytes)),
        other => bail!("values are of type '{other}'; f2, f4 and f8 can be read: convert the array with .astype('f4')"),
    })
}

/// Iterates over the C-order positions of the values of a tensor in Fortran order.
struct CPlaces<'a> {
    shape: &'a [usize],
    index: Vec<usize>,
    /// Distance between neighbors along each dimension in C order.
    strides: Vec<usize>,
    place: usize,
}

impl CPlaces<'_> {
    /// Creates the iterator; the product of the sizes must not overflow.
    fn new(shape: &[usize]) -> CPlaces<'_> {
        let strides = (1..=shape.len()).map(|from| shape[from..].iter().product()).collect();
        CPlaces { shape, index: vec![0; shape.len()], strides, place: 0 }
    }
}

impl Iterator for CPlaces<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let place = self.place;
        for ((index, size), stride) in self.index.iter_mut().zip(self.shape).zip(&self.strides) {
            *index += 1;
            self.place += stride;
            if *index < *size {
                break;
            }
            self.place -= *index * stride;
            *index = 0;
        }
        Some(place)
    }
}

impl Header {
    /// Parses a dictionary of a string, a boolean and a tuple of sizes, as NumPy writes it.
    fn parse(text: &str) -> Result<Header> {
        let mut text = Literal(text.trim());
        let mut header = Header::default();
        text.expect('{')?;
        while !text.take('}') {
            let key = text.string()?;
            text.expect(':')?;
            let repeated = match key {
                "descr" => header
                    .descr
                    .replace(text.string().context("'descr': only plain types can be read")?.to_owned())
                    .is_some(),
                "fortran_order" => header.fortran.replace(text.truth()?).is_some(),
                "shape" => header.shape.replace(text.sizes()?).is_some(),
                other => bail!("the header has an unknown key {other:?}"),
            };
            ensure!(!repeated, "the header has '{key}' twice");
            if !text.take(',') {
                text.expect('}')?;
                break;
            }
        }
        ensure!(text.0.is_empty(), "the header goes on after its end");
        Ok(header)
    }
}

/// Unparsed rest of a Python literal; white space before the next token is skipped.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn take(&mut self, token: char) -> bool {
        let rest = self.0.strip_prefix(token);
        self.0 = rest.map_or(self.0, str::trim_start);
        rest.is_some()
    }

    fn expect(&mut self, token: char) -> Result<()> {
        let taken = self.take(token);
        ensure!(taken, "the header has {:?} where `{token}` is due", self.here());
        Ok(())
    }

    /// Returns the beginning of the rest, for an error.
    fn here(&self) -> String {
        self.0.chars().take(20).collect()
    }

    /// Parses a string without escapes, which no type's name has.
    fn string(&mut self) -> Result<&'a str> {
        let quote = self.0.chars().next().filter(|c| ['\'', '"'].contains(c));
        let found = quote.and_then(|quote| self.0[1..].split_once(quote));
        let (text, rest) = found.with_context(|| format!("the header has {:?} where a text is due", self.here()))?;
        self.0 = rest.trim_start();
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool> {
        for (name, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(name) {
                self.0 = rest.trim_start();
                return Ok(value);
            }
        }
        bail!("the header has {:?} where True or False is due", self.here())
    }

    fn sizes(&mut self) -> Result<Vec<usize>> {
        let mut sizes = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            let digits = self.0.len() - self.0.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let size = self.0[..digits].parse();
            sizes.push(size.with_context(|| format!("the header has {:?} where a size is due", self.here()))?);
            // Python 2 wrote 3L.
            self.0 = self.0[digits..].trim_start_matches('L').trim_start();
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a file of version 1.0 with this header and these values, as NumPy would write it.
    fn npy(header: &str, values: &[f32]) -> Vec<u8> {
        let len = (header.len() as u16).to_le_bytes();
        let values = values.iter().flat_map(|value| value.to_le_bytes());
        [&b"\x93NUMPY\x01\x00"[..], &len, header.as_bytes()].concat().into_iter().chain(values).collect()
    }

    fn values(bytes: &[u8]) -> (Vec<f32>, Vec<usize>) {
        let vector = parse_npy(bytes).unwrap();
        (vector.values, vector.tensors[0].1.clone())
    }

    #[test]
    fn the_same_array_in_either_order_is_the_same_vector() {
        // np.arange(24.).reshape(2, 3, 4), and its bytes after np.asfortranarray: the first index runs fastest.
        let c: Vec<f32> = (0..24_u8).map(f32::from).collect();
        let fortran: Vec<f32> = [0, 12, 4, 16, 8, 20, 1, 13, 5, 17, 9, 21, 2, 14, 6, 18, 10, 22, 3, 15, 7, 19, 11, 23]
            .into_iter()
            .map(|value: u8| f32::from(value))
            .collect();
        let header = |order: &str| format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': (2, 3, 4), }}\n");
        let expected = (c.clone(), vec![2, 3, 4]);
        assert_eq!(values(&npy(&header("False"), &c)), expected);
        assert_eq!(values(&npy(&header("True"), &fortran)), expected);
        let flat = "{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }";
        assert_eq!(values(&npy(flat, &[1.0, 2.0, 3.0])), (vec![1.0, 2.0, 3.0], vec![3]));
    }

    #[test]
    fn both_sizes_both_byte_orders_and_every_version_are_read() {
        let text = |descr: &str| format!("{{\"shape\": (2L,), \"descr\": \"{descr}\", \"fortran_order\": False}}");
        let file = |version: u8, descr: &str, data: &[u8]| {
            let text = text(descr);
            let len = (text.len() as u32).to_le_bytes();
            let len = if version == 1 { &len[..2] } else { &len[..] };
            [b"\x93NUMPY", &[version, 0][..], len, text.as_bytes(), data].concat()
        };
        let both = [1.5_f64, -2.0];
        let bytes = |encode: fn(f64) -> Vec<u8>| both.map(encode).concat();
        for version in [1, 2, 3] {
            for (descr, data) in [
                ("<f4", bytes(|v| (v as f32).to_le_bytes().to_vec())),
                ("<f2", bytes(|v| f16::from_f64(v).to_le_bytes().to_vec())),
                (">f2", bytes(|v| f16::from_f64(v).to_be_bytes().to_vec())),
                (">f4", bytes(|v| (v as f32).to_be_bytes().to_vec())),
                ("<f8", bytes(|v| v.to_le_bytes().to_vec())),
                (">f8", bytes(|v| v.to_be_bytes().to_vec())),
            ] {
                assert_eq!(values(&file(version, descr, &data)), (vec![1.5, -2.0], vec![2]), "{version} {descr}");
            }
        }
    }

    /// Threat F2.
    #[test]
    fn what_does_not_fit_is_named() {
        let says = |bytes: &[u8], words: &[&str]| {
            let error = format!("{:#}", parse_npy(bytes).unwrap_err());
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        let with = |shape: &str, values: &[f32], words: &[&str]| {
            says(&npy(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"), values), words);
        };
        with("(3,)", &[1.0; 4], &["has 4 bytes more", "shape [3]", "takes 12, 16 follow"]);
        with("(3,)", &[1.0; 2], &["lacks 4 bytes", "takes 12, 8 follow"]);
        with("(0,)", &[1.0], &["has 4 bytes more"]);
        with("(4294967296, 4294967296)", &[], &["more than a file can hold"]);
        with("(4294967296, 4294967296, 0)", &[], &["more than a file can hold"]);
        with("(4611686018427387904,)", &[], &["more than a file can hold"]);
        with("(99999999999999999999,)", &[], &["where a size is due"]);
        with("(-1,)", &[], &["where a size is due", "-1"]);
        with("3", &[], &["`(` is due"]);
        with(&format!("({})", "1,".repeat(65)), &[1.0], &["65 dimensions"]);
        says(&npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", &[1.0]), &["type '<i4'", "f2, f4 and f8"]);
        says(&npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", &[]), &["only plain types"]);
        says(&npy("{'descr': '<f4', 'shape': (1,)}", &[1.0]), &["no 'fortran_order'"]);
        says(&npy("{'shape': (1,), 'shape': (2,)}", &[]), &["'shape' twice"]);
        says(&npy("{'size': (1,)}", &[]), &["unknown key \"size\""]);
        says(&npy("{} {}", &[]), &["goes on"]);
        says(b"\x93NUMPY\x04\x00\x00\x00", &["version 4.0"]);
        says(b"\x93NUMPY\x01\x00\xff\xff{}", &["ends within its header"]);
        says(b"\x93NUMPY\x02\x00\xff\xff\xff\xff", &["ends within its header"]);
        says(b"NUMPY", &["does not begin as a .npy file does"]);
    }
}
