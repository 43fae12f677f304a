use super::*;
use crate::sync::{graph::Graph, sgp::Sgp, slow_mo::SlowMoConfig};
use briquette_core::comm::{Local, run_ranks};
use briquette_core::config::{Config, Exchange, Feedback, ReducerConfig, StrategyConfig, StrategySettings};
use briquette_core::error::CommError;
use briquette_core::laws::{
    Setup,
    train::{Sgd, noisy, train},
};
use briquette_core::reduce::{AgreedStep, dense::Dense};
use briquette_core::sync::{Header, outer::Outer, periodic::Periodic};
use briquette_core::{Key, Layout, laws};
use briquette_sim::{Event, SessionExt};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.9, steps: 12 };

fn pairs(period: u64) -> TwoLevel<Periodic> {
    TwoLevel::new(Periodic::new(period).unwrap(), Some(2))
}

/// Reference in f64, machine by machine: momentum SGD on the mean gradient of each machine, then a mean over machines when due.
fn naive(machines: &[&[usize]], period: u64, start: f64, len: usize) -> Vec<Vec<f64>> {
    let mut all = vec![(vec![start; len], vec![0.0; len]); machines.len()];
    for step in 0..SGD.steps {
        for ((x, v), ranks) in all.iter_mut().zip(machines) {
            let at: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let gradients: Vec<Vec<f32>> = ranks.iter().map(|rank| noisy(*rank, step, &at)).collect();
            for (i, (x, v)) in x.iter_mut().zip(v).enumerate() {
                let mean = gradients.iter().map(|g| f64::from(g[i])).sum::<f64>() / ranks.len() as f64;
                *v = 0.9 * *v + mean;
                *x -= f64::from(SGD.rate) * *v;
            }
        }
        if (step + 1).is_multiple_of(period) {
            let count = all.len() as f64;
            let mean: Vec<f64> = (0..len).map(|i| all.iter().map(|(x, _)| x[i]).sum::<f64>() / count).collect();
            all.iter_mut().for_each(|(x, _)| x.clone_from(&mean));
        }
    }
    all.into_iter().map(|(x, _)| x).collect()
}

/// Returns the parameters of machines of `n` ranks. The first rank of each shows `n` times that, and the others show 0.
fn of_machines(shown: &[Vec<f32>], n: usize) -> Vec<Vec<f32>> {
    let machine = |ranks: &[Vec<f32>]| {
        assert!(ranks[1..].iter().flatten().all(|x| *x == 0.0));
        ranks[0].iter().map(|x| x / n as f32).collect()
    };
    shown.chunks(n).map(machine).collect()
}

