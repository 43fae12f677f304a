//! Properties that hold for every model on every backend.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::config::Config;
use briquette::{Backend, Checkpoint, DistributedOptimizer, Error, WorldChange};
use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};

use crate::models::{Model, Numbers, bits, distance, values};

/// Runs every rank of a world of threads and fails with the first error.
pub(crate) fn ranks<T: Send>(world: usize, body: impl Fn(Session) -> Result<T, Error> + Sync) -> Vec<T> {
    let comms = Local::builder(world).deadline(Duration::from_secs(120)).build();
    let results = run_ranks(comms, body).into_iter().enumerate();
    results.map(|(rank, result)| result.unwrap_or_else(|error| panic!("rank {rank}: {error}"))).collect()
}

pub(crate) fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

/// Momentum correction over top-k with 8-bit values: the configuration with the most state.
fn compressed() -> Config {
    let config = r#"{"strategy": "every-step", "feedback": {"kind": "momentum", "clip": 2.0},
                     "reducer": {"kind": "gather", "compressor": "topk:8x:q8"}}"#;
    serde_json::from_str(config).expect("a valid configuration")
}

/// The data of one rank's step.
pub(crate) fn data(step: u64, rank: usize) -> u64 {
    step * 101 + rank as u64 + 1
}

pub(crate) fn flex() -> Device {
    Backend::Flex.device(0).expect("flex is in every build of the tests").autodiff()
}

/// The one process sums its losses over three batches, because BatchNorm's statistics are rank-local.
pub(crate) fn three_dense_ranks_equal_one_process<M: Model>(device: &Device) {
    let mut during = Config::dense();
    (during.exchange.during_backward, during.exchange.bucket_values) = (true, Some(50));
    let replicas = [Config::dense(), during].map(|config| {
        ranks(3, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(adam(), comm, config.clone(), 1);
            let mut model = optim.join(M::new(if rank == 0 { 5 } else { 77 }, device))?;
            for step in 0..4 {
                let forward = optim.forward_model(&model)?;
                let gradients = forward.gradients(data(step, rank), 4, device);
                drop(forward);
                model = optim.step(0.01, model, gradients)?;
            }
            Ok(values(&optim.synchronizer_mut().average_buffers(model)?))
        })
    });
    let (mut model, mut optim) = (M::new(5, device), adam());
    let start = values(&model);
    for step in 0..4 {
        let losses = [0, 1, 2].map(|rank| model.loss(data(step, rank), 4, device));
        let [a, b, c] = losses;
        let gradients = GradientsParams::from_grads(((a + b + c) / 3.0).backward(), &model);
        model = optim.step(0.01, model, gradients);
    }
    // BatchNorm's running statistics: three updates in a row in one process, an average of three elsewhere.
    let trainable = trainable_only(&model, &values(&model));
    assert!(distance(&trainable, &trainable_only(&model, &start)) > 0.01, "nothing was trained");
    for replica in replicas.iter().flatten() {
        let off = distance(&trainable_only(&model, replica), &trainable);
        assert!(off <= 1e-4, "{off}");
    }
}

/// The values of trainable parameters, selected from all.
fn trainable_only<M: Model>(module: &M, all: &[f32]) -> Vec<f32> {
    struct Pick<'a>(&'a [f32], Vec<f32>);
    impl burn::module::ModuleVisitor for Pick<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let (mine, rest) = self.0.split_at(value.shape().num_elements());
            self.0 = rest;
            if value.is_require_grad() {
                self.1.extend(mine);
            }
        }
    }
    let mut pick = Pick(all, Vec::new());
    module.visit(&mut pick);
    pick.1
}

pub(crate) fn compressed_replicas_are_identical<M: Model>(device: &Device) {
    let replicas = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), comm, compressed(), 1);
        let mut model = optim.join(M::new(rank as u64, device))?;
        for step in 0..6 {
            let gradients = model.gradients(data(step, rank), 4, device);
            model = optim.step(0.05, model, gradients)?;
        }
        Ok(values(&optim.synchronizer_mut().average_buffers(model)?))
    });
    assert!(distance(&replicas[0], &values(&M::new(0, device))) > 1e-3, "nothing was trained");
    assert_eq!(bits(&replicas[0]), bits(&replicas[1]));
}

/// Gradients must not be delayed to the end of the backward pass: a Burn or a backend that computes in another order is detected.
pub(crate) fn exchanges_during_backward_have_the_same_results<M: Model>(device: &Device) {
    let config = r#"{"reducer": "gather:topk:4x", "feedback": "error", "bucket_values": 64, "during_backward": true}"#;
    let config: Config = serde_json::from_str(config).expect("a valid configuration");
    let run = |during: bool| {
        ranks(2, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), comm, config.clone(), 1);
            let mut model = optim.join(M::new(5, device))?;
            let slots = optim.synchronizer().layout()?.slots().len();
            for step in 0..4 {
                let forward = if during { optim.forward_model(&model)? } else { model.clone() };
                let gradients = forward.gradients(data(step, rank), 4, device);
                drop(forward);
                model = optim.step(0.05, model, gradients)?;
                let came: Vec<usize> = optim.report().arrivals.iter().map(|arrival| arrival.slot).collect();
                if during && cfg!(feature = "overlap-backward") {
                    let mut sorted = came.clone();
                    sorted.sort_unstable();
                    assert!(sorted.into_iter().eq(0..slots), "each once: {came:?}");
                    // The last layer's arrive before the first's.
                    let place = |of: usize| came.iter().position(|slot| *slot == of);
                    assert!(place(slots - 1) < place(0), "{came:?}");
                    assert!(optim.report().arrivals.is_sorted_by(|a, b| a.lead >= b.lead), "in order");
                } else {
                    assert!(came.is_empty(), "{came:?}");
                }
            }
            Ok(values(&optim.synchronizer_mut().average_buffers(model)?))
        })
    };
    let (during, after) = (run(true), run(false));
    assert!(distance(&during[0], &values(&M::new(5, device))) > 1e-3, "nothing was trained");
    assert_eq!(bits(&during[0]), bits(&during[1]), "replicas");
    // If a parameter is used several times, as an LSTM's are, the order of its sums may differ.
    let off = distance(&during[0], &after[0]);
    assert!(off <= 1e-5, "{off}");
}

