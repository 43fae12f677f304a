//! Reading a configuration: the strategy and the keys of the exchange stand side by side.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use super::{Config, Exchange, StrategyConfig};

/// The strategy's key, and the period of Local SGD, which had a key of its own.
const OWN: [&str; 2] = ["strategy", "every"];

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a strategy and the keys of an exchange")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Config, A::Error> {
        let (mut strategy, mut every) = (None, None);
        let rest = Rest { map, strategy: &mut strategy, every: &mut every, fields: &[] };
        let exchange = Exchange::deserialize(rest)?;
        let strategy = match (strategy.unwrap_or_default(), every) {
            (strategy, None) => strategy,
            (StrategyConfig::LocalSgd(mut settings), Some(every)) => {
                settings.period = every;
                settings.into()
            }
            (strategy, Some(_)) => {
                return Err(A::Error::custom(format!(
                    "`every` is the period of local-sgd, and the strategy is {strategy}"
                )));
            }
        };
        Ok(Config { strategy, exchange })
    }
}

/// The keys of the exchange; its own keys are taken out on the way.
struct Rest<'a, A> {
    map: A,
    strategy: &'a mut Option<StrategyConfig>,
    every: &'a mut Option<u64>,
    fields: &'static [&'static str],
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for Rest<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(Rest { fields, ..self })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Rest<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key_seed(Key(self.fields))? {
            match key.as_str() {
                "strategy" => *self.strategy = Some(self.map.next_value()?),
                "every" => *self.every = Some(self.map.next_value()?),
                _ => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// One of these, or its own. Refused while it is read, so that the error has its place in the file.
struct Key(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let key = String::deserialize(deserializer)?;
        if self.0.contains(&key.as_str()) || OWN.contains(&key.as_str()) {
            return Ok(key);
        }
        let valid = OWN[..1].iter().chain(self.0).map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        Err(D::Error::custom(format!("unknown field `{key}`, expected one of {valid}")))
    }
}
