//! Catalogue: algorithms of other crates that texts, tables and flags can name and that help lists.
//!
//! A [`Catalogue`] is a value. It lists the settings of algorithms of other crates by family. While it is [installed](Catalogue::install)
//! or in [scope](Catalogue::scope), every text and table of a configuration may name them, `help()` of a family describes them, and
//! [`representatives`](super::representatives) include them, so that the laws test them. They are then built, checked and combined like
//! this crate's algorithms: a controller of another crate can steer `auto`'s ladder under any feedback.
//!
//! ```
//! use briquette_core::config::{Catalogue, Config, ControllerConfig, ControllerSettings, Described, Feedback};
//! use briquette_core::control::{Agreed, Controller, Decision};
//! use briquette_core::error::{ConfigError, StateError};
//! use briquette_core::state::{State, Stateful};
//! use briquette_core::{CompressionFactor, Layout};
//! use serde::{Deserialize, Serialize};
//!
//! /// Settings, and here the controller too: `always:8x`.
//! #[derive(Debug, Clone, Serialize, Deserialize)]
//! #[serde(default, deny_unknown_fields)]
//! struct Always {
//!     ratio: CompressionFactor,
//! }
//! impl Default for Always {
//!     fn default() -> Self {
//!         Always { ratio: CompressionFactor::DENSE }
//!     }
//! }
//! impl Described for Always {
//!     const NAME: &'static str = "always";
//!     const SETTINGS: &'static str = "RATIO";
//!     const HELP: &'static str = "The same ratio at every step (1x)";
//! }
//! impl ControllerSettings for Always {
//!     fn build(&self, _: &Feedback, _: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
//!         Ok(Some(Box::new(self.clone())))
//!     }
//! }
//! impl Controller for Always {
//!     fn decide(&mut self, _: &Agreed<'_>) -> Decision<'_> {
//!         Decision::all(self.ratio, None)
//!     }
//! }
//! impl Stateful for Always {
//!     fn save(&self, _: &mut State) {}
//!     fn load(&mut self, _: &State) -> Result<(), StateError> {
//!         Ok(())
//!     }
//! }
//!
//! let catalogue = Catalogue::new().with_controller::<Always>()?;
//! catalogue.scope(|| {
//!     let config: Config = toml::from_str("reducer = 'ladder'\nfeedback = 'error'\ncontroller = 'always:8x'")?;
//!     assert_eq!(config.exchange.controller.to_string(), "always:8x");
//!     config.build(&Layout::flat(1000), 4)?;
//!     let table: Config = toml::from_str("controller = { kind = 'always', ratio = 8 }")?;
//!     assert_eq!(table.exchange.controller, config.exchange.controller);
//!     let error = "always:half".parse::<ControllerConfig>().unwrap_err().to_string();
//!     assert!(error.contains("`ratio`"), "{error}");
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! })?;
//! assert!("always:8x".parse::<ControllerConfig>().is_err());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use std::cell::RefCell;
use std::sync::OnceLock;

use super::family::Family;
use super::guest::text_of;
use super::{
    AggregatorConfig, AggregatorSettings, ControllerConfig, ControllerSettings, Described, Exchange, Feedback,
    FeedbackSettings, Guest, ReducerConfig, ReducerSettings, ServerConfig, StrategyConfig, StrategySettings,
};
use crate::Layout;
use crate::error::ConfigError;
use crate::reduce::Dense;
use crate::server::PolicySettings;

/// An algorithm of a family: its name, its help, and the functions that read its settings.
pub(crate) struct Entry<F> {
    pub name: &'static str,
    settings: &'static str,
    pub help: &'static str,
    /// Reads settings from the whole text and the part after the name.
    pub read: fn(&str, &str) -> Result<F, ConfigError>,
    pub representatives: fn() -> Vec<F>,
}

impl<F: Family> Entry<F> {
    /// Creates the entry of settings `S`, which become a value of the family by way of `W`: of `S` itself, or of [`AsGuest`].
    pub(super) fn new<S: Described, W: From<S>>() -> Self
    where
        F: From<W>,
    {
        Entry {
            name: S::NAME,
            settings: S::SETTINGS,
            help: S::HELP,
            read: |text, settings| {
                let settings: S = crate::text::read(F::WHAT, text, settings)?;
                settings.check()?;
                Ok(W::from(settings).into())
            },
            representatives: || S::representatives().into_iter().map(|settings| W::from(settings).into()).collect(),
        }
    }

