//! A custom training loop: a convolutional network on pictures of four kinds.

use briquette_ports::{Classifier, Failure, Pictures, device, pictures, value};
use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Device;

fn train(mut model: Classifier, device: Device) -> Result<Vec<f32>, Failure> {
    let test = DataLoaderBuilder::new(Pictures).batch_size(128).set_device(device.clone()).build(pictures(2, 128));
    let data = pictures(1, 512);
    let loader = DataLoaderBuilder::new(Pictures).batch_size(64).set_device(device).build(data);
    let mut optim = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _epoch in 0..3 {
        for batch in loader.iter() {
            let (images, labels) = batch?;
            let loss = model.loss(images, labels);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(0.01, model, grads);
        }
        for batch in test.iter() {
            let (images, labels) = batch?;
            losses.push(value(model.loss(images, labels)));
        }
    }
    Ok(losses)
}

fn main() -> Result<(), Failure> {
    let device = device();
    device.seed(42);
    let model = Classifier::new(&device);
    let losses = train(model.clone(), device.clone())?;
    println!("losses {losses:?}");
    Ok(())
}
