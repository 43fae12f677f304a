//! Settings that follow from the number of steps, and warnings for a run.

use briquette_core::Layout;
use briquette_core::config::{Config, StrategyConfig};
use briquette_core::sync::{diloco::DiLoCo, periodic::LocalSgd};
use briquette_zoo::sync::streaming_diloco::StreamingDiLoCoConfig;
use briquette_zoo::sync::{
    bmuf::Bmuf, cocod::CoCoDConfig, easgd::EasgdConfig, lsgd::LsgdConfig, minibatch::MinibatchConfig,
    overlap_local_sgd::OverlapLocalSgdConfig, parle::ParleConfig, slow_mo::SlowMoConfig, two_level::TwoLevelConfig,
};

fn chosen(strategy: &str, steps: Option<u64>) -> String {
    let mut config: Config = format!("strategy={strategy}").parse().unwrap();
    config.choose_for(steps);
    config.strategy.to_string()
}

#[test]
fn periods_that_are_not_named_follow_from_the_steps() {
    briquette_zoo::install();
    for (strategy, usual, short) in [
        ("local-sgd", "local-sgd:8", "local-sgd:7"),
        ("slowmo", "slowmo:12", "slowmo:7"),
        ("slowmo:base=(local-sgd)", "slowmo:12,base=local-sgd:8", "slowmo:7,base=local-sgd:7"),
        ("bmuf", "bmuf:12", "bmuf:7"),
        ("diloco:rate=0.5", "diloco:100,rate=0.5", "diloco:7,rate=0.5"),
        ("streaming-diloco", "streaming-diloco:100", "streaming-diloco:7"),
        ("streaming-diloco:overlap=3", "streaming-diloco:100,overlap=3", "streaming-diloco:12,overlap=3"),
        ("easgd", "easgd:10", "easgd:7"),
        ("lsgd", "lsgd:16", "lsgd:4"),
        ("overlap-local-sgd", "overlap-local-sgd:2", "overlap-local-sgd:2"),
        ("cocod", "cocod:8", "cocod:7"),
        ("two-level:(diloco)", "two-level:diloco:100", "two-level:diloco:7"),
        ("parle:scope=0.5", "parle:25,scope=0.5", "parle:7,scope=0.5"),
    ] {
        assert_eq!(chosen(strategy, None), usual);
        assert_eq!(chosen(strategy, Some(1_000_000)), usual);
        assert_eq!(chosen(strategy, Some(158)), short, "{strategy}");
    }
    assert_eq!(chosen("parle", None), "parle:25,scope=0.999");
    assert_eq!(chosen("parle", Some(1_000_000)), "parle:25,scope=0.999");
    assert_eq!(chosen("diloco", Some(1)), "diloco:1");
    // Named settings are kept, and a strategy without open settings is unchanged.
    for strategy in ["diloco:100", "parle:25,scope=0.7", "every-step", "minibatch:8", "sgp:exponential", "lsgd:16"] {
        let config: Config = format!("strategy={strategy}").parse().unwrap();
        assert_eq!(
            (config.clone().choose_for(Some(158)), chosen(strategy, Some(158))),
            (None, config.strategy.to_string())
        );
    }
}

/// The coupling of the replicas reaches its full strength within the run. Earlier, a run of 158 steps drew the replicas only a hundredth closer.
#[test]
fn parles_ranks_come_together_within_the_run() {
    briquette_zoo::install();
    for (strategy, steps) in
        [("parle", 158), ("parle:25", 158), ("parle", 5000), ("parle:5,coupling=0.2,rate=0.5", 390)]
    {
        let text = chosen(strategy, Some(steps));
        let strategy: StrategyConfig = text.parse().unwrap();
        let parle: &ParleConfig = strategy.downcast_ref().unwrap();
        let scope = parle.scope.expect("it is chosen");
        let outer_steps = steps / parle.period.expect("it is chosen");
        let coupling = |outer_steps: u64| parle.rate * parle.coupling * scope.powi(-(outer_steps as i32));
        assert!(coupling(outer_steps) >= 0.99, "{text}: {}", coupling(outer_steps));
        assert!(outer_steps < 8 || coupling(outer_steps / 2) < 0.8, "{text}: gently");
    }
}

#[test]
fn every_periodic_strategy_that_is_named_with_few_exchanges_says_so() {
    briquette_zoo::install();
    for strategy in StrategyConfig::all() {
        let config = Config::dense().with_strategy(strategy.clone());
        let Some(period) = strategy.get().local_steps() else { continue };
        let [few, enough] = [19, 20].map(|exchanges| config.cautions(Some(exchanges * period)));
        assert!(enough.is_empty(), "{strategy}: {enough:?}");
        // An adaptive period is only the longest one.
        let warns = period > 1 && !strategy.get().reads_seconds();
        assert_eq!(few.len(), usize::from(warns), "{strategy}: {few:?}");
        assert!(few.iter().all(|few| few.contains("19 exchanges") && few.contains("a period of at most")), "{few:?}");
    }
    let config: Config = "strategy=diloco:100".parse().unwrap();
    assert!(config.cautions(Some(158))[0].contains("1 exchanges in 158 steps"));
    assert!(config.cautions(None).is_empty() && Config::auto().cautions(Some(5)).is_empty());
}

