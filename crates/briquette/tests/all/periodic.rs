//! Local SGD: parameters instead of gradients.

use briquette::DistributedOptimizer;
use briquette::core::config::Config;
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use crate::common::*;

fn periodic(every: u64) -> Config {
    config(&format!(r#"{{"strategy": "local-sgd:{every}"}}"#))
}

#[derive(Module, Debug)]
struct Weights {
    w: Param<Tensor<2>>,
}

/// Half the squared error of a linear model on small integers: every intermediate number is dyadic and short.
fn dyadic(config: &Config, world: usize, decay: f64) -> Vec<Vec<(String, Vec<u32>)>> {
    ranks(world, |comm| {
        let rank = comm.rank();
        let w = Tensor::<2>::from_floats([[0.5, -0.25], [1.0, 0.75]], &device());
        let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1).with_local_weight_decay(decay);
        let mut model = optim.join(Weights { w: Param::from_tensor(w.require_grad()) })?;
        for step in 0..4 {
            let mut numbers = Numbers::new(data(step, rank));
            let mut integers = || numbers.tensor([2, 2], &device()).mul_scalar(2.0).round();
            let (x, y) = (integers(), integers());
            let loss = (x.matmul(model.w.val()) - y).square().sum().mul_scalar(0.5);
            let gradients = grads(&model, &loss);
            model = optim.step(0.125, model, gradients)?;
        }
        Ok(bits(&model))
    })
}

#[test]
fn averaging_every_step_with_plain_sgd_is_synchronous_sgd_exactly_on_dyadic_numbers() {
    for world in [1, 2, 4] {
        let (gradients, parameters) = (dyadic(&Config::dense(), world, 0.0), dyadic(&periodic(1), world, 0.0));
        assert_eq!(gradients, parameters, "{world} ranks");
        assert_ne!(gradients[0], dyadic(&Config::dense(), 3, 0.0)[0], "another world, another path");
    }
}

#[test]
fn local_weight_decay_is_in_local_steps_too() {
    for world in [1, 2] {
        let (gradients, parameters) = (dyadic(&Config::dense(), world, 0.25), dyadic(&periodic(1), world, 0.25));
        assert_eq!(gradients, parameters, "{world} ranks");
        assert_ne!(parameters, dyadic(&periodic(1), world, 0.0));
    }
    assert_ne!(dyadic(&periodic(9), 2, 0.25), dyadic(&periodic(9), 2, 0.0), "between averages");
}

#[test]
fn replicas_that_trained_alone_can_be_made_equal_at_any_time() {
    let replicas = ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, periodic(4), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..6 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        let alone = bits(&model);
        let model = optim.average_parameters(model)?;
        Ok((alone, bits(&model)))
    });
    assert!(replicas.iter().all(|(_, equal)| *equal == replicas[0].1));
    assert!(replicas[1..].iter().all(|(alone, _)| *alone != replicas[0].0));
    // Synchronous ranks are equal already: no bit may change.
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, top_k(), 1);
        let model = optim.join(Mlp::new(5))?;
        let (model, _) = train(&mut optim, model, 0, rank)?;
        let before = bits(&model);
        assert_eq!(before, bits(&optim.average_parameters(model)?));
        Ok(())
    });
}

#[test]
fn averaging_every_step_with_plain_sgd_is_synchronous_sgd_to_rounding_otherwise() {
    let run = |config: &Config| {
        ranks(3, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
            let mut model = optim.join(Mlp::new(5))?;
            for step in 0..10 {
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            Ok(model)
        })
    };
    for (a, b) in run(&Config::dense()).iter().zip(&run(&periodic(1))) {
        let off = distance(a, b);
        assert!(off < 1e-6, "{off}");
        assert!(distance(a, &Mlp::new(5)) > 1e-3, "nothing was trained");
    }
}

#[test]
fn between_averages_replicas_differ_and_move_no_bytes_and_after_one_they_agree() {
    let seen = ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, periodic(4), 1);
        let mut model = optim.join(Mlp::new(5))?;
        let mut seen = Vec::new();
        for step in 0..8 {
            let report;
            (model, report) = train(&mut optim, model, step, rank)?;
            seen.push((bits(&model), report.traffic.sent, report.samples));
        }
        Ok(seen)
    });
    for step in 0..8 {
        let average = step % 4 == 3;
        for rank in 1..3 {
            assert_eq!(seen[0][step].0 == seen[rank][step].0, average, "step {step}, rank {rank}");
        }
        for rank in &seen {
            assert_eq!(rank[step].1 > 0, average, "step {step}");
        }
    }
}

#[test]
fn ranks_may_have_learning_rates_of_their_own_where_parameters_are_averaged_only() {
    let step = |config: Config| {
        outcomes(2, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
            let model = optim.join(Mlp::new(5))?;
            let (x, y) = batch(&[(data(0, rank), 4)]);
            let gradients = grads(&model, &model.error(x, y));
            optim.step(0.1 * (rank + 1) as f64, model, gradients).map(|model| bits(&model))
        })
    };
    let averaged = step(periodic(1));
    assert!(averaged[0].is_ok() && averaged[0].as_ref().ok() == averaged[1].as_ref().ok(), "{averaged:?}");
    for refused in step(Config::dense()) {
        let text = refused.expect_err("an average of gradients has one learning rate").to_string();
        assert!(text.contains("learning rate") && text.contains("0.1") && text.contains("0.2"), "{text}");
    }
}
