//! Entries for components, which save their own entries.

use super::fields::Field;
use super::{OnResize, Place, State, Stateful};
use crate::error::StateError;

/// A component, with its prefix and placement; see [`part`] and [`flatten`].
#[derive(Debug, Clone, Copy)]
pub struct Part {
    prefix: &'static str,
    place: Place,
}

/// Declares a component whose entries are saved under `prefix/`.
pub fn part(prefix: &'static str) -> Part {
    Part { prefix, place: Place::Replicated }
}

/// Declares a component whose entries are saved without a prefix.
pub fn flatten() -> Part {
    part("")
}

impl Part {
    /// Makes all entries of the component rank-local.
    #[must_use]
    pub fn rank_local(self, on_resize: OnResize) -> Self {
        Part { place: Place::PerRank(on_resize), ..self }
    }
}

impl<S: Stateful> Field<S> for Part {
    fn save(&self, field: &S, state: &mut State) {
        match (self.prefix, self.place) {
            ("", Place::Replicated) => field.save(state),
            (prefix, Place::Replicated) => state.put_part(prefix, field),
            (prefix, place) => state.put_part_at(place, prefix, field),
        }
    }
    fn read(&self, field: &mut S, state: &State) -> Result<(), StateError> {
        if self.prefix.is_empty() { field.load(state) } else { state.load_part(self.prefix, field) }
    }
    fn commit(&self, field: &mut S) {
        field.commit();
    }
    fn discard(&self, field: &mut S) {
        field.discard();
    }
}

/// Several components; see [`parts`].
#[derive(Debug, Clone, Copy)]
pub struct Parts(&'static str);

/// Declares components of one kind, each saved under its number: `bucket-0/…`.
pub fn parts(kind: &'static str) -> Parts {
    Parts(kind)
}

impl<S: Stateful> Field<Vec<S>> for Parts {
    fn save(&self, field: &Vec<S>, state: &mut State) {
        let save = |(index, part): (usize, &S)| state.put_part(&format!("{}-{index}", self.0), part);
        field.iter().enumerate().for_each(save);
    }
    fn read(&self, field: &mut Vec<S>, state: &State) -> Result<(), StateError> {
        let load = |(index, part): (usize, &mut S)| state.load_part(&format!("{}-{index}", self.0), part);
        field.iter_mut().enumerate().try_for_each(load)
    }
    fn commit(&self, field: &mut Vec<S>) {
        field.iter_mut().for_each(Stateful::commit);
    }
    fn discard(&self, field: &mut Vec<S>) {
        field.iter_mut().for_each(Stateful::discard);
    }
}
