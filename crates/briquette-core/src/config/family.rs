//! Families of algorithms: the interface of an algorithm's settings, and the macro that makes the enum of a family.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// Settings of an algorithm, as listed in its family. Serde defines their text and TOML forms.
pub trait Described: Serialize + DeserializeOwned + Default {
    /// The name, with which its text begins.
    const NAME: &'static str;
    /// The syntax of the settings after the name and a colon, for help.
    const SETTINGS: &'static str = "";
    /// The description, in one line.
    const HELP: &'static str;
    /// A former name, which is still read.
    const OLD_NAME: &'static str = Self::NAME;

    /// Checks that every setting is in its range, independent of where it is used.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names the setting.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the values on which the laws are tested.
    fn representatives() -> Vec<Self> {
        vec![Self::default()]
    }
}

/// Defines an enum of the settings of a family's algorithms. `Name(Settings)` has settings. `Name = Settings` has none, and `Settings`
/// is a unit struct. The enum is read from a text, or from a table whose `kind` is the name. It is written as a text, and gives access
/// to the settings as the family's trait. The name of the variant in kebab case is that of [`Described::NAME`].
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
            /// Returns the representatives of all algorithms, for the laws.
            pub fn all() -> Vec<$family> {
                let mut all: Vec<$family> = Vec::new();
                $(
                    let these = <$($unit)? $($settings)? as $crate::config::Described>::representatives();
                    all.extend(these.into_iter().map(<$family>::from));
                )*
                all
            }

            /// Returns the syntax and a description of each algorithm.
            pub fn help() -> Vec<(String, &'static str)> {
                vec![$($crate::config::family::help::<$($unit)? $($settings)?>()),*]
            }

            /// Returns the name, with which its text begins.
            pub fn name(&self) -> &'static str {
                match self {
                    $($family::$name { .. } => <$($unit)? $($settings)? as $crate::config::Described>::NAME),*
                }
            }

            /// Returns the settings as the family's trait.
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
                vec![$(<$($unit)? $($settings)? as $crate::config::Described>::NAME),*]
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

/// The interface by which texts and tables of a family are read.
pub(super) trait Family: Sized {
    const WHAT: &'static str;

    /// Reads settings from a text and its two parts. Returns `None` if the name is not of this family.
    fn from_parts(text: &str, name: &str, settings: &str) -> Result<Option<Self>, ConfigError>;

    /// Reads settings from a table with a `kind` among its keys.
    fn from_table<'de, A: MapAccess<'de>>(table: A) -> Result<Self, A::Error>;

    /// Reads settings from a table whose only key is the name, with the settings as its value.
    fn from_named<'de, A: MapAccess<'de>>(named: A) -> Result<Self, A::Error>;

    fn names() -> Vec<&'static str>;
}

/// Reads settings from a text.
///
/// # Errors
/// [`ConfigError`] names the text and the error.
pub(super) fn from_text<F: Family>(text: &str) -> Result<F, ConfigError> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let unknown = || ConfigError::Unknown { what: F::WHAT, got: text.to_owned(), valid: F::names().join(", ") };
    F::from_parts(text, name, settings)?.ok_or_else(unknown)
}

