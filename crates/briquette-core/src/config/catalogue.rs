//! Catalogue: algorithms of other crates, made available by name to texts, tables, flags and help.
//!
//! A [`Catalogue`] is a value that lists the settings of algorithms of other crates by family. While it is
//! [installed](Catalogue::install) or in [scope](Catalogue::scope), every text and table of a configuration may name these algorithms,
//! `help()` of a family describes them, and [`representatives`](super::representatives) include them, so that the laws test them. They
//! are built, checked and combined like this crate's own algorithms: for example, a controller of another crate can control `auto`'s
//! ladder under any feedback.
//!
//! ```
//! use briquette_core::config::{Catalogue, Config, ControllerConfig, ControllerSettings, Described, Feedback};
//! use briquette_core::control::{Agreed, Controller, Decision};
//! use briquette_core::error::{ConfigError, StateError};
//! use briquette_core::state::{State, Stateful};
//! use briquette_core::{CompressionRatio, Layout};
//! use serde::{Deserialize, Serialize};
//!
//! /// Settings, and here the controller too: `always:8x`.
//! #[derive(Debug, Clone, Serialize, Deserialize, Described)]
//! #[serde(default, deny_unknown_fields)]
//! #[described(name = "always", help = "The same ratio at every step (1x)")]
//! struct Always {
//!     #[setting(default = "1x")]
//!     ratio: CompressionRatio,
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

use std::any::Any;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use super::{
    AggregatorSettings, CompressorSettings, ControllerSettings, Described, Exchange, Feedback, FeedbackSettings,
    ReducerSettings, StrategySettings, lists,
};
use crate::Layout;
use crate::error::ConfigError;
use crate::reduce::dense::Dense;
use crate::server::PolicySettings;
use crate::settings::{Algorithm, Entry, Family, Sealed, text_of};

/// Algorithms of other crates, by family; see the [module](self).
#[derive(Clone, Default)]
pub struct Catalogue {
    /// Names of the crates.
    crates: Vec<&'static str>,
    strategies: Vec<Entry<dyn StrategySettings>>,
    reducers: Vec<Entry<dyn ReducerSettings>>,
    compressors: Vec<Entry<dyn CompressorSettings>>,
    aggregators: Vec<Entry<dyn AggregatorSettings>>,
    feedbacks: Vec<Entry<dyn FeedbackSettings>>,
    controllers: Vec<Entry<dyn ControllerSettings>>,
    servers: Vec<Entry<dyn PolicySettings>>,
}

/// A family with two lists: this crate's algorithms, and those of a catalogue.
trait Listed: Family {
    /// Returns the entries of this crate's algorithms.
    fn own() -> Vec<Entry<Self>>;

    fn guests(catalogue: &Catalogue) -> &Vec<Entry<Self>>;
    fn guests_mut(catalogue: &mut Catalogue) -> &mut Vec<Entry<Self>>;
}

