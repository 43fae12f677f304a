//! Saved fields: the entries that [`stateful!`](crate::stateful) declares, each with the field that it saves.
//!
//! | entry | field | saved as |
//! |---|---|---|
//! | [`vector`]`("anchor")` | [`Staged<Vec<f32>>`](Staged) | a vector that is empty before the first exchange |
//! | [`value`]`("count")` | any [`Saved`] type, staged or not | one entry |
//! | [`optional`]`("absent")` | the same | an entry unless the value is the default |
//! | [`scalar`]`("weight", 1.0)` | `Staged<f32>` | a vector of one number |
//! | [`numbers`]`("steps")` | several fields, `[steps, closed]` | one vector of exact numbers |
//! | [`part`]`("reducer")` | a [`Stateful`](super::Stateful) component | its entries, under `reducer/` |
//! | [`parts`]`("bucket")` | a `Vec` of components | their entries, under `bucket-0/`, `bucket-1/`, … |
//! | [`flatten`]`()` | a component | its entries, without a prefix |
//!
//! An entry is replicated unless [`rank_local`](Entry::rank_local) declares otherwise. A [`scalar`] is rank-local. The entries of
//! a component keep their own placement. [`when`] limits an entry to some settings, [`if_some`] to a field that is present.

use std::borrow::Cow;

pub use super::components::{Part, Parts, flatten, part, parts};
pub use super::numbers::{Group, Numbers, numbers};
use super::{OnResize, Place, Staged, State, Value};
use crate::CompressionRatio;
use crate::error::StateError;

/// A declared entry for a field of type `T`.
pub trait Field<T> {
    /// Saves the value committed last.
    fn save(&self, field: &T, state: &mut State);

    /// Checks that the value can be loaded. A component is loaded at once.
    ///
    /// # Errors
    /// [`StateError`] for an entry that is missing or has another shape.
    fn read(&self, field: &mut T, state: &State) -> Result<(), StateError>;

    /// Loads the value, after [`read`](Field::read) has succeeded for all fields.
    ///
    /// # Errors
    /// Those of [`read`](Field::read).
    fn set(&self, _field: &mut T, _state: &State) -> Result<(), StateError> {
        Ok(())
    }

    /// Commits the staged value.
    fn commit(&self, field: &mut T);

    /// Drops the staged value.
    fn discard(&self, field: &mut T);
}

/// Storage of a saved value: [`Staged`], or the value itself if it never changes during an exchange.
pub trait Cell {
    /// Type of the saved value.
    type Value: Clone;
    /// Returns the value committed last.
    fn now(&self) -> Cow<'_, Self::Value>;
    /// Replaces the value, and drops the staged one.
    fn set(&mut self, value: Self::Value);
    /// Commits the staged value.
    fn commit(&mut self) {}
    /// Drops the staged value.
    fn discard(&mut self) {}
}

impl<T: Saved + Clone> Cell for T {
    type Value = T;
    fn now(&self) -> Cow<'_, T> {
        Cow::Borrowed(self)
    }
    fn set(&mut self, value: T) {
        *self = value;
    }
}

impl<T: Default + Clone> Cell for Staged<T> {
    type Value = T;
    fn now(&self) -> Cow<'_, T> {
        Cow::Borrowed(Staged::now(self))
    }
    fn set(&mut self, value: T) {
        Staged::set(self, value);
    }
    fn commit(&mut self) {
        Staged::commit(self);
    }
    fn discard(&mut self) {
        Staged::discard(self);
    }
}

/// A type whose values are saved as one entry.
pub trait Saved: Sized {
    /// Returns the value to save; `None` saves no entry.
    fn saved(&self) -> Option<Value>;

    /// Reads the value of the entry `name`.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or has another shape.
    fn load(name: &str, state: &State) -> Result<Self, StateError>;
}

