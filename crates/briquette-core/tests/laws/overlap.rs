//! Overlapped buckets: the same bits, residuals, bytes and decisions as sequential buckets.

use briquette_core::config::{Config, Exchange, exchanges};

use briquette_core::laws::{self, Outcome, Setup, long, same_bits, short};

/// Returns every representative that can be split, without overlap. Algorithms that need the whole vector at once are rejected
/// by the build.
fn cut(bucket_values: usize) -> impl Iterator<Item = Exchange> {
    let can_be_cut = |exchange: &Exchange| match exchange.build_reducer(&short(), 5).map(drop) {
        Ok(()) => true,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("bucket values"), "{exchange:?}: {text}");
            false
        }
    };
    exchanges()
        .into_iter()
        .map(move |exchange| Exchange { bucket_values: Some(bucket_values), overlap: false, ..exchange })
        .filter(can_be_cut)
}

pub(crate) fn assert_same(setup: &impl std::fmt::Display, a: &[Vec<Outcome>], b: &[Vec<Outcome>]) {
    for (rank, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len());
        for (step, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(same_bits(&a.average, &b.average), "{setup}, rank {rank}, step {step}: average");
            assert!(same_bits(&a.sent, &b.sent), "{setup}, rank {rank}, step {step}: sent");
            assert_eq!(a.state, b.state, "{setup}, rank {rank}, step {step}");
            let books = |o: &Outcome| (o.reported, o.counted, o.factor);
            assert_eq!(books(a), books(b), "{setup}, rank {rank}, step {step}");
        }
    }
}

#[test]
fn overlap_changes_no_bit_no_memory_no_byte_and_no_decision() {
    // Every slot separately, a few buckets, and two.
    for exchange in [1, 32, 60].into_iter().flat_map(cut) {
        let alone = Config::every_step(exchange.clone());
        let overlapped = Config::every_step(Exchange { overlap: true, ..exchange });
        for world in [1, 2, 3, 5] {
            let setup = Setup::short(&overlapped, world);
            assert_same(&setup, &Setup::short(&alone, world).run(5), &setup.run(5));
        }
    }
}

#[test]
fn overlap_changes_nothing_of_what_was_sent() {
    for exchange in cut(32) {
        for (layout, world) in [(short(), 3), (long(), 2)] {
            let world = exchange.fewest_ranks().max(world);
            let alone = Setup { config: exchange.clone(), layout, world };
            let overlapped = Setup { config: Exchange { overlap: true, ..exchange.clone() }, ..alone.clone() };
            assert_same(&overlapped, &alone.reduce_steps(3), &overlapped.reduce_steps(3));
        }
    }
}

#[test]
fn law_4_holds_for_every_bucketed_representative_under_overlap() {
    for exchange in exchanges().into_iter().filter(|exchange| exchange.bucket_values.is_some() && !exchange.overlap) {
        let config = Config::every_step(Exchange { overlap: true, ..exchange });
        laws::leaves_no_trace(&Setup::short(&config, 3), 1);
    }
}
