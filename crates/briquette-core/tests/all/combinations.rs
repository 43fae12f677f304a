//! Tests of the checks, and the page of the book that is generated from them: `BLESS=1` rewrites `docs/combinations.md`.

use std::fmt::Write;

use briquette_core::Layout;
use briquette_core::config::{
    Config, ControllerConfig, Exchange, Feedback, Parts, ReducerConfig, ServerConfig, StrategyConfig,
    combine::{
        InnerOptimizer, Run, check, check_without_model, equal_replicas, optimizer, reads_optimizer, rebroadcast,
    },
};
use briquette_core::error::{ConfigError, Conflict};
use briquette_zoo::sync::two_level::TwoLevelConfig;

/// Number of ranks of every combination on the page; a multiple of the sizes of all groups.
const WORLD: usize = 6;

const HEAD: &str = "\
# Combinations of algorithms

Compatibility of strategies, feedbacks and controllers with reducers, in a world of 6 ranks. A name alone stands for its default settings.
The other parts of the configuration are [chosen](choosing.md) by default. A number in a cell refers to the reason below the table. A slot
is one parameter tensor. This page is generated from `briquette_core::config::combine::check`, which also checks the configuration of
every run.

To check your own settings, with other values and for your optimizer:

```sh
briquette check --config run.toml --world 6 --optimizer adam
```

In code, a refused combination is a `ConfigError::Conflict` with the fields `left`, `right`, `why` and `instead`.
";

/// Returns the default settings of each algorithm of a family, with its name.
fn defaults<F: std::str::FromStr<Err = ConfigError>>(all: &[F], name: impl Fn(&F) -> &'static str) -> Vec<(String, F)> {
    let mut names: Vec<&str> = all.iter().map(name).collect();
    names.dedup();
    names.into_iter().map(|name| (name.to_owned(), name.parse().expect("a name is a text"))).collect()
}

fn reducer_rows() -> Vec<(String, ReducerConfig)> {
    briquette_zoo::install();
    let mut rows = defaults(&ReducerConfig::all(), ReducerConfig::name);
    // The class of the error depends on the compressor.
    let unbiased = "gather:qsgd:4";
    rows.insert(2, (unbiased.to_owned(), unbiased.parse().expect("a reducer's text")));
    rows
}

/// Writes the reason and the remedy of a conflict as two sentences.
fn sentences(conflict: &Conflict) -> String {
    let subject = conflict.left.split([' ', ':']).next().unwrap_or_default();
    let why = match conflict.why.strip_prefix("it ") {
        Some(clause) => format!("the {subject} {clause}"),
        None => conflict.why.clone(),
    };
    let capitalized = |clause: &str| clause[..1].to_uppercase() + &clause[1..];
    format!("{}. {}.", capitalized(&why), capitalized(&conflict.instead))
}

/// A table with a row for each reducer and a column for each of the other parts, and the reasons of its numbers. Reducers with
/// equal rows share a row, parts with equal columns a column.
fn table(title: &str, columns: &[(String, Parts)]) -> String {
    let (rows, mut reasons) = (reducer_rows(), Vec::<String>::new());
    let mut cell = |parts: &Parts, reducer: &ReducerConfig| {
        let (config, _) = parts.clone().with_reducer(reducer.clone()).choose();
        let Err(conflict) = check(&config, &Run::default().with_world(WORLD)) else { return "yes".to_owned() };
        let reason = sentences(&conflict);
        let number = reasons.iter().position(|other| *other == reason).unwrap_or_else(|| {
            reasons.push(reason);
            reasons.len() - 1
        });
        (number + 1).to_string()
    };
    let columns = columns
        .iter()
        .map(|(name, parts)| (name.clone(), rows.iter().map(|(_, reducer)| cell(parts, reducer)).collect::<Vec<_>>()));
    let columns = merged(columns.collect());
    let rows = rows
        .into_iter()
        .enumerate()
        .map(|(row, (name, _))| (name, columns.iter().map(|(_, cells)| cells[row].clone()).collect::<Vec<_>>()));

    let names = columns.iter().map(|(names, _)| names.clone()).collect::<Vec<_>>();
    let mut page =
        format!("\n## {title}\n\n| reducer | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for (names, cells) in merged(rows.collect()) {
        writeln!(page, "| {names} | {} |", cells.join(" | ")).expect("a string");
    }
    page.push('\n');
    reasons.iter().zip(1..).for_each(|(reason, number)| page.push_str(&format!("{number}. {reason}\n")));
    page
}

