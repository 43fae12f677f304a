//! Defaults of algorithms that are named without an argument: the values that their documentation and tables use, not the small
//! values with which the laws are tested.

use std::collections::BTreeSet;

use briquette_core::compress::{
    hard_threshold::HardThreshold, min_max::MinMax, qsgd::Qsgd, random_k::RandomK, threshold_top_k::ThresholdTopK,
    top_k::TopK,
};
use briquette_core::config::{CompressorConfig, Described, ReducerConfig};
use briquette_zoo::compress::{
    biased_random::BiasedRandom, exponential_dithering::ExponentialDithering, redsync::Redsync, rounding::Rounding,
    sidco::Sidco,
};

/// Returns the compressors of the laws that differ from the bare compressor name.
fn small() -> Vec<String> {
    fn one<S: Described>() -> String
    where
        CompressorConfig: From<S>,
    {
        CompressorConfig::from(S::representatives().swap_remove(0)).to_string()
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
    briquette_zoo::install();
    for name in ["artemis", "mcm", "smooth"] {
        let [short, long] = [name.to_owned(), format!("{name}:qsgd:4")].map(|text| text.parse::<ReducerConfig>());
        assert_eq!(short, long, "{name}");
        assert!(short.unwrap().to_string().starts_with(&format!("{name}:qsgd:4")), "{name}");
    }
}

#[test]
fn no_reducer_begins_with_what_the_laws_are_tried_on() {
    briquette_zoo::install();
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
