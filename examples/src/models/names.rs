//! Lookup of models by name.

use std::error::Error;
use std::fmt;

/// No model has the requested name; the message lists those that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownModel {
    /// Requested name.
    pub name: String,
    /// Existing names.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no model is named {:?}; choose one of {}", self.name, self.known.join(", "))
    }
}

impl Error for UnknownModel {}

/// Returns the entry of `all` that is called `name`.
pub(super) fn find<K: Copy>(all: &[K], name_of: fn(K) -> &'static str, name: &str) -> Result<K, UnknownModel> {
    all.iter()
        .copied()
        .find(|kind| name_of(*kind) == name)
        .ok_or_else(|| UnknownModel { name: name.to_owned(), known: all.iter().map(|kind| name_of(*kind)).collect() })
}