/// Joins the names of equal lines, in the order of their first names.
fn merged(lines: Vec<(String, Vec<String>)>) -> Vec<(String, Vec<String>)> {
    let mut merged = Vec::<(String, Vec<String>)>::new();
    for (name, cells) in lines {
        match merged.iter_mut().find(|(_, other)| *other == cells) {
            Some((names, _)) => *names += &format!(", {name}"),
            None => merged.push((name, cells)),
        }
    }
    merged
}

fn strategies() -> Vec<(String, Parts)> {
    briquette_zoo::install();
    let all = defaults(&StrategyConfig::all(), StrategyConfig::name);
    all.into_iter().map(|(name, strategy)| (name, Parts::default().with_strategy(strategy))).collect()
}

fn feedbacks() -> Vec<(String, Parts)> {
    briquette_zoo::install();
    let named = |feedback| Parts::default().with_feedback(feedback).with_controller(ControllerConfig::none());
    let all = defaults(&Feedback::all(), Feedback::name);
    all.into_iter().map(|(name, feedback)| (name, named(feedback))).collect()
}

fn controllers() -> Vec<(String, Parts)> {
    briquette_zoo::install();
    let all = defaults(&ControllerConfig::all(), ControllerConfig::name);
    all.into_iter().map(|(name, controller)| (name, Parts::default().with_controller(controller))).collect()
}

fn page() -> String {
    let tables = [
        table("Strategies and reducers", &strategies()),
        table("Feedbacks and reducers, without a controller", &feedbacks()),
        table("Controllers and reducers", &controllers()),
    ];
    format!("{HEAD}{}", tables.concat())
}

#[test]
fn the_page_of_the_book_is_what_is_checked() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/combinations.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, page()).expect("the page is written");
    }
    let committed = std::fs::read_to_string(&path).expect("the page is there");
    assert!(committed == page(), "docs/combinations.md differs from the checks: run this test with BLESS=1");
}

/// The declared properties decide which combinations can be built: a build refuses what the check refuses, and nothing else.
#[test]
fn a_build_refuses_what_the_check_refuses() {
    for (name, parts) in strategies().into_iter().chain(feedbacks()).chain(controllers()) {
        // Two-level without a group must work with any number of machines, which only a build tries.
        let others = if name == "two-level" { Vec::new() } else { ReducerConfig::all() };
        for reducer in reducer_rows().into_iter().map(|row| row.1).chain(others) {
            let (config, _) = parts.clone().with_reducer(reducer.clone()).choose();
            let run = Run::default().with_world(WORLD);
            let (checked, built) = (check(&config, &run), check_without_model(&config, &run));
            assert_eq!(checked.map_err(ConfigError::from), built, "{name}, {reducer}");
        }
    }
}

#[test]
fn reducers_declare_whether_they_have_a_knob() {
    briquette_zoo::install();
    let through = ["byzantine:(gather:topk:20x)", "byzantine:(gather:topk:20x),attack=not-finite"];
    for reducer in ReducerConfig::all().into_iter().chain(through.map(|text| text.parse().unwrap())) {
        // Byzantine is built as the outermost reducer only.
        let exchange = Exchange { reducer: reducer.clone(), ..Exchange::default() };
        let mut built =
            reducer.get().build(&exchange, &Layout::flat(1000)).unwrap_or_else(|error| panic!("{reducer}: {error}"));
        assert_eq!(built.knob().is_some(), reducer.get().has_knob(), "{reducer}");
    }
}

fn conflict(text: &str, run: Run<'_>) -> Conflict {
    briquette_zoo::install();
    let config: Config = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    check(&config, &run).expect_err(text)
}

