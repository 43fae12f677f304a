//! Step settings that ranks must agree on, layers that are trained after joining, and tensors without a gradient.

use briquette::core::config::Config;
use briquette::core::error::SyncError;
use briquette::{DistributedOptimizer, Error};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Bool, Int, Tensor};

use crate::common::*;
use crate::overlap::during;

#[test]
fn samples_that_only_some_ranks_record_are_refused_on_every_rank() {
    for config in [Config::dense(), top_k(), during(r#""reducer": "dense""#)] {
        let run = |who: &[usize]| {
            ranks(3, |comm| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
                let (mut model, mut refused) = (optim.join(Mlp::new(5))?, 0);
                for step in 0..4 {
                    if step == 2 && !who.is_empty() {
                        if who.contains(&rank) {
                            optim.record_samples(3 + 6 * rank);
                        }
                        let gradients = grads(&model, &model.loss(data(77, rank), 4));
                        let error = optim.try_step(0.02, model, gradients).expect_err("refused");
                        let expected = [who[0], (0..3).find(|rank| !who.contains(rank)).unwrap()];
                        let Error::Sync(SyncError::SomeRecorded { step: 2, rank, other }) = error.source else {
                            panic!("{error}")
                        };
                        assert_eq!([rank, other], expected);
                        (model, refused) = (*error.model, refused + 1);
                    }
                    (model, _) = train(&mut optim, model, step, rank)?;
                }
                Ok((bits(&model), refused))
            })
        };
        let good = run(&[]);
        for who in [&[0][..], &[1], &[0, 2]] {
            let after = run(who);
            assert!(after.iter().all(|(_, refused)| *refused == 1));
            assert!(after.iter().zip(&good).all(|(a, b)| a.0 == b.0), "{config:?}: the step leaves no trace");
        }
    }
}

/// Two layers of which one is frozen.
#[derive(Module, Debug)]
struct Two {
    a: Linear,
    b: Linear,
}

impl Two {
    fn new(hidden: usize) -> Self {
        let a = LinearConfig::new(IN, IN).init(&device());
        seeded(Two { a, b: LinearConfig::new(IN, hidden).init(&device()) }, 3)
    }

    fn loss(&self, data: u64) -> Tensor<1> {
        let x = Numbers::new(data).tensor([4, IN], &device());
        self.b.forward(self.a.forward(x)).square().mean()
    }
}

/// Returns the error of `call` on every rank after it trains `a`, freezes it and makes `b` trainable.
fn swapped(
    config: &Config,
    hidden: usize,
    call: fn(&mut DistributedOptimizer, Two) -> Result<Two, Error>,
) -> Vec<String> {
    let found = outcomes(2, |comm| {
        let Two { a, b } = Two::new(hidden);
        let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
        let mut model = optim.join(Two { a, b: b.no_grad() })?;
        for step in 0..3 {
            let gradients = grads(&model, &model.loss(step));
            model = optim.step(0.02, model, gradients)?;
        }
        let Two { a, b } = model;
        call(&mut optim, Two { a: a.no_grad(), b: b.set_require_grad(true) }).map(drop)
    });
    found.into_iter().map(|outcome| outcome.expect_err("another layer is trained").to_string()).collect()
}

