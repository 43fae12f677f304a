//! State that a forward pass writes belongs to its step: a refused batch leaves no trace in BatchNorm's running statistics, and a buffer that
//! is not finite reaches no average.

use std::collections::BTreeMap;
use std::fs;

use briquette::core::config::Config;
use briquette::core::error::SyncError;
use briquette::core::manifest::Manifest;
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use burn::module::{Module, RunningState};
use burn::nn::Linear;
use burn::tensor::{Tensor, activation};

use crate::common::*;
use crate::overlap::during;

/// As [`Model::loss`] of [`Net`], with inputs times `factor`.
fn loss(model: &Net, data: u64, factor: f32) -> Tensor<1> {
    let mut numbers = Numbers::new(data);
    let x = numbers.tensor([4, 1, 4, 4], &device()) * factor;
    let y = numbers.tensor([4, OUT], &device());
    let hidden = activation::relu(model.norm.forward(model.conv.forward(x)));
    (model.top.forward(hidden.reshape([4, 16])) - y).square().mean()
}

fn is_finite<M: Module>(model: &M) -> bool {
    values(model).iter().all(|(_, values)| values.iter().all(|v| v.is_finite()))
}

type Bits = Vec<(String, Vec<u32>)>;

/// Runs six good steps. With `bad`, a factor and a number of passes, a refused step precedes the third: it makes that many forward
/// passes, for which rank 1 multiplies its batches by the factor. Returns each rank's model, its evaluation copy and the error of the refused
/// step.
fn run(config: &Config, bad: Option<(f32, usize)>) -> Vec<(Bits, Bits, String)> {
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
        let (mut model, mut said) = (optim.join(Net::new(5))?, String::new());
        for step in 0..6 {
            if let Some((factor, passes)) = bad.filter(|_| step == 2) {
                let factor = if rank == 1 { factor } else { 1.0 };
                (1..passes).for_each(|pass| drop(loss(&model, data(70 + pass as u64, rank), factor)));
                let forward = optim.forward_model(&model)?;
                let loss = loss(&forward, data(77, rank), factor);
                drop(forward);
                optim.record_samples(4);
                let gradients = grads(&model, &loss);
                let error = optim.try_step(0.02, model, gradients).expect_err("refused");
                assert!(matches!(&error.source, Error::Sync(SyncError::NonFinite { step: 2, rank: 1, .. })), "{error}");
                said = error.source.to_string();
                model = *error.model;
                assert!(is_finite(&model), "rank {rank}");
            }
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        let shown = bits(&optim.evaluation_copy(&model)?);
        Ok((bits(&model), shown, said))
    })
}

#[test]
fn a_refused_batch_leaves_no_trace_in_running_statistics() {
    for config in [Config::dense(), top_k(), gravac(), during(r#""reducer": "dense""#)] {
        let good = run(&config, None);
        for (factor, passes) in [(f32::NAN, 1), (f32::INFINITY, 1), (1e22, 1), (f32::NAN, 3), (1e22, 2)] {
            for (rank, (bad, good)) in run(&config, Some((factor, passes))).iter().zip(&good).enumerate() {
                assert!(bad.0 == good.0, "{config:?}, {factor} in {passes} passes: rank {rank} trains differently");
                assert!(bad.1 == good.1, "{config:?}, {factor} in {passes} passes: rank {rank} evaluates differently");
                if factor == 1e22 {
                    // Inputs and gradients are finite; the variance overflows.
                    assert!(bad.2.contains("`norm.running_var`"), "{}", bad.2);
                }
            }
        }
    }
}

#[test]
fn a_buffer_that_is_not_finite_is_never_averaged_and_the_next_step_puts_it_back() {
    let directory = tempfile::tempdir().unwrap();
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let mut model = optim.join(Net::new(5))?;
        (model, _) = train(&mut optim, model, 0, rank)?;
        let before = bits(&model);
        // A pass whose batch the loop then skips.
        drop(loss(&model, 1, if rank == 2 { f32::NAN } else { 1.0 }));
        let texts = [
            optim.evaluation_copy(&model).map(drop).expect_err("rank 2's is NaN"),
            optim.save(&model, directory.path(), &BTreeMap::new()).expect_err("rank 2's is NaN"),
            optim.synchronizer_mut().average_buffers(model.clone()).map(drop).expect_err("rank 2's is NaN"),
        ];
        let operations = ["evaluation_copy", "checkpoint save", "average of buffers"];
        for (error, operation) in texts.iter().zip(operations) {
            let text = error.to_string();
            assert!(matches!(error, Error::NoMean { .. }) && text.starts_with(operation), "{text}");
            assert!(text.contains("rank 2 has a value that is not finite in `norm.running_mean`"), "{text}");
        }
        assert!(!Checkpoint::any(directory.path()), "nothing was written");
        let gradients = grads(&model, &loss(&model, data(1, rank), 1.0));
        let error = optim.try_step(0.02, model, gradients).expect_err("the buffer is still NaN");
        assert!(error.to_string().contains("rank 2 has a non-finite value in `norm.running_mean`"), "{error}");
        model = *error.model;
        assert_eq!(bits(&model), before, "rank {rank}");
        (model, _) = train(&mut optim, model, 1, rank)?;
        assert!(is_finite(&optim.evaluation_copy(&model)?));
        optim.save(&model, directory.path(), &BTreeMap::new())
    });
}