#[test]
fn it_is_the_two_loops_written_out() {
    let ours = of_machines(&train(4, || pairs(3), &[3.0; 10], (SGD, &noisy)), 2);
    let expected = naive(&[&[0, 1], &[2, 3]], 3, 3.0, 10);
    for (a, b) in ours.iter().flatten().zip(expected.iter().flatten()) {
        assert!((f64::from(*a) - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn with_one_machine_it_is_synchronous_sgd_and_with_a_rank_on_each_the_strategy_between() {
    let one = train(3, || TwoLevel::new(Periodic::new(4).unwrap(), Some(3)), &[3.0; 10], (SGD, &noisy));
    for (a, b) in of_machines(&one, 3)[0].iter().zip(&naive(&[&[0, 1, 2]], 4, 3.0, 10)[0]) {
        assert!((f64::from(*a) - b).abs() < 1e-5, "{a} {b}");
    }
    let each = train(4, || TwoLevel::new(Periodic::new(3).unwrap(), Some(1)), &[3.0; 10], (SGD, &noisy));
    assert_eq!(each, train(4, || Periodic::new(3).unwrap(), &[3.0; 10], (SGD, &noisy)));
    let gossip = || Sgp::new(Graph::default(), 4).unwrap();
    let each = train(4, || TwoLevel::new(gossip(), Some(1)), &[3.0; 10], (SGD, &noisy));
    assert_eq!(each, train(4, gossip, &[3.0; 10], (SGD, &noisy)));
}

#[test]
fn ranks_of_a_machine_are_one_and_momenta_follow_the_strategy_between() {
    let settings = SlowMoConfig { period: Some(4), beta: 0.5, ..SlowMoConfig::default() };
    let slow = || TwoLevel::new(Outer::new(settings.clone(), Dense, None).unwrap(), Some(2));
    // Noise that ranks of a machine share: two machines of two are equivalent to two ranks.
    let of_machine = |rank: usize, step: u64, x: &[f32]| noisy(rank / 2, step, x);
    let four = train(4, slow, &[3.0; 10], (SGD, &of_machine));
    let two = train(2, || Outer::new(settings.clone(), Dense, None).unwrap(), &[3.0; 10], (SGD, &noisy));
    for (a, b) in of_machines(&four, 2).iter().flatten().zip(two.iter().flatten()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

/// Returns the number of messages as long as a compressed vector, and their bytes, that leave the first of two machines in
/// eight steps.
fn between_machines(text: &str, len: usize) -> [usize; 2] {
    let (strategy, layout): (StrategyConfig, _) = (text.parse().unwrap(), Layout::flat(len));
    let reducer = ReducerConfig::gather("sign".parse().unwrap());
    let exchange = Exchange { reducer, feedback: Feedback::error(), ..Exchange::default() };
    let world = Local::builder(6).machines_of(3.try_into().unwrap()).build();
    let left = run_ranks(world, |mut comm| {
        let (mut ours, mut x) = (strategy.get().build(&exchange, &layout, 6).unwrap(), vec![1.0; len]);
        ours.begin(&x);
        comm.record();
        for step in 0..8 {
            let (plan, mut g) = (ours.plan(step), vec![comm.rank() as f32; len]);
            let mine = Header { step, samples: 1, ..Header::default() };
            let agreed = plan.agrees.agree(&mine, None, layout.slots(), &mut [true], &mut comm).unwrap();
            let (agreed_step, ranks) = (&agreed.agreed_step, &agreed.ranks[..]);
            let cx = Context::new(Key::new(1), layout.slots(), agreed_step).with_ranks(ranks);
            if plan.gradients {
                ours.after_backward(&mut g, &cx, &mut comm).unwrap();
            }
            x.iter_mut().zip(&g).for_each(|(x, g)| *x -= 0.1 * g);
            if plan.parameters {
                ours.after_step(&mut x, &cx, &mut comm).unwrap();
            }
            ours.commit();
        }
        let (rank, mut left) = (comm.rank(), [0; 2]);
        for event in comm.take_recording() {
            if let Event::Sent(to, bytes) = event
                && (rank < 3, to < 3, bytes >= len / 8) == (true, false, true)
            {
                left = [left[0] + 1, left[1] + bytes];
            }
        }
        Ok::<_, CommError>(left)
    });
    left.into_iter().map(Result::unwrap).fold([0; 2], |sum, left| [sum[0] + left[0], sum[1] + left[1]])
}

/// Claim: one of `n` ranks sends instead of all, and to one rank of another machine instead of all of it.
#[test]
fn between_machines_compressed_averages_are_fewer_by_the_square_of_a_machines_ranks() {
    crate::install();
    let [flat, two] = ["local-sgd:4", "two-level:(local-sgd:4)"].map(|text| between_machines(text, 8000));
    assert_eq!((flat[0], two[0]), (2 * 3 * 3, 2));
    assert_eq!(flat[1], 9 * two[1]);
}

#[test]
fn samples_weigh_inside_a_machine() {
    for agrees in [Agrees::Machine(Some(2)), Agrees::World] {
        let means = run_ranks(Local::world(4), |mut comm| {
            let (layout, samples) = (Layout::flat(1), [1, 3, 0, 0][comm.rank()]);
            let mine = Header { samples, ..Header::default() };
            let agreed = agrees.agree(&mine, None, layout.slots(), &mut [true], &mut comm).unwrap();
            let (agreed_step, ranks) = (&agreed.agreed_step, &agreed.ranks[..]);
            let cx = Context::new(Key::new(1), layout.slots(), agreed_step).with_ranks(ranks);
            let mut gradient = vec![[4.0, 8.0, 5.0, 5.0][comm.rank()] * agreed.weight];
            pairs(3).after_backward(&mut gradient, &cx, &mut comm).unwrap();
            Ok::<_, CommError>(gradient[0])
        });
        assert_eq!(means, [Ok(7.0), Ok(7.0), Ok(0.0), Ok(0.0)], "{agrees:?}");
    }
}

/// Only the first rank of a machine has the anchor and the slow momentum; the others keep nothing.
#[test]
fn only_the_first_rank_of_a_machine_keeps_what_the_strategy_between_keeps() {
    let kept = run_ranks(Local::world(4), |mut comm| {
        let layout = Layout::flat(7);
        let settings = SlowMoConfig { period: Some(1), ..SlowMoConfig::default() };
        let mut ours = TwoLevel::new(Outer::new(settings, Dense, None).unwrap(), Some(2));
        let mut x = vec![1.0; 7];
        ours.begin(&x);
        let agreed_step = AgreedStep { learning_rate: Some(0.1), ..AgreedStep::default() };
        let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
        ours.after_backward(&mut vec![0.5; 7], &cx, &mut comm).unwrap();
        ours.after_step(&mut x, &cx, &mut comm).unwrap();
        ours.commit();
        let mut state = State::default();
        ours.save(&mut state);
        let len = |name: &str| state.f32s(name, None).unwrap().len();
        Ok::<_, CommError>([len("between/anchor"), len("between/momentum")])
    });
    assert_eq!(kept, [[7, 7], [0, 0], [7, 7], [0, 0]].map(Ok));
}

/// Returns the strategies that are possible between machines of two of four ranks, at short periods, with top-k where that is
/// possible.
fn all_between() -> Vec<(StrategyConfig, Exchange)> {
    crate::install();
    let top_k = Exchange {
        reducer: ReducerConfig::gather("topk:4x".parse().unwrap()),
        feedback: Feedback::error(),
        ..Exchange::default()
    };
    let mut all = Vec::new();
    // Some cannot exchange between machines at every step, and a model of one slot has one fragment.
    let others = ["bmuf:3", "diloco:3", "streaming-diloco:3,fragments=1"].map(|text| text.parse().unwrap());
    for between in StrategyConfig::all().into_iter().chain(others) {
        for exchange in [Exchange::default(), top_k.clone()] {
            let ours = TwoLevelConfig { between: between.clone(), group: Some(2) };
            if ours.build(&exchange, &Layout::flat(10), 4).is_ok() {
                all.push((between.clone(), exchange));
            }
        }
    }
    all
}

fn built(strategy: &StrategyConfig, exchange: &Exchange, world: usize) -> Box<dyn SyncStrategy> {
    strategy.get().build(exchange, &Layout::flat(10), world).unwrap()
}

/// These include one whose `view` reads its anchor, and one that reads it in `begin`.
#[test]
fn whatever_lies_between_the_other_ranks_of_a_machine_need_nothing_of_it() {
    crate::install();
    let all = all_between();
    for name in ["local-sgd", "slowmo", "bmuf", "diloco", "streaming-diloco", "easgd", "lsgd", "sgp"] {
        assert!(all.iter().any(|(between, _)| between.name() == name), "{name} is not tried");
    }
    for (between, exchange) in &all {
        let steps = Sgd { momentum: 0.0, ..SGD };
        let of_machine = |rank: usize, step: u64, x: &[f32]| noisy(rank / 2, step, x);
        let ours = || TwoLevel::new(built(between, exchange, 2), Some(2));
        let four = train(4, ours, &[3.0; 10], (steps, &of_machine));
        // Two machines whose ranks compute the same are equivalent to two ranks.
        let two = train(2, || built(between, exchange, 2), &[3.0; 10], (steps, &noisy));
        for (a, b) in of_machines(&four, 2).iter().flatten().zip(two.iter().flatten()) {
            assert!((a - b).abs() < 1e-5, "{between}, {}: {a} {b}", exchange.reducer);
        }
    }
}

/// Positions of the ranks: each rank's saved state and parameters.
type Ranks = Vec<(State, Vec<f32>)>;

/// Takes steps of SGD with ranks that load `from`, on machines of `group` ranks.
fn steps_of(
    text: &str,
    (world, group): (usize, usize),
    from: &(dyn Fn(usize) -> (Option<State>, Vec<f32>) + Sync),
    steps: std::ops::Range<u64>,
) -> Vec<Result<(State, Vec<f32>), SyncError>> {
    let config: Config = serde_json::from_str(text).unwrap();
    let comms = Local::builder(world).machines_of(group.try_into().unwrap()).build();
    let ranks = run_ranks(comms, |mut comm| {
        let layout = Layout::flat(10);
        let (mut ours, (state, mut x)) = (config.build(&layout, world).unwrap(), from(comm.rank()));
        ours.begin(&x);
        state.iter().for_each(|state| ours.load(state).unwrap());
        for step in steps.clone() {
            let agreed_step = AgreedStep { step, samples: 1, learning_rate: Some(0.05), ..AgreedStep::default() };
            let cx = Context::new(Key::new(5), layout.slots(), &agreed_step);
            let mut g = noisy(comm.rank(), step, &x);
            if let Err(error) = ours.after_backward(&mut g, &cx, &mut comm) {
                return Ok(Err(error));
            }
            x.iter_mut().zip(&g).for_each(|(x, g)| *x -= 0.05 * g);
            if ours.plan(step).parameters {
                ours.after_step(&mut x, &cx, &mut comm).unwrap();
            }
            ours.commit();
        }
        let mut state = State::default();
        ours.save(&mut state);
        Ok::<_, CommError>(Ok((state, x)))
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

fn trained(text: &str, world: (usize, usize), steps: u64) -> Ranks {
    steps_of(text, world, &|_| (None, vec![3.0; 10]), 0..steps).into_iter().map(Result::unwrap).collect()
}

/// If the world size changes, every rank-local vector is dropped, and all ranks have the mean. The run then continues like a
/// new run from there.
#[test]
fn a_world_of_another_size_begins_anew_from_the_mean() {
    crate::install();
    for text in [
        r#"{"strategy": "two-level:(slowmo:3)"}"#,
        r#"{"strategy": "two-level:(easgd:3)"}"#,
        r#"{"strategy": "two-level:(local-sgd:3)", "reducer": "gather:topk:4x", "feedback": "error"}"#,
    ] {
        let saved = trained(text, (4, 2), 6);
        for world in [2, 6] {
            let mut state = saved[0].0.clone();
            state.for_each_own(&saved[0].0, |_, resize, values| {
                assert_eq!(resize, briquette_core::state::OnResize::Drop);
                values.clear();
            });
            let mean = vec![1.5; 10];
            let resumed = steps_of(text, (world, 2), &|_| (Some(state.clone()), mean.clone()), 6..12);
            let anew = steps_of(text, (world, 2), &|_| (None, mean.clone()), 6..12);
            assert_eq!(resumed, anew, "{text}, {world}");
            let x = &resumed[0].as_ref().unwrap().1;
            assert!(x.iter().all(|x| *x != 0.0), "{text}: {x:?}");
        }
    }
}

#[test]
fn other_machines_than_at_the_save_are_refused_by_every_rank() {
    crate::install();
    let text = r#"{"strategy": "two-level:(slowmo:3)"}"#;
    let saved = trained(text, (4, 2), 4);
    let from = |rank: usize| (Some(saved[rank].0.clone()), saved[rank].1.clone());
    let (whole, resumed) = (trained(text, (4, 2), 8), steps_of(text, (4, 2), &from, 4..8));
    assert_eq!(resumed, whole.into_iter().map(Ok).collect::<Vec<_>>());
    // Two machines of two ranks; then one of each, one of three and one, and one of all.
    for (group, rank, first, here) in [(1, 1, 0, 1), (3, 2, 2, 0), (4, 2, 2, 0)] {
        for result in steps_of(text, (4, group), &from, 4..8) {
            let error = result.unwrap_err();
            assert_eq!(error, SyncError::OtherMachines { step: 4, rank, saved: first, here }, "{group}");
        }
    }
}

#[test]
fn a_fault_inside_a_machine_has_its_rank_s_number_in_the_world() {
    let layout = Layout::flat(1);
    let errors = run_ranks(Local::world(4), |mut comm| {
        let mine = Header { learning_rate: (comm.rank() == 3).then_some(0.5), ..Header::default() };
        let agreed = Agrees::Machine(Some(2)).agree(&mine, None, layout.slots(), &mut [true], &mut comm);
        Ok::<_, CommError>(match agreed {
            Err(SyncError::LearningRate { rank, .. }) => Some(rank),
            _ => None,
        })
    });
    assert_eq!(errors, [Ok(None), Ok(None), Ok(Some(3)), Ok(Some(2))]);
}

#[test]
fn a_graph_of_as_many_ranks_as_there_are_machines_is_built_with_their_group() {
    crate::install();
    let text = "two-level:(sgp:0>1;1>0),group=2";
    built(&text.parse().unwrap(), &Exchange::default(), 4);
}

#[test]
fn what_cannot_lie_between_machines_is_refused() {
    crate::install();
    for (text, says) in [
        ("two-level:(every-step)", "exchanges gradients"),
        ("two-level:(minibatch:4)", "exchanges gradients"),
        ("two-level:(local-sgd:1)", "at every step"),
        ("two-level:(local-sgd:4,adapt=true)", "leave adapt out"),
        ("two-level:(sgp:exponential,staleness=1)", "in the background"),
        ("two-level:(local-sgd:4),group=3", "group=3 of two-level does not go with a world of 4 ranks"),
        ("two-level:(local-sgd:4),group=0", "group of two-level"),
        ("two-level:(local-sgd:0)", "at least 1"),
        // One number of machines of four would be valid, but the actual number is not known.
        ("two-level:(sgp:0>1;1>2;2>3;3>0)", "may find 1 machines"),
        ("two-level:(sgp:0>1;1>0)", "set its group"),
        ("two-level:(sgp:0>1;1>2;2>3;3>0),group=2", "sgp"),
    ] {
        let built = text
            .parse::<StrategyConfig>()
            .and_then(|strategy| Config { strategy, ..Config::dense() }.build(&Layout::flat(1), 4).map(drop));
        let error = built.unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

/// Two machines of two ranks, a case that the table of the laws does not contain.
#[test]
fn the_laws_hold_where_machines_have_several_ranks() {
    crate::install();
    // Leaders move the mean, and their result is no longer the same on every rank.
    for (text, conserves) in [("slowmo:2", true), ("easgd:2", true), ("lsgd:2,local=1", false), ("sgp", true)] {
        for group in ["", ",group=2"] {
            let text = format!(r#"{{"strategy": "two-level:({text}){group}"}}"#);
            let setup = Setup::short(&serde_json::from_str::<Config>(&text).unwrap(), 4);
            if conserves && !group.is_empty() {
                laws::conserves_its_mean(&setup);
            }
            laws::leaves_no_trace(&setup, 0);
            laws::resumes_to_the_bit(&setup);
            laws::restores_state_of_step_0(&setup);
        }
    }
}
