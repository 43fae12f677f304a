//! Rules: slots that are exchanged differently from the rest.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{CompressorConfig, ReducerConfig};
use crate::error::ConfigError;
use crate::serde_as_text;

/// A rule: slots that match a pattern are exchanged with another reducer.
///
/// ```
/// use briquette_core::{Layout, config::Config};
/// let config: Config = toml::from_str(r#"
///     strategy = "every-step"
///     feedback = "error"
///     reducer = { kind = "power-sgd", rank = 4 }
///     dense_below = 1000
///     [[rules]]
///     slots = "embedding.*"
///     reducer = { kind = "gather", compressor = "topk:0.001" }
/// "#)?;
/// let layout = Layout::new([("embedding.weight", vec![5000, 64]), ("fc.weight", vec![64, 64]), ("fc.bias", vec![64])]);
/// config.build(&layout, 4)?;
/// let error = config.build(&Layout::new([("fc.weight", vec![64, 64])]), 4).map(drop).unwrap_err();
/// assert!(error.to_string().starts_with("rule `embedding.*` does not go with this model: it matches no slot"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The slots.
    pub slots: SlotPattern,
    /// The reducer of these slots. The feedback is that of the exchange. No controller sets the ratio of this reducer.
    pub reducer: ReducerConfig,
}

impl Rule {
    /// Creates a rule: slots whose path matches `slots` use this compressor, with one message for all of them.
    ///
    /// # Errors
    /// [`ConfigError`] if `slots` is not a valid pattern.
    pub fn compressor(slots: &str, compressor: CompressorConfig) -> Result<Self, ConfigError> {
        Ok(Rule { slots: slots.parse()?, reducer: ReducerConfig::gather(compressor) })
    }
}

/// A pattern for paths in the module: `*` matches any characters, `?` one character, `[ab]` one of those listed.
///
/// ```
/// use briquette_core::config::SlotPattern;
/// let biases: SlotPattern = "*.bias".parse()?;
/// assert!(biases.matches("block1.conv2.bias") && !biases.matches("block1.conv2.weight"));
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SlotPattern(glob::Pattern);

impl SlotPattern {
    /// Returns whether the pattern matches a slot's path.
    pub fn matches(&self, path: &str) -> bool {
        self.0.matches(path)
    }
}

impl FromStr for SlotPattern {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |error: glob::PatternError| ConfigError::text("pattern of slots", text, error);
        glob::Pattern::new(text).map(SlotPattern).map_err(wrong)
    }
}

impl fmt::Display for SlotPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

serde_as_text!(SlotPattern);