#[test]
fn conflicts_name_both_settings_and_what_to_do_instead() {
    let none = Run::default();
    for (text, run, left, right, instead) in [
        ("strategy=local-sgd:8 during_backward=true", none, "strategy local-sgd:8", "during_backward", "every-step"),
        ("strategy=sgp reducer=power-sgd:4", none, "strategy sgp", "reducer power-sgd:4", "leave reducer out"),
        ("strategy=easgd feedback=error", none, "strategy easgd", "feedback error", "leave feedback out"),
        ("strategy=parle feedback=error", none, "strategy parle", "feedback error", "leave feedback out"),
        ("strategy=overlap-local-sgd feedback=error", none, "strategy overlap", "feedback error", "leave feedback out"),
        (
            "strategy=streaming-diloco controller=gravac",
            none,
            "strategy streaming",
            "controller gravac",
            "leave controller",
        ),
        ("strategy=lsgd bucket_values=7", none, "strategy lsgd", "bucket_values 7", "leave bucket_values out"),
        ("strategy=diloco feedback=momentum", none, "strategy diloco", "feedback momentum:0.9", "feedback error"),
        ("strategy=minibatch:4,accelerate=true feedback=momentum", none, "strategy minibatch", "feedback", "error"),
        ("strategy=cocod reducer=mcm:qsgd:4,per-rank=true", none, "strategy cocod", "reducer mcm", "every-step"),
        ("reducer=dense controller=none probing=first", none, "controller none", "probing first", "leave probing out"),
        ("reducer=power-sgd:4 controller=gravac", none, "controller gravac", "reducer power-sgd:4", "use gather"),
        ("reducer=gather:topk:8x controller=l-greco", none, "controller l-greco", "reducer gather", "per_slot = true"),
        ("reducer=gather:topk:8x feedback=diana", none, "feedback diana", "reducer gather:topk:8x", "ef21"),
        ("reducer=gather:qsgd:4 feedback=ef21", none, "feedback ef21", "reducer gather:qsgd:4", "feedback diana"),
        ("reducer=artemis feedback=error", none, "reducer artemis", "feedback error", "feedback none"),
        ("aggregator=krum:1 controller=gravac", none, "aggregator krum:1", "controller gravac", "controller none"),
        ("aggregator=krum:1 reducer=dense", none, "aggregator krum:1", "reducer dense", "use reducer gather"),
        ("aggregator=krum:1", none.with_world(4), "aggregator krum:1", "a world of 4 ranks", "aggregator mean"),
        ("reducer=hierarchical:group=4", none.with_world(6), "group=4", "a world of 6 ranks", "divisor of 6"),
        ("reducer=byzantine:ranks=2", none.with_world(1), "reducer byzantine", "a world of 1 rank", "lower ranks"),
    ] {
        let conflict = conflict(text, run);
        let parts = [(&conflict.left, left), (&conflict.right, right), (&conflict.instead, instead)];
        assert!(parts.iter().all(|(part, expected)| part.contains(expected)), "{text}: {conflict}");
        assert!(conflict.to_string().contains(" does not go with "), "{conflict}");
    }
}

#[test]
fn optimizers_are_checked_where_they_are_known() {
    briquette_zoo::install();
    use InnerOptimizer::{HeavyBall, OneBitAdam, Other, OtherMomentum, Sgd, Unseen};
    let heavy = HeavyBall { momentum: 0.9 };
    let accepts = |text: &str, optimizer| {
        let config: Config = text.parse().expect("a configuration");
        let needed = reads_optimizer(&config);
        let accepted = check(&config, &Run::default().with_optimizer(optimizer));
        assert!(accepted.is_ok() || needed || !config.steps_with_averages(), "{text}");
        accepted.is_ok()
    };
    for (text, accepted) in [
        ("auto", [true; 6]),
        ("reducer=gather:topk:8x feedback=momentum", [true, false, false, false, true, true]),
        ("reducer=gather:topk:8x feedback=inner-momentum:0.9", [false, true, false, false, false, true]),
        ("reducer=gather:topk:8x feedback=one-bit-adam:5", [false, false, false, true, false, true]),
        ("reducer=smooth", [true, false, false, false, false, true]),
        ("strategy=minibatch:4,accelerate=true", [true, false, false, false, false, true]),
        ("strategy=local-sgd:8", [true; 6]),
    ] {
        let got = [Sgd, heavy, OtherMomentum, OneBitAdam, Other, Unseen].map(|optimizer| accepts(text, optimizer));
        assert_eq!(got, accepted, "{text}");
    }
    // Averaged parameters are not what SGD's momentum is of.
    let exchange = Exchange { feedback: "inner-momentum:0.9".parse().unwrap(), ..Exchange::default() };
    let late = Config { strategy: "parle".parse().unwrap(), exchange };
    assert!(optimizer(&late, Unseen).unwrap_err().right.contains("strategy parle"));
}

