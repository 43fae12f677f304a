//! A text transformer, with gradient accumulation over two batches.

use briquette_ports::{Failure, Reader, Sentences, device, sentences, value};
use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;

fn train(mut model: Reader, device: Device) -> Result<Vec<f32>, Failure> {
    let test = DataLoaderBuilder::new(Sentences).batch_size(128).set_device(device.clone()).build(sentences(2, 128));
    let data = sentences(1, 512);
    let loader = DataLoaderBuilder::new(Sentences).batch_size(64).set_device(device).build(data);
    let mut optim = AdamConfig::new().init();
    let mut accumulator = GradientsAccumulator::new();
    let mut losses = Vec::new();
    for _epoch in 0..3 {
        for (number, batch) in loader.iter().enumerate() {
            let (texts, labels) = batch?;
            let loss = model.loss(texts, labels) / 2.0;
            accumulator.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
            if number % 2 == 1 {
                model = optim.step(0.01, model, accumulator.grads());
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
    let losses = train(model.clone(), device.clone())?;
    println!("losses {losses:?}");
    Ok(())
}
