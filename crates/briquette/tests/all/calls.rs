//! One call for what most training loops need: clipping, means over ranks, the best model.

use briquette::core::config::Config;
use briquette::{BestModel, DistributedOptimizer, Error};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;

use crate::common::*;

/// The global norm of what an optimizer would step with, by hand in f64.
fn norm(optim: &DistributedOptimizer, model: &Mlp, gradients: &burn::optim::GradientsParams) -> f64 {
    let flat = optim.synchronizer().flat_gradient(model, gradients).expect("gradients of the model that joined");
    flat.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn the_average_is_clipped_by_its_global_norm_on_every_rank_alike() {
    for (world, config) in
        [(1, Config::auto()), (2, Config::dense()), (2, Config::dense().during_backward()), (2, top_k())]
    {
        let steps = |max: f64| {
            ranks(world, |comm| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(adam(), comm, config.clone(), 1).with_clip_norm(max);
                let model = optim.join(Mlp::new(5))?;
                let gradients = grads(&model, &model.loss(data(0, rank), 4));
                let average = optim.sync_gradients(&model, gradients)?;
                let before = optim.gradient_norm().expect("it clips");
                let after = norm(&optim, &model, &average);
                let model = optim.inner_mut().step(0.02, model, average);
                let model = optim.sync_parameters(model)?;
                Ok((before, after, bits(&model)))
            })
        };
        let whole = steps(1e9);
        let (before, after, _) = &whole[0];
        assert!((before - after).abs() < 1e-5 * before, "below the largest norm nothing is scaled: {before}, {after}");
        let clipped = steps(before / 4.0);
        assert!((clipped[0].1 - before / 4.0).abs() < 1e-5 * before, "{}, expected {}", clipped[0].1, before / 4.0);
        assert_eq!(clipped[0].0, *before);
        assert!(clipped.iter().all(|rank| *rank == clipped[0]), "{config:?}");
    }
}

#[test]
fn an_optimizer_whose_gradient_is_clipped_gets_error_feedback() {
    let chosen = |max: Option<f64>| {
        let found = ranks(2, |comm| {
            let optim = DistributedOptimizer::auto(sgd_with_momentum(), comm, 1);
            let mut optim = if let Some(max) = max { optim.with_clip_norm(max) } else { optim };
            optim.join(Mlp::new(5))?;
            Ok(optim.summary().feedback.expect("it was open"))
        });
        found[0].clone()
    };
    assert!(chosen(None).starts_with("momentum correction"), "{}", chosen(None));
    assert!(chosen(Some(1.0)).starts_with("error feedback"), "{}", chosen(Some(1.0)));
}

/// A parameter that two places share has one gradient.
#[derive(Module, Debug)]
struct Tied {
    first: Linear,
    again: Linear,
}

#[test]
fn the_gradient_of_a_shared_parameter_counts_once() {
    for config in [Config::dense(), Config::local_sgd(4)] {
        let norms = ranks(2, |comm| {
            let first = LinearConfig::new(3, 3).with_bias(false).init(&device());
            let tied = Tied { again: first.clone(), first };
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1).with_clip_norm(1e9);
            let model = optim.join(tied)?;
            let x = Tensor::<2>::ones([1, 3], &device());
            let loss = (model.first.forward(x.clone()) + model.again.forward(x)).sum();
            let gradients = grads(&model, &loss);
            let one =
                gradients.get::<2>(model.first.weight.id).expect("a gradient").square().sum().into_scalar::<f32>();
            optim.step(0.1, model, gradients)?;
            Ok((optim.gradient_norm().expect("it clips"), f64::from(one).sqrt()))
        });
        assert!(norms.iter().all(|(norm, one)| (norm - one).abs() < 1e-6 * one), "{norms:?}");
    }
}