/// Such values can only be made in code, since values that are read are checked.
#[test]
fn settings_out_of_range_are_errors_when_built_and_no_panics_before() {
    briquette_zoo::install();
    let layout = Layout::flat(1000);
    let wrong: Vec<StrategyConfig> = vec![
        LocalSgd { period: Some(0), ..Default::default() }.into(),
        SlowMoConfig { period: Some(0), ..Default::default() }.into(),
        Bmuf { period: Some(0), ..Default::default() }.into(),
        DiLoCo { period: Some(0), ..Default::default() }.into(),
        StreamingDiLoCoConfig { period: Some(0), ..Default::default() }.into(),
        StreamingDiLoCoConfig { fragments: 0, ..Default::default() }.into(),
        StreamingDiLoCoConfig { overlap: u64::MAX, ..Default::default() }.into(),
        StreamingDiLoCoConfig { fragments: u64::MAX, overlap: u64::MAX, ..Default::default() }.into(),
        EasgdConfig { period: Some(0), ..Default::default() }.into(),
        LsgdConfig { period: Some(0), ..Default::default() }.into(),
        LsgdConfig { local: 0, ..Default::default() }.into(),
        OverlapLocalSgdConfig { period: Some(0), ..Default::default() }.into(),
        OverlapLocalSgdConfig { offset: u64::MAX, ..Default::default() }.into(),
        CoCoDConfig { period: Some(0) }.into(),
        MinibatchConfig { period: 0, ..Default::default() }.into(),
        ParleConfig { period: Some(0), ..Default::default() }.into(),
        ParleConfig { period: Some(0), rate: 0.0, ..Default::default() }.into(),
    ];
    let between = wrong.clone().into_iter().map(|strategy| TwoLevelConfig { between: strategy, group: Some(2) }.into());
    for strategy in wrong.iter().cloned().chain(between.collect::<Vec<StrategyConfig>>()) {
        for steps in [None, Some(0), Some(158), Some(u64::MAX)] {
            let mut config = Config::dense().with_strategy(strategy.clone());
            config.cautions(steps);
            config.choose_for(steps);
            config.cautions(steps);
            let built = config.build(&layout, 4).map(drop);
            assert!(built.is_err(), "{strategy:?} in {steps:?} steps");
        }
        assert!(Config::dense().with_strategy(strategy.clone()).build(&layout, 4).is_err(), "{strategy:?}");
    }
}

/// If no period is named, a setting that needs a longer period than the usual one gets it. A named period that is too short is refused.
#[test]
fn an_open_period_is_as_long_as_the_other_settings_need() {
    briquette_zoo::install();
    let layout = Layout::new((0..200).map(|slot| (slot.to_string(), vec![2])));
    for (open, usual, short) in [
        ("lsgd:local=5", "lsgd:20,local=5", "lsgd:5,local=5"),
        ("lsgd:local=16", "lsgd:16,local=16", "lsgd:16,local=16"),
        ("lsgd:local=40", "lsgd:40,local=40", "lsgd:40,local=40"),
        ("overlap-local-sgd:offset=1", "overlap-local-sgd:2,offset=1", "overlap-local-sgd:2,offset=1"),
        ("overlap-local-sgd:offset=3", "overlap-local-sgd:4,offset=3", "overlap-local-sgd:4,offset=3"),
        ("streaming-diloco:fragments=150", "streaming-diloco:150,fragments=150", "streaming-diloco:150,fragments=150"),
        (
            "streaming-diloco:fragments=1,overlap=100",
            "streaming-diloco:101,fragments=1,overlap=100",
            "streaming-diloco:101,fragments=1,overlap=100",
        ),
    ] {
        assert_eq!([None, Some(1_000_000), Some(158)].map(|steps| chosen(open, steps)), [usual, usual, short]);
        let open: Config = format!("strategy={open}").parse().unwrap();
        let usual = open.clone().with_strategy(usual.parse::<StrategyConfig>().unwrap());
        assert_eq!(open.strategy.get().local_steps(), usual.strategy.get().local_steps());
        assert!(open.build(&layout, 4).is_ok() && usual.build(&layout, 4).is_ok());
    }
    for named in
        ["lsgd:16,local=5", "overlap-local-sgd:2,offset=3", "streaming-diloco:100,fragments=150", "lsgd:local=0"]
    {
        assert!(named.parse::<StrategyConfig>().is_err(), "{named}");
    }
}

#[test]
fn signs_without_a_size_say_which_rate_they_need() {
    briquette_zoo::install();
    for (reducer, says) in [
        ("two-way:plain-sign,down=plain-sign", true),
        ("two-way:plain-sign,down=sign", true),
        ("gather:plain-sign:random", true),
        ("hierarchical:(gather:plain-sign)", true),
        ("multi-step:2,inner=(gather:plain-sign)", true),
        ("two-way:sign", false),
        ("gather:sign", false),
        ("gather:topk:10x", false),
    ] {
        let config: Config = format!("reducer={reducer}").parse().unwrap();
        let cautions = config.cautions(None);
        assert_eq!(cautions.iter().any(|caution| caution.contains("a hundredth of SGD's")), says, "{reducer}");
    }
}
