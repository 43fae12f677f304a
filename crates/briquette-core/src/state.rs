//! State that a resumed run needs (residuals, momenta, controllers): how it is staged during an exchange, saved and
//! loaded.
//!
//! A [`State`] is a flat map from names (`residual`, `controller/level`) to values. It does not access files: the Burn
//! integration writes it as safetensors. Nested wrappers prefix their names, so that two wrappers of one kind do not
//! collide. A vector has a [`Place`]: replicated or rank-local. Files do not store the place, because the algorithm
//! that loads the vector knows it.
//!
//! [`Staged`] holds a value between exchanges. An exchange writes the next value, and [`commit`](Stateful::commit)
//! makes it the current value after everything else in the step has succeeded.
//!
//! A component declares its saved fields once, with [`stateful!`](crate::stateful). The [entries](fields) save, load, commit
//! and discard them.
//!
//! ```
//! use briquette_core::state::{Staged, State, Stateful};
//!
//! /// The sum of a rank's gradients, and their number.
//! #[derive(Default)]
//! struct Sum {
//!     sum: Staged<Vec<f32>>,
//!     count: Staged<u64>,
//! }
//!
//! briquette_core::stateful! {
//!     impl Stateful for Sum {
//!         sum: vector("sum").rank_local(Spread),
//!         count: value("count"),
//!     }
//! }
//!
//! impl Sum {
//!     fn add(&mut self, gradient: &[f32]) {
//!         let (now, next) = self.sum.both();
//!         next.clear();
//!         next.extend(gradient.iter().enumerate().map(|(i, g)| g + now.get(i).unwrap_or(&0.0)));
//!         self.sum.stage();
//!         *self.count.next_mut() = self.count.now() + 1;
//!         self.count.stage();
//!     }
//! }
//!
//! let mut sum = Sum::default();
//! sum.add(&[1.0, 2.0]);
//! sum.commit();
//! // This step fails: its gradient leaves no trace.
//! sum.add(&[30.0, 40.0]);
//! sum.discard();
//!
//! let mut state = State::default();
//! sum.save(&mut state);
//! assert_eq!((state.f32s("sum", Some(2))?, state.u64("count")?), (&[1.0, 2.0][..], 1));
//!
//! let mut resumed = Sum::default();
//! resumed.load(&state)?;
//! resumed.add(&[3.0, 4.0]);
//! resumed.commit();
//! assert_eq!((&resumed.sum.now()[..], *resumed.count.now()), (&[4.0, 6.0][..], 2));
//! # Ok::<(), briquette_core::error::StateError>(())
//! ```

use std::collections::BTreeMap;
use std::ops::DerefMut;

use crate::error::StateError;

mod components;
mod declare;
pub mod fields;
mod numbers;
mod staged;
#[cfg(test)]
mod tests;

pub use staged::Staged;

/// Placement of a saved vector: replicated or rank-local.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Place {
    /// The same bits on every rank, also after a change of the world size.
    #[default]
    Replicated,
    /// Rank-local, with the conversion for another world size.
    PerRank(OnResize),
}

/// Conversion of a rank-local vector when a run resumes with another world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResize {
    /// Every rank gets the mean over the ranks that saved. The update is a mean over ranks, and this vector's mean over ranks
    /// does not change.
    Spread,
    /// As `Spread`, for a part of the update that waits for a later step (a residual). In a world that continues after a rank is
    /// lost, the survivors multiply it by new world size / old world size, so that it keeps its weight in the mean.
    Waits,
    /// As `Spread`, for a vector that has a meaning on its own rank alone (a velocity). In a world that continues after a rank is lost,
    /// the survivors keep it.
    Keep,
    /// The vector is dropped: it is empty, as before the first exchange.
    Drop,
}

/// A saved value.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A vector, such as a residual.
    F32s(Vec<f32>),
    /// Several numbers, stored exactly.
    F64s(Vec<f64>),
    /// A number, stored exactly.
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

/// A map from names to saved values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    entries: BTreeMap<String, (Value, Place)>,
}

