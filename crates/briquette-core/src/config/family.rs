//! Families of algorithms: the interface of an algorithm's settings, and the macro that makes the enum of a family.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::catalogue::{self, Entry, Listed};
use crate::error::ConfigError;

/// Settings of an algorithm, as listed in its family. Serde defines their text and TOML forms.
pub trait Described: Serialize + DeserializeOwned + Default {
    /// The name, with which its text begins: lowercase words joined by hyphens.
    const NAME: &'static str;
    /// The syntax of the settings after the name and a colon, for help.
    const SETTINGS: &'static str = "";
    /// The description, in one line.
    const HELP: &'static str;

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
/// is a unit struct. The variant `Guest` holds an algorithm of another crate. The enum is read from a text, or from a table whose
/// `kind` is the name. It is written as a text, and gives access to the settings as the family's trait.
macro_rules! family {
    ($(#[$meta:meta])* $family:ident = $default:ident, $what:literal, dyn $trait:path {
        $($name:ident $(= $unit:ident)? $(($settings:ident))?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(into = "String")]
        #[non_exhaustive]
        pub enum $family {
            $(
                #[doc = concat!("See [`", $(stringify!($unit),)? $(stringify!($settings),)? "`].")]
                $name $(($settings))?,
            )*
            /// An algorithm of another crate, from the [catalogue](crate::config::Catalogue).
            Guest($crate::config::Guest<dyn $trait + Send + Sync>),
        }

        impl $family {
            /// Returns the representatives of all algorithms, for the laws.
            pub fn all() -> Vec<$family> {
                $crate::config::catalogue::entries::<$family>().iter().flat_map(|entry| (entry.representatives)()).collect()
            }

            /// Returns the syntax and a description of each algorithm.
            pub fn help() -> Vec<(String, &'static str)> {
                $crate::config::catalogue::entries::<$family>().iter().map(|entry| (entry.syntax(), entry.help)).collect()
            }

            /// Returns the name, with which its text begins.
            pub fn name(&self) -> &'static str {
                match self {
                    $($family::$name { .. } => <$($unit)? $($settings)? as $crate::config::Described>::NAME,)*
                    $family::Guest(guest) => guest.name(),
                }
            }

            /// Returns the settings as the family's trait.
            pub fn get(&self) -> &dyn $trait {
                match self {
                    $(
                        $($family::$name => &$unit,)?
                        $($family::$name(it) => { let it: &$settings = it; it })?
                    )*
                    $family::Guest(guest) => guest.get(),
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

            fn own() -> Vec<$crate::config::catalogue::Entry<$family>> {
                vec![$($crate::config::catalogue::Entry::new::<$($unit)? $($settings)?, $($unit)? $($settings)?>()),*]
            }
        }

        impl std::fmt::Display for $family {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(
                        $($family::$name => $crate::text::write(f, self.name(), &$unit),)?
                        $($family::$name(it) => { let it: &$settings = it; $crate::text::write(f, self.name(), it) })?
                    )*
                    $family::Guest(guest) => guest.fmt(f),
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

/// The enum of a family, as the catalogue and the reader see it.
pub(crate) trait Family: Sized + Clone + 'static {
    /// The noun for error messages.
    const WHAT: &'static str;

    /// Returns the entries of this crate's algorithms.
    fn own() -> Vec<Entry<Self>>;
}

/// Reads settings from a text.
///
/// # Errors
/// [`ConfigError`] names the text and the error.
pub(super) fn from_text<F: Listed>(text: &str) -> Result<F, ConfigError> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let entries = catalogue::entries::<F>();
    let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
        let valid = entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        return Err(ConfigError::Unknown { what: F::WHAT, got: text.to_owned(), valid });
    };
    (entry.read)(text, settings)
}

/// Reads a family's enum from its text, or from a table, which is the same settings with the name as its `kind`.
pub(super) struct TextOrTable<F>(pub(super) PhantomData<F>);

impl<'de, F: Listed> Visitor<'de> for TextOrTable<F> {
    type Value = F;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the text of a {what}, or a table with the kind of {what}", what = F::WHAT)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<F, E> {
        from_text(text).map_err(E::custom)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<F, A::Error> {
        from_text(&Text.visit_map(map)?.unwrap_or_default()).map_err(A::Error::custom)
    }
}

/// Reads a value of a table as text: a scalar as it is written, and a table with a `kind` as `kind:key=value`. `None` has no text.
struct Text;

macro_rules! scalars {
    ($($method:ident $type:ty),*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<Option<String>, E> {
            Ok(Some(value.to_string()))
        }
    )*};
}

impl<'de> Visitor<'de> for Text {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a word, true, false, or a table with a kind")
    }

    scalars!(visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str);

    fn visit_unit<E: Error>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let (mut kind, mut settings) = (None, Vec::new());
        while let Some((key, Value(value))) = map.next_entry::<String, Value>()? {
            match value {
                Some(value) if key == "kind" => {
                    let is_name = crate::text::is_key(&value);
                    kind = Some(if is_name {
                        value
                    } else {
                        return Err(A::Error::custom(format!("`{value}` is no kind")));
                    });
                }
                Some(_) if !crate::text::is_key(&key) => {
                    return Err(A::Error::custom(format!("unknown field `{key}`")));
                }
                Some(value) => settings.push(format!("{key}={}", crate::text::bracketed(&value))),
                None => {}
            }
        }
        let kind = kind.ok_or_else(|| A::Error::missing_field("kind"))?;
        Ok(Some(if settings.is_empty() { kind } else { format!("{kind}:{}", settings.join(",")) }))
    }
}

struct Value(Option<String>);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text).map(Value)
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
        F: Listed + PartialEq + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        assert_eq!(F::own().len(), help.len());
        for (name, (syntax, help)) in F::own().into_iter().map(|entry| entry.name).zip(&help) {
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
        assert_eq!(reducer.to_string().parse(), Ok(reducer.clone()));
        let table = "reducer = { kind = 'multi-step', rounds = 3, inner = { kind = 'gather', compressor = 'topk:10x:q8', per_slot = true } }";
        assert_eq!(toml::from_str::<crate::config::Config>(table).unwrap().exchange.reducer, reducer);
    }

    #[test]
    fn what_cannot_be_says_what_can() {
        fn error<F: Listed>(text: &str) -> String {
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
            (error::<ControllerConfig>("schedule:8x,to=4x"), &["from=8x", "to=4x"]),
            (error::<StrategyConfig>("sometimes"), &["unknown strategy `sometimes`", "every-step, local-sgd"]),
            (error::<StrategyConfig>("local-sgd:0"), &["steps between averages", "at least 1", "got 0"]),
        ] {
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        }
        let mistaken =
            |table: &str| toml::from_str::<Holder>(&format!("aggregator = {table}")).unwrap_err().to_string();
        // A key or a kind is not a part of a text.
        for (table, words) in [
            ("{ kind = 'krum', 'keep=3,byzantine' = 2 }", "unknown field `keep=3,byzantine`"),
            ("{ kind = 'krum', 'k eep' = 2 }", "unknown field `k eep`"),
            ("{ kind = 'krum:1' }", "`krum:1` is no kind"),
            ("{ keep = 1 }", "missing field `kind`"),
        ] {
            assert!(mistaken(table).contains(words), "{}", mistaken(table));
        }
        for table in ["{ kind = 'krum', keep = 0 }", "{ kind = 'krum', kep = 1 }", "{ kind = 'middle' }", "3"] {
            assert!(toml::from_str::<Holder>(&format!("aggregator = {table}")).is_err(), "{table}");
        }
    }
}
