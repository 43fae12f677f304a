//! Properties that hold for any bytes read as a manifest or as a rank's state. The tests here assert them for random bytes; the
//! fuzz targets include this file.
#![allow(unreachable_pub)] // by the fuzz targets it is not

use std::collections::HashMap;

use briquette_core::manifest::Manifest;
use briquette_core::state::State;
use safetensors::tensor::{SafeTensors, TensorView};

use super::state::{read_state, to_blob, width};

/// Checks that reading `bytes` fails, or that the result survives a write and a second read.
pub fn check_manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::parse(bytes) else { return };
    let text = manifest.to_text().expect("what was read can be written");
    let back = Manifest::parse(text.as_bytes()).expect("what was written can be read");
    assert!(back.crc32.is_some(), "it is written with its checksum");
    assert_eq!(back, Manifest { crc32: back.crc32, ..manifest });
}

/// Checks that reading `bytes` fails, or that the result survives a write and a second read.
pub fn check_state(bytes: &[u8]) {
    let Ok(file) = SafeTensors::deserialize(bytes) else { return };
    let Ok(state) = read_state(&file) else { return };
    let written = write(&state);
    let file = SafeTensors::deserialize(&written).expect("what was written can be read");
    let back = read_state(&file).expect("what was written is a state");
    // By bits: NaNs are not equal to themselves.
    assert!(write(&back) == written, "{state:?} comes back as {back:?}");
}

/// The state alone, in a fixed order.
pub fn write(state: &State) -> Vec<u8> {
    let blobs: Vec<_> = state.iter().map(|(name, value)| to_blob(name, value)).collect();
    let views = blobs.iter().map(|(name, dtype, bytes)| {
        (name, TensorView::new(*dtype, vec![bytes.len() / width(*dtype)], bytes).expect("whole values"))
    });
    safetensors::serialize(views, None::<HashMap<String, String>>).expect("tensors can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let notes = [("data", "é"), ("total", "9")].map(|(name, note)| (name.to_owned(), note.to_owned()));
        let common = [(0, 5)].into();
        Manifest { step: 7, world: 2, checksums: vec![1, u32::MAX], common, notes: notes.into(), crc32: None }
    }

    fn state() -> State {
        let mut state = State::default();
        state.put("residual", vec![1.0_f32, -0.0, f32::NAN]);
        state.put("previous/seconds", vec![0.5_f64, f64::INFINITY]);
        state.put("clock", 2.5_f64);
        state.put("step", u64::MAX);
        state
    }

    /// Checks `whole` with each single bit flipped, and truncated at every length.
    fn damaged(whole: &[u8], check: impl Fn(&[u8])) {
        check(whole);
        (0..whole.len()).for_each(|end| check(&whole[..end]));
        for bit in 0..8 * whole.len() {
            let mut bytes = whole.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            check(&bytes);
        }
    }

    /// Threat F1.
    #[test]
    fn a_damaged_manifest_is_an_error_or_says_the_same() {
        let text = manifest().to_text().unwrap();
        let whole = Manifest::parse(text.as_bytes()).unwrap();
        damaged(text.as_bytes(), |bytes| {
            check_manifest(bytes);
            if let Ok(other) = Manifest::parse(bytes) {
                assert_eq!(Manifest { crc32: whole.crc32, ..other }, whole, "{}", String::from_utf8_lossy(bytes));
            }
        });
    }

    /// Threat F1.
    #[test]
    fn a_state_comes_back_to_the_bit_and_a_damaged_one_is_an_error_or_another() {
        let bytes = write(&state());
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(format!("{:?}", read_state(&file).unwrap()), format!("{:?}", state()));
        damaged(&bytes, check_state);
    }

    #[test]
    fn a_lone_number_of_another_size_is_an_error() {
        let bytes = [0; 16];
        let view = TensorView::new(safetensors::Dtype::U64, vec![2], &bytes).unwrap();
        let file = safetensors::serialize([("state/one:step", view)], None).unwrap();
        let error = read_state(&SafeTensors::deserialize(&file).unwrap()).unwrap_err();
        assert!(error.contains("one:step") && error.contains("16 bytes"), "{error}");
    }
}