impl State {
    /// Stores a replicated value; the name must be new.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.put_at(Place::Replicated, name, value);
    }

    /// Stores a value with its placement; the name must be new.
    pub fn put_at(&mut self, place: Place, name: &str, value: impl Into<Value>) {
        let old = self.entries.insert(name.to_owned(), (value.into(), place));
        debug_assert!(old.is_none(), "two values named {name}");
    }

    /// Saves `part` under `prefix/`.
    pub fn put_part(&mut self, prefix: &str, part: &dyn Stateful) {
        let mut inner = State::default();
        part.save(&mut inner);
        self.entries.extend(inner.entries.into_iter().map(|(k, v)| (format!("{prefix}/{k}"), v)));
    }

    /// Saves `part` under `prefix/`, with this placement for all its entries.
    pub(crate) fn put_part_at(&mut self, place: Place, prefix: &str, part: &dyn Stateful) {
        let mut inner = State::default();
        inner.put_part(prefix, part);
        self.entries.extend(inner.entries.into_iter().map(|(name, (value, _))| (name, (value, place))));
    }

    /// Copies all entries of another state.
    pub(crate) fn extend(&mut self, other: &State) {
        self.entries.extend(other.entries.iter().map(|(name, entry)| (name.clone(), entry.clone())));
    }

    /// Loads `part` from the entries under `prefix/`.
    ///
    /// # Errors
    /// [`StateError`] from `part`, for an entry that is missing or has another shape.
    pub fn load_part(&self, prefix: &str, part: &mut dyn Stateful) -> Result<(), StateError> {
        let start = format!("{prefix}/");
        let entries =
            self.entries.iter().filter_map(|(k, v)| Some((k.strip_prefix(&start)?.to_owned(), v.clone()))).collect();
        part.load(&State { entries })
    }

    /// Returns all entries by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, (v, _))| (k.as_str(), v))
    }

    /// Returns the replicated entries by name.
    pub fn replicated(&self) -> impl Iterator<Item = (&str, &Value)> {
        let replicated = self.entries.iter().filter(|(_, (_, place))| *place == Place::Replicated);
        replicated.map(|(k, (v, _))| (k.as_str(), v))
    }

    /// Calls `change` for every vector that is rank-local in `own`, to spread or drop it in a world of another size.
    /// `own` is a state saved by the algorithm that is about to load.
    pub fn for_each_own(&mut self, own: &State, mut change: impl FnMut(&str, OnResize, &mut Vec<f32>)) {
        for (name, (value, _)) in &mut self.entries {
            let place = own.entries.get(name).map(|(_, place)| *place);
            if let (Some(Place::PerRank(resize)), Value::F32s(v)) = (place, value) {
                change(name, resize, v);
            }
        }
    }

    /// Converts a survivor's state to a world of `after` ranks instead of `before`, without the states of the other ranks. What
    /// [waits](OnResize::Waits) is multiplied by `after / before`, other rank-local vectors are kept or dropped. `own` is as for
    /// [`for_each_own`](Self::for_each_own).
    pub fn survive(&mut self, own: &State, before: usize, after: usize) {
        let weight = after as f32 / before as f32;
        self.for_each_own(own, |_, resize, values| match resize {
            OnResize::Waits => values.iter_mut().for_each(|value| *value *= weight),
            OnResize::Drop => values.clear(),
            OnResize::Keep | OnResize::Spread => {}
        });
    }

    /// Returns the state that a new member of an elastic world loads: rank-local vectors are empty.
    #[must_use]
    pub fn shared(&self) -> State {
        let mut shared = self.clone();
        shared.for_each_own(self, |_, _, values| values.clear());
        shared
    }

    /// Returns a vector; checks that it has `len` values if `len` is given.
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

    /// Returns a vector that is empty before its first exchange. Its length must equal that of `here`, unless one of
    /// the two is empty.
    pub fn memory(&self, name: &str, here: &[f32]) -> Result<Vec<f32>, StateError> {
        let len = self.f32s(name, None)?.len();
        let expected = if len == 0 || here.is_empty() { len } else { here.len() };
        self.f32s(name, Some(expected)).map(<[f32]>::to_vec)
    }

    /// Returns a vector of exact numbers.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or of another type.
    pub fn f64s(&self, name: &str) -> Result<&[f64], StateError> {
        match self.get(name)? {
            Value::F64s(v) => Ok(v),
            other => Err(mismatch(name, "f64 values".into(), other)),
        }
    }

    /// Returns an exact number.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or of another type.
    pub fn f64(&self, name: &str) -> Result<f64, StateError> {
        match self.get(name)? {
            Value::F64(v) => Ok(*v),
            other => Err(mismatch(name, "an f64".into(), other)),
        }
    }

    /// Returns a counter.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or of another type.
    pub fn u64(&self, name: &str) -> Result<u64, StateError> {
        match self.get(name)? {
            Value::U64(v) => Ok(*v),
            other => Err(mismatch(name, "a u64".into(), other)),
        }
    }

    /// Returns whether an entry of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    fn get(&self, name: &str) -> Result<&Value, StateError> {
        self.entries.get(name).map(|(value, _)| value).ok_or_else(|| StateError::Missing(name.to_owned()))
    }
}

fn mismatch(name: &str, expected: String, got: &Value) -> StateError {
    StateError::Mismatch { name: name.to_owned(), expected, got: got.describe() }
}

/// A component with state that a resumed run needs. Stateless components keep the empty defaults; others use
/// [`stateful!`](crate::stateful).
pub trait Stateful {
    /// Writes the state needed for a bit-identical resume: the values committed last.
    fn save(&self, _state: &mut State) {}

    /// Reads the state back, and drops the staged values. On an error, this component is unchanged, but some parts of a
    /// compound component may have been read: load into a new one.
    ///
    /// # Errors
    /// [`StateError`] when the state was saved by another component.
    fn load(&mut self, _state: &State) -> Result<(), StateError> {
        Ok(())
    }

    /// Makes the state staged by the last exchange the current state. It never fails: all checks come before.
    fn commit(&mut self) {}

    /// Drops the state staged by the last exchange. The component is then as before that exchange.
    fn discard(&mut self) {}
}

/// Boxed and borrowed components.
impl<P: DerefMut<Target: Stateful>> Stateful for P {
    fn save(&self, state: &mut State) {
        (**self).save(state);
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        (**self).load(state)
    }
    fn commit(&mut self) {
        (**self).commit();
    }
    fn discard(&mut self) {
        (**self).discard();
    }
}
