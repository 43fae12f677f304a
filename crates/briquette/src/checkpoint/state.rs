//! Encoding of this crate's state as tensors of a safetensors file. It does not depend on Burn, because the fuzz targets
//! include this file.

use briquette_core::state::{State, Value};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Prefix of this crate's tensors; all others are Burn's.
pub(super) const PREFIX: &str = "state/";
/// Prefix that distinguishes a single number from a vector of length one.
const ONE: &str = "one:";

/// Bytes of a value.
pub(super) fn width(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => 4,
        Dtype::F64 | Dtype::U64 => 8,
        _ => 1,
    }
}

/// A tensor's name, type and bytes.
pub(super) fn to_blob(name: &str, value: &Value) -> (String, Dtype, Vec<u8>) {
    let named = |kind: &str| format!("{PREFIX}{kind}{name}");
    match value {
        Value::F32s(v) => (named(""), Dtype::F32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Value::F64s(v) => (named(""), Dtype::F64, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Value::F64(x) => (named(ONE), Dtype::F64, x.to_le_bytes().to_vec()),
        Value::U64(x) => (named(ONE), Dtype::U64, x.to_le_bytes().to_vec()),
        other => unreachable!("a state value without a file form: {other:?}"),
    }
}

/// Encodes a state in the memory format of a file.
pub(crate) fn to_bytes(state: &State) -> Result<Vec<u8>, String> {
    let blobs: Vec<_> = state.iter().map(|(name, value)| to_blob(name, value)).collect();
    let views = blobs.iter().map(|(name, dtype, bytes)| {
        let view = TensorView::new(*dtype, vec![bytes.len() / width(*dtype)], bytes);
        view.map(|view| (name, view)).map_err(|error| error.to_string())
    });
    let views: Vec<_> = views.collect::<Result<_, _>>()?;
    safetensors::serialize(views, None).map_err(|error| error.to_string())
}

/// Reverses [`to_bytes`].
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<State, String> {
    SafeTensors::deserialize(bytes).map_err(|error| error.to_string()).and_then(|file| read_state(&file))
}

/// Reads the tensors written by [`to_blob`].
pub(super) fn read_state(file: &SafeTensors<'_>) -> Result<State, String> {
    let mut state = State::default();
    for (name, view) in file.tensors() {
        let Some(name) = name.strip_prefix(PREFIX) else { continue };
        let (alone, data) = (name.strip_prefix(ONE), view.data());
        let number = || data.try_into().map_err(|_| format!("`{name}` is {} bytes; one number has 8", data.len()));
        let value: Value = match (view.dtype(), alone) {
            (Dtype::F32, None) => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>().into(),
            (Dtype::F64, None) => data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect::<Vec<_>>().into(),
            (Dtype::F64, Some(_)) => f64::from_le_bytes(number()?).into(),
            (Dtype::U64, Some(_)) => u64::from_le_bytes(number()?).into(),
            (dtype, _) => return Err(format!("`{name}` has the unexpected type {dtype:?}")),
        };
        state.put(alone.unwrap_or(name), value);
    }
    Ok(state)
}
