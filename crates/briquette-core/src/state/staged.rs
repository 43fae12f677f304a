//! Staged values: the current value and the one of the step in progress.

use std::ops::Range;

use crate::error::ReduceError;

/// A current value and the value that replaces it when the step succeeds. A commit swaps the two: nothing is cloned.
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
    /// Set if an uncommitted exchange gave `now` its length: until the commit, it counts as `empty`.
    fresh: bool,
    empty: T,
}

impl<T: Default> Staged<T> {
    /// Creates a value with `now` as the current value.
    pub fn new(now: T) -> Self {
        Staged { now, ..Staged::default() }
    }

    /// Returns the value committed last.
    pub fn now(&self) -> &T {
        if self.fresh { &self.empty } else { &self.now }
    }

    /// Returns whether a next value is staged for commit.
    pub fn is_staged(&self) -> bool {
        self.staged
    }

    /// Returns the value for later parts of the same step: the staged value, or else the one committed last.
    pub fn latest(&self) -> &T {
        if self.staged { &self.next } else { &self.now }
    }

    /// Returns storage for the next value; it still holds an older value.
    pub fn next_mut(&mut self) -> &mut T {
        self.both().1
    }

    /// Returns the value committed last, in the length set by [`fit`](Staged::fit), and storage for the next value.
    pub fn both(&mut self) -> (&T, &mut T) {
        self.staged = false;
        (&self.now, &mut self.next)
    }

    /// Stages the value in [`next_mut`](Staged::next_mut): [`commit`](Staged::commit) makes it the current value.
    pub fn stage(&mut self) {
        self.staged = true;
    }

    /// Makes the staged value, if any, the current one.
    pub fn commit(&mut self) {
        self.fresh = false;
        if std::mem::take(&mut self.staged) {
            std::mem::swap(&mut self.now, &mut self.next);
        }
    }

    /// Drops the staged value.
    pub fn discard(&mut self) {
        self.staged = false;
        if std::mem::take(&mut self.fresh) {
            self.now = T::default();
        }
    }

    /// Replaces the current value at once, and drops the staged value: for loading.
    pub fn set(&mut self, now: T) {
        (self.now, self.staged, self.fresh) = (now, false, false);
    }
}

impl Staged<Vec<f32>> {
    /// Empties the vector at once, and drops the staged value; its storage is kept.
    pub fn clear(&mut self) {
        self.now.clear();
        (self.staged, self.fresh) = (false, false);
    }

    /// Reverts the staged value in these ranges: there, the next value equals the current one.
    pub fn hold(&mut self, places: &[Range<usize>]) {
        if self.staged {
            places.iter().for_each(|place| self.next[place.clone()].copy_from_slice(&self.now[place.clone()]));
        }
    }

    /// Returns the current value if [`fit`](Staged::fit) has just filled it with zeros, for a vector with another
    /// initial value.
    pub fn begins(&mut self) -> Option<&mut [f32]> {
        if self.fresh { Some(&mut self.now) } else { None }
    }

    /// Gives an empty vector its length, filled with zeros, and resizes the next value to the same length.
    ///
    /// # Errors
    /// [`ReduceError::Length`] when the vector already has another length.
    pub fn fit(&mut self, len: usize) -> Result<(), ReduceError> {
        if self.now.is_empty() {
            self.now.resize(len, 0.0);
            self.fresh = true;
        }
        self.next.resize(len, 0.0);
        if self.now.len() == len { Ok(()) } else { Err(ReduceError::Length { expected: self.now.len(), got: len }) }
    }
}
