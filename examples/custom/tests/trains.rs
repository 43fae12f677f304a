//! Each algorithm trains, keeps replicas equal where it should, and resumes from a checkpoint with identical bits.

use briquette::DistributedConfig;
use briquette::core::Layout;
use briquette::core::aggregate::mean::Mean;
use briquette::core::error::ConfigError;
use briquette::core::reduce::gather::Gather;
use briquette::core::sync::every_step::EveryStep;
use briquette::core::wrapper::{error_feedback::ErrorFeedback, metered::Metered};
use briquette::strategy::{BuildStrategy, custom};
use briquette::zoo::aggregate::krum::Krum;
use custom::{Doubling, FirstBits, Outcome, RANKS, Saved, catalogue, train};

fn compressor() -> impl BuildStrategy {
    custom("first bits", |_, _| {
        Ok(EveryStep::new(ErrorFeedback::new(Metered::new(Gather::new(FirstBits::new(3), Mean)))))
    })
}

/// Reads a configuration in which algorithms of this crate may be named.
fn config(toml: &str) -> DistributedConfig {
    catalogue().unwrap().scope(|| toml::from_str(toml).unwrap())
}

/// The controller under the ladder of `auto`.
fn controller() -> DistributedConfig {
    config("reducer = 'ladder'\nfeedback = 'error'\ncontroller = { kind = 'while-it-helps', window = 10, limit = 32 }")
}

fn reducer() -> DistributedConfig {
    config("reducer = 'every-nth:4'\nfeedback = 'error'")
}

fn strategy() -> DistributedConfig {
    config("strategy = 'doubling:16'")
}

fn check<B: BuildStrategy + 'static>(make: impl Fn() -> B + Sync) -> Vec<Outcome> {
    let whole = train(&make, 96, Saved::No).unwrap();
    let last: f32 = whole[0].losses[90..].iter().sum::<f32>() / 6.0;
    assert!(last < 0.5 * whole[0].losses[0], "{:?}", whole[0].losses);
    assert!(
        whole.iter().all(|outcome| outcome.parameters == whole[0].parameters),
        "96 is a step at which all are equal"
    );
    let directory = tempfile::tempdir().unwrap();
    train(&make, 55, Saved::To(directory.path())).unwrap();
    let resumed = train(&make, 96, Saved::From(directory.path())).unwrap();
    for (resumed, whole) in resumed.iter().zip(&whole) {
        assert_eq!(resumed.losses, whole.losses[55..]);
        assert_eq!((&resumed.parameters, resumed.ratio), (&whole.parameters, whole.ratio));
    }
    whole
}

#[test]
fn a_compressor_from_outside_trains_and_resumes() {
    let compressed = check(compressor);
    let dense = check(DistributedConfig::dense);
    assert_eq!(compressed.len(), RANKS);
    // 3 bits a value to each of three ranks, against a ring of 32 bits.
    let ratio = dense[0].sent as f64 / compressed[0].sent as f64;
    assert!(ratio > 3.0, "{ratio}");
}

#[test]
fn a_controller_from_outside_decides_from_the_loss() {
    let outcomes = check(controller);
    assert!(outcomes.iter().all(|outcome| outcome.ratio == outcomes[0].ratio));
    let dense = train(DistributedConfig::dense, 96, Saved::No).unwrap();
    assert!(outcomes[0].sent < dense[0].sent, "{} of {}", outcomes[0].sent, dense[0].sent);
}

#[test]
fn a_reducer_from_outside_trains_and_resumes() {
    let outcomes = check(reducer);
    let dense = train(DistributedConfig::dense, 96, Saved::No).unwrap();
    let ratio = dense[0].sent as f64 / outcomes[0].sent as f64;
    assert!((2.0..5.0).contains(&ratio), "a quarter of the values, and headers: {ratio}");
}

#[test]
fn an_algorithm_from_outside_is_checked_as_the_others_are() {
    let error = |toml: &str| {
        let built = catalogue().unwrap().scope(|| match toml::from_str::<DistributedConfig>(toml) {
            Ok(config) => config.build(&Layout::flat(10), RANKS).map(drop).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        });
        built.expect_err(toml)
    };
    for (toml, words) in [
        ("controller = 'while-it-helps:0'", &["window of while-it-helps", "at least 1"][..]),
        ("controller = 'while-it-helps:limt=3'", &["`limt`", "`window` or `limit`"]),
        ("reducer = 'every-nth:four'", &["`n`", "`four`", "whole number"]),
        ("reducer = 'every-nth:4'\nfeedback = 'diana'", &["diana"]),
        ("reducer = 'every-nth:4'\nfeedback = 'error'\ncontroller = 'while-it-helps'", &["every-nth"]),
        ("strategy = 'doubling'\nreducer = 'ladder'", &["doubling", "reducer"]),
        ("reducer = 'evry-nth:4'", &["unknown reducer", "every-nth"]),
    ] {
        let error = error(toml);
        assert!(words.iter().all(|word| error.contains(word)), "{toml}: {error}");
    }
}

#[test]
fn a_strategy_from_outside_averages_when_it_says() {
    check(strategy);
    let due: Vec<u64> = (0..70).filter(|step| Doubling { longest: 16 }.is_due(*step)).collect();
    assert_eq!(due, [0, 1, 3, 7, 15, 31, 47, 63]);
}

#[test]
fn what_cannot_be_built_ends_every_rank_with_the_reason() {
    let needs = || {
        custom("krum", |_, world| match world >= 5 {
            true => Ok(EveryStep::new(Gather::new(FirstBits::new(3), Krum::default()))),
            false => {
                let world = format!("a world of {world} ranks");
                Err(ConfigError::conflict("krum", world, "it needs five ranks", "start more ranks"))
            }
        })
        .without_weights()
    };
    let error = train(needs, 1, Saved::No).unwrap_err();
    assert!(error.contains("krum does not go with a world of 4 ranks: it needs five ranks"), "{error}");
}

#[test]
fn ranks_with_different_settings_do_not_train_together() {
    let turn = std::sync::atomic::AtomicU8::new(0);
    let levels = || {
        let levels = if turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 { 1 } else { 3 };
        custom(format!("first bits, {levels} levels"), move |_, _| {
            Ok(EveryStep::new(Gather::new(FirstBits::new(levels), Mean)))
        })
    };
    let error = train(levels, 1, Saved::No).unwrap_err();
    assert!(error.contains("first bits, 1 levels") && error.contains("first bits, 3 levels"), "{error}");
}