/// Makes the trait of a family's settings a family: its methods of the catalogue, its list in this crate, and how one is built.
macro_rules! families {
    ($($with:ident $list:ident $what:literal $trait:ident $own:expr, |$settings:ident| $build:expr;)*) => {
        impl Catalogue {
            $(
                #[doc = concat!("Adds the settings `S` of a ", $what, ".")]
                ///
                /// # Errors
                /// [`ConfigError::Catalogue`] if the name is taken or malformed, if a representative does not build, or if reading a
                /// representative's text gives other settings.
                pub fn $with<S: Described + $trait>(mut self) -> Result<Self, ConfigError> {
                    self.scope(|| check_flat::<S>($what))?;
                    add(&mut self, Entry::<dyn $trait>::new::<S>())?;
                    Ok(self)
                }
            )*

            /// Adds the algorithms of another catalogue.
            ///
            /// # Errors
            /// [`ConfigError::Catalogue`] if both list a name.
            pub fn with(mut self, other: &Catalogue) -> Result<Self, ConfigError> {
                self.crates.extend(&other.crates);
                $(other.$list.iter().try_for_each(|entry| add(&mut self, *entry))?;)*
                Ok(self)
            }
        }

        $(
            impl<S: Described + $trait> From<S> for Algorithm<dyn $trait> {
                fn from(settings: S) -> Self {
                    let text = text_of(&settings);
                    Algorithm::new::<S>(text, Arc::new(settings))
                }
            }

            impl Sealed for dyn $trait {}

            impl Family for dyn $trait {
                const WHAT: &'static str = $what;

                fn entries() -> Vec<Entry<Self>> {
                    entries()
                }
                fn hint() -> &'static str {
                    hint()
                }
                fn try_build(&self) -> Result<(), ConfigError> {
                    let $settings = self;
                    $build
                }
                fn as_any(&self) -> &dyn Any {
                    self
                }
            }

            impl Listed for dyn $trait {
                fn own() -> Vec<Entry<Self>> {
                    $own
                }
                fn guests(catalogue: &Catalogue) -> &Vec<Entry<Self>> {
                    &catalogue.$list
                }
                fn guests_mut(catalogue: &mut Catalogue) -> &mut Vec<Entry<Self>> {
                    &mut catalogue.$list
                }
            }
        )*
    };
}

/// Number of ranks with which representatives are built, unless they need more.
const WORLD: usize = 4;

families! {
    with_strategy strategies "strategy" StrategySettings lists::strategies(), |strategy| {
        let named = strategy.exchanges();
        let exchanges = if named.is_empty() { vec![Exchange::default()] } else { named };
        let layout = Layout::new((0..strategy.fewest_slots()).map(|slot| (slot.to_string(), vec![1000])));
        exchanges.iter().try_for_each(|exchange| {
            strategy.build(exchange, &layout, WORLD.max(strategy.min_ranks(exchange))).map(drop)
        })
    };
    with_reducer reducers "reducer" ReducerSettings lists::reducers(), |reducer| {
        let built = reducer.build(&Exchange::default(), &layout())?.knob().is_some();
        let (left, why) = ("`has_knob` of its settings", format!("the settings say {}, the reducer {built}", reducer.has_knob()));
        if built == reducer.has_knob() { Ok(()) } else { Err(ConfigError::conflict(left, "`knob`", why, "make them equal")) }
    };
    with_compressor compressors "compressor" CompressorSettings lists::compressors(), |compressor| {
        drop(compressor.build());
        Ok(())
    };
    with_aggregator aggregators "aggregator" AggregatorSettings lists::aggregators(), |aggregator| {
        drop(aggregator.build());
        Ok(())
    };
    with_feedback feedbacks "feedback" FeedbackSettings lists::feedbacks(), |feedback| {
        feedback.wrap(Box::new(Dense), &Exchange::default(), &layout()).map(drop)
    };
    with_controller controllers "controller" ControllerSettings lists::controllers(), |controller| {
        controller.build(&Feedback::error(), WORLD).map(drop)
    };
    with_server servers "server policy" PolicySettings lists::servers(), |policy| policy.build(policy.workers().unwrap_or(WORLD)).map(drop);
}

fn layout() -> Layout {
    Layout::flat(1000)
}

/// Checks that settings have a text, and that the text contains all of them.
fn check_flat<S: Described>(what: &'static str) -> Result<(), ConfigError> {
    let refuse = |why: String| Err(ConfigError::Catalogue { what, name: S::NAME, why });
    for settings in S::representatives().iter().chain([&S::default()]) {
        let Ok(text) = text_of(settings) else {
            let why = "its settings have no text: use a flat struct of numbers, words and other algorithms' settings";
            return refuse(why.into());
        };
        let after = text.split_once(':').map_or("", |(_, settings)| settings);
        // Texts that cannot be read are reported with the representatives.
        let Ok(again) = crate::text::read::<S>(what, &text, after, S::PLACES) else { continue };
        let value = |settings: &S| serde_json::to_value(settings).ok();
        if value(settings) != value(&again) {
            return refuse(format!("its settings are not the same when read from their text `{text}`"));
        }
    }
    Ok(())
}

