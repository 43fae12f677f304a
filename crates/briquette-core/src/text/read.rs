//! Reads settings from a text: a deserializer for flat structs.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::error::ConfigError;

/// Reads `settings`, the part after the name in `text`, of which the first `places` may stand by place. `what` is the family, for error
/// messages.
///
/// # Errors
/// [`ConfigError::Text`] names the text, the key, the value, and what is valid.
pub(crate) fn read<T: DeserializeOwned>(
    what: &'static str,
    text: &str,
    settings: &str,
    places: usize,
) -> Result<T, ConfigError> {
    let read = entries(settings).and_then(|entries| T::deserialize(Settings { entries, places }));
    read.map_err(|error| ConfigError::text(what, text, error))
}

/// An error as text.
#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl Error for Wrong {
    fn custom<T: fmt::Display>(what: T) -> Self {
        Wrong(what.to_string())
    }
}

/// A key and its value. Only the first entry may lack a key. It then holds the values by place.
type Entry<'a> = (Option<&'a str>, &'a str);

/// Splits settings into entries.
fn entries(settings: &str) -> Result<Vec<Entry<'_>>, Wrong> {
    let parts = split(settings, ',', usize::MAX)?;
    parts.into_iter().filter(|_| !settings.is_empty()).enumerate().map(|(index, part)| place(index, part)).collect()
}

/// Splits into at most this many parts, at separators outside of parentheses.
fn split(text: &str, separator: char, most: usize) -> Result<Vec<&str>, Wrong> {
    let mut depth = 0_usize;
    let mut balanced = true;
    let separates = |character| {
        match character {
            '(' => depth += 1,
            ')' => (depth, balanced) = (depth.saturating_sub(1), balanced && depth > 0),
            _ => {}
        }
        character == separator && depth == 0
    };
    let parts = text.splitn(most, separates).collect();
    if depth > 0 || !balanced { Err(Wrong("a parenthesis has no partner".into())) } else { Ok(parts) }
}

fn place(index: usize, part: &str) -> Result<Entry<'_>, Wrong> {
    match part.split_once('=').filter(|(key, _)| is_key(key)) {
        Some((key, value)) => Ok((Some(key), bare(value))),
        None if index == 0 && !part.is_empty() => Ok((None, part)),
        None => Err(Wrong(format!("`{part}` is not KEY=VALUE"))),
    }
}

/// Returns whether the text before an `=` is a key. Otherwise the `=` belongs to a value, which is the text of another algorithm.
pub(crate) fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// Removes the parentheses around the whole value.
fn bare(value: &str) -> &str {
    let inside = value.strip_prefix('(').and_then(|value| value.strip_suffix(')'));
    let mut depth = 0_i32;
    let stays_inside = |character: char| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        depth >= 0
    };
    inside.filter(|inside| inside.chars().all(stays_inside)).unwrap_or(value)
}

/// The settings of an algorithm.
struct Settings<'a> {
    entries: Vec<Entry<'a>>,
    /// Number of fields that may stand by place.
    places: usize,
}

impl<'de> Deserializer<'de> for Settings<'_> {
    type Error = Wrong;

    /// Deserializes settings without fields.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.entries.first() {
            None => visitor.visit_unit(),
            Some((_, value)) => Err(Wrong(format!("it has no settings, got `{value}`"))),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let mut entries: Vec<(String, &str)> = Vec::new();
        for (key, value) in self.entries {
            let Some(key) = key else {
                let values = split(value, ':', self.places.min(fields.len()))?;
                entries.extend(fields.iter().zip(values).map(|(key, value)| ((*key).to_owned(), bare(value))));
                continue;
            };
            // Accepts the spelling of the command line, with hyphens, besides that of the field.
            let key = key.replace('-', "_");
            if entries.iter().any(|(earlier, _)| *earlier == key) {
                return Err(Wrong(format!("`{key}` is given twice")));
            }
            entries.push((key, value));
        }
        visitor.visit_map(Fields { entries: entries.into_iter(), value: None })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Fields<'a> {
    entries: std::vec::IntoIter<(String, &'a str)>,
    value: Option<(String, &'a str)>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        self.value = self.entries.next();
        let key = self.value.as_ref().map(|(key, _)| seed.deserialize(StrDeserializer::<Wrong>::new(key)));
        key.transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let (key, value) = self.value.take().ok_or_else(|| Wrong("a value without a key".into()))?;
        seed.deserialize(Value(value)).map_err(|error| Wrong(format!("`{key}`: {error}")))
    }
}

/// The text of one value.
struct Value<'a>(&'a str);

impl Value<'_> {
    fn parse<T: std::str::FromStr>(&self, text: &str, expected: &str) -> Result<T, Wrong> {
        text.parse().map_err(|_| Error::invalid_value(Unexpected::Other(&format!("`{}`", self.0)), &expected))
    }

    /// Parses a number. Ratios may end in an x.
    fn number<T: std::str::FromStr>(&self) -> Result<T, Wrong> {
        self.parse(self.0.strip_suffix('x').unwrap_or(self.0), "a number")
    }
}

macro_rules! whole {
    ($($method:ident $visit:ident $type:ty),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
            visitor.$visit(self.parse::<$type>(self.0, "a whole number in its range")?)
        }
    )*};
}

impl<'de> Deserializer<'de> for Value<'_> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_str(self.0)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_bool(match self.0 {
            "true" | "on" => true,
            "false" | "off" => false,
            _ => return Err(Wrong(format!("`{}` is none of true, false", self.0))),
        })
    }

    whole! {
        deserialize_i64 visit_i64 i64, deserialize_i32 visit_i32 i32, deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_f64(self.number()?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_f32(self.number()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let word: StrDeserializer<'_, Wrong> = self.0.into_deserializer();
        word.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u128 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}
