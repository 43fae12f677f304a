//! Attacks of Byzantine ranks, and their text form.

use std::fmt;
use std::str::FromStr;

use briquette_core::error::ConfigError;

/// Attack of a Byzantine rank; see the [module](super).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Attack {
    /// Sends its vector times this factor.
    Large(f32),
    /// Sends its negated vector.
    SignFlip,
    /// Sends the mean of the honest ranks, times minus this factor.
    InnerProduct(f32),
    /// Sends the mean of the honest ranks minus this many standard deviations.
    Little(f32),
    /// Sends the vector of rank 0.
    Mimic,
    /// Sends zeros.
    Crash,
    /// Sends its vector of this many steps ago.
    Stale(usize),
    /// Sends NaN.
    NotFinite,
}

impl Attack {
    /// One attack of each kind, with its default.
    pub const ALL: [Attack; 8] = [
        Attack::Large(1000.0),
        Attack::SignFlip,
        Attack::InnerProduct(0.5),
        Attack::Little(1.0),
        Attack::Mimic,
        Attack::Crash,
        Attack::Stale(10),
        Attack::NotFinite,
    ];

    fn name(self) -> &'static str {
        match self {
            Attack::Large(_) => "large",
            Attack::SignFlip => "sign-flip",
            Attack::InnerProduct(_) => "inner-product",
            Attack::Little(_) => "little",
            Attack::Mimic => "mimic",
            Attack::Crash => "crash",
            Attack::Stale(_) => "stale",
            Attack::NotFinite => "not-finite",
        }
    }

    pub(super) fn is_finite(self) -> bool {
        self != Attack::NotFinite
    }

    pub(super) fn knows_the_others(self) -> bool {
        matches!(self, Attack::InnerProduct(_) | Attack::Little(_) | Attack::Mimic)
    }

    /// Returns the false value of one coordinate, from the honest ranks' values; see [`knows_the_others`](Self::knows_the_others).
    pub(super) fn of_others(self, honest: &[f32]) -> f32 {
        let count = honest.len() as f64;
        let mean = honest.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = honest.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        (match self {
            Attack::InnerProduct(by) => -f64::from(by) * mean,
            Attack::Little(deviations) => mean - f64::from(deviations) * variance.sqrt(),
            _ => f64::from(honest[0]),
        }) as f32
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attack::Large(by) | Attack::InnerProduct(by) | Attack::Little(by) => write!(f, "{}:{by}", self.name()),
            Attack::Stale(steps) => write!(f, "stale:{steps}"),
            _ => f.write_str(self.name()),
        }
    }
}

impl FromStr for Attack {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (name, setting) = text.split_once(':').map_or((text, None), |(name, setting)| (name, Some(setting)));
        let Some(default) = Attack::ALL.into_iter().find(|attack| attack.name() == name) else {
            let valid = Attack::ALL.map(Attack::name).join(", ");
            return Err(ConfigError::Unknown { what: "attack", got: text.to_owned(), valid });
        };
        let Some(setting) = setting else { return Ok(default) };
        let finite = setting.parse::<f32>().ok().filter(|by| by.is_finite());
        let read = match default {
            Attack::Large(_) => finite.map(Attack::Large),
            Attack::InnerProduct(_) => finite.map(Attack::InnerProduct),
            Attack::Little(_) => finite.map(Attack::Little),
            Attack::Stale(_) => setting.parse().ok().filter(|steps| *steps > 0).map(Attack::Stale),
            _ => None,
        };
        read.ok_or_else(|| ConfigError::text("attack", text, format!("{setting} is no setting of {name}")))
    }
}

impl TryFrom<String> for Attack {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

impl From<Attack> for String {
    fn from(attack: Attack) -> String {
        attack.to_string()
    }
}
