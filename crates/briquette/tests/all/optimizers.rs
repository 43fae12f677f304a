//! The optimizers of `briquette::optim` with an exchange: many ranks are equivalent to one with the mean of their gradients.

use briquette::DistributedOptimizer;
use briquette::core::config::Config;
use briquette::optim::{CompAmsConfig, GeneralizedSignSgdConfig, GenericAdamConfig, OneBitAdamConfig};
use burn::module::{Module, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use crate::common::*;

const LEN: usize = 24;
const STEPS: u64 = 40;
/// The warm-up of 1-bit Adam.
const WARM_UP: u64 = 15;

#[derive(Module, Debug)]
struct Weights {
    x: Param<Tensor<1>>,
}

/// A gradient that differs between all ranks and steps.
fn gradient(rank: usize, step: u64) -> Vec<f32> {
    (0..LEN).map(|i| ((i * 7 + rank * 13) as f32 + step as f32 * 1.7).sin() + 0.3).collect()
}

fn mean_gradient(ranks: usize, step: u64) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| gradient(rank, step)).collect();
    (0..LEN).map(|i| all.iter().map(|g| g[i]).sum::<f32>() / ranks as f32).collect()
}

/// The final parameters of each of some ranks.
fn run(
    world: usize,
    inner: &ModuleOptimizer,
    config: &Config,
    gradient: impl Fn(usize, u64) -> Vec<f32> + Sync,
) -> Vec<Vec<f32>> {
    ranks(world, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner.clone(), comm, config.clone(), 3);
        let start = Tensor::<1>::ones([LEN], &Device::flex().autodiff()).require_grad();
        let mut model = optim.join(Weights { x: Param::from_tensor(start) })?;
        for step in 0..STEPS {
            let mut gradients = GradientsParams::new();
            let g = gradient(rank, step);
            gradients.register(model.x.id, Tensor::<1>::from_floats(&g[..], &Device::flex()));
            model = optim.step(0.01, model, gradients)?;
        }
        Ok(model.x.val().inner().into_data().try_into_vec().expect("f32"))
    })
}

/// The comparison itself is checked, too: another gradient gives another result.
#[test]
fn many_ranks_are_one_with_the_mean_of_their_gradients() {
    briquette::zoo::install();
    let dense = Config::dense();
    let mut one_bit = Config::dense();
    one_bit.exchange.reducer = "two-way:dense,down=dense".parse().expect("a reducer");
    one_bit.exchange.feedback = format!("one-bit-adam:{WARM_UP}").parse().expect("a feedback");
    let one_bit_adam = OneBitAdamConfig::new(WARM_UP).init();
    for (name, inner, config) in [
        ("Generic Adam", GenericAdamConfig::new().init(), &dense),
        ("Comp-AMS, which is AMSGrad where nothing is compressed", CompAmsConfig::new().init(), &dense),
        ("generalized SignSGD", GeneralizedSignSgdConfig::new().init(), &dense),
        ("1-bit Adam without compression", one_bit_adam, &one_bit),
    ] {
        let alone = run(1, &inner, config, |_, step| mean_gradient(3, step)).remove(0);
        let other = run(1, &inner, config, gradient).remove(0);
        for (rank, own) in run(3, &inner, config, gradient).into_iter().enumerate() {
            let apart = |a: &[f32]| a.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart(&own) < 2e-5, "{name}, rank {rank}: {}", apart(&own));
            assert!(apart(&other) > 1e-3, "{name}: {}", apart(&other));
        }
    }
}
