//! Two optimizers: a generator of points, and a critic that distinguishes them from real ones.

use briquette::{DistributedConfig, DistributedOptimizer, core::Session, data::ShardedDataLoaderBuilder};
use briquette_ports::{Draws, Failure, Network, device, distance, draws, value};
use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Device;

fn train(mut session: Session, generator: Network, critic: Network, device: Device) -> Result<Vec<f32>, Failure> {
    let test = DataLoaderBuilder::new(Draws).batch_size(128).set_device(device.clone()).build(draws(2, 128));
    let data = draws(1, 512);
    let loader = ShardedDataLoaderBuilder::new(Draws, &session).batch_size(16).set_device(device).build(data)?;
    let of_critic = AdamConfig::new().with_beta_1(0.5).init();
    let of_generator = AdamConfig::new().with_beta_1(0.5).init();
    let (second, dense) = (session.share(), DistributedConfig::dense);
    let mut of_critic = DistributedOptimizer::new(of_critic, session, dense(), 42);
    let mut of_generator = DistributedOptimizer::new(of_generator, second, dense(), 42);
    let (mut generator, mut critic) = (of_generator.join(generator)?, of_critic.join(critic)?);
    let mut losses = Vec::new();
    for _epoch in 0..6 {
        for batch in loader.iter() {
            let (noise, points) = batch?;
            let made = generator.forward(noise.clone()).detach();
            let loss = critic.miss(points, 1.0) + critic.miss(made, 0.0);
            let grads = GradientsParams::from_grads(loss.backward(), &critic);
            critic = of_critic.step(0.02, critic, grads)?;
            let loss = critic.miss(generator.forward(noise), 1.0);
            let grads = GradientsParams::from_grads(loss.backward(), &generator);
            generator = of_generator.step(0.01, generator, grads)?;
        }
        for batch in test.iter() {
            let (noise, points) = batch?;
            losses.push(value(distance(generator.forward(noise), points)));
        }
    }
    Ok(losses)
}

fn main() -> Result<(), Failure> {
    let device = device();
    device.seed(42);
    let (generator, critic) = (Network::generator(&device), Network::critic(&device));
    let losses = briquette::run(4, |session| train(session, generator.clone(), critic.clone(), device.clone()))?;
    println!("losses {losses:?}");
    Ok(())
}
