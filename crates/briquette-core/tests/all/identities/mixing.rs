//! Identities of exchanges with neighbors and in groups.

use briquette_core::config::StrategyConfig;
use briquette_core::error::CommError;
use briquette_core::reduce::hierarchical::HierarchicalConfig;
use briquette_core::state::Stateful;
use briquette_core::sync::{Context, SyncStrategy};
use briquette_zoo::sync::sgp::Sgp;

use super::*;

/// Takes a step to a center that depends on the rank and the step.
fn stepped(x: &[f32], rank: usize, step: u64) -> Vec<f32> {
    x.iter().zip(dyadic(rank, step, x.len())).map(|(x, c)| x - 0.3 * (x - c)).collect()
}

/// Decentralized parallel SGD on one thread: ranks step, and each takes the mean of itself and the ranks that send to it.
fn d_psgd(world: usize, steps: u64, sender: impl Fn(u64, usize) -> usize) -> Vec<Vec<f32>> {
    let mut all = vec![vec![1.0; layout().len()]; world];
    for step in 0..steps {
        let moved: Vec<Vec<f32>> = all.iter().enumerate().map(|(rank, x)| stepped(x, rank, step)).collect();
        let mean = |(own, other): (&f32, &f32)| own / 2.0 + other / 2.0;
        let mixed = |rank: usize| moved[rank].iter().zip(&moved[sender(step, rank)]).map(mean).collect();
        all = (0..world).map(mixed).collect();
    }
    all
}

#[test]
fn where_as_many_come_as_go_sgp_is_decentralized_sgd() {
    let hop = |graph: &str, step: u64, world: usize| match graph {
        "ring" => 1,
        _ => 1 << (step % u64::from(world.next_power_of_two().trailing_zeros())),
    };
    for graph in ["ring", "exponential"] {
        for world in [3, 5] {
            let ranks = run_ranks(Local::world(world), |mut comm| {
                let mut sgp = Sgp::new(graph.parse().expect("a graph"), world).expect("one that fits");
                let (layout, mut x) = (layout(), vec![1.0; layout().len()]);
                sgp.begin(&x);
                for step in 0..12 {
                    let agreed_step = AgreedStep { step, ..AgreedStep::default() };
                    let cx = Context::new(Key::new(5), layout.slots(), &agreed_step);
                    x = stepped(&x, comm.rank(), step);
                    sgp.after_step(&mut x, &cx, &mut comm).expect("no rank fails");
                    sgp.commit();
                    assert_eq!(sgp.weight(), 1.0, "{graph}, {world} ranks, step {step}");
                }
                Ok::<_, CommError>(x)
            });
            let ranks: Vec<Vec<f32>> = ranks.into_iter().map(|x| x.expect("no rank fails")).collect();
            let twin = d_psgd(world, 12, |step, rank| (rank + world - hop(graph, step, world)) % world);
            assert_eq!(ranks, twin, "{graph}, {world} ranks");
            assert_ne!(ranks[0], ranks[1]);
        }
    }
}

#[test]
fn hierarchical_is_the_reducer_between_groups_of_1_and_dense_in_one_group() {
    let between = |reducer: ReducerConfig, group| HierarchicalConfig { between: reducer, group: Some(group) };
    for world in [1, 2, 3, 4] {
        for (reducer, feedback) in [
            (ReducerConfig::dense(), Feedback::none()),
            (gather("topk:10x"), Feedback::error()),
            (gather("qsgd:3:16:l2"), Feedback::none()),
        ] {
            let grouped = exchange(between(reducer.clone(), 1).into(), &feedback);
            let alone = exchange(reducer.clone(), &feedback);
            assert_eq!(train(&grouped, world, 5), train(&alone, world, 5), "{reducer:?}, {world} ranks");
        }
        // Sums of halves and quarters are exact, those of thirds are not.
        let whole =
            train(&exchange(between(ReducerConfig::dense(), world).into(), &Feedback::none()), world, 4).concat();
        let dense = train(&Config::dense(), world, 4).concat();
        let off = whole.iter().zip(&dense).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
        assert!(if world.is_power_of_two() { off == 0.0 } else { off < 1e-6 }, "{world} ranks: off by {off}");
    }
}

/// Not an identity: the build of a configuration rejects invalid settings of strategies that mix.
#[test]
fn graphs_and_delays_that_cannot_work_are_refused_when_built() {
    briquette_zoo::install();
    let built = |text: &str, world| {
        let strategy: Result<StrategyConfig, _> = text.parse();
        let config = strategy.map(|strategy| Config { strategy, ..Config::dense() });
        config.and_then(|config| config.build(&layout(), world).map(drop)).map_err(|error| error.to_string())
    };
    assert_eq!(built("sgp:exponential,staleness=8", 4), Ok(()));
    for (text, words) in [
        ("sgp:exponential,staleness=9", "staleness of sgp must be 0 to 8, got 9"),
        ("sgp:0>1;1>0", "never to rank 2"),
        ("sgp:0>9;9>0", "edges of sgp name rank 9"),
        ("lsgd:4,local=3", "local of lsgd must be a divisor of its period"),
        ("lsgd:4,group=3", "group=3 of lsgd does not go with a world of 4 ranks"),
    ] {
        let error = built(text, 4).expect_err(text);
        assert!(error.contains(words), "{text}: {error}");
    }
}
