use super::*;
use crate::aggregate::{
    cge::Cge, geometric_median::GeometricMedian, krum::Krum, licm::Licm, median::Median, trimmed_mean::TrimmedMean,
};
use briquette_core::aggregate::{Aggregator, mean::Mean};
use briquette_core::comm::{Local, run_ranks};
use briquette_core::compress::dense::Dense;
use briquette_core::reduce::{AgreedStep, gather::Gather};
use briquette_core::{Key, Layout};

type Rule<'a> = &'a (dyn Fn() -> Box<dyn Aggregator> + Sync);

/// Returns the averages of one value over some steps of five ranks, the last of which attacks.
fn averages(attack: Attack, rule: Rule<'_>, values: &(dyn Fn(usize, u64) -> f32 + Sync), steps: u64) -> Vec<f32> {
    let all = run_ranks(Local::world(5), |mut comm| {
        let layout = Layout::flat(1);
        let mut reducer = Byzantine::new(Gather::new(Dense, rule()), attack, 1);
        let mut averages = Vec::new();
        for step in 0..steps {
            // A failed step is repeated, with other values first.
            for value in [99.0, values(comm.rank(), step)] {
                reducer.discard();
                let (input, mut average) = ([value], [0.0]);
                let (key, slots, agreed_step) = (Key::new(step), layout.slots(), &AgreedStep::default());
                let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
                match reducer.reduce(round, &mut comm) {
                    Err(error) if value != 99.0 => return Err(error),
                    _ => averages.push(average[0]),
                }
            }
            averages.remove(step as usize);
            reducer.commit();
        }
        Ok::<_, ReduceError>(averages)
    });
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert!(all.iter().all(|one| *one == all[0]), "{attack}: the same bits on every rank");
    all.into_iter().next().unwrap()
}

#[test]
fn attacks_by_hand() {
    let honest = [1.0, 3.0, 5.0, 3.0];
    assert_eq!(Attack::InnerProduct(0.5).of_others(&honest), -1.5);
    // A variance of 2.
    assert!((Attack::Little(1.0).of_others(&honest) - (3.0 - 2.0f32.sqrt())).abs() < 1e-6);
    assert_eq!(Attack::Mimic.of_others(&honest), 1.0);
    let values = |rank: usize, step: u64| 1.0 + rank as f32 + 10.0 * step as f32;
    let means = |attack, steps| averages(attack, &|| Box::new(Mean), &values, steps);
    // 1, 2, 3, 4 from the honest ranks, 5 from the other.
    for (attack, expected) in [
        (Attack::Large(-10.0), (10.0 - 50.0) / 5.0),
        (Attack::SignFlip, (10.0 - 5.0) / 5.0),
        (Attack::InnerProduct(1.0), (10.0 - 2.5) / 5.0),
        (Attack::Mimic, 11.0 / 5.0),
        (Attack::Crash, 10.0 / 5.0),
        (Attack::Stale(1), 10.0 / 5.0),
    ] {
        let mean = means(attack, 1)[0];
        assert!((mean - expected).abs() < 1e-5, "{attack}: {mean} {expected}");
    }
    // The honest ranks' sum grows by 40 per step; the other sends 5 and 15, from two steps before. The values of a failed step are dropped.
    let expected = [10.0, 50.0, 90.0 + 5.0, 130.0 + 15.0].map(|sum: f32| sum / 5.0);
    for (mean, expected) in means(Attack::Stale(2), 4).iter().zip(expected) {
        assert!((mean - expected).abs() < 1e-5, "{mean} {expected}");
    }
}

