//! Several fields in one entry.

use super::State;
use crate::CompressionRatio;
use crate::error::StateError;

/// A field that is saved as a fixed count of exact numbers.
pub trait Numbers {
    /// Appends the numbers.
    fn put(&self, numbers: &mut Vec<f64>);

    /// Returns whether these numbers, as many as it saves, are valid.
    fn accepts(&self, _saved: &[f64]) -> bool {
        true
    }

    /// Loads the numbers that it accepted.
    fn set(&mut self, saved: &[f64]);
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Numbers for $type {
            fn put(&self, numbers: &mut Vec<f64>) {
                numbers.push(*self as f64);
            }
            fn set(&mut self, saved: &[f64]) {
                *self = saved[0] as $type;
            }
        }
    )*};
}
number!(f64, u64, u32);

impl<const N: usize> Numbers for [f64; N] {
    fn put(&self, numbers: &mut Vec<f64>) {
        numbers.extend(self);
    }
    fn set(&mut self, saved: &[f64]) {
        self.copy_from_slice(saved);
    }
}

impl Numbers for CompressionRatio {
    fn put(&self, numbers: &mut Vec<f64>) {
        numbers.push(self.get());
    }
    fn accepts(&self, saved: &[f64]) -> bool {
        CompressionRatio::new(saved[0]).is_ok()
    }
    fn set(&mut self, saved: &[f64]) {
        *self = CompressionRatio::new(saved[0]).unwrap_or(*self);
    }
}

/// 0 stands for `None`.
impl Numbers for Option<CompressionRatio> {
    fn put(&self, numbers: &mut Vec<f64>) {
        numbers.push(self.map_or(0.0, |ratio| ratio.get()));
    }
    fn set(&mut self, saved: &[f64]) {
        *self = CompressionRatio::new(saved[0]).ok();
    }
}

/// The entry of [`numbers`].
#[derive(Debug, Clone, Copy)]
pub struct Group(&'static str);

/// Declares one entry for several fields, as a vector of exact numbers.
pub fn numbers(name: &'static str) -> Group {
    Group(name)
}

impl Group {
    /// Saves the fields.
    pub fn save(&self, fields: &[&dyn Numbers], state: &mut State) {
        let mut numbers = Vec::new();
        fields.iter().for_each(|field| field.put(&mut numbers));
        state.put(self.0, numbers);
    }

    /// Checks that the fields can be loaded.
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent, of another length, or has numbers that a field refuses.
    pub fn read(&self, fields: &[&dyn Numbers], state: &State) -> Result<(), StateError> {
        let (saved, mut ours) = (state.f64s(self.0)?, Vec::new());
        for field in fields {
            let start = ours.len();
            field.put(&mut ours);
            if !saved.get(start..ours.len()).is_some_and(|saved| field.accepts(saved)) {
                return Err(StateError::mismatch(self.0, &format!("valid values of {} fields", fields.len()), saved));
            }
        }
        if saved.len() == ours.len() {
            return Ok(());
        }
        Err(StateError::mismatch(self.0, &format!("{} numbers", ours.len()), saved))
    }

    /// Loads the fields, after [`read`](Group::read).
    ///
    /// # Errors
    /// [`StateError`] when the entry is absent.
    pub fn set(&self, fields: &mut [&mut dyn Numbers], state: &State) -> Result<(), StateError> {
        let (saved, mut ours) = (state.f64s(self.0)?, Vec::new());
        for field in fields {
            let start = ours.len();
            field.put(&mut ours);
            field.set(&saved[start..ours.len()]);
        }
        Ok(())
    }
}
