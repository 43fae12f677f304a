//! Reports of an exchange, slot by slot, and controllers' reports of their state.

use briquette_core::comm::{Local, Session};
use briquette_core::config::Exchange;
use briquette_core::error::CommError;
use briquette_core::reduce::{AgreedStep, LastExchange, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::{Key, Layout, Traffic};

fn layout() -> Layout {
    Layout::new([("a", vec![4, 4]), ("b", vec![24]), ("c", vec![2, 4])])
}

fn build(toml: &str, world: usize) -> Box<dyn Reducer> {
    briquette_zoo::install();
    let exchange: Exchange = toml::from_str(toml).unwrap_or_else(|error| panic!("{toml}: {error}"));
    exchange.build_reducer(&layout(), world).unwrap_or_else(|error| panic!("{toml}: {error}"))
}

/// Runs some steps with the same vectors on every rank, and returns the last of them.
fn run(reducer: &mut dyn Reducer, comm: &mut Session, steps: u64) -> Vec<f32> {
    let (layout, mut average, mut input) = (layout(), vec![0.0; 48], vec![]);
    for step in 0..steps {
        input = (0..48).map(|i| ((i * 37 + step * 11) % 101) as f32 - 50.0).collect();
        let seconds = 0.01;
        let traffic = Traffic { sent: 100, received: 100 };
        let (compress_seconds, exchange_seconds) = (seconds, seconds);
        let last = LastExchange { samples: 1, compress_seconds, exchange_seconds, traffic, ..LastExchange::default() };
        let (loss, learning_rate, previous) = (Some(1.0), Some(0.5), (step > 0).then_some(last));
        let agreed_step = AgreedStep { step, loss, learning_rate, previous, samples: 1, ..AgreedStep::default() };
        let (key, slots) = (Key::new(7).step(step), layout.slots());
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
        reducer.exchange(round, comm).unwrap();
    }
    input
}

fn reported(toml: &str, steps: u64) -> (Report, Vec<f32>, Vec<f32>) {
    let (mut reducer, mut comm) = (build(toml, 1), Local::world(1).remove(0));
    let input = run(&mut *reducer, &mut comm, steps);
    let (mut report, mut state) = (Report::default(), briquette_core::state::State::default());
    reducer.report(&mut report);
    reducer.save(&mut state);
    let residual = state.f32s("residual", None).map(<[f32]>::to_vec).unwrap_or_default();
    (report, input, residual)
}

#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{a} is not {b}");
}

fn energy(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum()
}

#[test]
fn each_slots_residual_energy_is_that_of_its_part_of_the_memory() {
    let takes_off = "reducer = 'gather:topk:8x'\nfeedback = 'error'";
    let subtracts = "reducer = 'shared-random-k:8x'\nfeedback = 'error'";
    // Stored multiplied by the rate of 1/2, and reported in units of a gradient.
    let inside = |reducer: &str| format!("reducer = '{reducer}'\nfeedback = 'error-inside'");
    let inside = [inside("gather:topk:8x"), inside("shared-random-k:8x")];
    let momentum = "reducer = 'gather:topk:8x'\nfeedback = 'momentum:0.9'";
    for (toml, unit) in [(takes_off, 1.0), (subtracts, 1.0), (&inside[0], 0.5), (&inside[1], 0.5), (momentum, 1.0)] {
        let (report, _, residual) = reported(toml, 3);
        assert_eq!(report.slots.len(), 3, "{toml}");
        for (slot, part) in layout().slots().iter().zip(&report.slots) {
            near(part.left.unwrap(), energy(&residual[slot.range()]) / (unit * unit));
        }
        let residual_energy = report.residual_energy.unwrap();
        assert!(residual_energy.left > 0.0, "{toml}");
        assert_eq!(residual_energy.left, report.slots.iter().filter_map(|slot| slot.left).sum::<f64>());
        near(residual_energy.residual_norm(), residual_energy.left.sqrt());
        assert_eq!(report.delay(), residual_energy.delay());
    }
    let (report, ..) = reported("reducer = 'gather:topk:8x'\nfeedback = 'none'", 3);
    assert!(report.delay().is_none() && report.slots.iter().all(|slot| slot.left.is_none()));
}

#[test]
fn the_relative_error_is_what_is_missing_over_what_was_given() {
    let (report, input, _) = reported("reducer = 'gather:topk:8x'\nfeedback = 'none'", 1);
    let mut sorted: Vec<f64> = input.iter().map(|v| f64::from(*v).powi(2)).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    near(report.relative_error().unwrap(), (sorted[6..].iter().sum::<f64>() / energy(&input)).sqrt());
    let missing: f64 = layout()
        .slots()
        .iter()
        .zip(&report.slots)
        .map(|(slot, part)| energy(&input[slot.range()]) * part.relative_error().powi(2))
        .sum();
    near(missing, sorted[6..].iter().sum());
}

