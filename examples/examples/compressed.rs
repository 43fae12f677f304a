//! Simulated compression in a single process: the effect on training of sending only a part of each gradient.
//!
//! ```sh
//! cargo run --release --example compressed [STEPS]
//! ```

use briquette::Compressed;
use briquette::core::compress::top_k::TopK;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

/// Returns the loss after `steps` steps of learning `y = x · (1, …, 1)`.
fn train(mut optim: ModuleOptimizer, steps: usize) -> f32 {
    let device = Device::flex().autodiff();
    // The same weights and samples for every optimizer.
    device.seed(42);
    let mut model: Linear = LinearConfig::new(100, 1).init(&device);
    let mut value = f32::NAN;
    for _ in 0..steps {
        let x = Tensor::<2>::random([32, 100], Distribution::Normal(0.0, 1.0), &device);
        let loss = MseLoss::new().forward(model.forward(x.clone()), x.sum_dim(1), Reduction::Mean);
        value = loss.clone().into_scalar();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.005, model, grads);
    }
    value
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps = std::env::args().nth(1).map_or(Ok(2000), |steps| steps.parse())?;
    println!("all of the gradient: loss {:.4}", train(SgdConfig::new().init(), steps));
    for fraction in [0.1, 0.01] {
        // Wraps the optimizer returned by `build` for one tensor. It sees the largest values of each gradient; the
        // others are kept and added to the next gradient, so that each is sent in the end.
        let optim = Compressed::new(SgdConfig::new().build(), TopK::fraction(fraction)?, 42);
        println!("{:>4.0} % of each tensor: loss {:.4}", 100.0 * fraction, train(optim.into(), steps));
    }
    Ok(())
}