macro_rules! saved {
    ($($(#[$doc:meta])* $type:ty => |$it:ident| $saved:expr, |$name:ident, $state:ident| $load:expr;)*) => {$(
        $(#[$doc])*
        impl Saved for $type {
            fn saved(&self) -> Option<Value> {
                let $it = self;
                $saved
            }
            fn load($name: &str, $state: &State) -> Result<Self, StateError> {
                $load
            }
        }
    )*};
}

saved! {
    u64 => |it| Some((*it).into()), |name, state| state.u64(name);
    f64 => |it| Some((*it).into()), |name, state| state.f64(name);
    bool => |it| Some(u64::from(*it).into()), |name, state| Ok(state.u64(name)? != 0);
    u32 => |it| Some(u64::from(*it).into()), |name, state| narrow(name, state.u64(name)?);
    u8 => |it| Some(u64::from(*it).into()), |name, state| narrow(name, state.u64(name)?);
    Vec<f32> => |it| Some(it.clone().into()), |name, state| state.f32s(name, None).map(<[f32]>::to_vec);
    Vec<f64> => |it| Some(it.clone().into()), |name, state| state.f64s(name).map(<[f64]>::to_vec);
    Vec<CompressionRatio> => |it| Some(it.iter().map(|ratio| ratio.get()).collect::<Vec<f64>>().into()),
        |name, state| ratios(name, state.f64s(name)?);
    /// Saves a vector of at most one number.
    Option<f64> => |it| Some(it.iter().copied().collect::<Vec<f64>>().into()),
        |name, state| Ok(state.f64s(name)?.first().copied());
    /// Saves no entry for `None`.
    Option<u64> => |it| it.map(Value::from),
        |name, state| if state.contains(name) { state.u64(name).map(Some) } else { Ok(None) };
}

fn ratios(name: &str, saved: &[f64]) -> Result<Vec<CompressionRatio>, StateError> {
    let ratios = saved.iter().map(|ratio| CompressionRatio::new(*ratio).ok()).collect::<Option<_>>();
    ratios.ok_or_else(|| StateError::mismatch(name, "ratios of at least 1", saved))
}

fn narrow<T: TryFrom<u64>>(name: &str, saved: u64) -> Result<T, StateError> {
    T::try_from(saved).map_err(|_| StateError::mismatch(name, "a smaller number", saved))
}

/// A declared entry: its name, its placement, and its kind.
#[derive(Debug, Clone, Copy)]
pub struct Entry<K> {
    name: &'static str,
    place: Place,
    kind: K,
}

impl<K> Entry<K> {
    fn new(name: &'static str, kind: K) -> Self {
        Entry { name, place: Place::Replicated, kind }
    }

    /// Makes the entry rank-local.
    #[must_use]
    pub fn rank_local(self, on_resize: OnResize) -> Self {
        self.at(Place::PerRank(on_resize))
    }

    /// Sets the placement of the entry.
    #[must_use]
    pub fn at(self, place: Place) -> Self {
        Entry { place, ..self }
    }
}

/// A kind of entry for values of type `V`.
pub trait Kind<V> {
    /// Returns the value to save; `None` saves no entry.
    fn saved(&self, value: &V) -> Option<Value>;

    /// Reads the entry `name` in place of the value `here`.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent or has another shape.
    fn load(&self, name: &str, here: &V, state: &State) -> Result<V, StateError>;
}

impl<C: Cell, K: Kind<C::Value>> Field<C> for Entry<K> {
    fn save(&self, field: &C, state: &mut State) {
        if let Some(value) = self.kind.saved(&field.now()) {
            state.put_at(self.place, self.name, value);
        }
    }
    fn read(&self, field: &mut C, state: &State) -> Result<(), StateError> {
        self.kind.load(self.name, &field.now(), state).map(|_| ())
    }
    fn set(&self, field: &mut C, state: &State) -> Result<(), StateError> {
        let loaded = self.kind.load(self.name, &field.now(), state)?;
        field.set(loaded);
        Ok(())
    }
    fn commit(&self, field: &mut C) {
        field.commit();
    }
    fn discard(&self, field: &mut C) {
        field.discard();
    }
}

/// The kind of [`value`].
#[derive(Debug, Clone, Copy)]
pub struct Whole;

/// Declares one entry of a [`Saved`] type.
pub fn value(name: &'static str) -> Entry<Whole> {
    Entry::new(name, Whole)
}

impl<V: Saved> Kind<V> for Whole {
    fn saved(&self, value: &V) -> Option<Value> {
        value.saved()
    }
    fn load(&self, name: &str, _here: &V, state: &State) -> Result<V, StateError> {
        V::load(name, state)
    }
}

/// The kind of [`optional`].
#[derive(Debug, Clone, Copy)]
pub struct UnlessDefault;

/// Declares an entry that is absent if the value is the default.
pub fn optional(name: &'static str) -> Entry<UnlessDefault> {
    Entry::new(name, UnlessDefault)
}

impl<V: Saved + Default + PartialEq> Kind<V> for UnlessDefault {
    fn saved(&self, value: &V) -> Option<Value> {
        if *value == V::default() { None } else { value.saved() }
    }
    fn load(&self, name: &str, _here: &V, state: &State) -> Result<V, StateError> {
        if state.contains(name) { V::load(name, state) } else { Ok(V::default()) }
    }
}

/// The kind of [`scalar`], with the value for an entry that was dropped.
#[derive(Debug, Clone, Copy)]
pub struct Scalar(f32);

/// Declares a rank-local number. If the world size changes, it is dropped, and `initial` replaces it.
pub fn scalar(name: &'static str, initial: f32) -> Entry<Scalar> {
    Entry::new(name, Scalar(initial)).rank_local(OnResize::Drop)
}

impl Kind<f32> for Scalar {
    fn saved(&self, value: &f32) -> Option<Value> {
        Some(vec![*value].into())
    }
    fn load(&self, name: &str, _here: &f32, state: &State) -> Result<f32, StateError> {
        Ok(state.f32s(name, None)?.first().copied().unwrap_or(self.0))
    }
}

/// The kind of [`vector`]: the length that a loaded vector must have.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// That of the current vector; each of the two may be empty.
    Current,
    /// That of another entry; each of the two may be empty.
    Like(&'static str),
    /// That of another entry.
    Exactly(&'static str),
    /// Any length.
    Any,
}

/// Declares a vector that is empty before its first exchange. A loaded vector must be as long as the current one, unless one
/// of the two is empty.
pub fn vector(name: &'static str) -> Entry<Length> {
    Entry::new(name, Length::Current)
}

impl Entry<Length> {
    /// Compares the length with that of another entry; each of the two may be empty.
    #[must_use]
    pub fn like(self, name: &'static str) -> Self {
        Entry { kind: Length::Like(name), ..self }
    }

    /// Requires the length of another entry.
    #[must_use]
    pub fn exactly_like(self, name: &'static str) -> Self {
        Entry { kind: Length::Exactly(name), ..self }
    }

    /// Accepts any length.
    #[must_use]
    pub fn of_any_length(self) -> Self {
        Entry { kind: Length::Any, ..self }
    }
}

impl Kind<Vec<f32>> for Length {
    fn saved(&self, value: &Vec<f32>) -> Option<Value> {
        Some(value.clone().into())
    }
    fn load(&self, name: &str, here: &Vec<f32>, state: &State) -> Result<Vec<f32>, StateError> {
        match self {
            Length::Current => state.memory(name, here),
            Length::Like(other) => state.memory(name, state.f32s(other, None)?),
            Length::Exactly(other) => state.f32s(name, Some(state.f32s(other, None)?.len())).map(<[f32]>::to_vec),
            Length::Any => state.f32s(name, None).map(<[f32]>::to_vec),
        }
    }
}

/// An entry for a field that may be absent; see [`if_some`].
#[derive(Debug, Clone, Copy)]
pub struct IfSome<E>(E);

/// Saves and loads an entry only if the field is present.
pub fn if_some<E>(entry: E) -> IfSome<E> {
    IfSome(entry)
}

impl<T, E: Field<T>> Field<Option<T>> for IfSome<E> {
    fn save(&self, field: &Option<T>, state: &mut State) {
        field.iter().for_each(|field| self.0.save(field, state));
    }
    fn read(&self, field: &mut Option<T>, state: &State) -> Result<(), StateError> {
        field.iter_mut().try_for_each(|field| self.0.read(field, state))
    }
    fn set(&self, field: &mut Option<T>, state: &State) -> Result<(), StateError> {
        field.iter_mut().try_for_each(|field| self.0.set(field, state))
    }
    fn commit(&self, field: &mut Option<T>) {
        field.iter_mut().for_each(|field| self.0.commit(field));
    }
    fn discard(&self, field: &mut Option<T>) {
        field.iter_mut().for_each(|field| self.0.discard(field));
    }
}

/// An entry that is saved and loaded only with some settings; see [`when`].
#[derive(Debug, Clone, Copy)]
pub struct When<E>(bool, E);

/// Saves and loads an entry only if `is_kept`.
pub fn when<E>(is_kept: bool, entry: E) -> When<E> {
    When(is_kept, entry)
}

impl<T, E: Field<T>> Field<T> for When<E> {
    fn save(&self, field: &T, state: &mut State) {
        if self.0 {
            self.1.save(field, state);
        }
    }
    fn read(&self, field: &mut T, state: &State) -> Result<(), StateError> {
        if self.0 { self.1.read(field, state) } else { Ok(()) }
    }
    fn set(&self, field: &mut T, state: &State) -> Result<(), StateError> {
        if self.0 { self.1.set(field, state) } else { Ok(()) }
    }
    fn commit(&self, field: &mut T) {
        self.1.commit(field);
    }
    fn discard(&self, field: &mut T) {
        self.1.discard(field);
    }
}