#[test]
fn each_slot_has_the_ratio_that_is_in_force_for_it() {
    let ratios = |toml: &str, steps| {
        let (report, ..) = reported(toml, steps);
        report.slots.iter().map(|slot| slot.ratio.map(|ratio| ratio.get())).collect::<Vec<_>>()
    };
    let rules = "rules = [{ slots = 'b', reducer = 'gather:topk:3x' }, { slots = 'c', reducer = 'dense' }]";
    let ruled = ratios(&format!("reducer = 'gather:topk:8x'\nfeedback = 'error'\n{rules}"), 1);
    assert_eq!(ruled, [Some(8.0), Some(3.0), Some(1.0)]);
    assert_eq!(ratios("reducer = 'gather:topk:8x'\nfeedback = 'error'", 1), [Some(8.0); 3]);
    let decided = "reducer = 'gather:topk:8x,per-slot=true'\nfeedback = 'error'\ndense_below = 0\n\
                   controller = 'accordion:2x,high=8x,interval=4,window=1,per_slot=true'";
    assert_eq!(ratios(decided, 1), [Some(2.0); 3]);
    // Some slots critical, others not; all together, and each slot in a separate bucket.
    let mixed = decided.replace("per_slot", "change=0.05,per_slot");
    let steps: Vec<_> = (1..40).map(|steps| ratios(&mixed, steps)).collect();
    let both = |ratios: &Vec<_>| [2.0, 8.0].iter().all(|ratio| ratios.contains(&Some(*ratio)));
    let at = steps.iter().position(both).unwrap_or_else(|| panic!("{steps:?}"));
    assert_eq!(ratios(&format!("{mixed}\nbucket_values = 1"), at as u64 + 1), steps[at]);
    // Dense for all, whatever the reducer would have sent.
    let falling = decided.replace("accordion:2x", "accordion:1x");
    let steps: Vec<_> = (1..40).map(|steps| ratios(&falling, steps)).collect();
    assert_eq!(steps[0], [Some(1.0); 3]);
    assert!(steps.iter().any(|ratios| ratios.contains(&Some(8.0))), "{steps:?}");
}

#[test]
fn controllers_describe_their_state_only_where_it_is_asked_for() {
    briquette_zoo::install();
    // With two ranks, so that there is something to exchange.
    let described = |controller: &str, reducer: &str, steps| {
        let toml = format!("reducer = '{reducer}'\nfeedback = 'none'\ndense_below = 0\ncontroller = '{controller}'");
        let state = |mut comm: Session| {
            let mut reducer = build(&toml, 2);
            run(&mut *reducer, &mut comm, steps);
            let [mut plain, mut asking] = [Report::default(), Report::with_state()];
            reducer.report(&mut plain);
            reducer.report(&mut asking);
            assert_eq!(plain.state, None);
            Ok::<_, CommError>(asking.state)
        };
        let states = Local::run(2, state);
        assert_eq!(states[0], states[1]);
        states[0].clone().unwrap()
    };
    let top_k = "gather:topk:8x";
    for (controller, reducer, steps, state) in [
        ("gravac:4x,max=16x,window=5,dense_steps=2", top_k, 1, "sending dense for 1 more steps"),
        ("gravac:4x,max=16x,window=5,epsilon=0", top_k, 3, "trying 8x against 4x, step 3 of 5"),
        ("cost-aware:8x", top_k, 1, "timing 8x, 0 of 2 samples, at most 4 ratios left"),
        ("cost-aware:8x", top_k, 2, "timing 8x, 1 of 2 samples, at most 4 ratios left"),
        (
            "loss-guard:(gravac:4x,max=16x,window=5,epsilon=0)",
            top_k,
            3,
            "the loss sets no limit; trying 8x against 4x, step 3 of 5",
        ),
        ("dqsgd:4", "gather:qsgd:4", 2, "4 bits a value, 4.00 in the mean of 2 steps, 4.00 are to be"),
        ("accordion:2x,high=8x,interval=4,window=2,per_slot=false", top_k, 1, "critical, measured 1 of 2 steps"),
        ("accordion:2x,high=8x,interval=4,window=1,per_slot=false", top_k, 2, "critical, until the next 4 steps begin"),
        ("adaqs:4,every=10", "gather:qsgd:4", 2, "4 bits a value, next look at step 10"),
        ("l-greco:4x", "gather:topk:8x,per-slot=true", 2, "3 slots chosen for, next choice at step"),
    ] {
        let got = described(controller, reducer, steps).unwrap_or_default();
        assert!(got.starts_with(state), "{controller}: {got}, not {state}");
    }
    assert_eq!(described("schedule:8x", top_k, 2), None);
}
