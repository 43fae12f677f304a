//! One-line text form of a configuration.

use std::str::FromStr;

use serde::Deserialize;
use serde::de::value::{Error, MapDeserializer, StrDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::Config;
use crate::error::ConfigError;

/// Parses `auto`, `dense`, or keys and values as in TOML, in the form `key=value`, separated by spaces. A value is the text that a
/// command-line flag takes. Rules cannot be written on one line.
///
/// ```
/// use briquette_core::config::Config;
///
/// assert_eq!("auto".parse(), Ok(Config::auto()));
/// assert_eq!("reducer=gather:topk:0.01:q8 feedback=error".parse(), Config::top_k_q8(0.01));
/// assert_eq!("strategy=local-sgd:8".parse(), Ok(Config::local_sgd(8)));
/// let error = "reducer=dense fedback=error".parse::<Config>().unwrap_err().to_string();
/// assert!(error.contains("`fedback`"), "{error}");
/// ```
impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |what: String| ConfigError::text("configuration", text, what);
        match text.trim() {
            "auto" => return Ok(Config::auto()),
            "dense" => return Ok(Config::dense()),
            "" => return Err(wrong("give `auto`, `dense`, or `key=value` and spaces between them".to_owned())),
            _ => {}
        }
        let pair = |word: &str| match word.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), Value(value.to_owned()))),
            None => Err(wrong(format!("`{word}` is no `key=value`"))),
        };
        let pairs: Vec<_> = text.split_whitespace().map(pair).collect::<Result<_, _>>()?;
        Config::deserialize(MapDeserializer::new(pairs.into_iter())).map_err(|error: Error| wrong(error.to_string()))
    }
}

/// The text of a key's value.
struct Value(String);

impl IntoDeserializer<'_, Error> for Value {
    type Deserializer = Value;

    fn into_deserializer(self) -> Value {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match (self.0.parse(), self.0.parse()) {
            (Ok(on), _) => visitor.visit_bool(on),
            (_, Ok(number)) => visitor.visit_u64(number),
            _ => visitor.visit_str(&self.0),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        StrDeserializer::new(&self.0).deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_kind_are_read() {
        let text = "reducer=power-sgd:4 feedback=error-inside probing=first bucket_values=4096 threads=2 device=host";
        let config: Config = text.parse().unwrap();
        let again: Config = toml::from_str(
            "reducer = 'power-sgd:4'\nfeedback = 'error-inside'\nprobing = 'first'\nbucket_values = 4096\nthreads = 2\ndevice = 'host'",
        )
        .unwrap();
        assert_eq!(config, again);
        assert_eq!("threads=2".parse::<Config>().unwrap().exchange.controller, Config::auto().exchange.controller);
    }

    #[test]
    fn what_is_no_configuration_is_named() {
        let error = |text: &str| text.parse::<Config>().unwrap_err().to_string();
        assert!(error("").contains("give `auto`"));
        assert!(error("reducer=dense often").contains("`often` is no `key=value`"));
        assert!(error("reducer=gathr").contains("gathr"));
        assert!(error("bucket_values=many").contains("many"));
    }
}
