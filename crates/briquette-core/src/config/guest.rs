//! Settings of an algorithm of another crate, as a value of its family.

use std::fmt::{self, Write as _};

use super::Described;

/// Settings of an algorithm that this crate does not list, with their text. Made by reading a text or a table whose name is in the
/// [catalogue](super::Catalogue). Two are equal if their texts are.
///
/// It is `Copy`, because some families are. For that, settings stay in memory until the process ends: a few bytes for every
/// time that a configuration is read.
pub struct Guest<T: ?Sized + 'static> {
    name: &'static str,
    text: &'static str,
    settings: &'static T,
}

impl<T: ?Sized> Guest<T> {
    pub(super) fn new(name: &'static str, text: String, settings: Box<T>) -> Self {
        Guest { name, text: text.leak(), settings: Box::leak(settings) }
    }

    /// Returns the name, with which the text begins.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the settings.
    pub fn get(&self) -> &'static T {
        self.settings
    }
}

/// Returns the text of settings; an error if they are not a flat struct.
pub(super) fn text_of<S: Described>(settings: &S) -> Result<String, fmt::Error> {
    struct Shown<'a, S>(&'a S);
    impl<S: Described> fmt::Display for Shown<'_, S> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            crate::text::write(f, S::NAME, self.0)
        }
    }
    let mut text = String::new();
    write!(text, "{}", Shown(settings))?;
    Ok(text)
}

impl<T: ?Sized> Clone for Guest<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Guest<T> {}

impl<T: ?Sized> PartialEq for Guest<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T: ?Sized> fmt::Debug for Guest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guest({})", self.text)
    }
}

impl<T: ?Sized> fmt::Display for Guest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}
