//! Burn's learner: pictures, with metrics, checkpointers and early stopping.

use briquette::{DataParallel, DistributedConfig, core::Session, data::ShardedDataLoaderBuilder};
use briquette_ports::{Classifier, Failure, Pictures, device, directory, last_losses, pictures};
use burn::optim::AdamConfig;
use burn::prelude::*;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{Learner, MetricEarlyStoppingStrategy, StoppingCondition};

fn train(session: Session, model: Classifier, device: Device) -> Result<Vec<f32>, Failure> {
    let (directory, loss) = (directory(), LossMetric::new());
    let train = ShardedDataLoaderBuilder::new(Pictures, &session).batch_size(16).build(pictures(1, 512))?;
    let valid = ShardedDataLoaderBuilder::new(Pictures, &session).batch_size(32).build(pictures(2, 256))?;
    let optimizer = AdamConfig::new().init();
    let patience = StoppingCondition::NoImprovementSince { n_epochs: 1 };
    let best = MetricEarlyStoppingStrategy::new(&loss, Aggregate::Mean, Direction::Lowest, Split::Valid, patience);
    let ranks = DataParallel::new(session, DistributedConfig::dense(), 42, device).with_optimizer(&optimizer);
    let training = ranks
        .training(&directory, train, valid)
        .metrics((AccuracyMetric::new(), loss))
        .with_default_checkpointers()
        .early_stopping(best)
        .num_epochs(6)
        .summary();
    let Some(result) = ranks.launch(training, Learner::new(model, optimizer, 0.01))? else { return Ok(Vec::new()) };
    result.model.into_record().save(directory.join("model"))?;
    last_losses(&directory)
}

fn main() -> Result<(), Failure> {
    let device = device();
    device.seed(42);
    let model = Classifier::new(&device);
    let losses = briquette::run(4, |session| train(session, model.clone(), device.clone()))?;
    println!("losses {losses:?}");
    Ok(())
}
