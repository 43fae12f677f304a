//! Texts and tables of settings, of core's and the zoo's algorithms.

use briquette_core::config::{
    AggregatorConfig, AggregatorSettings, Algorithm, Config, ControllerSettings, Family, FeedbackSettings,
    ReducerConfig, ReducerSettings, StrategySettings, representatives,
};

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Holder {
    aggregator: AggregatorConfig,
}

#[test]
fn texts_and_tables_are_the_same_settings() {
    briquette_zoo::install();
    for (text, table) in [
        ("mean", "{ kind = 'mean' }"),
        ("krum:1", "{ kind = 'krum' }"),
        ("krum:2,keep=3", "{ kind = 'krum', byzantine = 2, keep = 3 }"),
        ("trimmed-mean:2", "{ kind = 'trimmed-mean', trim = 2 }"),
    ] {
        let read = |value: &str| toml::from_str::<Holder>(&format!("aggregator = {value}")).unwrap();
        let holder = Holder { aggregator: text.parse().unwrap() };
        assert_eq!(holder.aggregator.to_string(), text);
        assert_eq!(read(&format!("'{text}'")), holder);
        assert_eq!(read(table), holder);
    }
}

#[test]
fn texts_within_texts_stand_in_parentheses_where_they_have_commas() {
    briquette_zoo::install();
    let reducer: ReducerConfig = "multi-step:3,inner=(gather:(topk:0.1,values=q8),per-slot=on)".parse().unwrap();
    assert_eq!(reducer.to_string(), "multi-step:3,inner=(gather:topk:10x:q8,per-slot=true)");
    assert_eq!(reducer.to_string().parse(), Ok(reducer.clone()));
    let table = "reducer = { kind = 'multi-step', rounds = 3, inner = { kind = 'gather', compressor = 'topk:10x:q8', per_slot = true } }";
    assert_eq!(toml::from_str::<Config>(table).unwrap().exchange.reducer, reducer);
}

#[test]
fn what_cannot_be_says_what_can() {
    briquette_zoo::install();
    fn error<F: Family + ?Sized>(text: &str) -> String {
        text.parse::<Algorithm<F>>().expect_err(text).to_string()
    }
    for (error, words) in [
        (
            error::<dyn AggregatorSettings>("middle"),
            &["unknown aggregator `middle`", "mean, krum, trimmed-mean, median"][..],
        ),
        (error::<dyn AggregatorSettings>("mean:1"), &["`mean:1`", "no settings, got `1`"]),
        (error::<dyn AggregatorSettings>("krum:one"), &["`krum:one`", "`byzantine`", "`one`", "whole number"]),
        (error::<dyn AggregatorSettings>("krum:1,keep=0"), &["keep of krum", "at least 1"]),
        (error::<dyn ReducerSettings>("circle"), &["unknown reducer `circle`", "dense, gather, shared-random-k"]),
        (error::<dyn ReducerSettings>("ring:f32"), &["`ring:f32`", "`format`", "bf16"]),
        (error::<dyn ReducerSettings>("ring:f16,stochastic=true"), &["8 and 4 bits alone", "int8"]),
        (error::<dyn ReducerSettings>("power-sgd:0"), &["rank of power-sgd", "at least 1", "got 0"]),
        (error::<dyn ReducerSettings>("power-sgd:2,rnk=1"), &["unknown field `rnk`", "`rank`"]),
        (error::<dyn ReducerSettings>("multi-step:0"), &["rounds of multi-step", "1 to 1000"]),
        (error::<dyn ReducerSettings>("sketched-sgd:8x,rows=4"), &["rows of sketched-sgd", "odd", "got 4"]),
        (error::<dyn ReducerSettings>("ternary-all-reduce:-1"), &["clip", "-1"]),
        (error::<dyn ReducerSettings>("gather:topk:2"), &["`compressor`", "at most 1", "got 2"]),
        (error::<dyn ReducerSettings>("gather:(topk:0.1,vals=q8)"), &["unknown field `vals`", "`ratio` or `values`"]),
        (error::<dyn ReducerSettings>("shared-random-k:half"), &["`ratio`", "10x", "got half"]),
        (error::<dyn FeedbackSettings>("memory"), &["unknown feedback `memory`", "error, error-inside"]),
        (error::<dyn FeedbackSettings>("diana:1.5"), &["alpha of diana", "in (0, 1]", "got 1.5"]),
        (error::<dyn FeedbackSettings>("momentum:0.9,clip=0"), &["clip of momentum", "above 0", "got 0"]),
        (error::<dyn ControllerSettings>("gravac:epsilom=1"), &["unknown field `epsilom`", "`epsilon`"]),
        (error::<dyn ControllerSettings>("gravac:window=0"), &["window of gravac", "at least 1", "got 0"]),
        (error::<dyn ControllerSettings>("gravac:policy=fast"), &["`policy`", "exponential, geometric"]),
        (error::<dyn ControllerSettings>("schedule:8x,to=4x"), &["from=8x", "to=4x"]),
        (error::<dyn StrategySettings>("sometimes"), &["unknown strategy `sometimes`", "every-step, local-sgd"]),
        (error::<dyn StrategySettings>("local-sgd:0"), &["period of local-sgd", "at least 1", "got 0"]),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
    let mistaken = |table: &str| toml::from_str::<Holder>(&format!("aggregator = {table}")).unwrap_err().to_string();
    // A key or a kind is not a part of a text.
    for (table, words) in [
        ("{ kind = 'krum', 'keep=3,byzantine' = 2 }", "unknown field `keep=3,byzantine`"),
        ("{ kind = 'krum', 'k eep' = 2 }", "unknown field `k eep`"),
        ("{ kind = 'krum:1' }", "`krum:1` is no kind"),
        ("{ keep = 1 }", "missing field `kind`"),
    ] {
        assert!(mistaken(table).contains(words), "{}", mistaken(table));
    }
    for table in ["{ kind = 'krum', keep = 0 }", "{ kind = 'krum', kep = 1 }", "{ kind = 'middle' }", "3"] {
        assert!(toml::from_str::<Holder>(&format!("aggregator = {table}")).is_err(), "{table}");
    }
}

#[test]
fn every_algorithms_text_is_one_of_a_line() {
    briquette_zoo::install();
    for config in representatives() {
        let exchange = &config.exchange;
        if !exchange.rules.is_empty() {
            continue;
        }
        let text = format!(
            "strategy={} reducer={} aggregator={} feedback={} controller={}",
            config.strategy, exchange.reducer, exchange.aggregator, exchange.feedback, exchange.controller
        );
        let read: Config = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((read.strategy, &read.exchange.reducer), (config.strategy.clone(), &exchange.reducer), "{text}");
        assert_eq!(read.exchange.controller, exchange.controller, "{text}");
    }
}

#[test]
fn every_representative_survives_toml() {
    briquette_zoo::install();
    for config in representatives() {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), config, "{text}");
    }
}
