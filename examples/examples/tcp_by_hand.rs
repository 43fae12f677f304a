//! Two processes over TCP without a launcher: this one is rank 0, and starts itself a second time as rank 1.
//!
//! ```sh
//! cargo run --release --example tcp_by_hand [STEPS]
//! ```
//!
//! The same program works on two machines. The address is rank 0's, which the other must reach, and both need the same
//! `TcpBuilder::token`, since anyone could connect there.

use std::env::{args, current_exe};
use std::error::Error;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use briquette::core::Session;
use briquette::{DistributedOptimizer, WallClock};
use briquette_tcp::TcpBuilder;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // Rank 1 was given the address.
        ["rank-1", address, steps] => train(TcpBuilder::new(1, 2, address), steps.parse()?),
        [] => lead("200"),
        [steps] => lead(steps),
        _ => Err("usage: tcp_by_hand [STEPS]".into()),
    }
}

/// Runs rank 0; starts rank 1 and waits for its end.
fn lead(steps: &str) -> Result<(), Box<dyn Error>> {
    let count = steps.parse()?;
    // A listening socket reserves its port.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let mut second = Command::new(current_exe()?).args(["rank-1", &address, steps]).spawn()?;
    let trained = train(TcpBuilder::new(0, 2, address).listener(listener), count);
    // If this rank fails, the other receives the reason and ends too.
    let status = second.wait()?;
    trained?;
    if status.success() { Ok(()) } else { Err(format!("rank 1 ended with {status}").into()) }
}

/// Learns `y = x · (1, 2, 3)`; every rank draws its own samples.
fn train(builder: TcpBuilder, steps: usize) -> Result<(), Box<dyn Error>> {
    // Timeouts for the other rank to join, and for a call. With a clock, times are measured, on which `auto` decides.
    let builder = builder.join_deadline(Duration::from_secs(30)).deadline(Duration::from_secs(60));
    let session = Session::from(builder.clock(Arc::new(WallClock::start())).join()?);
    let device = Device::flex().autodiff();
    let target = Tensor::<2>::from_data([[1.0], [2.0], [3.0]], &device);
    let mut optim = DistributedOptimizer::auto(SgdConfig::new().init(), session, 42);
    let mut model: Linear = optim.join(LinearConfig::new(3, 1).init(&device))?;
    let mut value = f32::NAN;
    for _ in 0..steps {
        let x = Tensor::<2>::random([16, 3], Distribution::Default, &device);
        let loss = MseLoss::new().forward(model.forward(x.clone()), x.matmul(target.clone()), Reduction::Mean);
        value = loss.clone().into_scalar();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.1, model, grads)?;
    }
    println!("rank {} in process {}: loss {value:.6}; {}", optim.rank(), std::process::id(), optim.summary());
    Ok(())
}
