//! The catalogue lists every algorithm of the crate, each with a text, a table, help and representatives that build.

use std::collections::BTreeSet;
use std::path::Path;

use briquette_core::Layout;
use briquette_core::config::{
    AggregatorSettings, Algorithm, Catalogue, CompressorSettings, ControllerSettings, Exchange, Family,
    FeedbackSettings, ReducerSettings, StrategySettings,
};
use briquette_core::server::PolicySettings;
use briquette_core::step::check_elastic;

/// Returns the names of a family's algorithms in the current catalogue, with their syntax and help.
fn help<F: Family + ?Sized>() -> Vec<(String, String, &'static str)> {
    let name = |syntax: &str| syntax.split([':', '[']).next().unwrap_or_default().to_owned();
    Algorithm::<F>::help().into_iter().map(|(syntax, help)| (name(&syntax), syntax, help)).collect()
}

/// Checks every algorithm of a family that the catalogue adds to core's, and returns their names.
fn check_list<F: Family + ?Sized>() -> Vec<String> {
    let of_core: Vec<_> = Catalogue::new().scope(help::<F>).into_iter().map(|(name, ..)| name).collect();
    let all = Algorithm::<F>::all();
    let mut names = Vec::new();
    for (name, syntax, help) in help::<F>().into_iter().filter(|(name, ..)| !of_core.contains(name)) {
        assert!(syntax.starts_with(&name) && !help.is_empty(), "{name}");
        let of_table: Algorithm<F> = serde_json::from_value(serde_json::json!({ "kind": name })).expect(&name);
        assert_eq!(name.parse().as_ref(), Ok(&of_table));
        assert_eq!((of_table.name(), of_table.to_string().split(':').next()), (&*name, Some(&*name)));
        let representatives: Vec<_> = all.iter().filter(|config| config.name() == name).collect();
        assert!(!representatives.is_empty(), "the laws try {name}");
        for config in representatives {
            assert_eq!(config.to_string().parse().as_ref(), Ok(config));
            config.get().try_build().unwrap_or_else(|error| panic!("{config}: {error}"));
        }
        let error = format!("{name}:no-such-key=1").parse::<Algorithm<F>>().unwrap_err().to_string();
        assert!(error.contains("no_such_key") || error.contains("no settings"), "{error}");
        names.push(name);
    }
    names
}

/// Returns the names that the sources in a folder declare.
fn declared(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            declared(&entry.path(), names);
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let parts = text.split("#[described(").skip(1).filter_map(|part| part.split("name = \"").nth(1));
        names.extend(parts.map(|part| part.split('"').next().unwrap_or_default().to_owned()));
    }
}

#[test]
fn every_algorithm_of_every_family_has_a_text_a_table_help_and_representatives() {
    briquette_zoo::install();
    let listed = [
        check_list::<dyn StrategySettings>(),
        check_list::<dyn CompressorSettings>(),
        check_list::<dyn PolicySettings>(),
        check_list::<dyn ReducerSettings>(),
        check_list::<dyn AggregatorSettings>(),
        check_list::<dyn FeedbackSettings>(),
        check_list::<dyn ControllerSettings>(),
    ];
    let mut expected = BTreeSet::new();
    declared(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut expected);
    assert!(expected.len() >= 40 && listed.iter().all(|names| !names.is_empty()), "{listed:?}");
    assert_eq!(listed.concat().into_iter().collect::<BTreeSet<_>>(), expected, "listed, and in the sources");
}

/// Returns the row of a family: the names of core's algorithms, and those that the zoo's catalogue adds.
fn row<F: Family + ?Sized>(family: &str) -> String {
    let names =
        |catalogue: Catalogue| -> Vec<_> { catalogue.scope(help::<F>).into_iter().map(|(name, ..)| name).collect() };
    let (own, all) = (names(Catalogue::new()), names(briquette_zoo::catalogue()));
    let cell = |names: &[String]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    format!("| {family} | {} | {} |\n", cell(&own), cell(&all[own.len()..])).replace("|  |", "| |")
}

/// `BLESS=1` rewrites the table.
#[test]
fn the_page_of_algorithms_names_the_crate_of_each() {
    const HEAD: &str = "| family | `briquette-core` | `briquette-zoo` |\n|---|---|---|\n";
    let table = [
        row::<dyn StrategySettings>("strategies"),
        row::<dyn ReducerSettings>("reducers"),
        row::<dyn CompressorSettings>("compressors"),
        row::<dyn AggregatorSettings>("aggregators"),
        row::<dyn FeedbackSettings>("feedbacks"),
        row::<dyn ControllerSettings>("controllers"),
        row::<dyn PolicySettings>("server policies"),
    ]
    .concat();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/algorithms.md");
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = page.split_once(HEAD).expect("the page has the table");
    let (committed, after) = rest.split_once("\n\n").expect("text follows the table");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{HEAD}{table}\n{after}")).expect("the page is written");
    } else {
        assert_eq!(format!("{committed}\n"), table, "run this test with BLESS=1");
    }
}

/// As `docs/elastic.md` lists them.
#[test]
fn strategies_of_elastic_worlds() {
    briquette_zoo::install();
    let layout = Layout::new([("a", vec![8]), ("b", vec![8]), ("c", vec![8])]);
    let all = Algorithm::<dyn StrategySettings>::all();
    let is_elastic = |config: &&Algorithm<dyn StrategySettings>| {
        let exchanges = [vec![Exchange::default()], config.get().exchanges()].concat();
        exchanges.iter().any(|exchange| {
            config.get().build(exchange, &layout, 4).is_ok_and(|strategy| check_elastic(&*strategy).is_ok())
        })
    };
    let names: BTreeSet<_> = all.iter().filter(is_elastic).map(|config| config.name()).collect();
    let page = include_str!("../../../../docs/elastic.md");
    let list = page.split("same parameters on all ranks after an exchange are supported (").nth(1).expect("the list");
    let listed = list.split(')').next().unwrap_or_default().split(", ").map(|name| name.trim_matches('`'));
    assert_eq!(names, listed.collect());
}
