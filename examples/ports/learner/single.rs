//! Burn's learner: pictures, with metrics, checkpointers and early stopping.

use briquette_ports::{Classifier, Failure, Pictures, device, directory, last_losses, pictures};
use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::AdamConfig;
use burn::prelude::*;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{Learner, MetricEarlyStoppingStrategy, StoppingCondition, SupervisedTraining};

fn train(model: Classifier, device: Device) -> Result<Vec<f32>, Failure> {
    let (directory, loss) = (directory(), LossMetric::new());
    let train = DataLoaderBuilder::new(Pictures).batch_size(64).set_device(device.clone()).build(pictures(1, 512));
    let valid = DataLoaderBuilder::new(Pictures).batch_size(128).set_device(device.inner()).build(pictures(2, 256));
    let optimizer = AdamConfig::new().init();
    let patience = StoppingCondition::NoImprovementSince { n_epochs: 1 };
    let best = MetricEarlyStoppingStrategy::new(&loss, Aggregate::Mean, Direction::Lowest, Split::Valid, patience);
    let training = SupervisedTraining::new(&directory, train, valid)
        .metrics((AccuracyMetric::new(), loss))
        .with_default_checkpointers()
        .early_stopping(best)
        .num_epochs(6)
        .summary();
    let result = training.launch(Learner::new(model, optimizer, 0.01));
    result.model.into_record().save(directory.join("model"))?;
    last_losses(&directory)
}

fn main() -> Result<(), Failure> {
    let device = device();
    device.seed(42);
    let model = Classifier::new(&device);
    let losses = train(model.clone(), device.clone())?;
    println!("losses {losses:?}");
    Ok(())
}
