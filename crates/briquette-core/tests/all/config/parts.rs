//! Choices of the parts of a configuration that are not named.

use briquette_core::Layout;
use briquette_core::config::{Config, ControllerConfig, Exchange, Feedback, Parts, ReducerConfig, StrategyConfig};

fn read(text: &str) -> Config {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Naming any part of the default with its default value gives the default.
#[test]
fn each_part_of_the_default_typed_out_is_the_default() {
    briquette_zoo::install();
    let auto = Config::auto();
    let Exchange { reducer, aggregator, feedback, controller, .. } = &auto.exchange;
    for named in [
        format!("strategy = '{}'", auto.strategy),
        format!("reducer = '{reducer}'"),
        "reducer = 'ladder'".to_owned(),
        format!("aggregator = '{aggregator}'"),
        format!("feedback = '{feedback}'"),
        format!("controller = '{controller}'"),
        "controller = 'auto'".to_owned(),
        "probing = 'late'".to_owned(),
        "rules = []".to_owned(),
        format!("strategy = 'every-step'\ncontroller = '{controller}'"),
        format!("reducer = '{reducer}'\nfeedback = '{feedback}'"),
    ] {
        assert_eq!(read(&named), auto, "{named}");
    }
    let Config { strategy, exchange } = auto.clone();
    let in_code = Parts { strategy: Some(strategy), controller: Some(exchange.controller), ..Parts::default() };
    assert_eq!(in_code.choose().0, auto);
}

#[test]
fn a_part_that_is_named_changes_no_other() {
    briquette_zoo::install();
    let auto = Config::auto();
    for (named, change) in [
        (
            "controller = 'cost-aware:50x'",
            Config::auto().with_controller("cost-aware:50x".parse::<ControllerConfig>().unwrap()),
        ),
        ("feedback = 'error'", Config::auto().with_feedback(Feedback::error())),
        ("feedback = 'none'", Config::auto().with_feedback(Feedback::none())),
        (
            "dense_below = 7",
            Config { exchange: Exchange { dense_below: Some(7), ..auto.exchange.clone() }, ..auto.clone() },
        ),
        ("threads = 2", Config { exchange: Exchange { threads: Some(2), ..auto.exchange.clone() }, ..auto.clone() }),
    ] {
        assert_eq!(read(named), change, "{named}");
    }
    // The feedback suits the optimizer, independent of the other named parts.
    for named in
        ["reducer = 'gather:topk:20x:q8'", "reducer = 'power-sgd:2'", "controller = 'gravac'", "aggregator = 'krum:1'"]
    {
        assert_eq!(read(named).exchange.feedback, Feedback::by_optimizer(), "{named}");
        assert_eq!(read(named).for_optimizer(Some(0.9)).exchange.feedback.to_string(), "inner-momentum:0.9", "{named}");
    }
}

#[test]
fn what_cannot_go_together_is_said() {
    briquette_zoo::install();
    let reasons = |text: &str| {
        let parts: Parts = toml::from_str(text).unwrap();
        parts.choose().1.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    for (text, says) in [
        ("", "controller auto:50x, because it decides where no ratio was named"),
        (
            "strategy = 'local-sgd:8'",
            "reducer dense, because strategy local-sgd exchanges parameters, once in a period",
        ),
        ("strategy = 'sgp'", "feedback none, because strategy sgp sends parameters uncompressed"),
        (
            "strategy = 'easgd'\nreducer = 'gather:topk:8x'",
            "feedback none, because strategy easgd exchanges differences",
        ),
        ("reducer = 'gather:topk:20x'", "controller none, because reducer gather has the ratio that was named"),
        ("reducer = 'gather:qsgd:4'", "feedback none, because reducer gather needs none"),
        ("reducer = 'dense'", "controller none, because dense has no ratio to decide"),
        ("controller = 'gravac'", "reducer gather:topk:20x:q8, because controller gravac sets its ratio"),
        (
            "controller = 'l-greco'",
            "reducer gather:topk:20x:q8,per-slot=true, because controller l-greco sets its ratio",
        ),
        ("aggregator = 'krum:1'", "reducer gather:topk:20x:q8, because aggregator krum:1 combines whole messages"),
        ("feedback = 'error'", "feedback error, as given"),
        ("feedback = 'diana'", "reducer gather:qsgd:4, because feedback diana needs an unbiased compressor"),
        ("feedback = 'diana'", "controller none, because reducer gather has no ratios to choose among"),
        ("feedback = 'ef21'", "reducer gather:topk:20x:q8, because feedback ef21 needs a contractive compressor"),
        ("feedback = 'ef21'\ncontroller = 'gravac'", "because controller gravac sets its ratio"),
        (
            "feedback = 'ef21'\ncontroller = 'l-greco'",
            "reducer gather:topk:20x:q8,per-slot=true, because controller l-greco",
        ),
        ("feedback = 'diana'\nstrategy = 'local-sgd:8'", "reducer dense, because strategy local-sgd"),
        (
            "aggregator = 'krum:1'\ncontroller = 'l-greco'",
            "reducer gather:topk:20x:q8,per-slot=true, because aggregator krum:1 combines whole messages",
        ),
    ] {
        assert!(reasons(text).contains(says), "{text}: {}", reasons(text));
    }
    let mut local = read("strategy = 'local-sgd:8'\nreducer = 'gather:topk:8x'");
    let choice = local.choose_feedback(Some(0.9), "SGD with momentum 0.9").unwrap();
    assert_eq!(choice.to_string(), "feedback error, because strategy local-sgd exchanges parameters");
    assert_eq!((local.choose_feedback(None, ""), local.exchange.feedback), (None, Feedback::error()));
}

/// Every chosen configuration can be built: the rules never make a named part impossible.
#[test]
fn whatever_is_named_alone_builds() {
    briquette_zoo::install();
    let layout = Layout::new((0..10).map(|i| (i.to_string(), vec![3000])));
    let builds = |parts: Parts| {
        let (config, choices) = parts.choose();
        for momentum in [Some(0.9), None] {
            let built = config.clone().for_optimizer(momentum).build(&layout, 6).map(drop);
            built.unwrap_or_else(|error| panic!("{choices:?}: {error}"));
        }
    };
    ControllerConfig::all().into_iter().for_each(|controller| builds(Parts::default().with_controller(controller)));
    ReducerConfig::all().into_iter().for_each(|reducer| builds(Parts::default().with_reducer(reducer)));
    StrategyConfig::all().into_iter().for_each(|strategy| builds(Parts::default().with_strategy(strategy)));
    Feedback::all().into_iter().for_each(|feedback| builds(Parts::default().with_feedback(feedback)));
    for aggregator in ["mean", "krum:1", "median", "trimmed-mean:1"] {
        let rest = Exchange { aggregator: aggregator.parse().unwrap(), ..Exchange::default() };
        builds(Parts { rest, ..Parts::default() });
    }
}

#[test]
fn a_strategy_refuses_the_keys_that_it_would_ignore() {
    briquette_zoo::install();
    let config: Config = toml::from_str("strategy = 'sgp'\nreducer = 'power-sgd:2'").unwrap();
    let error = config.build(&Layout::flat(10), 2).map(drop).unwrap_err().to_string();
    assert!(error.contains("sgp") && error.contains("reducer would be ignored"), "{error}");
}

/// Written settings name the keys that were given, and no others.
#[test]
fn what_is_written_names_every_key_that_is_given() {
    briquette_zoo::install();
    let every_key = "strategy = 'sgp'\nreducer = 'dense'\naggregator = 'median'\nfeedback = 'none'\ncontroller = 'gravac'\nprobing = 'first'\n\
        bucket_values = 3\nduring_backward = true\ndense_below = 5\nthreads = 2\n\
        rules = [{ slots = '*', reducer = 'dense' }]";
    for text in ["", "controller = 'auto'", "reducer = 'ladder'\nthreads = 2", every_key] {
        let parts: Parts = toml::from_str(text).unwrap();
        let written = toml::to_string(&parts).unwrap();
        assert_eq!(toml::from_str::<Parts>(&written).as_ref(), Ok(&parts), "{written}");
        assert_eq!(
            written.lines().count(),
            text.lines().filter(|line| !line.starts_with("rules")).count() + 4 * text.matches("rules").count(),
            "{written}"
        );
    }
}