#[test]
fn a_servers_workers_send_dense_or_one_message() {
    briquette_zoo::install();
    let check_with = |server: &str, text: &str| {
        let (server, config): (ServerConfig, Config) = (server.parse().unwrap(), text.parse().unwrap());
        check(&config, &Run::default().with_server(&server))
    };
    for text in
        ["reducer=dense feedback=none", "reducer=gather:topk:8x feedback=error", "reducer=gather:qsgd:4 feedback=none"]
    {
        assert_eq!(check_with("async-sgd", text), Ok(()), "{text}");
    }
    for (server, text, right) in [
        ("async-sgd", "strategy=local-sgd:8", "strategy local-sgd:8"),
        ("async-sgd", "reducer=power-sgd:4 feedback=none", "reducer power-sgd:4"),
        ("async-sgd", "reducer=gather:topk:8x,per-slot=true feedback=error", "reducer gather:topk:8x,per-slot=true"),
        ("async-sgd", "reducer=gather:topk:8x controller=gravac feedback=error", "controller gravac"),
        ("async-sgd", "reducer=gather:topk:8x feedback=momentum", "feedback momentum:0.9"),
        ("synthesis:8", "reducer=gather:topk:8x feedback=error", "feedback error"),
    ] {
        let conflict = check_with(server, text).expect_err(text);
        assert!(conflict.left == format!("server {server}") && conflict.right.starts_with(right), "{text}: {conflict}");
    }
}

#[test]
fn plans_decide_about_replicas() {
    briquette_zoo::install();
    let plan = |text: &str| {
        let config: Config = text.parse().expect("a configuration");
        config.build(&Layout::flat(100), WORLD).expect("it builds").plan(0)
    };
    let [averages, parameters, own] =
        ["reducer=dense", "strategy=local-sgd:1", "reducer=mcm:qsgd:4,per-rank=true"].map(plan);
    assert_eq!((rebroadcast(averages, true), equal_replicas(averages, "it")), (Ok(()), Ok(())));
    for (plan, weighs, why) in
        [(averages, false, "rank 0's"), (parameters, true, "parameters itself"), (own, true, "averages of their own")]
    {
        assert!(rebroadcast(plan, weighs).unwrap_err().why.contains(why), "{why}");
    }
    for plan in [parameters, own] {
        assert_eq!(equal_replicas(plan, "the mean of parameters").unwrap_err().left, "the mean of parameters");
    }
}

#[test]
fn a_model_that_is_not_known_need_not_match_rules() {
    briquette_zoo::install();
    let rules = "rules = [{ slots = '*.bias', reducer = 'dense' }]\nreducer = 'gather:topk:8x,per-slot=true'";
    for strategy in ["every-step", "local-sgd:8", "two-level:(local-sgd:8),group=2", "streaming-diloco:100,fragments=5"]
    {
        let config: Config = toml::from_str(&format!("strategy = '{strategy}'\n{rules}")).expect("a configuration");
        assert_eq!(check_without_model(&config, &Run::default()), Ok(()), "{strategy}");
        assert_eq!(check_without_model(&config, &Run::default().with_world(4)), Ok(()), "{strategy}");
    }
    let between = TwoLevelConfig { between: StrategyConfig::every_step(), ..TwoLevelConfig::default() };
    let error = check_without_model(&Config::dense().with_strategy(between), &Run::default()).unwrap_err();
    assert!(matches!(&error, ConfigError::Conflict(conflict) if conflict.left == "strategy two-level"), "{error}");
}
