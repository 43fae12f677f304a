//! A GAN-like alternation in one module: at each step only one half has gradients, and the other stays unchanged.

use briquette::DistributedOptimizer;
use briquette::core::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::ModuleOptimizer;

use crate::common::*;

#[derive(Module, Debug)]
struct Halves {
    generator: Linear,
    critic: Linear,
}

impl Halves {
    fn new() -> Self {
        let half = || LinearConfig::new(IN, 20).init(&device());
        seeded(Halves { generator: half(), critic: half() }, 3)
    }

    fn half(&self, of_critic: bool) -> &Linear {
        if of_critic { &self.critic } else { &self.generator }
    }
}

type Values = Vec<(String, Vec<u32>)>;

/// Returns the values of each half after every step of that half, for each rank. `turn` says whether a step is the critic's.
fn run(config: &Config, inner: fn() -> ModuleOptimizer, turn: fn(u64) -> bool, hidden: bool) -> Vec<[Vec<Values>; 2]> {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner(), comm, config.clone(), 1);
        let mut model = optim.join(Halves::new())?;
        let mut seen = [Vec::new(), Vec::new()];
        for step in 0..12 {
            let (of_critic, forward) = (turn(step), if hidden { optim.forward_model(&model)? } else { model.clone() });
            let own = &mut seen[usize::from(of_critic)];
            // Each half has its own data, in its own order.
            let (x, _) = batch(&[(data(own.len() as u64, rank), 4)]);
            let loss = (forward.half(of_critic).forward(x) - 1.0).square().mean();
            let gradients = grads(&model, &loss);
            drop(forward);
            let [idle, active] = [!of_critic, of_critic].map(|half| bits(model.half(half)));
            model = optim.step(0.05, model, gradients)?;
            assert!(bits(model.half(!of_critic)) == idle, "{config:?}, step {step}: the idle half moved");
            let now = bits(model.half(of_critic));
            assert!(now != active, "{config:?}, step {step}: the other half did not");
            own.push(now);
        }
        Ok(seen)
    })
}

const KINDS: [&str; 14] = [
    r#""reducer": "gather:topk:10x", "feedback": "error""#,
    r#""reducer": "gather:topk:10x", "feedback": "error-inside""#,
    r#""reducer": "gather:topk:10x", "feedback": "momentum""#,
    r#""reducer": "gather:topk:10x", "feedback": "ef21""#,
    r#""reducer": "gather:qsgd:4", "feedback": "diana""#,
    r#""reducer": "gather:plain-sign", "feedback": "rank-momentum""#,
    r#""reducer": "gather:sign", "feedback": "error""#,
    r#""reducer": "power-sgd:1", "feedback": "error""#,
    r#""reducer": "two-way:topk:8x,down=topk:8x", "feedback": "error""#,
    r#""reducer": "two-way:sign,down=sign", "feedback": "error""#,
    r#""reducer": "artemis:qsgd:4""#,
    r#""reducer": "mcm:qsgd:4""#,
    r#""reducer": "ladder", "feedback": "error", "controller": "schedule:1x,to=8x,steps=4,stages=2""#,
    r#""reducer": "gather:topk:10x", "feedback": "error", "rules": [{"slots": "*.bias", "reducer": "dense"}]"#,
];

fn kinds() -> Vec<Config> {
    let each = |kind: &str| serde_json::from_str::<Config>(&format!("{{{kind}}}")).map_err(|e| format!("{kind}: {e}"));
    KINDS.into_iter().map(|kind| each(kind).unwrap()).collect()
}

fn in_turns(step: u64) -> bool {
    step % 2 == 1
}

#[test]
fn the_half_without_a_gradient_is_not_moved_whatever_is_remembered_of_it() {
    for config in [Config::auto()].into_iter().chain(kinds()) {
        let replicas = run(&config, sgd, in_turns, false);
        assert!(replicas[0] == replicas[1], "{config:?}");
    }
    // With an optimizer that has momentum, the default keeps velocities.
    for inner in [sgd_with_momentum, adam] {
        run(&Config::auto(), inner, in_turns, false);
    }
}

#[test]
fn nor_is_it_where_gradients_are_exchanged_during_the_backward_pass() {
    briquette::zoo::install();
    for feedback in ["error", "momentum", "ef21"] {
        let config = config(&format!(
            r#"{{"during_backward": true, "bucket_values": 64, "reducer": "gather:topk:8x", "feedback": "{feedback}"}}"#
        ));
        let replicas = run(&config, sgd, in_turns, true);
        assert!(replicas[0] == replicas[1], "{config:?}");
    }
}

/// With compression per slot, a half that is idle between its steps learns the same as without the other half.
#[test]
fn a_half_goes_on_as_if_the_steps_of_the_other_had_not_been() {
    briquette::zoo::install();
    let exchange = |feedback: &str| {
        config(&format!(
            r#"{{"reducer": {{"kind": "gather", "compressor": "topk:8x", "per_slot": true}}, "feedback": "{feedback}"}}"#
        ))
    };
    type Inner = fn() -> ModuleOptimizer;
    let cases: [(&str, Inner); 4] =
        [("error", adam), ("momentum", sgd), ("inner-momentum:0.9", sgd_with_momentum), ("ef21", adam)];
    for (feedback, inner) in cases {
        let config = exchange(feedback);
        let both = run(&config, inner, in_turns, false);
        let alone = [run(&config, inner, |_| false, false), run(&config, inner, |_| true, false)];
        for (half, alone) in alone.iter().enumerate() {
            assert!(both[0][half] == alone[0][half][..6], "{feedback}, half {half}");
        }
    }
}