pub(super) fn help<S: Described>() -> (String, &'static str) {
    let settings = if S::SETTINGS.is_empty() { String::new() } else { format!("[:{}]", S::SETTINGS) };
    (format!("{}{settings}", S::NAME), S::HELP)
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

/// A map that returns its first key again.
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
    use super::*;
    use crate::config::{AggregatorConfig, ControllerConfig, Feedback, ReducerConfig, ServerConfig, StrategyConfig};

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
    }

    /// Checks for every algorithm of a family that its text round-trips, and that its name is that of its table and of its variant.
    fn check_list<F>(all: Vec<F>, help: Vec<(String, &str)>)
    where
        F: Family + Clone + PartialEq + std::fmt::Debug + std::fmt::Display + serde::de::DeserializeOwned,
    {
        assert_eq!(F::names().len(), help.len());
        for (name, (syntax, help)) in F::names().into_iter().zip(&help) {
            assert!(syntax.starts_with(name) && !help.is_empty(), "{name}");
            let of_table: F = serde_json::from_value(serde_json::json!({ "kind": name })).expect(name);
            assert_eq!(from_text::<F>(name).as_ref(), Ok(&of_table));
            assert_eq!(of_table.to_string().split(':').next(), Some(name));
            let tried = |config: &F| config.to_string().split(':').next() == Some(name);
            assert!(all.iter().any(tried), "the laws try {name}");
            let error = from_text::<F>(&format!("{name}:no-such-key=1")).unwrap_err().to_string();
            assert!(error.contains("no_such_key") || error.contains("no settings"), "{error}");
        }
        for config in all {
            assert_eq!(from_text(&config.to_string()), Ok(config));
        }
    }

    #[test]
    fn every_algorithm_of_every_family_has_a_text_a_table_help_and_a_representative() {
        check_list(StrategyConfig::all(), StrategyConfig::help());
        check_list(ServerConfig::all(), ServerConfig::help());
        check_list(ReducerConfig::all(), ReducerConfig::help());
        check_list(AggregatorConfig::all(), AggregatorConfig::help());
        check_list(Feedback::all(), Feedback::help());
        check_list(ControllerConfig::all(), ControllerConfig::help());
    }

    #[test]
    fn texts_within_texts_stand_in_parentheses_where_they_have_commas() {
        let reducer: ReducerConfig = "multi-step:3,inner=(gather:(topk:0.1,values=q8),per-slot=on)".parse().unwrap();
        assert_eq!(reducer.to_string(), "multi-step:3,inner=(gather:topk:10x:q8,per-slot=true)");
        assert_eq!(reducer.to_string().parse(), Ok(reducer));
    }

    #[test]
    fn what_cannot_be_says_what_can() {
        fn error<F: Family>(text: &str) -> String {
            from_text::<F>(text).err().expect(text).to_string()
        }
        for (error, words) in [
            (
                error::<AggregatorConfig>("middle"),
                &["unknown aggregator `middle`", "mean, krum, trimmed-mean, median"][..],
            ),
            (error::<AggregatorConfig>("mean:1"), &["`mean:1`", "no settings, got `1`"]),
            (error::<AggregatorConfig>("krum:one"), &["`krum:one`", "`byzantine`", "`one`", "whole number"]),
            (error::<AggregatorConfig>("krum:1,keep=0"), &["keep of krum", "at least 1"]),
            (error::<ReducerConfig>("circle"), &["unknown reducer `circle`", "dense, gather, shared-random-k"]),
            (error::<ReducerConfig>("ring:f32"), &["`ring:f32`", "`format`", "bf16"]),
            (error::<ReducerConfig>("ring:f16,stochastic=true"), &["8 bits alone", "int8"]),
            (error::<ReducerConfig>("power-sgd:0"), &["PowerSGD rank", "at least 1", "got 0"]),
            (error::<ReducerConfig>("power-sgd:2,rnk=1"), &["unknown field `rnk`", "`rank`"]),
            (error::<ReducerConfig>("multi-step:0"), &["rounds", "at least 1"]),
            (error::<ReducerConfig>("sketched-sgd:8x,rows=4"), &["rows of a sketch", "odd", "got 4"]),
            (error::<ReducerConfig>("ternary-all-reduce:-1"), &["clip", "-1"]),
            (error::<ReducerConfig>("gather:topk:2"), &["`compressor`", "at most 1", "got 2"]),
            (error::<ReducerConfig>("gather:(topk:0.1,vals=q8)"), &["field `vals`", "`factor`, `values`"]),
            (error::<ReducerConfig>("shared-random-k:half"), &["`factor`", "10x", "got half"]),
            (error::<Feedback>("memory"), &["unknown feedback `memory`", "error, error-inside"]),
            (error::<Feedback>("diana:1.5"), &["alpha of diana", "at most 1", "got 1.5"]),
            (error::<Feedback>("momentum:0.9,clip=0"), &["clip", "positive", "got 0"]),
            (error::<ControllerConfig>("gravac:epsilom=1"), &["unknown field `epsilom`", "`epsilon`"]),
            (error::<ControllerConfig>("gravac:window=0"), &["gravac window", "at least 1", "got 0"]),
            (error::<ControllerConfig>("gravac:policy=fast"), &["`policy`", "exponential, geometric"]),
            (error::<ControllerConfig>("schedule:8x,to=4x"), &["from 8x to 4x"]),
            (error::<StrategyConfig>("sometimes"), &["unknown strategy `sometimes`", "every-step, local-sgd"]),
            (error::<StrategyConfig>("local-sgd:0"), &["steps between averages", "at least 1", "got 0"]),
        ] {
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        }
        for table in ["{ kind = 'krum', keep = 0 }", "{ kind = 'krum', kep = 1 }", "{ kind = 'middle' }", "3"] {
            assert!(toml::from_str::<Holder>(&format!("aggregator = {table}")).is_err(), "{table}");
        }
    }
}
