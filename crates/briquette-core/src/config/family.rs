//! One list per family of algorithms, and what an algorithm states for it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ConfigError;

/// The settings of an algorithm as its family's list knows them: serde makes their text and their TOML.
pub trait Described: Serialize + DeserializeOwned + Default {
    /// What its text begins with.
    const NAME: &'static str;
    /// Its settings and what it does, in one line.
    const HELP: &'static str;

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

/// The only place that names all algorithms of a family: makes an enum of their settings that is read from text and from TOML
/// (a text, or a table whose `kind` is the name), and lends what is inside as the family's trait.
macro_rules! family {
    ($(#[$doc:meta])* $family:ident, $what:literal, dyn $trait:path { $($name:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
        #[serde(into = "String")]
        pub enum $family {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),*
        }

        impl $family {
            /// The representatives of all, for the laws.
            pub fn all() -> Vec<$family> {
                let mut all = Vec::new();
                $(all.extend(<$name as $crate::config::Described>::representatives().into_iter().map($family::$name));)*
                all
            }

            /// Name and help of each.
            pub fn help() -> Vec<(&'static str, &'static str)> {
                vec![$((<$name as $crate::config::Described>::NAME, <$name as $crate::config::Described>::HELP)),*]
            }

            /// The algorithm.
            pub fn get(&self) -> &dyn $trait {
                match self { $($family::$name(it) => it),* }
            }

            /// The algorithm, as an object of its own.
            pub fn build(&self) -> Box<dyn $trait> {
                match self { $($family::$name(it) => Box::new(it.clone())),* }
            }

            fn checked(self) -> Result<Self, $crate::error::ConfigError> {
                match &self { $($family::$name(it) => $crate::config::Described::check(it)?),* }
                Ok(self)
            }
        }

        impl std::fmt::Display for $family {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($family::$name(it) => $crate::text::write(f, <$name as $crate::config::Described>::NAME, it)),*
                }
            }
        }

        impl std::str::FromStr for $family {
            type Err = $crate::error::ConfigError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let (name, settings) = text.split_once(':').unwrap_or((text, ""));
                $(if name == <$name as $crate::config::Described>::NAME {
                    return $family::$name($crate::text::read($what, text, settings)?).checked();
                })*
                let valid = $family::help().into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
                Err($crate::error::ConfigError::Unknown { what: $what, got: text.to_owned(), valid })
            }
        }

        impl From<$family> for String {
            fn from(value: $family) -> String {
                value.to_string()
            }
        }

        impl<'de> serde::Deserialize<'de> for $family {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(tag = "kind", rename_all = "kebab-case")]
                enum Table { $($name($name)),* }

                struct TextOrTable;

                impl<'de> serde::de::Visitor<'de> for TextOrTable {
                    type Value = $family;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("the text of an ", $what, ", or a table with its kind"))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$family, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$family, A::Error> {
                        let table = serde::de::value::MapAccessDeserializer::new(map);
                        let value = match serde::Deserialize::deserialize(table)? {
                            $(Table::$name(it) => $family::$name(it)),*
                        };
                        value.checked().map_err(serde::de::Error::custom)
                    }
                }

                deserializer.deserialize_any(TextOrTable)
            }
        }
    };
}
use crate::aggregate::{Aggregator, Krum, Mean, TrimmedMean};

family! {
    /// How contributions become one vector.
    ///
    /// ```
    /// use briquette_core::aggregate::Krum;
    /// use briquette_core::config::AggregatorConfig;
    /// assert_eq!("krum:1,keep=2".parse(), Ok(AggregatorConfig::Krum(Krum { byzantine: 1, keep: 2 })));
    /// let error = "krum:1,kep=2".parse::<AggregatorConfig>().unwrap_err().to_string();
    /// assert!(error.contains("unknown field `kep`, expected `byzantine` or `keep`"), "{error}");
    /// ```
    AggregatorConfig, "aggregator", dyn Aggregator {
        Mean,
        Krum,
        TrimmedMean,
    }
}

impl AggregatorConfig {
    pub(super) fn is_mean(&self) -> bool {
        self.get().is_mean()
    }
}

impl Default for AggregatorConfig {
    fn default() -> Self {
        AggregatorConfig::Mean(Mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
