use super::*;
use briquette::core::config::Exchange;
use briquette::zoo::control::gravac::GraVacConfig;

#[test]
fn gravac_is_the_same_in_code_in_toml_and_as_a_flag() {
    briquette::zoo::install();
    for (text, settings) in [
        ("gravac", GraVacConfig::default()),
        ("gravac:10x,max=100x,epsilon=0.4,window=25", GraVacConfig::small_model()),
        ("gravac:epsilon=0.9,dense_steps=3", GraVacConfig { epsilon: 0.9, dense_steps: 3, ..GraVacConfig::default() }),
    ] {
        let code = settings.top_k_q8();
        let toml = format!("reducer = 'gather:topk:10x:q8'\nfeedback = 'error'\ncontroller = '{text}'");
        assert_eq!(toml::from_str::<Config>(&toml).unwrap(), code, "{text}");
        let flags = Options {
            compressor: Some("topk:10x:q8".parse().unwrap()),
            controller: Some(text.parse().unwrap()),
            feedback: Some(Feedback::error()),
            ..Options::default()
        };
        assert_eq!(flags.resolve().unwrap().config, code, "{text}");
        let set =
            vec!["reducer=gather:topk:10x:q8".to_owned(), format!("controller={text}"), "feedback=error".to_owned()];
        assert_eq!(Options { set: Some(set), ..Options::default() }.resolve().unwrap().config, code, "{text}");
    }
}

fn config(text: &str) -> Config {
    let options = toml::from_str::<Options>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    options.resolve().unwrap_or_else(|error| panic!("{text}: {error:#}")).config
}

/// The default written out in full equals the default, whichever part of it is written, as a flag, as TOML or by --set.
#[test]
fn the_default_typed_out_is_the_default() {
    let auto = Config::auto();
    for flag in [
        "strategy = 'every-step'",
        "reducer = 'ladder'",
        "feedback = 'by-optimizer'",
        "controller = 'auto'",
        "aggregator = 'mean'",
    ] {
        let set = flag.replace([' ', '\''], "");
        for text in [flag.to_owned(), format!("[config]\n{flag}"), format!("set = ['{set}']")] {
            assert_eq!(config(&text), auto, "{text}");
        }
    }
    for nothing in [
        "",
        "optimizer = 'adam'",
        "[config]",
        "momentum = 0.5\nweight-decay = 0.1",
        "staleness = 0",
        "per-slot = 'off'",
        "momentum-correction = 'off'",
        "overlap = 'off'",
    ] {
        assert_eq!(config(nothing), auto, "{nothing}");
    }
    let exchange = Exchange { bucket_values: Some(100), threads: Some(1), ..auto.exchange.clone() };
    let how = "bucket-values = 100\nthreads = 1";
    let keys = "[config]\nbucket_values = 100\nthreads = 1";
    for how in [how, keys, "set = ['bucket-values=100', 'threads=1']"] {
        assert_eq!(config(how), Config { exchange: exchange.clone(), ..auto.clone() }, "{how}");
    }
    let during = Exchange { during_backward: true, ..auto.exchange.clone() };
    for how in ["set = ['during_backward=true']", "overlap = 'backward'", "[config]\nduring_backward = true"] {
        assert_eq!(config(how), Config { exchange: during.clone(), ..auto.clone() }, "{how}");
    }
}

#[test]
fn a_part_that_is_named_changes_no_other() {
    briquette::zoo::install();
    let auto = Config::auto();
    let top_k =
        Exchange { reducer: GatherConfig::default().into(), feedback: Feedback::by_optimizer(), ..Exchange::default() };
    let momentum: Feedback = MomentumCorrectionConfig::default().into();
    for (flags, expected) in [
        ("momentum-correction = 'on'", auto.clone().with_feedback(momentum)),
        ("feedback = 'error'", auto.clone().with_feedback(Feedback::error())),
        ("controller = 'cost-aware'", auto.clone().with_controller("cost-aware".parse::<ControllerConfig>().unwrap())),
        (
            "dense-below = 5",
            Config { exchange: Exchange { dense_below: Some(5), ..auto.exchange.clone() }, ..auto.clone() },
        ),
        (
            "controller = 'gravac'",
            Config::every_step(Exchange { controller: "gravac".parse().unwrap(), ..top_k.clone() }),
        ),
        (
            "set = ['controller=gravac']",
            Config::every_step(Exchange { controller: "gravac".parse().unwrap(), ..top_k.clone() }),
        ),
        ("controller = 'none'", Config::every_step(top_k.clone())),
        ("[config]\ncontroller = 'none'", Config::every_step(top_k.clone())),
        ("compressor = 'topk:20x:q8'", Config::every_step(top_k.clone())),
        ("reducer = 'gather:topk:20x:q8'", Config::every_step(top_k.clone())),
        (
            "[config]\ncontroller = 'gravac'\n",
            Config::every_step(Exchange { controller: "gravac".parse().unwrap(), ..top_k }),
        ),
        ("reducer = 'dense'", Config::dense()),
        ("local-steps = 3", Config::local_sgd(3)),
        ("[config]\nstrategy = 'local-sgd:3'", Config::local_sgd(3)),
    ] {
        assert_eq!(config(flags), expected, "{flags}");
    }
    // Parts named in a file and parts named by flags are equivalent.
    let both = config("compressor = 'topk:10x'\n[config]\ncontroller = 'gravac'\nfeedback = 'none'");
    assert_eq!(both, config("compressor = 'topk:10x'\ncontroller = 'gravac'\nfeedback = 'none'"));
}

#[test]
fn every_choice_is_said_with_its_reason() {
    let said = |text: &str| {
        let settings = toml::from_str::<Options>(text).unwrap().resolve().unwrap();
        settings.choices().iter().map(|choice| format!("{choice}\n")).collect::<String>()
    };
    for (text, says) in [
        ("", "feedback inner-momentum:0.9, because the optimizer is SGD with momentum 0.9"),
        ("controller = 'auto'", "feedback inner-momentum:0.9, because the optimizer is SGD with momentum 0.9"),
        ("optimizer = 'adam'", "feedback error, because the optimizer is adam, not SGD with momentum"),
        ("momentum = 0.0", "feedback error, because the optimizer is SGD without momentum"),
        ("compressor = 'topk:20x'", "controller none, because reducer gather has the ratio that was named"),
        ("controller = 'schedule'", "controller schedule:from=4x,epochs=1, as given"),
        ("local-steps = 4", "reducer dense, because strategy local-sgd exchanges parameters, once in a period"),
        ("momentum-correction = 'on'", "feedback momentum:0.9, as given"),
        ("server = 'async-sgd'", "reducer dense, because under --server dense is sent"),
    ] {
        assert!(said(text).contains(says), "{text}: {}", said(text));
    }
}
