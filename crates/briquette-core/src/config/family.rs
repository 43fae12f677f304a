//! What an algorithm states for its family's list, and what the list makes of it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// The settings of an algorithm as its family's list knows them: serde makes their text and their TOML.
pub trait Described: Serialize + DeserializeOwned + Default {
    /// What its text begins with.
    const NAME: &'static str;
    /// Its settings and what it does, in one line.
    const HELP: &'static str;
    /// A name that it had before, which is still read.
    const OLD_NAME: &'static str = Self::NAME;

    /// That every setting is in its range, whatever it is used in.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names the setting.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// The values that the laws are tried on.
    fn representatives() -> Vec<Self> {
        vec![Self::default()]
    }
}

/// Makes an enum of the settings of a family's algorithms. `Name(Settings)` has settings, `Name = Settings` is of a unit struct and
/// has none. The enum is read from a text, or from a table whose `kind` is the name; it is written as a text, and lends what is
/// inside as the family's trait. The name of the variant in kebab case is that of [`Described::NAME`].
macro_rules! family {
    ($(#[$meta:meta])* $family:ident = $default:ident, $what:literal, dyn $trait:path {
        $($name:ident $(= $unit:ident)? $(($settings:ident))?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(into = "String")]
        pub enum $family {
            $(#[doc = concat!("See [`", $(stringify!($unit),)? $(stringify!($settings),)? "`].")] $name $(($settings))?),*
        }

        impl $family {
            /// The representatives of all, for the laws.
            pub fn all() -> Vec<$family> {
                let mut all: Vec<$family> = Vec::new();
                $(
                    let these = <$($unit)? $($settings)? as $crate::config::Described>::representatives();
                    all.extend(these.into_iter().map(<$family>::from));
                )*
                all
            }

            /// Name and help of each.
            pub fn help() -> Vec<(&'static str, &'static str)> {
                vec![$((
                    <$($unit)? $($settings)? as $crate::config::Described>::NAME,
                    <$($unit)? $($settings)? as $crate::config::Described>::HELP,
                )),*]
            }

            /// What its text begins with.
            pub fn name(&self) -> &'static str {
                match self {
                    $($family::$name { .. } => <$($unit)? $($settings)? as $crate::config::Described>::NAME),*
                }
            }

            /// What the settings declare, and build.
            pub fn get(&self) -> &dyn $trait {
                match self {
                    $($($family::$name => &$unit,)? $($family::$name(it) => { let it: &$settings = it; it })?)*
                }
            }
        }

        $(
            $(impl From<$unit> for $family {
                fn from(_: $unit) -> Self {
                    $family::$name
                }
            })?
            $(impl From<$settings> for $family {
                fn from(settings: $settings) -> Self {
                    $family::$name(settings)
                }
            })?
        )*

        impl Default for $family {
            fn default() -> Self {
                $family::$default
            }
        }

        impl $crate::config::family::Family for $family {
            const WHAT: &'static str = $what;

            fn from_parts(text: &str, name: &str, settings: &str) -> Result<Option<Self>, $crate::error::ConfigError> {
                $(
                    if $crate::config::family::is_called::<$($unit)? $($settings)?>(name) {
                        let settings: $($unit)? $($settings)? = $crate::text::read($what, text, settings)?;
                        return $crate::config::family::checked(settings).map(Some);
                    }
                )*
                Ok(None)
            }

            fn from_table<'de, A: serde::de::MapAccess<'de>>(table: A) -> Result<Self, A::Error> {
                #[derive(serde::Deserialize)]
                #[serde(tag = "kind", rename_all = "kebab-case")]
                enum Table { $($name($($unit)? $($settings)?)),* }
                match $crate::config::family::read(table)? {
                    $(Table::$name(settings) => $crate::config::family::checked(settings)),*
                }
                .map_err(serde::de::Error::custom)
            }

            fn from_named<'de, A: serde::de::MapAccess<'de>>(named: A) -> Result<Self, A::Error> {
                #[derive(serde::Deserialize)]
                #[serde(rename_all = "kebab-case")]
                enum Named { $($name($($unit)? $($settings)?)),* }
                match $crate::config::family::read(named)? {
                    $(Named::$name(settings) => $crate::config::family::checked(settings)),*
                }
                .map_err(serde::de::Error::custom)
            }

            fn names() -> Vec<&'static str> {
                $family::help().into_iter().map(|(name, _)| name).collect()
            }
        }

        impl std::fmt::Display for $family {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(
                        $($family::$name => $crate::text::write(f, self.name(), &$unit),)?
                        $($family::$name(it) => { let it: &$settings = it; $crate::text::write(f, self.name(), it) })?
                    )*
                }
            }
        }

        impl std::str::FromStr for $family {
            type Err = $crate::error::ConfigError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::config::family::from_text(text)
            }
        }

        impl From<$family> for String {
            fn from(value: $family) -> String {
                value.to_string()
            }
        }

        impl<'de> serde::Deserialize<'de> for $family {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::config::family::TextOrTable(std::marker::PhantomData))
            }
        }
    };
}
pub(super) use family;

