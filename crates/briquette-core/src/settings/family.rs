//! Families of algorithms (compressors, reducers, controllers and so on), and a type that holds the settings of any algorithm of a
//! family.

use std::any::Any;
use std::fmt::{self, Write as _};
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Described;
use crate::error::ConfigError;

/// A family of algorithms: a trait object of the trait of its settings, and the list of its algorithms. Only this crate
/// implements it.
pub trait Family: sealed::Sealed + 'static {
    /// The name of the family in error messages, such as `reducer`.
    const WHAT: &'static str;

    /// Returns this crate's algorithms, then those of the current catalogue. The first one is the default.
    fn entries() -> Vec<Entry<Self>>;

    /// Returns a hint for an unknown name. Error messages show it after the list of valid names.
    fn hint() -> &'static str;

    /// Builds the algorithm with these settings, to check representatives.
    ///
    /// # Errors
    /// [`ConfigError`] for settings that do not build.
    fn try_build(&self) -> Result<(), ConfigError>;

    /// Returns the settings as [`Any`], for downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// An algorithm in its family's list: its name, its help, and the functions that read its settings.
pub struct Entry<T: ?Sized> {
    pub(crate) name: &'static str,
    settings: &'static str,
    pub(crate) help: &'static str,
    /// Reads settings. The arguments are the whole text, and the part after the name.
    pub(crate) read: fn(&str, &str) -> Result<Algorithm<T>, ConfigError>,
    pub(crate) representatives: fn() -> Vec<Algorithm<T>>,
    pub(crate) combinations: &'static [&'static str],
}

impl<T: Family + ?Sized> Entry<T> {
    /// Creates the entry of settings `S`.
    pub(crate) fn new<S: Described + Into<Algorithm<T>>>() -> Self {
        Entry {
            name: S::NAME,
            settings: S::SETTINGS,
            help: S::HELP,
            read: |text, settings| {
                let settings: S = crate::text::read(T::WHAT, text, settings, S::PLACES)?;
                Ok(settings.checked()?.into())
            },
            representatives: || S::representatives().into_iter().map(Into::into).collect(),
            combinations: S::COMBINATIONS,
        }
    }

    /// Returns the syntax of the text.
    pub(crate) fn syntax(&self) -> String {
        let settings = if self.settings.is_empty() { String::new() } else { format!("[:{}]", self.settings) };
        format!("{}{settings}", self.name)
    }
}

impl<T: ?Sized> Clone for Entry<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Entry<T> {}

impl<T: ?Sized> std::fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

pub(crate) mod sealed {
    /// Keeps other crates from adding families.
    pub trait Sealed {}
}

/// Settings of any algorithm of a family, from this crate or another, together with their text. For example, the settings of a strategy
/// are an `Algorithm<dyn StrategySettings>`, which is [`StrategyConfig`](crate::config::StrategyConfig). Settings convert with `into()`.
/// Texts and tables are read by name, which must be in the [catalogue](crate::config::Catalogue). Two values are equal if their texts are.
///
/// ```
/// use briquette_core::config::ReducerConfig;
/// use briquette_core::reduce::{gather::GatherConfig, ring::RingConfig};
/// let reducer: ReducerConfig = "gather:topk:8x".parse()?;
/// assert!(reducer.downcast_ref::<GatherConfig>().is_some_and(|gather| !gather.per_slot));
/// assert!(!reducer.is::<RingConfig>() && reducer.get().has_knob());
/// assert_eq!(ReducerConfig::from(GatherConfig::default()).name(), "gather");
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
pub struct Algorithm<T: ?Sized> {
    name: &'static str,
    text: Arc<str>,
    settings: Arc<T>,
}

impl<T: ?Sized> Algorithm<T> {
    /// Creates the value of settings `S` with their text.
    ///
    /// # Panics
    /// If the settings have no text because they are not a flat struct. A [catalogue](crate::config::Catalogue) refuses such settings.
    pub(crate) fn new<S: Described>(text: Result<String, fmt::Error>, settings: Arc<T>) -> Self {
        let text = text.unwrap_or_else(|_| panic!("the settings of {} have no text", S::NAME));
        Algorithm { name: S::NAME, text: text.into(), settings }
    }

    /// Returns the name, with which the text begins.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the settings as the family's trait.
    pub fn get(&self) -> &T {
        &self.settings
    }
}

impl<T: Family + ?Sized> Algorithm<T> {
    /// Returns the settings if they are of type `S`.
    pub fn downcast_ref<S: 'static>(&self) -> Option<&S> {
        self.settings.as_any().downcast_ref()
    }

    /// Returns whether the settings are of type `S`.
    pub fn is<S: 'static>(&self) -> bool {
        self.downcast_ref::<S>().is_some()
    }

    /// Returns the [representatives](Described::representatives) of all algorithms of the family.
    pub fn all() -> Vec<Self> {
        T::entries().iter().flat_map(|entry| (entry.representatives)()).collect()
    }

    /// Returns the syntax and a description of each algorithm of the family.
    pub fn help() -> Vec<(String, &'static str)> {
        T::entries().iter().map(|entry| (entry.syntax(), entry.help)).collect()
    }
}

