//! Serde for configurations: the strategy stands next to the keys of the exchange.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};

use super::{Config, ControllerConfig, Exchange, Feedback, Parts, ReducerConfig, StrategyConfig};

/// The key that does not belong to the exchange.
const STRATEGY: &str = "strategy";

/// Reads the given keys and chooses the others by the [rules](super::parts).
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Parts::deserialize(deserializer).map(|parts| parts.choose().0)
    }
}

/// Writes the named parts, and the other keys that differ from their defaults, in the form that is read.
impl Serialize for Parts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Parts { strategy, reducer, feedback, controller, rest } = self;
        let Exchange { aggregator, probing, bucket_values, during_backward, .. } = rest;
        let Exchange { rules, dense_below, threads, device, .. } = rest;
        let mut map = serializer.serialize_map(None)?;
        entry(&mut map, "strategy", strategy)?;
        entry(&mut map, "reducer", reducer)?;
        entry(&mut map, "aggregator", &Some(aggregator).filter(|it| **it != Default::default()))?;
        entry(&mut map, "feedback", feedback)?;
        entry(&mut map, "controller", controller)?;
        entry(&mut map, "probing", &Some(probing).filter(|it| **it != Default::default()))?;
        entry(&mut map, "bucket_values", bucket_values)?;
        entry(&mut map, "during_backward", &during_backward.then_some(true))?;
        entry(&mut map, "rules", &Some(rules).filter(|it| !it.is_empty()))?;
        entry(&mut map, "dense_below", dense_below)?;
        entry(&mut map, "threads", threads)?;
        entry(&mut map, "device", &Some(device).filter(|it| **it != Default::default()))?;
        map.end()
    }
}

fn entry<M: SerializeMap, T: Serialize>(map: &mut M, key: &str, value: &Option<T>) -> Result<(), M::Error> {
    value.as_ref().map_or(Ok(()), |value| map.serialize_entry(key, value))
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Parts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a strategy and the keys of an exchange")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Parts, A::Error> {
        let (mut strategy, mut given) = (None, Vec::new());
        let rest = Exchange::deserialize(Rest { map, strategy: &mut strategy, given: &mut given, fields: &[] })?;
        let is_given = |key: &str| given.iter().any(|given| given == key);
        Ok(Parts {
            strategy,
            reducer: is_given("reducer").then(|| rest.reducer.clone()),
            feedback: is_given("feedback").then_some(rest.feedback),
            controller: is_given("controller").then(|| rest.controller.clone()),
            rest: Exchange {
                reducer: ReducerConfig::default(),
                feedback: Feedback::default(),
                controller: ControllerConfig::default(),
                ..rest
            },
        })
    }
}

/// The map without the key `strategy`, which is stored apart while the exchange is read.
struct Rest<'a, A> {
    map: A,
    strategy: &'a mut Option<StrategyConfig>,
    /// The keys of the exchange that were read.
    given: &'a mut Vec<String>,
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
            if key == STRATEGY {
                *self.strategy = Some(self.map.next_value()?);
            } else {
                self.given.push(key.clone());
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads a key that is one of these or the strategy. Unknown keys are refused during reading, so that the error has a position in the file.
struct Key(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let key = String::deserialize(deserializer)?;
        if key == STRATEGY || self.0.contains(&key.as_str()) {
            return Ok(key);
        }
        let valid = [STRATEGY].iter().chain(self.0).map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        Err(D::Error::custom(format!("unknown field `{key}`, expected one of {valid}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_open() {
        let read = |text: &str| toml::from_str::<Config>(text).unwrap();
        assert_eq!((read(""), Config::default()), (Config::auto(), Config::auto()));
        let how = read("bucket_values = 100\nthreads = 2");
        let auto = Config::auto();
        let exchange = Exchange { bucket_values: Some(100), threads: Some(2), ..auto.exchange };
        assert_eq!(how, Config { exchange, ..auto });
        let during = Exchange { during_backward: true, ..Config::auto().exchange };
        assert_eq!(read("during_backward = true"), Config { exchange: during, ..Config::auto() });
        assert_eq!(read("reducer = 'dense'"), Config::dense());
        assert_eq!(read("strategy = 'local-sgd:3'"), Config::local_sgd(3));
        for config in [Config::auto(), Config::dense(), Config::local_sgd(3)] {
            assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()), Ok(config));
        }
    }

    #[test]
    fn algorithms_are_written_as_texts() {
        let written = toml::to_string(&Config::top_k(0.01).unwrap()).unwrap();
        let lines =
            ["strategy = \"every-step\"", "reducer = \"gather:topk:100x\"", "feedback = \"error\"", "rules = []"];
        assert!(lines.iter().all(|line| written.lines().any(|written| written == *line)), "{written}");
        let json = serde_json::to_string(&Config::local_sgd(4)).unwrap();
        assert!(json.starts_with(r#"{"strategy":"local-sgd:4","reducer":"dense""#), "{json}");
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line_and_what_is_valid() {
        let error = |text: &str| toml::from_str::<Config>(text).unwrap_err().to_string();
        let unknown = error("strategy = 'every-step'\nreducre = 'dense'");
        assert!(unknown.contains("line 2, column 1") && unknown.contains("`reducre`"), "{unknown}");
        assert!(unknown.contains("`strategy`, `reducer`, `aggregator`"), "{unknown}");
        let deleted = error("bucket_values = 9\noverlap = true");
        assert!(deleted.contains("line 2") && deleted.contains("unknown field `overlap`"), "{deleted}");
        assert!(error("feedback = 'memory'").contains("error, error-inside, momentum"));
        assert!(error("threads = 'x'").contains("line 1, column 11"));
    }
}