const HALF: u64 = 3;

/// Two ranks under Adam and compression, from the checkpoint in `from`, up to step `until`; saves at `HALF` into `to`.
fn run<M: Model>(device: &Device, from: Option<&Path>, to: Option<&Path>, until: u64) -> Vec<Vec<f32>> {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, Config::top_k(0.2)?, 3);
        let mut model = optim.join(M::new(if from.is_some() { 999 } else { 5 }, device))?;
        if let Some(directory) = from {
            model = optim.load(model, &Checkpoint::latest(directory)?, WorldChange::Refuse)?;
        }
        for step in optim.synchronizer().step()..until {
            let gradients = model.gradients(data(step, rank), 4, device);
            model = optim.step(0.01, model, gradients)?;
            if let Some(directory) = to.filter(|_| step + 1 == HALF) {
                optim.save(&model, directory, &BTreeMap::new())?;
            }
        }
        Ok(values(&model))
    })
}

pub(crate) fn resuming_changes_nothing<M: Model>(device: &Device) {
    let directory = tempfile::tempdir().unwrap();
    let whole = run::<M>(device, None, Some(directory.path()), 2 * HALF);
    let resumed = run::<M>(device, Some(directory.path()), None, 2 * HALF);
    for rank in 0..2 {
        assert!(bits(&whole[rank]) == bits(&resumed[rank]), "rank {rank}: {}", distance(&whole[rank], &resumed[rank]));
    }
}

/// Bit for bit at the step that was saved; up to rounding in later steps.
pub(crate) fn checkpoints_travel_between_backends<M: Model>(device: &Device) {
    let flex = flex();
    for (there, here) in [(device, &flex), (&flex, device)] {
        let directory = tempfile::tempdir().unwrap();
        let saved = run::<M>(there, None, Some(directory.path()), HALF);
        let loaded = run::<M>(here, Some(directory.path()), None, HALF);
        assert!(saved.iter().zip(&loaded).all(|(a, b)| bits(a) == bits(b)), "the state itself");
        // Top-k may select another of two almost equal values: one step, and not to the last digit.
        let went_on = run::<M>(there, Some(directory.path()), None, HALF + 1);
        let elsewhere = run::<M>(here, Some(directory.path()), None, HALF + 1);
        assert!(distance(&went_on[0], &loaded[0]) > 1e-4, "nothing was trained");
        let off = distance(&went_on[0], &elsewhere[0]);
        assert!(off <= 1e-4, "{off}");
    }
}

pub(crate) fn gradients_are_those_of_flex<M: Model>(device: &Device) {
    let of = |device: &Device| {
        let world = Local::builder(1).build().into_iter();
        let comm = world.last().expect("a world of one");
        let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
        let model = optim.join(M::new(5, device)).unwrap();
        let gradients = model.gradients(9, 8, device);
        optim.synchronizer().flat_gradient(&model, &gradients).unwrap()
    };
    let (here, there) = (of(device), of(&flex()));
    let largest = there.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
    let off = distance(&here, &there) / largest;
    assert!(off <= 1e-4, "{off} of the largest value");
}

/// Three vectors, of which a rank's loss may leave some out.
#[derive(Module, Debug)]
struct Three {
    first: Param<Tensor<1>>,
    unused: Param<Tensor<1>>,
    last: Param<Tensor<1>>,
}

/// Rank 0 has gradients for the first and the last, rank 1 for the last, and no rank for the one between.
pub(crate) fn slots_without_a_gradient_stay_out_of_the_way(device: &Device) {
    let step = |device: &Device| {
        ranks(2, |comm| {
            let rank = comm.rank();
            let mut numbers = Numbers::new(3);
            let mut param = |len: usize| Param::from_tensor(numbers.tensor([len], device).require_grad());
            let module = Three { first: param(5), unused: param(300), last: param(7) };
            let start = values(&module);
            // Adam steps exactly the parameters with a gradient.
            let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
            let module = optim.join(module)?;
            let mut loss = module.last.val().square().sum();
            if rank == 0 {
                loss = loss + module.first.val().square().sum();
            }
            let gradients = GradientsParams::from_grads(loss.backward(), &module);
            let module = optim.step(0.1, module, gradients)?;
            Ok((start, values(&module)))
        })
    };
    let here = step(device);
    let (start, end) = &here[0];
    assert_eq!(bits(end), bits(&here[1].1), "replicas");
    assert_eq!(bits(&start[5..305]), bits(&end[5..305]), "what nobody has a gradient for");
    assert!(
        start[..5].iter().zip(&end[..5]).all(|(a, b)| a != b)
            && start[305..].iter().zip(&end[305..]).all(|(a, b)| a != b)
    );
    assert!(distance(end, &step(&flex())[0].1) <= 1e-6);
}
