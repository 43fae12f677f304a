//! Tests of the catalogue.

use super::*;
use crate::config::{Config, ReducerConfig, ReducerTraits, exchanges, representatives};
use crate::reduce::shared_random_k::SharedRandomKConfig;
use crate::seam::{ErrorBound, Reducer};
use serde::{Deserialize, Serialize};

/// A reducer of another crate, of a name and with a representative. With 0 parts it does not build; 13 is out of its range.
macro_rules! own {
    ($own:ident, $name:literal, $representative:literal) => {
        own!($own, $name, $representative, true);
    };
    ($own:ident, $name:literal, $representative:literal, $has_knob:literal) => {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct $own {
            parts: u64,
        }

        impl Default for $own {
            fn default() -> Self {
                $own { parts: 4 }
            }
        }

        impl Described for $own {
            const NAME: &'static str = $name;
            const SETTINGS: &'static str = "PARTS";
            const HELP: &'static str = "of another crate (4)";

            fn check(&self) -> Result<(), ConfigError> {
                if self.parts == 13 { Err(range("other than 13")) } else { Ok(()) }
            }

            fn representatives() -> Vec<Self> {
                vec![$own { parts: $representative }]
            }
        }

        impl ReducerSettings for $own {
            fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
                if self.parts == 0 { Err(range("at least 1")) } else { like().build(exchange, layout) }
            }
            fn has_knob(&self) -> bool {
                $has_knob
            }
            fn traits(&self) -> ReducerTraits {
                like().traits()
            }
            fn error_bound(&self, len: usize) -> Option<ErrorBound> {
                like().error_bound(len)
            }
        }
    };
}

own!(Own, "own", 4);
own!(SameName, "own", 5);
own!(Taken, "dense", 4);
own!(Malformed, "Not A Name", 4);
own!(Unbuildable, "unbuildable", 0);
own!(Unreadable, "unreadable", 13);
own!(Undeclared, "undeclared", 4, false);

/// A reducer of another crate around a further reducer, which is one of the same catalogue in its representative.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Around {
    inner: ReducerConfig,
}

impl Described for Around {
    const NAME: &'static str = "around";
    const HELP: &'static str = "around another reducer";

    fn representatives() -> Vec<Self> {
        vec![Around { inner: "own".parse().expect("added before") }]
    }
}

impl ReducerSettings for Around {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.inner.get().build(exchange, layout)
    }
    fn has_knob(&self) -> bool {
        self.inner.get().has_knob()
    }
    fn traits(&self) -> ReducerTraits {
        self.inner.get().traits()
    }
    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        self.inner.get().error_bound(len)
    }
}

/// Settings without a text.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Listing {
    parts: Vec<u64>,
}

impl Described for Listing {
    const NAME: &'static str = "listing";
    const HELP: &'static str = "has a list";
}

impl ReducerSettings for Listing {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        like().build(exchange, layout)
    }
    fn traits(&self) -> ReducerTraits {
        like().traits()
    }
    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        like().error_bound(len)
    }
}

/// Settings whose text cannot say `None`: what is left out is the default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Lossy {
    parts: Option<u64>,
}

impl Default for Lossy {
    fn default() -> Self {
        Lossy { parts: Some(4) }
    }
}

impl Described for Lossy {
    const NAME: &'static str = "lossy";
    const HELP: &'static str = "has settings without a text";

    fn representatives() -> Vec<Self> {
        vec![Lossy { parts: None }]
    }
}

impl ReducerSettings for Lossy {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        like().build(exchange, layout)
    }
    fn traits(&self) -> ReducerTraits {
        like().traits()
    }
    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        like().error_bound(len)
    }
    fn has_knob(&self) -> bool {
        true
    }
}

fn like() -> SharedRandomKConfig {
    SharedRandomKConfig::default()
}

fn range(range: &'static str) -> ConfigError {
    ConfigError::range("parts", range, "another")
}

fn error<S: Described + ReducerSettings>() -> String {
    Catalogue::new().with_reducer::<S>().unwrap_err().to_string()
}