/// Adds an entry, if its name is new and its representatives work.
fn add<T: Listed + ?Sized>(catalogue: &mut Catalogue, entry: Entry<T>) -> Result<(), ConfigError> {
    let refuse = |why: String| Err(ConfigError::Catalogue { what: T::WHAT, name: entry.name, why });
    let well_formed =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    if entry.name.is_empty() || !entry.name.chars().all(well_formed) {
        return refuse("a name is lowercase words joined by hyphens".into());
    }
    if T::own().iter().chain(T::guests(catalogue)).any(|other| other.name == entry.name) {
        return refuse("another algorithm has this name; choose another".into());
    }
    // Settings may name algorithms that were added earlier.
    catalogue.clone().scope(|| try_representatives(&entry)).or_else(refuse)?;
    T::guests_mut(catalogue).push(entry);
    Ok(())
}

/// Reads the representatives back from their texts, and builds them. An error is the reason to refuse the algorithm.
fn try_representatives<T: Listed + ?Sized>(entry: &Entry<T>) -> Result<(), String> {
    for representative in (entry.representatives)() {
        let text = representative.to_string();
        let settings = text.split_once(':').map_or("", |(_, settings)| settings);
        match (entry.read)(&text, settings) {
            Ok(again) if again.to_string() == text => {}
            Ok(again) => return Err(format!("its representative `{text}` is read as `{again}`")),
            Err(error) => return Err(format!("its representative `{text}` cannot be read: {error}")),
        }
        if let Err(error) = representative.get().try_build() {
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

    /// Creates an empty catalogue of the crate `name`. By this name, error messages determine whether the crate's
    /// algorithms are available.
    pub fn of(name: &'static str) -> Self {
        Catalogue { crates: vec![name], ..Catalogue::default() }
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

    /// Returns whether the catalogue of the process, if one is installed, lists the algorithms of this crate. `None` without one.
    pub fn is_installed_with(name: &str) -> Option<bool> {
        INSTALLED.get().map(|catalogue| catalogue.crates.contains(&name))
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
        fn names<T: ?Sized>(entries: &[Entry<T>]) -> Vec<&'static str> {
            entries.iter().map(|entry| entry.name).collect()
        }
        f.debug_struct("Catalogue")
            .field("crates", &self.crates)
            .field("strategies", &names(&self.strategies))
            .field("reducers", &names(&self.reducers))
            .field("compressors", &names(&self.compressors))
            .field("aggregators", &names(&self.aggregators))
            .field("feedbacks", &names(&self.feedbacks))
            .field("controllers", &names(&self.controllers))
            .field("servers", &names(&self.servers))
            .finish()
    }
}

/// Returns a hint for an unknown algorithm, unless the current catalogue lists the algorithms of `briquette-zoo`.
fn hint() -> &'static str {
    const FURTHER: &str = "briquette-zoo";
    SCOPES.with_borrow(|scopes| match scopes.last().or_else(|| INSTALLED.get()) {
        Some(catalogue) if catalogue.crates.contains(&FURTHER) => "",
        Some(_) => "; further ones are in briquette-zoo: add its `catalogue()` to yours",
        None => {
            "; further ones are in briquette-zoo: enable the feature `zoo` of briquette and call \
             `briquette::zoo::install()` first"
        }
    })
}

/// Returns all algorithms of a family: this crate's, then those of the current catalogue.
fn entries<T: Listed + ?Sized>() -> Vec<Entry<T>> {
    let mut entries = T::own();
    SCOPES.with_borrow(|scopes| {
        if let Some(catalogue) = scopes.last().or_else(|| INSTALLED.get()) {
            entries.extend(T::guests(catalogue));
        }
    });
    entries
}

#[cfg(test)]
mod tests;
