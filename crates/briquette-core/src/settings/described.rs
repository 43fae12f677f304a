//! The interface of an algorithm's settings. They are declared once, by the derive macro of [`Described`], which gives their name,
//! defaults, ranges, help and representatives.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ConfigError;

/// Settings of one algorithm of a family. Serde defines their text and TOML forms, and the
/// [derive macro](derive@crate::config::Described) everything else. It also implements `Default`.
///
/// ```
/// use briquette_core::config::Described;
/// use briquette_core::error::ConfigError;
/// use serde::{Deserialize, Serialize};
///
/// /// Pulls ranks towards a center: `pulled:10,share=0.5`.
/// #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Described)]
/// #[serde(default, deny_unknown_fields)]
/// #[described(
///     name = "pulled",
///     help = "ranks of their own, pulled towards a center after every PERIOD steps (8)",
///     representatives("pulled:3", "pulled:1,share=1"),
///     check = Self::check_start
/// )]
/// struct Pulled {
///     #[setting(default = 8, range = "[1, inf)")]
///     period: u64,
///     #[setting(default = 0.5, range = "(0, 1]")]
///     share: f32,
///     /// Steps before the first pull; a period if absent.
///     start: Option<u64>,
/// }
///
/// impl Pulled {
///     fn check_start(&self) -> Result<(), ConfigError> {
///         let is_valid = self.start.is_none_or(|start| start.is_multiple_of(self.period));
///         ConfigError::unless(is_valid, "start of pulled", "a multiple of its period", self.start.unwrap_or_default())
///     }
/// }
///
/// assert_eq!(Pulled::default(), Pulled { period: 8, share: 0.5, start: None });
/// assert_eq!(Pulled::SETTINGS, "PERIOD[,share=0.5,start=START]");
/// assert_eq!(Pulled::representatives()[0], Pulled { period: 3, ..Pulled::default() });
/// let error = Pulled { share: 2.0, ..Pulled::default() }.check().unwrap_err();
/// assert_eq!(error.to_string(), "share of pulled must be in (0, 1], got 2");
/// assert!(Pulled { start: Some(9), ..Pulled::default() }.check().is_err());
/// ```
pub trait Described: Serialize + DeserializeOwned + Default {
    /// The name of the algorithm, with which the text begins: lowercase words joined by hyphens.
    const NAME: &'static str;
    /// The syntax of the settings in `--help`: the part of the text after the name and a colon.
    const SETTINGS: &'static str = "";
    /// The description of the algorithm, in one line.
    const HELP: &'static str;
    /// The number of settings that may be given by position, separated by colons, instead of by name.
    const PLACES: usize = 1;
    /// The texts on which the laws test it; its default if there are none.
    const REPRESENTATIVES: &'static [&'static str] = &[];
    /// Configurations on one line in which the laws test it besides the usual ones, such as parts that it interacts with. Server
    /// policies have none.
    const COMBINATIONS: &'static [&'static str] = &[];

    /// Checks that every setting is in its range, whatever configuration it is used in.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names the setting.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the settings if every one is in its range.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    fn checked(self) -> Result<Self, ConfigError> {
        self.check()?;
        Ok(self)
    }

    /// Returns the values on which the laws are tested.
    ///
    /// # Panics
    /// If a representative is not a valid text.
    fn representatives() -> Vec<Self> {
        let read = |text: &&str| {
            let settings = text.split_once(':').map_or("", |(_, settings)| settings);
            crate::text::read("representative", text, settings, Self::PLACES).unwrap_or_else(|error| panic!("{error}"))
        };
        if Self::REPRESENTATIVES.is_empty() {
            vec![Self::default()]
        } else {
            Self::REPRESENTATIVES.iter().map(read).collect()
        }
    }
}