    /// Returns the syntax of the text.
    pub(super) fn syntax(&self) -> String {
        let settings = if self.settings.is_empty() { String::new() } else { format!("[:{}]", self.settings) };
        format!("{}{settings}", self.name)
    }
}

impl<F> Clone for Entry<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Entry<F> {}

/// Settings of another crate, on their way into their family.
pub(super) struct AsGuest<S>(S);

impl<S> From<S> for AsGuest<S> {
    fn from(settings: S) -> Self {
        AsGuest(settings)
    }
}

/// Algorithms of other crates, by family; see the [module](self).
#[derive(Clone, Default)]
pub struct Catalogue {
    strategies: Vec<Entry<StrategyConfig>>,
    reducers: Vec<Entry<ReducerConfig>>,
    aggregators: Vec<Entry<AggregatorConfig>>,
    feedbacks: Vec<Entry<Feedback>>,
    controllers: Vec<Entry<ControllerConfig>>,
    servers: Vec<Entry<ServerConfig>>,
}

/// A family whose guests the catalogue lists.
pub(crate) trait Listed: Family + std::fmt::Display {
    fn guests(catalogue: &Catalogue) -> &Vec<Entry<Self>>;
    fn guests_mut(catalogue: &mut Catalogue) -> &mut Vec<Entry<Self>>;

    /// Builds the algorithm as a test of its representatives.
    fn try_build(&self) -> Result<(), ConfigError>;
}

macro_rules! listed {
    ($($with:ident $list:ident $family:ident dyn $trait:ident |$settings:ident| $build:expr;)*) => {
        impl Catalogue {
            $(
                #[doc = concat!("Adds the settings `S` to the family of [`", stringify!($family), "`].")]
                ///
                /// # Errors
                /// [`ConfigError::Catalogue`] if the name is taken or malformed, or if a representative does not build or is not the
                /// same settings again when read from its text.
                pub fn $with<S: Described + $trait + Send + Sync + 'static>(mut self) -> Result<Self, ConfigError> {
                    self.scope(|| check_flat::<S>(<$family>::WHAT))?;
                    add(&mut self, Entry::<$family>::new::<S, AsGuest<S>>())?;
                    Ok(self)
                }
            )*

            /// Adds the algorithms of another catalogue.
            ///
            /// # Errors
            /// [`ConfigError::Catalogue`] if both list a name.
            pub fn with(mut self, other: &Catalogue) -> Result<Self, ConfigError> {
                $(other.$list.iter().try_for_each(|entry| add(&mut self, *entry))?;)*
                Ok(self)
            }
        }

        $(
            impl<S: Described + $trait + Send + Sync + 'static> From<AsGuest<S>> for $family {
                fn from(AsGuest(settings): AsGuest<S>) -> Self {
                    let text = text_of(&settings).expect("flat, as the catalogue has checked");
                    $family::Guest(Guest::new(S::NAME, text, Box::new(settings)))
                }
            }

            impl Listed for $family {
                fn guests(catalogue: &Catalogue) -> &Vec<Entry<Self>> {
                    &catalogue.$list
                }
                fn guests_mut(catalogue: &mut Catalogue) -> &mut Vec<Entry<Self>> {
                    &mut catalogue.$list
                }
                fn try_build(&self) -> Result<(), ConfigError> {
                    let $settings = self.get();
                    $build
                }
            }
        )*
    };
}

/// Number of ranks with which representatives are built, unless they need more.
const WORLD: usize = 4;

listed! {
    with_strategy strategies StrategyConfig dyn StrategySettings |strategy| {
        strategy.exchanges().iter().try_for_each(|exchange| {
            strategy.build(exchange, &layout(), WORLD.max(strategy.fewest_ranks(exchange))).map(drop)
        })
    };
    with_reducer reducers ReducerConfig dyn ReducerSettings |reducer| {
        let built = reducer.build(&Exchange::default(), &layout())?.knob().is_some();
        let (left, why) = ("`has_knob` of its settings", format!("the settings say {}, the reducer {built}", reducer.has_knob()));
        if built == reducer.has_knob() { Ok(()) } else { Err(ConfigError::conflict(left, "`knob`", why, "make them equal")) }
    };
    with_aggregator aggregators AggregatorConfig dyn AggregatorSettings |aggregator| {
        drop(aggregator.build());
        Ok(())
    };
    with_feedback feedbacks Feedback dyn FeedbackSettings |feedback| {
        feedback.wrap(Box::new(Dense), &Exchange::default(), &layout()).map(drop)
    };
    with_controller controllers ControllerConfig dyn ControllerSettings |controller| {
        controller.build(&Feedback::Error, WORLD).map(drop)
    };
    with_server servers ServerConfig dyn PolicySettings |policy| policy.build(WORLD).map(drop);
}

