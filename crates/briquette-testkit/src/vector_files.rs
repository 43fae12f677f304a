//! Claims about parsing NumPy and safetensors files with arbitrary contents. The fuzz targets and the integration tests of the
//! `briquette` command assert them.

use anyhow::Result;
use briquette_cli::file::{Vector, parse_npy, parse_safetensors};
use safetensors::tensor::{Dtype, TensorView};

/// Checks that parsing gives an error, or a vector that survives being written as NumPy would and read again.
pub fn check_npy(bytes: &[u8]) {
    check(parse_npy(bytes), |vector| parse_npy(&npy(vector)));
}

/// Checks that parsing gives an error, or a vector that survives being written and read again.
pub fn check_safetensors(bytes: &[u8]) {
    check(parse_safetensors(bytes), |vector| parse_safetensors(&safetensors(vector)));
}

fn check(parsed: Result<Vector>, again: impl Fn(&Vector) -> Result<Vector>) {
    let Ok(vector) = parsed else { return };
    let sizes = vector.tensors.iter().map(|(_, shape)| if shape.contains(&0) { 0 } else { shape.iter().product() });
    assert_eq!(sizes.sum::<usize>(), vector.values.len(), "{:?}", vector.tensors);
    let back = again(&vector).expect("what was written can be read");
    assert_eq!(back.tensors, vector.tensors);
    // By bits: values that are no numbers are not equal to themselves.
    assert!(back.values.iter().map(|v| v.to_bits()).eq(vector.values.iter().map(|v| v.to_bits())));
}

/// Builds a file of version 2.0, in C order.
pub fn npy(vector: &Vector) -> Vec<u8> {
    let shape: String = vector.tensors[0].1.iter().map(|size| format!("{size},")).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let values = vector.values.iter().flat_map(|v| v.to_le_bytes());
    let head = [b"\x93NUMPY\x02\x00", &(header.len() as u32).to_le_bytes()[..], header.as_bytes()].concat();
    head.into_iter().chain(values).collect()
}

/// Serializes its tensors as `f32`.
pub fn safetensors(vector: &Vector) -> Vec<u8> {
    let bytes: Vec<u8> = vector.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut start = 0;
    let views = vector.tensors.iter().map(|(name, shape)| {
        let len = 4 * if shape.contains(&0) { 0 } else { shape.iter().product::<usize>() };
        start += len;
        (name, TensorView::new(Dtype::F32, shape.clone(), &bytes[start - len..start]).expect("its own bytes"))
    });
    safetensors::serialize(views.collect::<Vec<_>>(), None).expect("tensors can be written")
}
