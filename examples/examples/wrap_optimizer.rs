//! The diff between plain Burn and Burn on many ranks: the lines marked `+`. How much is compressed is decided by itself.
//!
//! `cargo run --release --example wrap_optimizer`

use std::sync::Arc;

use briquette::core::comm::{Local, Session, run_ranks}; // +
use briquette::core::error::CommError;
use briquette::{DistributedOptimizer, Error, WallClock}; // +
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

/// Learns `y = x · (1, 2, 3)`; every rank draws its own samples.
fn train(comm: Session) -> Result<f32, Error> {
    let device = Device::flex().autodiff();
    let target = Tensor::<2>::from_data([[1.0], [2.0], [3.0]], &device);
    let model: Linear = LinearConfig::new(3, 1).init(&device);
    let optim = SgdConfig::new().init();
    let mut optim = DistributedOptimizer::auto(optim, comm, 42); // +
    let mut model = optim.join(model)?; // +
    let mut last = f32::NAN;
    for _ in 0..200 {
        let x = Tensor::<2>::random([16, 3], Distribution::Default, &device);
        let loss = MseLoss::new().forward(model.forward(x.clone()), x.matmul(target.clone()), Reduction::Mean);
        last = loss.clone().into_scalar::<f32>();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.1, model, grads)?; // + `?`
    }
    Ok(last)
}

fn main() {
    let world = Local::builder(2).clock(Arc::new(WallClock::start())).build(); // +
    for (rank, result) in run_ranks(world, |comm| train(comm).map_err(Stopped::from)).into_iter().enumerate() {
        match result {
            Ok(loss) => println!("rank {rank}: loss {loss:.6} after 200 steps"),
            Err(Stopped(error)) => println!("rank {rank}: {error}"),
        }
    }
}

/// What ended a rank, in words.
struct Stopped(String);

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Stopped(error.to_string())
    }
}

impl From<CommError> for Stopped {
    fn from(error: CommError) -> Self {
        Stopped(error.to_string())
    }
}
