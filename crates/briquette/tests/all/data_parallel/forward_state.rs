//! State of Burn's learner after a refused batch, and at the start of a run.

use std::sync::Arc;

use briquette::core::comm::run_ranks;
use briquette::core::error::CommError;
use briquette::{DataParallel, DistributedConfig, DistributedOptimizer};
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::train::{Learner, SupervisedTraining, TrainingStrategy};

use super::common::*;

#[test]
fn after_a_refused_batch_the_learners_running_statistics_are_those_of_the_last_whole_step() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 6), Shard { trouble: Some(Trouble::NotFinite(3)), ..Shard::new(1, 6) }];
    let outcomes = train(directory.path(), &DistributedConfig::dense(), &shards, |_, rank| rank);
    let by_hand = run_ranks(world(2), |comm| {
        let shard = &shards[comm.rank()];
        let mut optim = DistributedOptimizer::new(optimizer(), comm, DistributedConfig::dense(), SEED);
        let mut schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
        let mut model = optim.join(Mlp::new(1, &device())).unwrap();
        for index in 0..3 {
            let loss = model.forward(shard.batch(index)).loss;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(schedule.step(), model, grads).unwrap();
        }
        // Rank-local, with the last step's update.
        Ok::<_, CommError>(bits(&model.valid()))
    });
    for (outcome, by_hand) in outcomes.iter().zip(by_hand) {
        let error = outcome.error.as_ref().expect("refused");
        assert!(error.contains("rank 1 has a non-finite value"), "{error}");
        assert_eq!(bits(&outcome.model), by_hand.unwrap());
    }
}

#[test]
fn the_state_of_rank_0s_learner_is_every_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let run = |has_state: [bool; 2]| {
        let outcomes = run_ranks(world(2), |comm| {
            let rank = comm.rank();
            let (model, mut inner) = (Mlp::new(1, &device()), optimizer());
            if has_state[rank] {
                let loss = model.forward(Shard::new(9, 1).batch(0)).loss;
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                drop(inner.step(0.05, model.clone(), grads));
            }
            let path = directory.path().join(format!("{has_state:?}-{rank}"));
            let training = SupervisedTraining::new(path, Arc::new(Shard::new(rank, 4)), Arc::new(Shard::new(50, 1)))
                .renderer(Box::new(Silent))
                .with_application_logger(None)
                .num_epochs(1);
            let strategy = DataParallel::new(comm, DistributedConfig::dense(), SEED, device());
            let schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
            let training = training.with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy)));
            let result = training.launch(Learner::new(model, inner, schedule));
            let error = result.error.map(|error| error.to_string());
            Ok::<_, CommError>(Outcome { model: result.model, error, interrupted: None })
        });
        let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
        assert_agree(&outcomes);
        parameters(&outcomes[0].model)
    };
    let (all, none) = (run([true, true]), run([false, false]));
    assert_ne!(all, none);
    assert_eq!(run([true, false]), all);
    assert_eq!(run([false, true]), none);
}