#[test]
fn a_catalogue_refuses_what_could_not_be_used_and_says_why() {
    let taken = "reducer dense cannot be in the catalogue: another algorithm has this name; choose another";
    assert_eq!(error::<Taken>(), taken);
    for (error, words) in [
        (error::<Malformed>(), "reducer Not A Name cannot be in the catalogue: a name is lowercase words"),
        (error::<Unbuildable>(), "`unbuildable:0` does not build"),
        (error::<Unreadable>(), "`unreadable:13` cannot be read"),
        (error::<Undeclared>(), "the settings say false, the reducer true"),
        (error::<Listing>(), "its settings have no text: use a flat struct"),
        (error::<Lossy>(), "its settings are not the same when read from their text `lossy`"),
    ] {
        assert!(error.contains(words), "{error}");
    }
    let once = Catalogue::new().with_reducer::<Own>().unwrap();
    assert!(once.clone().with(&once).unwrap_err().to_string().contains("reducer own"), "two of one name");
    assert!(once.with_reducer::<SameName>().is_err());
}

#[test]
fn a_guest_is_read_written_described_and_tested_as_the_others() {
    let outside = ReducerConfig::help().len();
    let catalogue = Catalogue::new().with(&Catalogue::new().with_reducer::<Own>().unwrap()).unwrap();
    catalogue.scope(|| {
        let config: Config = toml::from_str("reducer = 'own:3'\nfeedback = 'error'").unwrap();
        assert_eq!((config.exchange.reducer.name(), config.exchange.reducer.to_string()), ("own", "own:3".into()));
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        config.build(&layout(), 2).unwrap();
        assert!(ReducerConfig::help().contains(&("own[:PARTS]".into(), "of another crate (4)")));
        let is_own = |reducer: &ReducerConfig| reducer.name() == "own";
        assert!(exchanges().iter().any(|exchange| is_own(&exchange.reducer)), "the laws test it");
        assert!(!representatives().is_empty());
        let errors =
            ["own:13", "own:x", "own:prts=3"].map(|text| text.parse::<ReducerConfig>().unwrap_err().to_string());
        assert!(errors[0].contains("other than 13") && errors[1].contains("`parts`") && errors[2].contains("`prts`"));
        let inner: ReducerConfig = "hierarchical:(own:3)".parse().unwrap();
        assert_eq!(inner.to_string().parse(), Ok(inner));
    });
    assert_eq!(ReducerConfig::help().len(), outside);
    assert!("own:3".parse::<ReducerConfig>().unwrap_err().to_string().contains("unknown reducer `own:3`"));
}

#[test]
fn settings_may_name_what_was_added_before() {
    let both = Catalogue::new().with_reducer::<Own>().and_then(|catalogue| catalogue.with_reducer::<Around>()).unwrap();
    both.scope(|| {
        let around = ReducerConfig::all().into_iter().find(|reducer| reducer.name() == "around").unwrap();
        assert_eq!((around.to_string(), around.get().has_knob()), ("around:own:4".into(), true));
        assert_eq!("around:own:4".parse(), Ok(around));
    });
}

#[test]
fn a_scope_ends_with_a_panic_too() {
    let catalogue = Catalogue::new().with_reducer::<Own>().unwrap();
    let panicked = std::panic::catch_unwind(|| catalogue.scope(|| panic!("inside")));
    assert!(panicked.is_err() && "own".parse::<ReducerConfig>().is_err());
}

/// An unknown name may be one of the further literature: the hint depends on what the program has in its catalogue.
#[test]
fn an_unknown_name_says_where_further_algorithms_are() {
    let error = || "cocod".parse::<crate::config::StrategyConfig>().unwrap_err().to_string();
    assert!(
        error().ends_with("enable the feature `zoo` of briquette and call `briquette::zoo::install()` first"),
        "{}",
        error()
    );
    Catalogue::new().scope(|| assert!(error().ends_with("add its `catalogue()` to yours"), "{}", error()));
    Catalogue::of("briquette-zoo").scope(|| assert!(!error().contains("catalogue"), "{}", error()));
}