/// A layer with state that forward passes only read.
#[derive(Module, Debug)]
struct Masked {
    mask: RunningState<Tensor<1>>,
    layer: Linear,
}

impl Masked {
    fn new(middle: f32) -> Masked {
        let mask = Tensor::from_floats([0.0, middle, 0.0], &device());
        Masked { mask: RunningState::new(mask), layer: Mlp::new(1).second }
    }
}

#[test]
fn a_buffer_that_was_never_finite_is_no_fault() {
    ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let mut model = optim.join(Masked::new(f32::NEG_INFINITY))?;
        for step in 0..3 {
            let x = Numbers::new(step).tensor([4, 8], &device());
            let loss = activation::softmax(model.layer.forward(x) + model.mask.value().unsqueeze(), 1).square().mean();
            let gradients = grads(&model, &loss);
            model = optim.step(0.02, model, gradients)?;
        }
        let shown = optim.evaluation_copy(&model)?;
        assert_eq!(value(&shown, "mask"), [0.0, f32::NEG_INFINITY, 0.0]);
        Ok(())
    });
}

/// Rank 0 does not know that rank 1's buffer was not finite before.
#[test]
fn ranks_with_different_histories_of_a_buffer_decide_alike() {
    let directory = tempfile::tempdir().unwrap();
    let optimizer = |comm| DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
    ranks(2, |comm| {
        let (rank, mut optim) = (comm.rank(), optimizer(comm));
        let model = optim.join(Masked::new(0.0))?;
        // Buffers that are the same on all ranks would not be in each rank's file.
        model.mask.update(Masked::new([0.5, 1234.5][rank]).mask.value());
        optim.save(&model, directory.path(), &BTreeMap::new())
    });
    let step = directory.path().join("step-00000000");
    let [file, manifest] = ["rank-1.safetensors", "manifest.json"].map(|name| step.join(name));
    let mut bytes = fs::read(&file).unwrap();
    let place = bytes.windows(4).position(|value| value == 1234.5_f32.to_le_bytes()).expect("the mask");
    bytes[place..place + 4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    let mut changed = Manifest::parse(&fs::read(&manifest).unwrap()).unwrap();
    changed.checksums[1] = crc32fast::hash(&bytes);
    fs::write(&file, bytes).unwrap();
    fs::write(&manifest, changed.to_text().unwrap()).unwrap();
    let shown = ranks(2, |comm| {
        let mut optim = optimizer(comm);
        let model = optim.join(Masked::new(0.0))?;
        let (model, ..) = optim.resume(model, directory.path(), WorldChange::Refuse, |_| Ok(()))?;
        Ok(value(&optim.evaluation_copy(&model)?, "mask"))
    });
    assert_eq!(shown, [[0.0, f32::NEG_INFINITY, 0.0]; 2]);
}

#[test]
fn a_sum_of_buffers_beyond_the_largest_number_is_the_same_error_on_every_rank() {
    let results = outcomes(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Masked::new(3e38))?;
        optim.evaluation_copy(&model).map(drop)
    });
    for error in results.into_iter().map(|result| result.expect_err("the sum is not finite")) {
        assert!(error.to_string().contains("the sum over ranks of `mask` exceeds the largest number"), "{error}");
    }
}

#[test]
fn a_state_that_was_loaded_is_what_a_refused_batch_goes_back_to() {
    let directory = tempfile::tempdir().unwrap();
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let mut model = optim.join(Net::new(5))?;
        (model, _) = train(&mut optim, model, 0, rank)?;
        optim.save(&model, directory.path(), &BTreeMap::new())?;
        let saved = bits(&model);
        (model, _) = train(&mut optim, model, 1, rank)?;
        model = optim.load(model, &Checkpoint::latest(directory.path())?, WorldChange::Refuse)?;
        let gradients = grads(&model, &loss(&model, 9, f32::NAN));
        model = *optim.try_step(0.02, model, gradients).expect_err("refused").model;
        assert_eq!(bits(&model), saved);
        Ok(())
    });
}
