//! Ranks whose contributions aggregators exclude, and name.

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::{Local, run_ranks};
use briquette_core::compress::{Compressor, top_k::TopK};
use briquette_core::config::AggregatorConfig;
use briquette_core::error::{AggregateError, ReduceError};
use briquette_core::reduce::{
    AgreedStep, Reducer, Round,
    gather::{Gather, Grain},
};
use briquette_core::report::Report;
use briquette_core::{Key, Layout, Message};
use briquette_zoo::aggregate::krum::Krum;

/// The average, and the ranks that the report names.
type Heard = (Vec<f32>, Vec<usize>);

/// Content that a faulty rank of five sends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sends {
    /// This value as its second value.
    Value(f32),
    /// An additional byte after its message.
    Trailing,
    /// Its message without the last byte, which belongs to the second slot.
    Truncated,
}

/// Returns the results of the four honest ranks of five and the ranks that their reports name; rank 3 sends a faulty message.
fn exchanged(aggregator: &AggregatorConfig, lie: Sends, grain: Grain) -> Vec<Result<Heard, ReduceError>> {
    exchanged_by(aggregator, &[(3, lie)], grain)
}

fn exchanged_by(
    aggregator: &AggregatorConfig,
    lies: &[(usize, Sends)],
    grain: Grain,
) -> Vec<Result<Heard, ReduceError>> {
    let ranks = run_ranks(Local::world(5), |mut comm| {
        let (layout, mut average) = (Layout::new([("a", vec![3]), ("b", vec![2])]), vec![0.0; 5]);
        let (rank, key, slots) = (comm.rank(), Key::new(0), layout.slots());
        let mut input = vec![1.0, 0.5 * rank as f32, 3.0, -1.0, 2.0];
        let lie = lies.iter().find(|(liar, _)| *liar == rank).map(|(_, lie)| *lie);
        if let Some(Sends::Value(value)) = lie {
            input[1] = value;
        }
        let agreed_step = &AgreedStep::default();
        let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
        let mut top_k = TopK::fraction(1.0).unwrap();
        if let Some(lie @ (Sends::Trailing | Sends::Truncated)) = lie {
            let parts = match grain {
                Grain::PerSlot => vec![&input[..3], &input[3..]],
                _ => vec![&input[..]],
            };
            let (mut message, mut bytes) = (Message::default(), Vec::new());
            for part in parts {
                top_k.compress_into(part, key, &mut message);
                message.append_frame(&mut bytes).unwrap();
            }
            match lie {
                Sends::Trailing => bytes.push(0),
                _ => bytes.truncate(bytes.len() - 1),
            }
            comm.all_gather(&bytes, &mut Vec::new())?;
            return Ok(None);
        }
        let mut gather = Gather::new(top_k, aggregator.get().build()).grain(grain);
        gather.reduce(round, &mut comm)?;
        let mut report = Report::default();
        gather.report(&mut report);
        Ok(Some((average, report.excluded)))
    });
    ranks.into_iter().filter_map(Result::transpose).collect()
}

/// The result of each aggregator on 0, 0.5, 1 and 2 in a world of five.
fn of_four() -> Vec<(AggregatorConfig, f32)> {
    let by_hand = [
        ("krum:1", 0.5),
        // Of 0 and 1, which are equally far off, the lower rank.
        ("krum:1,keep=2", 0.25),
        ("trimmed-mean:1", 0.75),
        // Of four ranks at most one can be trimmed at each end.
        ("trimmed-mean:2", 0.75),
        ("median", 0.75),
        ("geometric-median", 5.0 / 7.0),
        ("geometric-median:3", 5.0 / 7.0),
        // Without the 2.
        ("cge:1", 0.5),
        ("cge:2", 0.5),
        ("licm", 0.875),
        // The 2 is further off than three of the four.
        ("licm:1", 0.5),
    ];
    by_hand.into_iter().map(|(text, value)| (text.parse().unwrap(), value)).collect()
}

/// Threat R5.
#[test]
fn what_is_not_finite_or_no_message_does_not_count_and_is_named() {
    briquette_zoo::install();
    let expected = of_four();
    for aggregator in AggregatorConfig::all() {
        let is_tried = expected.iter().any(|(one, _)| *one == aggregator);
        assert!(is_tried || aggregator == Mean.into() || aggregator.get().min_ranks() > 5, "{aggregator}");
    }
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(Sends::Value);
    for (aggregator, value) in expected {
        for lie in values.into_iter().chain([Sends::Trailing, Sends::Truncated]) {
            for grain in [Grain::Whole, Grain::PerSlot] {
                let all = exchanged(&aggregator, lie, grain);
                assert!(all.len() >= 4);
                for one in &all {
                    let (average, excluded) = one.as_ref().unwrap_or_else(|error| panic!("{aggregator}: {error}"));
                    for (x, expected) in average.iter().zip([1.0, value, 3.0, -1.0, 2.0]) {
                        assert!((x - expected).abs() < 1e-5, "{aggregator}, {lie:?}, {grain:?}: {average:?}");
                    }
                    assert_eq!((excluded, Ok((average.clone(), vec![3]))), (&vec![3], all[0].clone()), "{aggregator}");
                }
            }
        }
    }
    let honest = exchanged(&Krum::default().into(), Sends::Value(1.5), Grain::Whole);
    assert_eq!(honest[0].as_ref().unwrap().1, Vec::<usize>::new());
    assert!(exchanged(&Mean.into(), Sends::Value(f32::NAN), Grain::Whole)[0].is_err());
}

#[test]
fn more_than_are_tolerated_end_the_exchange_with_their_names_on_every_rank() {
    briquette_zoo::install();
    let nan = Sends::Value(f32::NAN);
    for (text, tolerated) in
        [("krum:1", 1), ("trimmed-mean:1", 2), ("trimmed-mean:2", 2), ("median", 2), ("cge:1", 2), ("licm", 2)]
    {
        for liars in 1..=5 {
            let lies: Vec<_> = (5 - liars..5).map(|liar| (liar, nan)).collect();
            for one in exchanged_by(&text.parse().unwrap(), &lies, Grain::Whole) {
                let ranks = (5 - liars..5).collect();
                match one {
                    Ok((_, excluded)) => assert!(liars <= tolerated && excluded == ranks, "{text}, {liars}"),
                    Err(error) => {
                        let expected = AggregateError::Excluded { ranks, world: 5 };
                        assert!(liars > tolerated && error == expected.into(), "{text}, {liars}: {error}");
                    }
                }
            }
        }
    }
}
