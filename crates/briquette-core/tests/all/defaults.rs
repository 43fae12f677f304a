//! Defaults of algorithms that are named without an argument: the values that their documentation and tables use, not the small
//! values with which the laws are tested.

use std::collections::BTreeSet;

use briquette_core::compress::{
    BiasedRandom, ExponentialDithering, HardThreshold, MinMax, Qsgd, RandomK, Redsync, Rounding, Sidco, Spec,
    ThresholdTopK, TopK,
};
use briquette_core::config::{CompressorConfig, ReducerConfig};

/// Returns the compressors of the laws that differ from the bare compressor name.
fn small() -> Vec<String> {
    fn one<S: Spec>() -> String
    where
        CompressorConfig: From<S>,
    {
        CompressorConfig::from(S::representative()).to_string()
    }
    let all = [
        one::<Qsgd>(),
        one::<ExponentialDithering>(),
        one::<MinMax>(),
        one::<TopK>(),
        one::<ThresholdTopK>(),
        one::<Redsync>(),
        one::<Sidco>(),
        one::<HardThreshold>(),
        one::<RandomK>(),
        one::<BiasedRandom>(),
        one::<Rounding>(),
    ];
    let means = |text: &String| text.split(':').next().unwrap_or_default().parse::<CompressorConfig>();
    all.into_iter().filter(|text| means(text) != text.parse()).collect()
}

#[test]
fn artemis_mcm_and_smooth_are_what_their_tables_run() {
    for name in ["artemis", "mcm", "smooth"] {
        let [short, long] = [name.to_owned(), format!("{name}:qsgd:4")].map(|text| text.parse::<ReducerConfig>());
        assert_eq!(short, long, "{name}");
        assert!(short.unwrap().to_string().starts_with(&format!("{name}:qsgd:4:512:max")), "{name}");
    }
}

#[test]
fn no_reducer_begins_with_what_the_laws_are_tried_on() {
    let small = small();
    assert!(small.iter().any(|text| text == "qsgd:4:64:l2"), "{small:?}");
    let names: BTreeSet<&str> = ReducerConfig::all().iter().map(ReducerConfig::name).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let text = name.parse::<ReducerConfig>().unwrap().to_string();
        let first = text.split_once(':').map_or("", |(_, settings)| settings).split(',').next().unwrap_or_default();
        assert!(!small.iter().any(|small| small == first.trim_matches(['(', ')'])), "{name} means {text}");
    }
}