/// Threat R5. What each rule makes of 1, 2, 3, 4 and an attack: of one that lies far off, of four; never more than what an honest rank
/// in its place could do.
#[test]
fn what_tolerates_byzantine_ranks_gives_these() {
    // The honest mean minus the honest standard deviation.
    let little = 2.5 - 1.25f32.sqrt();
    let attacks =
        [Attack::Large(1000.0), Attack::SignFlip, Attack::InnerProduct(0.5), Attack::Little(1.0), Attack::Mimic];
    let others = [Attack::Crash, Attack::Stale(10), Attack::NotFinite];
    // Sent: 5000, -5, -1.25, little, 1, 0, 0, nothing that counts.
    let expected: [(Rule<'_>, [f32; 8]); 6] = [
        (
            // The two nearest to their two neighbors.
            &|| Box::new(Krum { byzantine: 1, keep: 2 }),
            [2.5, 2.5, 2.5, (1.0 + little) / 2.0, 1.0, 1.5, 1.5, 2.5],
        ),
        (&|| Box::new(TrimmedMean { trim: 1 }), [3.0, 2.0, 2.0, (little + 5.0) / 3.0, 2.0, 2.0, 2.0, 2.5]),
        (&|| Box::new(Median), [3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.5]),
        (&|| Box::new(GeometricMedian::default()), [3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.5]),
        // If the attack is small, the 4 is left out.
        (&|| Box::new(Cge { byzantine: 1 }), [2.5, 2.5, 4.75 / 4.0, (6.0 + little) / 4.0, 1.75, 1.5, 1.5, 2.0]),
        (&|| Box::new(Licm::default()), [2.5, 2.5, 2.5, (10.0 + little) / 5.0, 2.2, 2.0, 2.0, 2.5]),
    ];
    for (at, (rule, expected)) in expected.iter().enumerate() {
        for (attack, expected) in attacks.into_iter().chain(others).zip(expected) {
            let got = averages(attack, rule, &|rank, _| 1.0 + rank as f32, 1)[0];
            assert!((got - expected).abs() < 1e-4, "{attack}, {at}: {got}, not {expected}");
        }
    }
    let mean = averages(Attack::Large(-1000.0), &|| Box::new(Mean), &|rank, _| 1.0 + rank as f32, 1)[0];
    assert!((mean - (10.0 - 5000.0) / 5.0).abs() < 1e-2, "{mean}");
}

#[test]
fn texts() {
    for attack in Attack::ALL {
        assert_eq!(attack.to_string().parse(), Ok(attack));
    }
    for (text, says) in
        [("larg", "valid"), ("large:nan", "no setting"), ("stale:0", "no setting"), ("crash:1", "no setting")]
    {
        let error = text.parse::<Attack>().unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn attacks_from_a_command_line_are_those_of_code() {
    crate::install();
    let text = "byzantine:(gather:dense),attack=large:-10,ranks=2";
    let reducer: briquette_core::config::ReducerConfig = text.parse().unwrap();
    assert_eq!(reducer.to_string().parse(), Ok(reducer.clone()));
    let exchange = briquette_core::config::Exchange { reducer, ..Default::default() };
    let layout = Layout::flat(1);
    let means = run_ranks(Local::world(4), |mut comm| {
        let (mut reducer, mut average) = (exchange.build_reducer(&layout, 4).unwrap(), [0.0]);
        let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
        let round = Round { key, slots, agreed_step, input: &[1.0], average: &mut average, sent: None };
        reducer.exchange(round, &mut comm).map(|_| average[0])
    });
    assert!(means.into_iter().all(|mean| mean.unwrap() == (2.0 - 20.0) / 4.0));
    for (text, words) in [("attack=bribe", "large, sign-flip"), ("ranks=0", "at least 1"), ("ranks=5", "the 4 ranks")] {
        let error = match format!("byzantine:(gather:dense),{text}").parse() {
            Ok(reducer) => {
                let exchange = briquette_core::config::Exchange { reducer, ..Default::default() };
                exchange.build_reducer(&layout, 4).map(drop).unwrap_err().to_string()
            }
            Err(error) => briquette_core::error::ConfigError::to_string(&error),
        };
        assert!(error.contains(words), "{text}: {error}");
    }
}

/// The part of a false vector that an attacker does not send stays in its residual, and is sent later: error feedback is inside.
#[test]
fn a_false_vector_is_what_is_remembered() {
    crate::install();
    let text = "byzantine:(gather:topk:2x),attack=sign-flip,ranks=1";
    let exchange = briquette_core::config::Exchange {
        reducer: text.parse().unwrap(),
        feedback: briquette_core::config::Feedback::error(),
        ..Default::default()
    };
    let layout = Layout::flat(2);
    let averages = run_ranks(Local::world(2), |mut comm| {
        let mut reducer = exchange.build_reducer(&layout, 2).unwrap();
        let input = if comm.rank() == 0 { [0.0; 2] } else { [2.0, 1.5] };
        let step = |step| {
            let (mut average, agreed_step) = ([0.0; 2], AgreedStep { step, ..AgreedStep::default() });
            let (key, slots) = (Key::new(step), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm).map(|_| average)
        };
        Ok::<_, ReduceError>([0, 1].map(step).map(Result::unwrap))
    });
    // −2 and −1.5; the second stays in the residual, and −2 and −3 come next.
    assert_eq!(*averages[0].as_ref().unwrap(), [[-1.0, 0.0], [0.0, -1.5]]);
}

#[test]
fn only_the_outermost_reducer_is_byzantine() {
    crate::install();
    for reducer in ["hierarchical:(byzantine:(gather:dense))", "byzantine:(byzantine:(gather:dense))"] {
        let exchange = briquette_core::config::Exchange { reducer: reducer.parse().unwrap(), ..Default::default() };
        let error = exchange.build_reducer(&Layout::flat(1), 4).map(drop).unwrap_err().to_string();
        assert!(error.contains("in no other reducer"), "{reducer}: {error}");
    }
}

#[test]
fn what_is_not_finite_is_excluded_under_a_memory_too() {
    crate::install();
    let exchange = briquette_core::config::Exchange {
        reducer: "byzantine:(gather:sign),attack=not-finite".parse().unwrap(),
        feedback: briquette_core::config::Feedback::error(),
        aggregator: "median".parse().unwrap(),
        ..Default::default()
    };
    let layout = Layout::flat(1);
    let averages = run_ranks(Local::world(4), |mut comm| {
        let (mut reducer, mut average) = (exchange.build_reducer(&layout, 4).unwrap(), [0.0]);
        let input = [1.0 + comm.rank() as f32];
        let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
        let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
        reducer.exchange(round, &mut comm)?;
        let mut report = Report::default();
        reducer.report(&mut report);
        Ok::<_, ReduceError>((average, report.excluded))
    });
    assert!(averages.iter().all(|one| *one.as_ref().unwrap() == ([2.0], vec![3])), "{averages:?}");
}

/// If ranks send momenta, the attack applies to these: their spread is smaller than that of gradients.
#[test]
fn a_momentum_that_is_sent_is_what_is_falsified() {
    crate::install();
    let exchange = briquette_core::config::Exchange {
        reducer: "byzantine:(gather:dense),attack=little:1".parse().unwrap(),
        feedback: "rank-momentum:0.5".parse().unwrap(),
        ..Default::default()
    };
    let layout = Layout::flat(1);
    let averages = run_ranks(Local::world(3), |mut comm| {
        let (mut reducer, mut average) = (exchange.build_reducer(&layout, 3).unwrap(), [0.0]);
        for gradient in [1.0, -1.0] {
            let input = [if comm.rank() == 0 { gradient } else { -gradient }];
            let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
            let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
        }
        Ok::<_, ReduceError>(average[0])
    });
    // The honest momenta are 1/2 and -1/2, then -1/4 and 1/4; the false one is -1/4. With the gradients' spread it would be -3/4.
    assert!(averages.iter().all(|one| (one.as_ref().unwrap() + 0.25 / 3.0).abs() < 1e-6), "{averages:?}");
}