/// Returns the text of settings, or an error if they are not a flat struct.
pub(crate) fn text_of<S: Described>(settings: &S) -> Result<String, fmt::Error> {
    struct Shown<'a, S>(&'a S);
    impl<S: Described> fmt::Display for Shown<'_, S> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            crate::text::write(f, S::NAME, S::PLACES, self.0)
        }
    }
    let mut text = String::new();
    write!(text, "{}", Shown(settings))?;
    Ok(text)
}

impl<T: ?Sized> Clone for Algorithm<T> {
    fn clone(&self) -> Self {
        Algorithm { name: self.name, text: self.text.clone(), settings: self.settings.clone() }
    }
}

impl<T: Family + ?Sized> Default for Algorithm<T> {
    fn default() -> Self {
        let usual = T::entries().swap_remove(0);
        (usual.read)(usual.name, "").expect("the defaults of an algorithm are valid settings")
    }
}

impl<T: ?Sized> PartialEq for Algorithm<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T: ?Sized> Eq for Algorithm<T> {}

impl<T: ?Sized> fmt::Debug for Algorithm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<T: ?Sized> fmt::Display for Algorithm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl<T: Family + ?Sized> FromStr for Algorithm<T> {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let entries = T::entries();
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            let valid = entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ") + T::hint();
            return Err(ConfigError::Unknown { what: T::WHAT, got: text.to_owned(), valid });
        };
        (entry.read)(text, settings)
    }
}

impl<T: ?Sized> Serialize for Algorithm<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, T: Family + ?Sized> Deserialize<'de> for Algorithm<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrTable(PhantomData))
    }
}

/// Reads settings from their text, or from a table of the same settings with the algorithm's name as `kind`.
struct TextOrTable<T: ?Sized>(PhantomData<T>);

impl<'de, T: Family + ?Sized> Visitor<'de> for TextOrTable<T> {
    type Value = Algorithm<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the text of a {what}, or a table with the kind of {what}", what = T::WHAT)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Algorithm<T>, E> {
        text.parse().map_err(E::custom)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Algorithm<T>, A::Error> {
        Text.visit_map(map)?.unwrap_or_default().parse().map_err(A::Error::custom)
    }
}

/// Reads a value of a table as text: a scalar in its written form, and a table with a `kind` as `kind:key=value`. `None` has no
/// text.
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
    use crate::config::{
        AggregatorSettings, CompressorSettings, ControllerSettings, FeedbackSettings, ReducerSettings, StrategySettings,
    };
    use crate::server::PolicySettings;

    /// Checks for every algorithm of a family that its text round-trips, and that its table has the same name.
    fn check_list<F: Family + ?Sized>() {
        let (all, help) = (Algorithm::<F>::all(), Algorithm::<F>::help());
        assert_eq!(F::entries().len(), help.len());
        for (name, (syntax, help)) in F::entries().into_iter().map(|entry| entry.name).zip(&help) {
            assert!(syntax.starts_with(name) && !help.is_empty(), "{name}");
            let of_table = serde_json::from_value::<Algorithm<F>>(serde_json::json!({ "kind": name }));
            // Its setting has no default.
            if name == "hard-threshold" {
                assert!(name.parse::<Algorithm<F>>().is_err() && of_table.is_err());
            } else {
                let of_table = of_table.expect(name);
                assert_eq!(name.parse().as_ref(), Ok(&of_table));
                assert_eq!(of_table.to_string().split(':').next(), Some(name));
            }
            let tried = |config: &Algorithm<F>| config.to_string().split(':').next() == Some(name);
            assert!(all.iter().any(tried), "the laws try {name}");
            let error = format!("{name}:no-such-key=1").parse::<Algorithm<F>>().unwrap_err().to_string();
            assert!(error.contains("no_such_key") || error.contains("no settings"), "{error}");
        }
        for config in all {
            assert_eq!(config.to_string().parse(), Ok(config));
        }
    }

    #[test]
    fn every_algorithm_of_every_family_has_a_text_a_table_help_and_a_representative() {
        check_list::<dyn StrategySettings>();
        check_list::<dyn PolicySettings>();
        check_list::<dyn ReducerSettings>();
        check_list::<dyn CompressorSettings>();
        check_list::<dyn AggregatorSettings>();
        check_list::<dyn FeedbackSettings>();
        check_list::<dyn ControllerSettings>();
    }
}
