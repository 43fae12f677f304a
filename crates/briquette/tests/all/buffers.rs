//! BatchNorm's running statistics: rank 0's at join, averaged for evaluation and saving, never exchanged in a step.

use std::collections::BTreeMap;
use std::path::Path;

use briquette::core::config::Config;
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Tensor};

use crate::common::*;

#[derive(Module, Debug)]
struct Norm {
    norm: BatchNorm,
}

impl Norm {
    fn new() -> Self {
        Norm { norm: BatchNormConfig::new(1).with_momentum(0.5).init(&device()) }
    }

    /// A forward pass over `centre - 1` and `centre + 1`: mean `centre`, variance 1.
    fn see(&self, centre: f32) -> Tensor<1> {
        self.norm.forward(Tensor::<2>::from_floats([[centre - 1.0], [centre + 1.0]], &device())).sum()
    }

    /// Running mean and variance.
    fn running(&self) -> [f32; 2] {
        [value(self, "norm.running_mean")[0], value(self, "norm.running_var")[0]]
    }
}

#[test]
fn rank_0s_running_statistics_replace_the_others_at_join_even_with_an_update_pending() {
    let seen = ranks(2, |comm| {
        let rank = comm.rank();
        let model = Norm::new();
        model.see(if rank == 0 { 8.0 } else { -100.0 });
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(model)?;
        let slots: Vec<_> = optim.synchronizer().layout()?.slots().iter().map(|s| s.path().to_owned()).collect();
        assert_eq!(slots, ["norm.gamma", "norm.beta"], "running statistics are no slots");
        let joined = model.running();
        // The next update starts from rank 0's: 0.5·4 + 0.5·2.
        model.see(2.0);
        Ok((joined, model.running()))
    });
    for (joined, next) in seen {
        assert_eq!(joined[0], 4.0); // 0.5·0 + 0.5·8
        assert_eq!(next[0], 3.0);
    }
}

#[test]
fn running_statistics_stay_with_their_rank_in_a_step_and_are_averaged_when_asked() {
    let seen = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Norm::new())?;
        let loss = model.see(if rank == 0 { 8.0 } else { 2.0 });
        let gradients = grads(&model, &loss);
        let model = optim.step(0.1, model, gradients)?;
        let own = model.running();
        let model = optim.synchronizer_mut().average_buffers(model)?;
        let averaged = model.running();
        assert_eq!(model.clone().valid().running(), averaged);
        Ok((own, averaged))
    });
    let variance = seen[0].0[1];
    // Means 0.5·8 and 0.5·2, then (4 + 1)/2; both batches have the same variance.
    assert_eq!([seen[0].0[0], seen[1].0[0]], [4.0, 1.0]);
    assert_eq!(seen[0].1, seen[1].1);
    assert_eq!(seen[0].1, [2.5, variance]);
}

/// The model that a user loads from the common file.
fn model_in(directory: &Path) -> Norm {
    let file = Checkpoint::latest(directory).unwrap().path().join("common-0.safetensors");
    let bytes = std::fs::read(file).unwrap();
    let model = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensor("model").unwrap().data().to_vec();
    Norm::new().load_record(ModuleRecord::from_bytes(Bytes::from_bytes_vec(model)).unwrap())
}

#[test]
fn a_checkpoint_shows_averaged_statistics_and_loading_gives_each_rank_its_own_even_with_an_update_pending() {
    let directory = tempfile::tempdir().unwrap();
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Norm::new())?;
        let loss = model.see(if rank == 0 { 8.0 } else { 2.0 });
        let gradients = grads(&model, &loss);
        let model = optim.step(0.1, model, gradients)?;
        optim.save(&model, directory.path(), &BTreeMap::new())?;
        assert_eq!(model.running()[0], [4.0, 1.0][rank], "saving changes nothing");
        Ok::<_, Error>(())
    });
    assert_eq!(model_in(directory.path()).running()[0], 2.5);
    let loaded = ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Norm::new())?;
        model.see(1000.0);
        let model = optim.load(model, &Checkpoint::latest(directory.path())?, WorldChange::Refuse)?;
        let loaded = model.running()[0];
        model.see(0.5);
        Ok((loaded, model.running()[0]))
    });
    assert_eq!(loaded, [(4.0, 2.25), (1.0, 0.75)]);
    // Ranks of another world start with the means.
    let loaded = ranks(1, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Norm::new())?;
        let latest = Checkpoint::latest(directory.path())?;
        Ok(optim.load(model, &latest, WorldChange::SpreadResiduals)?.running()[0])
    });
    assert_eq!(loaded, [2.5]);
}

#[test]
fn evaluating_and_saving_at_any_step_changes_no_bit_of_training() {
    let local_sgd = config(r#"{"strategy": "local-sgd:4"}"#);
    for config in [Config::dense(), top_k(), local_sgd] {
        let run = |often: bool| {
            let directory = tempfile::tempdir().unwrap();
            ranks(3, |comm| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
                let mut model = optim.join(Net::new(5))?;
                let mut shown = Vec::new();
                for step in 0..7 {
                    (model, _) = train(&mut optim, model, step, rank)?;
                    if often {
                        shown.push(bits(&optim.evaluation_copy(&model)?));
                        optim.save(&model, directory.path(), &BTreeMap::new())?;
                    }
                }
                Ok((bits(&model), shown))
            })
        };
        let (seldom, often) = (run(false), run(true));
        for (rank, (seldom, often)) in seldom.iter().zip(&often).enumerate() {
            assert!(seldom.0 == often.0, "{config:?}: rank {rank}");
        }
        assert!(often.iter().all(|(own, shown)| own != &shown[6] && shown == &often[0].1), "one evaluation for all");
    }
}
