//! The diff between plain Burn and Burn on many ranks: the lines marked `+`. The compression ratio is chosen automatically.
//!
//! ```sh
//! cargo run --release --example wrap_optimizer                              # two threads
//! briquette launch --ranks 2 -- target/release/examples/wrap_optimizer      # two processes
//! ```

use briquette::core::Session; // +
use briquette::{DistributedOptimizer, Error}; // +
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

/// Learns `y = x · (1, 2, 3)`; every rank draws its own samples.
fn train(session: Session) -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let target = Tensor::<2>::from_data([[1.0], [2.0], [3.0]], &device);
    let model: Linear = LinearConfig::new(3, 1).init(&device);
    let optim = SgdConfig::new().init();
    let mut optim = DistributedOptimizer::auto(optim, session, 42); // +
    let mut model = optim.join(model)?; // +
    for step in 1..=200 {
        let x = Tensor::<2>::random([16, 3], Distribution::Default, &device);
        let loss = MseLoss::new().forward(model.forward(x.clone()), x.matmul(target.clone()), Reduction::Mean);
        let value: f32 = loss.clone().into_scalar();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.1, model, grads)?; // + `?`
        if step % 50 == 0 && optim.rank() == 0 {
            println!("step {step}: loss {value:.6}");
        }
    }
    if optim.rank() == 0 {
        println!("{}", optim.summary());
    }
    Ok(())
}

fn main() -> Result<(), briquette::RunError> {
    briquette::run(2, train) // +
}