#[test]
fn another_layer_that_is_trained_after_joining_is_an_error_that_names_it() {
    let step: fn(&mut DistributedOptimizer, Two) -> Result<Two, Error> = |optim, model| {
        let gradients = grads(&model, &model.loss(9));
        optim.step(0.02, model, gradients)
    };
    let forward: fn(&mut DistributedOptimizer, Two) -> Result<Two, Error> =
        |optim, model| optim.forward_model(&model).map(|_| model);
    let evaluate: fn(&mut DistributedOptimizer, Two) -> Result<Two, Error> =
        |optim, model| optim.evaluation_copy(&model);
    let local_sgd = config(r#"{"strategy": "local-sgd:2"}"#);
    let cases = [
        (Config::dense(), step),
        (top_k(), step),
        (power_sgd(), step),
        (Config::auto(), step),
        (local_sgd.clone(), step),
        (local_sgd, evaluate),
        (during(r#""reducer": "dense""#), forward),
    ];
    for (config, call) in cases {
        for hidden in [IN, 3] {
            for text in swapped(&config, hidden, call) {
                let words = format!("was `a.weight` of shape [6, 6] and is `b.weight` of shape [6, {hidden}]");
                assert!(text.contains(&words) && text.contains("`join` again"), "{config:?}: {text}");
            }
        }
    }
}

/// The others have begun their step and wait for this rank's gradients.
#[test]
fn a_layer_that_one_rank_freezes_before_a_hidden_step_is_named_by_the_others() {
    let found = outcomes(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, during(r#""reducer": "dense""#), 1);
        let Two { a, b } = optim.join(Two::new(3))?;
        let model = if rank == 1 { Two { a: a.no_grad(), b } } else { Two { a, b } };
        let forward = optim.forward_model(&model)?;
        let gradients = grads(&model, &forward.loss(9));
        drop(forward);
        let begin = std::time::Instant::now();
        let stepped = optim.step(0.02, model, gradients).map(drop);
        // Far below the timeout of a wait.
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{stepped:?}");
        stepped
    });
    let texts: Vec<String> =
        found.into_iter().map(|outcome| outcome.expect_err("another layer is trained").to_string()).collect();
    assert!(texts[1].contains("was `a.weight`"), "{}", texts[1]);
    assert!(texts[0].contains("rank 1") && texts[0].contains("was `a.weight`"), "{}", texts[0]);
}

#[test]
fn fewer_or_more_trained_layers_are_named_as_well() {
    let change = |join: fn(Two) -> Two, later: fn(Two) -> Two| {
        let found = outcomes(2, |comm| {
            let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
            let model = later(optim.join(join(Two::new(3)))?);
            let gradients = grads(&model, &model.loss(9));
            optim.step(0.02, model, gradients).map(drop)
        });
        found[0].as_ref().expect_err("another number of tensors").to_string()
    };
    let freeze = |Two { a, b }: Two| Two { a, b: b.no_grad() };
    let fewer = change(|model| model, freeze);
    assert!(
        fewer.contains("tensor 2, the first that differs, was `b.weight` of shape [6, 3] and is absent"),
        "{fewer}"
    );
    let more = change(freeze, |Two { a, b }| Two { a, b: b.set_require_grad(true) });
    assert!(more.contains("was absent and is `b.weight` of shape [6, 3]"), "{more}");
}

/// A layer after a permutation and a mask of its inputs.
#[derive(Module, Debug)]
struct Ordered {
    order: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
    layer: Linear,
}

impl Ordered {
    fn new(rank: usize, len: usize) -> Self {
        let order: Vec<i32> = (0..len as i32).map(|i| (i + rank as i32) % len as i32).collect();
        let order = Tensor::<1, Int>::from_data(&order[..], &device());
        let mask = Tensor::<2, Bool>::from_data([[rank == 0, rank == 1, true]], &device());
        let layer = LinearConfig::new(IN, 3).init(&device());
        Ordered {
            order: Param::initialized(ParamId::new(), order),
            mask: Param::initialized(ParamId::new(), mask),
            layer,
        }
    }
}

#[test]
fn integer_and_boolean_tensors_are_rank_0s_after_joining() {
    let seen = ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Ordered::new(rank, 4))?;
        let order: Vec<i64> = model.order.val().into_data().iter().collect();
        let mask: Vec<bool> = model.mask.val().into_data().iter().collect();
        Ok((order, mask, model.order.val().dtype()))
    });
    let dtype = Ordered::new(0, 4).order.val().dtype();
    assert!(seen.iter().all(|seen| *seen == (vec![0, 1, 2, 3], vec![true, false, true], dtype)), "{seen:?}");
    // A tensor of another length is refused.
    for (rank, outcome) in outcomes(2, |comm| {
        let rank = comm.rank();
        DistributedOptimizer::new(sgd(), comm, Config::dense(), 1).join(Ordered::new(rank, 4 + rank)).map(drop)
    })
    .into_iter()
    .enumerate()
    {
        let text = outcome.expect_err("they differ").to_string();
        assert!(text.contains("`order` integer [5]") && text.contains("`order` integer [4]"), "rank {rank}: {text}");
    }
}
