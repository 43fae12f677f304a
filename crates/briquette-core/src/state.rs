//! Saving and loading what a run must remember: residuals, momenta, controllers.
//!
//! A [`State`] is a flat map from names (`residual`, `controller/level`) to values. It knows nothing of files: the
//! Burn glue writes it as safetensors. Layers nest by prefix, so that two layers of one kind do not collide.
//!
//! ```
//! use briquette_core::state::{State, Stateful};
//! let mut state = State::default();
//! state.put("residual", vec![1.0_f32, 2.0]);
//! state.put("level", 10.0_f64);
//! assert_eq!(state.f64("level")?, 10.0);
//! assert!(state.f32s("level", None).is_err());
//! # Ok::<(), briquette_core::error::StateError>(())
//! ```

use std::collections::BTreeMap;

use crate::error::StateError;

/// One saved value.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A vector, such as a residual.
    F32s(Vec<f32>),
    /// Numbers kept exactly.
    F64s(Vec<f64>),
    /// A number kept exactly.
    F64(f64),
    /// A counter.
    U64(u64),
}

impl Value {
    fn describe(&self) -> String {
        match self {
            Value::F32s(v) => format!("{} f32 values", v.len()),
            Value::F64s(v) => format!("{} f64 values", v.len()),
            Value::F64(_) => "an f64".into(),
            Value::U64(_) => "a u64".into(),
        }
    }
}

macro_rules! from_value {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Value { fn from(v: $type) -> Self { Value::$variant(v) } }
    )*};
}
from_value!(Vec<f32> => F32s, Vec<f64> => F64s, f64 => F64, u64 => U64);

/// Named values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    entries: BTreeMap<String, Value>,
}

impl State {
    /// Stores a value; the name must be new.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        let old = self.entries.insert(name.to_owned(), value.into());
        debug_assert!(old.is_none(), "two values named {name}");
    }

    /// Saves `part` under `prefix/`.
    pub fn put_part(&mut self, prefix: &str, part: &dyn Stateful) {
        let mut inner = State::default();
        part.save(&mut inner);
        self.entries.extend(inner.entries.into_iter().map(|(k, v)| (format!("{prefix}/{k}"), v)));
    }

    /// Loads `part` from what stands under `prefix/`.
    ///
    /// # Errors
    /// Whatever `part` finds missing or of another shape.
    pub fn load_part(&self, prefix: &str, part: &mut dyn Stateful) -> Result<(), StateError> {
        let start = format!("{prefix}/");
        let entries =
            self.entries.iter().filter_map(|(k, v)| Some((k.strip_prefix(&start)?.to_owned(), v.clone()))).collect();
        part.load(&State { entries })
    }

    /// All entries by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Changes every vector whose name ends with `suffix`: how a changed world spreads or drops residuals.
    pub fn for_each_f32s(&mut self, suffix: &str, mut change: impl FnMut(&str, &mut Vec<f32>)) {
        for (name, value) in &mut self.entries {
            if let (true, Value::F32s(v)) = (name.ends_with(suffix), value) {
                change(name, v);
            }
        }
    }

    /// A vector, of `len` values when that is known.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent, of another type, or of another length.
    pub fn f32s(&self, name: &str, len: Option<usize>) -> Result<&[f32], StateError> {
        match self.get(name)? {
            Value::F32s(v) if len.is_none_or(|n| n == v.len()) => Ok(v),
            other => {
                let expected = len.map_or("f32 values".into(), |n| format!("{n} f32 values"));
                Err(mismatch(name, expected, other))
            }
        }
    }

    /// A memory that is empty before its first exchange: as it was saved, and of the length that it has `here`, where
    /// both have one.
    pub(crate) fn memory(&self, name: &str, here: &[f32]) -> Result<Vec<f32>, StateError> {
        let len = self.f32s(name, None)?.len();
        let expected = if len == 0 || here.is_empty() { len } else { here.len() };
        self.f32s(name, Some(expected)).map(<[f32]>::to_vec)
    }

    /// Exact numbers.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or of another type.
    pub fn f64s(&self, name: &str) -> Result<&[f64], StateError> {
        match self.get(name)? {
            Value::F64s(v) => Ok(v),
            other => Err(mismatch(name, "f64 values".into(), other)),
        }
    }

    /// An exact number.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or of another type.
    pub fn f64(&self, name: &str) -> Result<f64, StateError> {
        match self.get(name)? {
            Value::F64(v) => Ok(*v),
            other => Err(mismatch(name, "an f64".into(), other)),
        }
    }

    /// A counter.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or of another type.
    pub fn u64(&self, name: &str) -> Result<u64, StateError> {
        match self.get(name)? {
            Value::U64(v) => Ok(*v),
            other => Err(mismatch(name, "a u64".into(), other)),
        }
    }

    /// Whether there is an entry of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    fn get(&self, name: &str) -> Result<&Value, StateError> {
        self.entries.get(name).ok_or_else(|| StateError::Missing(name.to_owned()))
    }
}

fn mismatch(name: &str, expected: String, got: &Value) -> StateError {
    StateError::Mismatch { name: name.to_owned(), expected, got: got.describe() }
}

/// Something with state that a resumed run needs. Stateless things keep the empty defaults.
pub trait Stateful {
    /// Writes everything needed to continue to the bit.
    fn save(&self, _state: &mut State) {}

    /// Reads it back; on an error nothing has changed.
    ///
    /// # Errors
    /// [`StateError`] when the state was saved by something else.
    fn load(&mut self, _state: &State) -> Result<(), StateError> {
        Ok(())
    }
}

impl<T: Stateful + ?Sized> Stateful for Box<T> {
    fn save(&self, state: &mut State) {
        (**self).save(state);
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        (**self).load(state)
    }
}
