//! A trainer's `--config` for arbitrary contents: it is refused, or survives being written and read again.

use briquette_examples::settings::{Options, Settings};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Checks that there is no panic, and that resolved settings are written as a `config.toml` that resolves to the same.
fn check(text: &str) -> Option<Settings> {
    briquette::zoo::install();
    let settings = toml::from_str::<Options>(text).ok()?.resolve().ok()?;
    let written = toml::to_string(&settings).unwrap_or_else(|error| panic!("{error}: {settings:?}"));
    let again = toml::from_str::<Options>(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
    let again = again.resolve().unwrap_or_else(|error| panic!("{error:#}: {written}"));
    assert_eq!(again, settings, "{written}");
    Some(settings)
}

/// Keys, and values that are valid for some of them.
const KEYS: &str = "dataset data model ranks epochs steps batch lr momentum weight-decay optimizer schedule seed reducer \
    momentum-correction compressor per-slot aggregator rules dense-below feedback controller local-steps staleness bucket-values overlap threads \
    network clock compress-seconds backend device rebroadcast augment non-iid out checkpoint-every background-saving record-gradient record-frames slots-every metrics-addr eval-every \
    train-limit test-limit";
const VALUES: &str = "0 1 2 -1 0.5 1e300 nan inf -0.0 9223372036854775807 18446744073709551615 99999999999 \"\" \"on\" \"off\" \
    \"generated\" \"resnet8\" \"adam\" \"sgd\" \"constant\" \"one-cycle\" \"dense\" \"gather\" \"power-sgd:4\" \"power-sgd:0\" \
    \"shared-random-k:5x\" \"multi-step:3\" \"topk:0.01\" \"topk:1e9x\" \"qsgd:4\" \"sign\" \"none\" \"error\" \"diana:0.5\" \"ef21\" \
    \"krum:1,keep=2\" \"trimmed-mean:9\" \"median\" \"geometric-median:3\" \"cge:9\" \"gravac\" \"gravac:window=0\" \"gravac:epsilon=nan\" \"schedule:from=4x,epochs=1e300\" \"fixed:1e300s\" \"fixed:50ms\" \"wall\" \
    \"100mbit,1ms\" \"1e300gbit,1e300s\" \"*.bias=dense\" \"*=sign\" \"100:bf16\" \"18446744073709551615\" true [1]";

fn lines() -> impl Strategy<Value = String> {
    let words = |text: &'static str| select(text.split_whitespace().collect::<Vec<_>>());
    let line = (words(KEYS), words(VALUES)).prop_map(|(key, value)| format!("{key} = {value}\n"));
    proptest::collection::vec(line, 1..5).prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    #[test]
    fn any_keys_with_any_values_are_refused_or_come_back(text in lines()) {
        check(&text);
    }

    #[test]
    fn a_config_with_any_change_is_refused_or_comes_back(at in any::<Index>(), with in "[ -9=a-z\"\n.:{}]") {
        let whole = "dataset = \"generated\"\nranks = 2\nlr = 0.1\ncompressor = \"topk:20x:q8\"\ncontroller = \"gravac:window=2,\
                     min=4x,max=20x\"\nfeedback = \"error\"\nclock = \"fixed:50ms\"\nnetwork = \"100mbit,1ms\"\nseed = 7\n";
        prop_assert!(check(whole).is_some());
        let mut text: Vec<char> = whole.chars().collect();
        let at = at.index(text.len());
        text.splice(at..=at, with.chars());
        check(&text.into_iter().collect::<String>());
    }
}