/// What the list of a family makes for reading its texts and tables.
pub(super) trait Family: Sized {
    const WHAT: &'static str;

    /// From a text and its two parts; `None` for a name that is not of this family.
    fn from_parts(text: &str, name: &str, settings: &str) -> Result<Option<Self>, ConfigError>;

    /// From a table that has a `kind` among its keys.
    fn from_table<'de, A: MapAccess<'de>>(table: A) -> Result<Self, A::Error>;

    /// From a table whose only key is the name, and whose value are the settings.
    fn from_named<'de, A: MapAccess<'de>>(named: A) -> Result<Self, A::Error>;

    fn names() -> Vec<&'static str>;
}

/// # Errors
/// [`ConfigError`] names the text, and what of it is wrong.
pub(super) fn from_text<F: Family>(text: &str) -> Result<F, ConfigError> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let unknown = || ConfigError::Unknown { what: F::WHAT, got: text.to_owned(), valid: F::names().join(", ") };
    F::from_parts(text, name, settings)?.ok_or_else(unknown)
}

pub(super) fn is_called<S: Described>(name: &str) -> bool {
    [S::NAME, S::OLD_NAME].contains(&name)
}

pub(super) fn checked<S: Described, F: From<S>>(settings: S) -> Result<F, ConfigError> {
    settings.check()?;
    Ok(settings.into())
}

pub(super) fn read<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: A) -> Result<T, A::Error> {
    T::deserialize(MapAccessDeserializer::new(map))
}

pub(super) struct TextOrTable<F>(pub(super) PhantomData<F>);

impl<'de, F: Family> Visitor<'de> for TextOrTable<F> {
    type Value = F;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the text of a {what}, or a table with the kind of {what}", what = F::WHAT)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<F, E> {
        from_text(text).map_err(E::custom)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<F, A::Error> {
        let first: Option<String> = map.next_key()?;
        let is_name = first.as_deref().is_some_and(|key| F::names().contains(&key));
        let map = Again { first, map };
        if is_name { F::from_named(map) } else { F::from_table(map) }
    }
}

/// A map whose first key was taken.
struct Again<A> {
    first: Option<String>,
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Again<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(first) => seed.deserialize(first.into_deserializer()).map(Some),
            None => self.map.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::AggregatorConfig;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Holder {
        aggregator: AggregatorConfig,
    }

    #[test]
    fn texts_and_tables_are_the_same_settings() {
        for (text, table) in [
            ("mean", "{ kind = 'mean' }"),
            ("krum:1", "{ kind = 'krum' }"),
            ("krum:2,keep=3", "{ kind = 'krum', byzantine = 2, keep = 3 }"),
            ("trimmed-mean:2", "{ kind = 'trimmed-mean', trim = 2 }"),
        ] {
            let read = |value: &str| toml::from_str::<Holder>(&format!("aggregator = {value}")).unwrap();
            let config: AggregatorConfig = text.parse().unwrap();
            assert_eq!(config.to_string(), text);
            assert_eq!(read(&format!("'{text}'")), Holder { aggregator: config });
            assert_eq!(read(table), Holder { aggregator: config });
        }
        for config in AggregatorConfig::all() {
            assert_eq!(config.to_string().parse(), Ok(config));
            // The name of the text is that of the table.
            let name = config.to_string().split(':').next().unwrap().to_owned();
            let table = toml::from_str::<Holder>(&format!("aggregator = {{ kind = '{name}' }}"));
            assert!(table.is_ok_and(|table| table.aggregator.to_string().starts_with(&name)), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_says_what_can() {
        for (text, words) in [
            ("median", &["unknown aggregator `median`", "mean, krum, trimmed-mean"][..]),
            ("mean:1", &["`mean:1`", "1"]),
            ("krum:one", &["`krum:one`", "`byzantine`", "`one`", "whole number"]),
            ("krum:1,keep=0", &["keep of krum", "at least 1"]),
        ] {
            let error = text.parse::<AggregatorConfig>().unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        for table in ["{ kind = 'krum', keep = 0 }", "{ kind = 'krum', kep = 1 }", "{ kind = 'median' }", "3"] {
            assert!(toml::from_str::<Holder>(&format!("aggregator = {table}")).is_err(), "{table}");
        }
    }
}
