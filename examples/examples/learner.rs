//! Burn's `SupervisedTraining` on four ranks: one dashboard, metrics of all four. Training continues while two of them are left.
//!
//! ```sh
//! cargo run --release --example learner [EPOCHS] [DIRECTORY]
//! cargo run --release --example learner --features tui 40        # Burn's dashboard, in a terminal
//! briquette launch --ranks 4 --elastic 2 --rejoin -- target/release/examples/learner  # four processes; a lost one is started again
//! ```

use std::path::PathBuf;

use briquette::core::Session;
use briquette::core::membership::Regroup;
use briquette::data::ShardedDataLoaderBuilder;
use briquette::{DataParallel, DistributedConfig};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, MetricEarlyStoppingStrategy, StoppingCondition, TrainOutput,
    TrainStep,
};

/// Points on two spirals, labeled by their spiral.
#[derive(Debug, Clone)]
struct Points;

type Batch = (Tensor<2>, Tensor<1, Int>);

fn spirals(count: usize) -> InMemDataset<([f32; 2], i64)> {
    let point = |index: usize| {
        // Shuffled, so that a batch has points from everywhere.
        let index = index * 617 % count;
        let (side, at) = (index % 2, (index / 2) as f32 / count as f32 * 2.0);
        // An irrational step in place of noise.
        let (radius, angle) = (at + 0.02 * (index as f32 * 1.618).sin(), 7.0 * at + side as f32 * std::f32::consts::PI);
        ([radius * angle.cos(), radius * angle.sin()], side as i64)
    };
    InMemDataset::new((0..count).map(point).collect())
}

impl Batcher<([f32; 2], i64), Batch> for Points {
    fn batch(&self, items: Vec<([f32; 2], i64)>, device: &Device) -> Batch {
        let (points, sides): (Vec<[f32; 2]>, Vec<i64>) = items.into_iter().unzip();
        let count = sides.len();
        let points = Tensor::from_data(TensorData::new(points.concat(), [count, 2]), device);
        (points, Tensor::from_data(TensorData::new(sides, [count]), device))
    }
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;
    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;
    fn step(&self, (points, sides): Batch) -> ClassificationOutput {
        let last = self.layers.len() - 1;
        let through = |x, (at, layer): (usize, &Linear)| {
            let x = layer.forward(x);
            if at < last { activation::tanh(x) } else { x }
        };
        let output = self.layers.iter().enumerate().fold(points, through);
        let loss = CrossEntropyLossConfig::new().init(&sides.device()).forward(output.clone(), sides.clone());
        ClassificationOutput::new(loss, output, sides)
    }
}

fn train(
    session: Session,
    membership: Box<dyn Regroup>,
    epochs: usize,
    directory: PathBuf,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let device = Device::flex().autodiff();
    let layer = |from, to| LinearConfig::new(from, to).init(&device);
    let model = Net { layers: vec![layer(2, 32), layer(32, 32), layer(32, 2)] };
    let optimizer = AdamConfig::new().init();
    let config = DistributedConfig::top_k_q8(0.1)?;
    let ranks = DataParallel::new(session, config, 42, device).with_optimizer(&optimizer).with_membership(membership);
    let train = ShardedDataLoaderBuilder::new(Points, &ranks).batch_size(16).shuffle(42).build(spirals(2048))?;
    let valid = ShardedDataLoaderBuilder::new(Points, &ranks).batch_size(64).build(spirals(1000))?;
    let patience = StoppingCondition::NoImprovementSince { n_epochs: 5 };
    let loss = LossMetric::new();
    let stopping = MetricEarlyStoppingStrategy::new(&loss, Aggregate::Mean, Direction::Lowest, Split::Valid, patience);
    let training = ranks
        .training(&directory, train, valid)
        .metrics((AccuracyMetric::new(), loss))
        .metric_train_numeric(ranks.metrics().wire_ratio())
        .with_default_checkpointers()
        .early_stopping(stopping)
        .num_epochs(epochs)
        .summary();
    // The rest is done by rank 0 alone.
    let Some(mut result) = ranks.launch(training, Learner::new(model, optimizer, 0.003))? else { return Ok(()) };
    result.renderer.manual_close();
    result.model.into_record().save(directory.join("model"))?;
    println!("the model is in {}", directory.join("model.bpk").display());
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let epochs = arguments.next().map_or(Ok(20), |epochs| epochs.parse())?;
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "runs/learner".to_owned()));
    Ok(briquette::run_elastic(4, 2, move |session, membership| train(session, membership, epochs, directory.clone()))?)
}