fn layout() -> Layout {
    Layout::flat(1000)
}

/// Checks that settings have a text.
fn check_flat<S: Described>(what: &'static str) -> Result<(), ConfigError> {
    match S::representatives().iter().chain([&S::default()]).all(|settings| text_of(settings).is_ok()) {
        true => Ok(()),
        false => {
            let why = "its settings have no text: use a flat struct of numbers, words and other algorithms' settings";
            Err(ConfigError::Catalogue { what, name: S::NAME, why: why.into() })
        }
    }
}

/// Adds an entry, if its name is new and its representatives work.
fn add<F: Listed>(catalogue: &mut Catalogue, entry: Entry<F>) -> Result<(), ConfigError> {
    let refuse = |why: String| Err(ConfigError::Catalogue { what: F::WHAT, name: entry.name, why });
    let well_formed =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    if entry.name.is_empty() || !entry.name.chars().all(well_formed) {
        return refuse("a name is lowercase words joined by hyphens".into());
    }
    if F::own().iter().chain(F::guests(catalogue)).any(|other| other.name == entry.name) {
        return refuse("another algorithm has this name; choose another".into());
    }
    // Settings may name algorithms that were added before.
    catalogue.clone().scope(|| try_representatives(&entry)).or_else(refuse)?;
    F::guests_mut(catalogue).push(entry);
    Ok(())
}

/// Reads the representatives back from their texts, and builds them. An error is the reason to refuse them.
fn try_representatives<F: Listed>(entry: &Entry<F>) -> Result<(), String> {
    for representative in (entry.representatives)() {
        let text = representative.to_string();
        let settings = text.split_once(':').map_or("", |(_, settings)| settings);
        match (entry.read)(&text, settings) {
            Ok(again) if again.to_string() == text => {}
            Ok(again) => return Err(format!("its representative `{text}` is read as `{again}`")),
            Err(error) => return Err(format!("its representative `{text}` cannot be read: {error}")),
        }
        if let Err(error) = representative.try_build() {
            return Err(format!("its representative `{text}` does not build: {error}"));
        }
    }
    Ok(())
}

static INSTALLED: OnceLock<Catalogue> = OnceLock::new();

thread_local! {
    static SCOPES: RefCell<Vec<Catalogue>> = const { RefCell::new(Vec::new()) };
}

impl Catalogue {
    /// Creates a catalogue of this crate's algorithms alone.
    pub fn new() -> Self {
        Catalogue::default()
    }

    /// Makes this the catalogue of the process. Call it first in `main`, before any configuration or flag is read.
    ///
    /// # Errors
    /// [`ConfigError::Catalogue`] if one is installed already.
    pub fn install(self) -> Result<(), ConfigError> {
        INSTALLED.set(self).map_err(|_| ConfigError::Catalogue {
            what: "catalogue",
            name: "of the process",
            why: "one is installed already; join both with `Catalogue::with` and install the result once".into(),
        })
    }

    /// Runs `body` with this catalogue instead of the installed one, on this thread alone.
    pub fn scope<T>(&self, body: impl FnOnce() -> T) -> T {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                SCOPES.with_borrow_mut(Vec::pop);
            }
        }
        SCOPES.with_borrow_mut(|scopes| scopes.push(self.clone()));
        let _leave = Leave;
        body()
    }
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn names<F>(entries: &[Entry<F>]) -> Vec<&'static str> {
            entries.iter().map(|entry| entry.name).collect()
        }
        f.debug_struct("Catalogue")
            .field("strategies", &names(&self.strategies))
            .field("reducers", &names(&self.reducers))
            .field("aggregators", &names(&self.aggregators))
            .field("feedbacks", &names(&self.feedbacks))
            .field("controllers", &names(&self.controllers))
            .field("servers", &names(&self.servers))
            .finish()
    }
}

/// Returns all algorithms of a family: this crate's, then those of the current catalogue.
pub(super) fn entries<F: Listed>() -> Vec<Entry<F>> {
    let mut entries = F::own();
    SCOPES.with_borrow(|scopes| {
        if let Some(catalogue) = scopes.last().or_else(|| INSTALLED.get()) {
            entries.extend(F::guests(catalogue));
        }
    });
    entries
}

#[cfg(test)]
mod tests;
