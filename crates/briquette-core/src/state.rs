//! What a run must remember (residuals, momenta, controllers): staged while ranks exchange, saved, loaded.
//!
//! A [`State`] is a flat map from names (`residual`, `controller/level`) to values. It does not access files: the
//! Burn glue writes it as safetensors. Wrappers nest by prefix, so that two of one kind do not collide. A vector has a
//! [`Place`]: the same on every rank, or each rank's own. Files do not hold it, as the algorithm that loads knows it.
//!
//! [`Staged`] holds a memory between exchanges: an exchange writes the next value, and [`commit`](Stateful::commit) puts it
//! in the place of the present one, after everything else in the step has succeeded.
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
use std::ops::Range;

use crate::error::{ReduceError, StateError};

/// Whose a saved vector is, and what becomes of it in a world of another size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Place {
    /// The same bits on every rank; another world has them too.
    #[default]
    Replicated,
    /// A rank's own.
    PerRank(OnResize),
}

/// What a world of another size does with a rank's own vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResize {
    /// Every rank gets the mean over the ranks that saved: what the update, a mean over ranks, would have received of it.
    Spread,
    /// It is dropped: empty, as before the first exchange.
    Drop,
}

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
    entries: BTreeMap<String, (Value, Place)>,
}

impl State {
    /// Stores a value that is the same on every rank; the name must be new.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.put_at(Place::Replicated, name, value);
    }

    /// Stores a value; the name must be new.
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

    /// Stores what another state holds.
    pub(crate) fn extend(&mut self, other: &State) {
        self.entries.extend(other.entries.iter().map(|(name, entry)| (name.clone(), entry.clone())));
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
        self.entries.iter().map(|(k, (v, _))| (k.as_str(), v))
    }

    /// The entries that are the same on every rank, by name.
    pub fn replicated(&self) -> impl Iterator<Item = (&str, &Value)> {
        let replicated = self.entries.iter().filter(|(_, (_, place))| *place == Place::Replicated);
        replicated.map(|(k, (v, _))| (k.as_str(), v))
    }

    /// Changes every vector that `own`, which the algorithm that is to load has saved, places on each rank: how a world of
    /// another size spreads or drops them.
    pub fn for_each_own(&mut self, own: &State, mut change: impl FnMut(&str, OnResize, &mut Vec<f32>)) {
        for (name, (value, _)) in &mut self.entries {
            let place = own.entries.get(name).map(|(_, place)| *place);
            if let (Some(Place::PerRank(resize)), Value::F32s(v)) = (place, value) {
                change(name, resize, v);
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
        self.entries.get(name).map(|(value, _)| value).ok_or_else(|| StateError::Missing(name.to_owned()))
    }
}

fn mismatch(name: &str, expected: String, got: &Value) -> StateError {
    StateError::Mismatch { name: name.to_owned(), expected, got: got.describe() }
}

/// A value, and the one that takes its place when the step has succeeded. Committing swaps them: nothing is cloned.
///
/// ```
/// use briquette_core::state::Staged;
/// let mut level = Staged::new(1);
/// *level.next_mut() = 2;
/// level.stage();
/// assert_eq!(*level.now(), 1);
/// level.commit();
/// assert_eq!(*level.now(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Staged<T> {
    now: T,
    next: T,
    staged: bool,
    /// `now` was given its length by an exchange that has not been committed: until then it counts as `empty`.
    fresh: bool,
    empty: T,
}

impl<T: Default> Staged<T> {
    /// Begins with `now`.
    pub fn new(now: T) -> Self {
        Staged { now, ..Staged::default() }
    }

    /// What was committed last.
    pub fn now(&self) -> &T {
        if self.fresh { &self.empty } else { &self.now }
    }

    /// Whether a next value waits to be committed.
    pub fn is_staged(&self) -> bool {
        self.staged
    }

    /// What later parts of the same step see: what is staged, or else what was committed last.
    pub fn latest(&self) -> &T {
        if self.staged { &self.next } else { &self.now }
    }

