//! Regression: a line through noisy points, by plain SGD.

use briquette_ports::{Failure, device, numbers, value};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::prelude::*;

struct Points;

impl Batcher<[f32; 4], (Tensor<2>, Tensor<2>)> for Points {
    fn batch(&self, points: Vec<[f32; 4]>, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let count = points.len();
        let all = Tensor::<2>::from_data(TensorData::new(points.concat(), [count, 4]), device);
        (all.clone().slice([0..count, 0..3]), all.slice([0..count, 3..4]))
    }
}

fn points(seed: u64, count: usize) -> InMemDataset<[f32; 4]> {
    let mut random = numbers(seed);
    let mut next = || random.next().unwrap_or(0.0);
    let point = |_| {
        let [a, b, c] = [next(), next(), next()];
        [a, b, c, a + 2.0 * b + 3.0 * c + 0.1 * next()]
    };
    InMemDataset::new((0..count).map(point).collect())
}

fn train(mut model: Linear, device: Device) -> Result<Vec<f32>, Failure> {
    let test = DataLoaderBuilder::new(Points).batch_size(100).set_device(device.clone()).build(points(2, 100));
    let data = points(1, 500);
    let loader = DataLoaderBuilder::new(Points).batch_size(64).set_device(device).build(data);
    let mut optim = SgdConfig::new().init();
    let mut losses = Vec::new();
    for _epoch in 0..3 {
        for batch in loader.iter() {
            let (x, y) = batch?;
            let loss = MseLoss::new().forward(model.forward(x), y, Reduction::Mean);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(0.1, model, grads);
        }
        for batch in test.iter() {
            let (x, y) = batch?;
            losses.push(value(MseLoss::new().forward(model.forward(x), y, Reduction::Mean)));
        }
    }
    Ok(losses)
}

fn main() -> Result<(), Failure> {
    let device = device();
    device.seed(42);
    let model = LinearConfig::new(3, 1).init(&device);
    let losses = train(model.clone(), device.clone())?;
    println!("losses {losses:?}");
    Ok(())
}
