//! Each algorithm trains, keeps replicas equal where it should, and resumes from a checkpoint with identical bits.

use briquette::core::aggregate::{Krum, Mean};
use briquette::core::compress::TopK;
use briquette::core::error::ConfigError;
use briquette::core::reduce::Gather;
use briquette::core::sync::{EveryStep, SyncStrategy};
use briquette::core::wrapper::{Adaptive, ErrorFeedback, Metered};
use briquette::strategy::{BuildStrategy, custom};
use custom::{Doubling, FirstBits, Outcome, RANKS, Saved, WhileItHelps, train};

fn compressor() -> impl BuildStrategy {
    custom("first bits", |_, _| {
        Ok(EveryStep::new(ErrorFeedback::new(Metered::new(Gather::new(FirstBits::new(3), Mean)))))
    })
}

fn controller() -> impl BuildStrategy {
    custom("while it helps", |_, _| {
        let gather = Gather::new(TopK::fraction(0.1)?, Mean);
        Ok(EveryStep::new(ErrorFeedback::new(Metered::new(Adaptive::new(gather, WhileItHelps::new(10, 32.0))?))))
    })
}

fn strategy() -> impl BuildStrategy {
    custom("doubling", |_, _| Ok(Doubling::new(16)))
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
    let dense = check(briquette::DistributedConfig::dense);
    assert_eq!(compressed.len(), RANKS);
    // 3 bits a value to each of three ranks, against a ring of 32 bits.
    let ratio = dense[0].sent as f64 / compressed[0].sent as f64;
    assert!(ratio > 3.0, "{ratio}");
}

#[test]
fn a_controller_from_outside_decides_from_the_loss() {
    let outcomes = check(controller);
    assert!(outcomes.iter().all(|outcome| outcome.ratio == outcomes[0].ratio));
    let dense = train(briquette::DistributedConfig::dense, 96, Saved::No).unwrap();
    assert!(outcomes[0].sent < dense[0].sent, "{} of {}", outcomes[0].sent, dense[0].sent);
}

#[test]
fn a_strategy_from_outside_averages_when_it_says() {
    check(strategy);
    let due: Vec<u64> = (0..70).filter(|step| Doubling::new(16).plan(*step).exchanges()).collect();
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