    /// Storage for the next value, which holds whatever it was used for last.
    pub fn next_mut(&mut self) -> &mut T {
        self.both().1
    }

    /// What was committed last, in the length that [`fit`](Staged::fit) gave it, and storage for the next value.
    pub fn both(&mut self) -> (&T, &mut T) {
        self.staged = false;
        (&self.now, &mut self.next)
    }

    /// What is in [`next_mut`](Staged::next_mut) is what [`commit`](Staged::commit) makes the present value.
    pub fn stage(&mut self) {
        self.staged = true;
    }

    /// Puts the next value, where one is staged, in the place of the present one.
    pub fn commit(&mut self) {
        self.fresh = false;
        if std::mem::take(&mut self.staged) {
            std::mem::swap(&mut self.now, &mut self.next);
        }
    }

    /// Drops what is staged.
    pub fn discard(&mut self) {
        self.staged = false;
        if std::mem::take(&mut self.fresh) {
            self.now = T::default();
        }
    }

    /// Replaces the present value at once, and drops what is staged: for loading.
    pub fn set(&mut self, now: T) {
        (self.now, self.staged, self.fresh) = (now, false, false);
    }
}

impl Staged<Vec<f32>> {
    /// Empties a memory at once, and drops what is staged; its storage is kept.
    pub fn clear(&mut self) {
        self.now.clear();
        (self.staged, self.fresh) = (false, false);
    }

    /// Takes back what is staged in these places: the next value is the present one there.
    pub fn hold(&mut self, places: &[Range<usize>]) {
        if self.staged {
            places.iter().for_each(|place| self.next[place.clone()].copy_from_slice(&self.now[place.clone()]));
        }
    }

    /// The present value where [`fit`](Staged::fit) has just made it, in zeros: a memory that begins as something else.
    pub fn begins(&mut self) -> Option<&mut [f32]> {
        if self.fresh { Some(&mut self.now) } else { None }
    }

    /// Gives a memory that is empty its length, in zeros, and the next one the same.
    ///
    /// # Errors
    /// [`ReduceError::Length`] when it has another one already.
    pub fn fit(&mut self, len: usize) -> Result<(), ReduceError> {
        if self.now.is_empty() {
            self.now.resize(len, 0.0);
            self.fresh = true;
        }
        self.next.resize(len, 0.0);
        if self.now.len() == len { Ok(()) } else { Err(ReduceError::Length { expected: self.now.len(), got: len }) }
    }
}

/// Something with state that a resumed run needs. Stateless things keep the empty defaults.
pub trait Stateful {
    /// Writes everything needed to continue to the bit: what was committed last.
    fn save(&self, _state: &mut State) {}

    /// Reads it back, and drops what is staged. On an error nothing has changed, but of several parts some may have been read:
    /// load into a new one.
    ///
    /// # Errors
    /// [`StateError`] when the state was saved by something else.
    fn load(&mut self, _state: &State) -> Result<(), StateError> {
        Ok(())
    }

    /// Makes what the last exchange has staged the present state. Never fails: everything that can fail comes before.
    fn commit(&mut self) {}

    /// Drops what the last exchange has staged. Afterwards everything is as if that exchange had not been.
    fn discard(&mut self) {}
}

impl<T: Stateful + ?Sized> Stateful for Box<T> {
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

/// Saves parts of one kind, each under its number: `bucket-0/…`.
pub(crate) fn save_each<'a, S: Stateful + 'a>(kind: &str, parts: impl IntoIterator<Item = &'a S>, state: &mut State) {
    parts.into_iter().enumerate().for_each(|(index, part)| state.put_part(&format!("{kind}-{index}"), part));
}

/// Loads what [`save_each`] saved.
pub(crate) fn load_each<'a, S: Stateful + 'a>(
    kind: &str,
    parts: impl IntoIterator<Item = &'a mut S>,
    state: &State,
) -> Result<(), StateError> {
    parts.into_iter().enumerate().try_for_each(|(index, part)| state.load_part(&format!("{kind}-{index}"), part))
}
