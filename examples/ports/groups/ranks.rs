//! Fine-tuning: the first layer frozen, a separate optimizer for the head, and gradient clipping.

use briquette::{DistributedConfig, DistributedOptimizer, core::Session, data::ShardedDataLoaderBuilder};
use briquette_ports::{Classifier, Failure, Pictures, device, pictures, value};
use burn::data::dataloader::DataLoaderBuilder;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::ParamGroup;
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::prelude::*;

fn train(session: Session, model: Classifier, device: Device) -> Result<Vec<f32>, Failure> {
    let test = DataLoaderBuilder::new(Pictures).batch_size(128).set_device(device.clone()).build(pictures(2, 128));
    let data = pictures(1, 512);
    let loader = ShardedDataLoaderBuilder::new(Pictures, &session).batch_size(16).set_device(device).build(data)?;
    let clipped = SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Norm(0.5)));
    let optim = clipped.init().with_group(ParamGroup::from_predicate("head"), AdamConfig::new().build(), None);
    let mut optim = DistributedOptimizer::new(optim, session, DistributedConfig::dense(), 42);
    let mut model = optim.join(model)?;
    let mut losses = Vec::new();
    for _epoch in 0..3 {
        for batch in loader.iter() {
            let (images, labels) = batch?;
            let loss = model.loss(images, labels);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(0.02, model, grads)?;
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
    let mut model = Classifier::new(&device);
    model.first = model.first.no_grad();
    let losses = briquette::run(4, |session| train(session, model.clone(), device.clone()))?;
    println!("losses {losses:?}");
    Ok(())
}
