//! A text transformer, with gradient accumulation over two batches.

use briquette::{DistributedConfig, DistributedOptimizer, core::Session, data::ShardedDataLoaderBuilder};
use briquette_ports::{Failure, Reader, Sentences, device, sentences, value};
use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;

fn train(session: Session, model: Reader, device: Device) -> Result<Vec<f32>, Failure> {
    let test = DataLoaderBuilder::new(Sentences).batch_size(128).set_device(device.clone()).build(sentences(2, 128));
    let data = sentences(1, 512);
    let loader = ShardedDataLoaderBuilder::new(Sentences, &session).batch_size(16).set_device(device).build(data)?;
    let mut optim = DistributedOptimizer::new(AdamConfig::new().init(), session, DistributedConfig::dense(), 42);
    let mut model = optim.join(model)?;
    let mut accumulator = GradientsAccumulator::new();
    let mut losses = Vec::new();
    for _epoch in 0..3 {
        for (number, batch) in loader.iter().enumerate() {
            let (texts, labels) = batch?;
            let loss = model.loss(texts, labels) / 2.0;
            accumulator.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
            if number % 2 == 1 {
                model = optim.step(0.01, model, accumulator.grads())?;
            }
        }
        for batch in test.iter() {
            let (texts, labels) = batch?;
            losses.push(value(model.loss(texts, labels)));
        }
    }
    Ok(losses)
}

fn main() -> Result<(), Failure> {
    let device = device();
    device.seed(42);
    let model = Reader::new(&device);
    let losses = briquette::run(4, |session| train(session, model.clone(), device.clone()))?;
    println!("losses {losses:?}");
    Ok(())
}