#[test]
fn clipping_does_not_hide_an_optimizers_momentum() {
    let error = outcomes(2, |comm| {
        let config: Config = "reducer=gather:topk:10x feedback=momentum".parse().expect("a configuration");
        DistributedOptimizer::new(sgd_with_momentum(), comm, config, 1)
            .with_clip_norm(1.0)
            .join(Mlp::new(5))
            .map(|_| ())
    });
    let error = error.into_iter().next().expect("two ranks").expect_err("momentum twice").to_string();
    assert!(error.contains("without momentum"), "{error}");
}

#[test]
fn ranks_that_clip_differently_are_refused() {
    let outcomes = outcomes(2, |comm| {
        let max = 1.0 + comm.rank() as f64;
        DistributedOptimizer::new(sgd(), comm, Config::dense(), 1).with_clip_norm(max).join(Mlp::new(5)).map(|_| ())
    });
    for outcome in outcomes {
        let error = outcome.expect_err("1 and 2").to_string();
        assert!(error.contains("largest gradient norm"), "{error}");
    }
}

#[test]
fn metrics_are_averaged_by_samples_and_ranks_without_any_do_not_count() {
    let means = ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        optim.join(Mlp::new(5))?;
        let (values, samples) = [([1.0, 0.5], 3), ([5.0, 0.1], 1), ([f64::NAN; 2], 0)][rank];
        let means = optim.mean_over_ranks(&values, samples)?;
        let none = optim.mean_over_ranks(&[1.0], 0)?[0];
        Ok((means, none.is_nan(), optim.any_rank(rank == 2)?, optim.any_rank(false)?))
    });
    assert!(means.iter().all(|mean| *mean == (vec![2.0, 0.4], true, true, false)), "{means:?}");
}

#[test]
fn the_best_model_stays_on_disk_and_a_resumed_run_knows_its_score() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("deep/best");
    let run = |scores: &[f64]| -> Vec<Vec<bool>> {
        ranks(2, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
            let mut model = optim.join(Mlp::new(5))?;
            let mut best = BestModel::lowest(&path);
            let mut saved = Vec::new();
            for (step, score) in scores.iter().enumerate() {
                (model, _) = train(&mut optim, model, step as u64, rank)?;
                saved.push(best.offer(&mut optim, &model, *score)?);
            }
            Ok::<_, Error>(saved)
        })
    };
    assert_eq!(run(&[3.0, f64::NAN, 2.0, 2.5]), [[true, false, true, false], [true, false, true, false]]);
    let best = BestModel::lowest(&path);
    assert_eq!(
        (best.score().expect("it can be read"), best.path().extension().and_then(|e| e.to_str())),
        (Some(2.0), Some("bpk"))
    );
    let kept = bits(&Mlp::new(1).load_file(best.path()));
    assert_ne!(kept, bits(&Mlp::new(1)));
    assert_eq!(run(&[2.25]), [[false], [false]]);
    assert_eq!(bits(&Mlp::new(1).load_file(best.path())), kept);
    assert_eq!(run(&[1.0]), [[true], [true]]);
    assert_ne!(bits(&Mlp::new(1).load_file(best.path())), kept);
    let mut left: Vec<_> = best.path().parent().expect("a folder").read_dir().expect("it is there").collect();
    assert_eq!(left.len(), 2, "{left:?}");
    left.clear();
    // Without its score the model is replaced; a score without a model says nothing.
    std::fs::remove_file(best.path().with_extension("bpk.score")).expect("a score");
    assert_eq!(run(&[9.0]), [[true], [true]]);
    std::fs::remove_file(best.path()).expect("a model");
    assert_eq!((best.score().expect("no error"), run(&[10.0])), (None, vec![vec![true]; 2]));
}

#[test]
fn a_best_model_that_cannot_be_written_is_an_error_on_every_rank() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "no folder").expect("it can be written");
    let outcomes = outcomes(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Mlp::new(5))?;
        BestModel::highest(file.join("best")).offer(&mut optim, &model, 0.5)
    });
    for outcome in outcomes {
        let error = outcome.expect_err("a file is no folder").to_string();
        assert!(error.contains("best.bpk"), "{error}");
    }
}
