use super::*;
use crate::Layout;
use crate::aggregate::{Krum, Mean};
use crate::comm::{Local, run_ranks};
use crate::compress::TopK;
use crate::config::AggregatorConfig;
use crate::reduce::AgreedStep;

/// The average, and which ranks the report names.
type Heard = (Vec<f32>, Vec<usize>);

/// What every rank gets of five, of which one sends what is not finite, and which ranks its report names.
fn exchanged(aggregator: AggregatorConfig, lie: f32, grain: Grain) -> Vec<Result<Heard, ReduceError>> {
    run_ranks(Local::world(5), |mut comm| {
        let (layout, mut average) = (Layout::new([("a", vec![3]), ("b", vec![2])]), vec![0.0; 5]);
        let mut input = vec![1.0, 0.5 * comm.rank() as f32, 3.0, -1.0, 2.0];
        if comm.rank() == 3 {
            input[1] = lie;
        }
        let (key, slots) = (Key::new(0), layout.slots());
        let agreed_step = &AgreedStep::default();
        let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
        let mut gather = Gather::new(TopK::fraction(1.0).unwrap(), aggregator.get().build()).grain(grain);
        gather.reduce(round, &mut comm)?;
        let mut report = Report::default();
        gather.report(&mut report);
        Ok((average, report.excluded))
    })
}

/// Threat R5.
#[test]
fn what_is_not_finite_does_not_count_and_is_named() {
    for aggregator in
        AggregatorConfig::all().into_iter().filter(|one| *one != Mean.into() && one.get().fewest_ranks() <= 5)
    {
        for lie in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for grain in [Grain::Whole, Grain::PerSlot] {
                let all = exchanged(aggregator, lie, grain);
                for one in &all {
                    let (average, excluded) = one.as_ref().unwrap_or_else(|error| panic!("{aggregator}: {error}"));
                    assert!((0.0..=2.0).contains(&average[1]), "{aggregator}: {average:?}");
                    assert_eq!((excluded, Ok((average.clone(), vec![3]))), (&vec![3], all[0].clone()), "{aggregator}");
                }
            }
        }
    }
    assert_eq!(exchanged(Krum::default().into(), 1.5, Grain::Whole)[0].as_ref().unwrap().1, Vec::<usize>::new());
    assert!(exchanged(Mean.into(), f32::NAN, Grain::Whole)[0].is_err());
}
