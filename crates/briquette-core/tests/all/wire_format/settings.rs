//! Texts and TOML from outside: rejected, or unchanged after being written.

use briquette_core::Key;
use briquette_core::config::{CompressorConfig, representatives};
use briquette_testkit::wire::claims::{check_compressor, check_compressor_text, check_settings};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::common::values;

/// Generates names and knobs in any order; about half are valid.
fn texts() -> impl Strategy<Value = String> {
    briquette_zoo::install();
    let names = CompressorConfig::defaults().into_iter().map(|c| c.to_string().split(':').next().unwrap().to_owned());
    let knobs = "1 2 3 7 8 20 0.01 0.3 100x 1x 1e9x 127 s1 s5 s127 512 max l2 l1 elias none random scaled f16 q8 0 -1 nan inf 1e-40";
    let knob = select(knobs.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let keys = "ratio values sample threshold scaled block bits bucket norm coding base levels mode clip";
    let keyed =
        (select(keys.split(' ').collect::<Vec<_>>()), knob.clone()).prop_map(|(key, knob)| format!("{key}={knob}"));
    let places = proptest::collection::vec(knob, 0..4);
    let one = (select(names.collect::<Vec<_>>()), places, proptest::collection::vec(keyed, 0..2));
    let one = one.prop_map(|(name, places, keyed)| {
        let settings = [vec![places.join(":")], keyed].concat();
        let given = settings.into_iter().filter(|setting| !setting.is_empty()).collect::<Vec<_>>();
        if given.is_empty() { name } else { format!("{name}:{}", given.join(",")) }
    });
    proptest::collection::vec(one, 1..3).prop_map(|parts| parts.join("+"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn compressors_written_as_text_are_the_same_and_keep_to_the_wire(text in texts(), x in values()) {
        check_compressor_text(&text);
        if let Ok(config) = text.parse::<CompressorConfig>() {
            check_compressor(&mut *config.build(), &x, Key::new(3));
        }
    }

    #[test]
    fn damaged_settings_are_refused_or_written_the_same(at in any::<Index>(), what in any::<Index>(), with in "[ -9=a-z\"\n]") {
        briquette_zoo::install();
        let texts: Vec<String> = representatives().iter().map(|c| toml::to_string(c).unwrap()).collect();
        let mut text: Vec<char> = what.get(&texts).chars().collect();
        let at = at.index(text.len());
        text.splice(at..=at, with.chars());
        check_settings(&text.into_iter().collect::<String>());
    }
}
