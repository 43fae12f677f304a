//! A collective that only some ranks call: the error names the operation of each.

use std::collections::BTreeMap;

use briquette::core::config::Config;
use briquette::core::error::SyncError;
use briquette::{DistributedOptimizer, Error};
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::common::*;

type Call = fn(&mut DistributedOptimizer, &Net) -> Result<(), Error>;

#[test]
fn a_collective_of_rank_0_alone_names_both_operations_and_that_every_rank_must_call_it() {
    let calls: [(&str, Call); 4] = [
        ("checkpoint save", |optim, model| {
            let directory = tempfile::tempdir().unwrap();
            optim.save(model, directory.path(), &BTreeMap::new())
        }),
        ("evaluation_copy", |optim, model| optim.evaluation_copy(model).map(drop)),
        ("all_reduce", |optim, _| Ok(optim.synchronizer_mut().session().all_reduce_sum(&mut [1.0, 2.0])?)),
        ("barrier", |optim, _| Ok(optim.synchronizer_mut().session().barrier()?)),
    ];
    for config in [Config::dense(), top_k(), config(r#"{"strategy": "local-sgd:4"}"#)] {
        for (operation, call) in calls {
            let found = outcomes(3, |comm| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
                let mut model = optim.join(Net::new(5))?;
                for step in 0..8 {
                    if step == 2 && rank == 0 {
                        call(&mut optim, &model)?;
                    }
                    (model, _) = train(&mut optim, model, step, rank)?;
                }
                Ok(())
            });
            for (rank, outcome) in found.into_iter().enumerate() {
                let text = outcome.expect_err("only rank 0 called").to_string();
                assert!(text.contains(&format!("{operation} at step 2")), "rank {rank}, {operation}: {text}");
                assert!(text.contains("step header at step"), "rank {rank}, {operation}: {text}");
                assert!(text.contains("every rank must make the same calls"), "rank {rank}, {operation}: {text}");
            }
        }
    }
}

/// Six steps with given gradients. If requested, gradients whose sum over ranks overflows precede the third.
fn overflow(config: &Config, bad: bool) -> Vec<Vec<(String, Vec<u32>)>> {
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..6 {
            if bad && step == 2 {
                let mut gradients = grads(&model, &model.loss(data(77, rank), 4));
                let id: ParamId = model.second.bias.as_ref().expect("it has one").id;
                gradients.register(id, Tensor::<1>::from_floats([0.0, 3e38, 0.0], &device().inner()));
                optim.record_samples(4);
                let error = optim.try_step(0.02, model, gradients).expect_err("refused");
                assert!(
                    matches!(&error.source, Error::Sync(SyncError::Overflow { step: 2, slot }) if slot == "second.bias"),
                    "{config:?}: {error}"
                );
                model = *error.model;
            }
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(bits(&model))
    })
}

#[test]
fn a_sum_beyond_the_largest_number_is_refused_and_the_world_goes_on() {
    let exchange = |text: &str| config(&format!(r#"{{"strategy": "every-step", {text}}}"#));
    let configs = [
        r#""reducer": "dense""#,
        r#""reducer": "ring:bf16""#,
        r#""reducer": "ring:f16""#,
        r#""reducer": "dense", "feedback": "error""#,
        r#""during_backward": true, "bucket_values": 64, "reducer": "dense""#,
    ];
    for config in configs.map(exchange) {
        let (good, after) = (overflow(&config, false), overflow(&config, true));
        assert!(good == after, "{config:?}: the step leaves no trace");
    }
}

#[test]
fn averages_of_any_size_arrive_in_sixteen_bits() {
    for (reducer, bound) in [("ring:f16", 1e-3), ("gather:f16", 1e-3), ("ring:bf16", 2e-2), ("gather:bf16", 2e-2)] {
        for size in [1e-8_f32, 1e-30, 1e-3, 1e6, 1e30] {
            ranks(2, |comm| {
                let config = config(&format!(r#"{{"strategy": "every-step", "reducer": "{reducer}"}}"#));
                let mut optim = DistributedOptimizer::new(sgd(), comm, config, 1);
                // Enough values for a ring.
                let model = optim.join(Mlp::wide(5, 400))?;
                let mut gradients = GradientsParams::new();
                let given: Tensor<2> = Numbers::new(3).tensor([IN, 400], &device().inner()) * size;
                gradients.register(model.first.weight.id, given.clone());
                let average = optim.sync_gradients(&model, gradients)?;
                let average = average.get::<2>(model.first.weight.id).expect("it has one");
                let [given, average] = [given, average].map(|t| t.into_data().try_to_vec::<f32>().unwrap());
                let off = given.iter().zip(&average).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off <= bound * size, "{reducer} of {size:e}: off by {off:e}");
                optim.sync_parameters(model).map(drop)
            });
        }
    }
}
