//! Fine-tuning: the body is frozen, the head is trained, and only the head's gradients are sent.
//!
//! ```sh
//! cargo run --release --example frozen [STEPS]
//! ```

use briquette::core::Session;
use briquette::core::config::Config;
use briquette::{DistributedOptimizer, Error};
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};

#[derive(Module, Debug)]
struct Net {
    /// Would be loaded from a file.
    body: Linear,
    head: Linear,
}

impl Net {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(relu(self.body.forward(x)))
    }
}

fn train(session: Session, steps: usize) -> Result<(), Error> {
    let device = Device::flex().autodiff();
    // Burn's own way to freeze: before joining, on every rank.
    let body = LinearConfig::new(64, 1024).init(&device).no_grad();
    let head = LinearConfig::new(1024, 1).init(&device);
    // Dense, so that the bytes are those of the head's gradient.
    let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), session, Config::dense(), 42);
    // The body is rank 0's on every rank from here on. To unfreeze it later: `set_require_grad(true)`, and `join` again.
    let mut model = optim.join(Net { body, head })?;
    let body = model.body.weight.val().into_data();
    for step in 1..=steps {
        let x = Tensor::<2>::random([16, 64], Distribution::Default, &device);
        let loss = MseLoss::new().forward(model.forward(x.clone()), x.sum_dim(1) * 0.1, Reduction::Mean);
        let value: f32 = loss.clone().into_scalar();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.001, model, grads)?;
        if optim.rank() == 0 && (step == 1 || step == steps) {
            println!("step {step}: loss {value:.4}");
        }
    }
    if optim.rank() == 0 {
        let slots = optim.synchronizer().layout()?.slots();
        let sent: Vec<_> = slots.iter().map(|slot| slot.path()).collect();
        let trained: usize = slots.iter().map(|slot| slot.len()).sum();
        println!("sent: {}, {trained} of {} values", sent.join(" and "), model.num_params());
        println!("{} bytes a step from each of two ranks", optim.report().traffic.sent);
        println!("the body is unchanged: {}", model.body.weight.val().into_data() == body);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps = std::env::args().nth(1).map_or(Ok(100), |steps| steps.parse())?;
    Ok(briquette::run(2, move |session| train(session, steps))?)
}
