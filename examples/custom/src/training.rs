//! A small network on four ranks.

use std::collections::BTreeMap;
use std::path::Path;

use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::error::CommError;
use briquette::strategy::BuildStrategy;
use briquette::{DistributedOptimizer, Error, WorldChange};
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::nn::loss::{MseLoss, Reduction};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};

/// Number of training threads.
pub const RANKS: usize = 4;

/// Results of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Loss after every step.
    pub losses: Vec<f32>,
    /// Bytes that this rank sent.
    pub sent: u64,
    /// Compression ratio of the last step.
    pub ratio: Option<f64>,
    /// All parameters.
    pub parameters: Vec<f32>,
}

/// Checkpoint directory of a run, to save to after the last step or to resume from.
#[derive(Debug, Clone, Copy)]
pub enum Saved<'a> {
    /// No checkpoint.
    No,
    /// Save to this directory at the end.
    To(&'a Path),
    /// Resume from the newest checkpoint of this directory.
    From(&'a Path),
}

#[derive(Module, Debug)]
struct Network {
    first: Linear,
    second: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        Network { first: linear(4, 64, device), second: linear(64, 1, device) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.second.forward(tanh(self.first.forward(x)))
    }

    fn parameters(&self) -> Vec<f32> {
        let linear = |linear: &Linear| {
            let bias = linear.bias.as_ref().map(|bias| bias.val().into_data());
            [Some(linear.weight.val().into_data()), bias]
        };
        let tensors = [linear(&self.first), linear(&self.second)].into_iter().flatten().flatten();
        tensors.flat_map(|data| data.iter::<f32>().collect::<Vec<_>>()).collect()
    }
}

/// Creates a layer with the same weights in every run, so that runs can be compared bit by bit.
fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let weights: Vec<f32> =
        (0..inputs * outputs).map(|i| (12.9898 * (i + 1) as f32).sin() / (inputs as f32).sqrt()).collect();
    let weights = Tensor::<1>::from_data(weights.as_slice(), device).reshape([inputs, outputs]);
    Linear { weight: Param::from_tensor(weights), bias: Some(Param::from_tensor(Tensor::zeros([outputs], device))) }
}

/// Returns this rank's samples of a step: 16 points, the same in every run, and the values of the function to be learned.
fn batch(rank: usize, step: u64, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let point = |index: usize| ((step as usize * 16 + index) * RANKS + rank) as f32;
    let x: Vec<f32> = (0..64).map(|i| (point(i / 4) * (0.37 + 0.11 * (i % 4) as f32)).sin()).collect();
    let y: Vec<f32> = x.chunks(4).map(|x| x[0] * x[1] + x[2] - 0.5 * x[3]).collect();
    let tensor = |values: Vec<f32>| Tensor::<1>::from_data(values.as_slice(), device);
    (tensor(x).reshape([16, 4]), tensor(y).reshape([16, 1]))
}

fn rank<B: BuildStrategy + 'static>(
    comm: Session,
    strategy: B,
    steps: u64,
    saved: Saved<'_>,
) -> Result<Outcome, Error> {
    let (device, rank) = (Device::flex().autodiff(), comm.rank());
    let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), comm, strategy, 42);
    let mut model = optim.join(Network::new(&device))?;
    if let Saved::From(directory) = saved {
        (model, ..) = optim.resume(model, directory, WorldChange::Refuse, |_| Ok(()))?;
    }
    let (mut losses, mut ratio) = (Vec::new(), None);
    for step in optim.synchronizer().step()..steps {
        let (x, y) = batch(rank, step, &device);
        let loss = MseLoss::new().forward(model.forward(x), y, Reduction::Mean);
        losses.push(loss.clone().into_scalar::<f32>());
        optim.record_loss(f64::from(losses[losses.len() - 1]));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.1, model, gradients)?;
        ratio = optim.report().exchange.ratio.map(|ratio| ratio.get());
    }
    if let Saved::To(directory) = saved {
        optim.save(&model, directory, &BTreeMap::new())?;
    }
    let sent = optim.synchronizer_mut().session().traffic().sent;
    Ok(Outcome { losses, sent, ratio, parameters: model.parameters() })
}

/// Trains up to `steps` steps, with a strategy built by `strategy` on each rank, and returns every rank's results.
///
/// # Errors
/// The first rank's error, as text.
pub fn train<B: BuildStrategy + 'static>(
    strategy: impl Fn() -> B + Sync,
    steps: u64,
    saved: Saved<'_>,
) -> Result<Vec<Outcome>, String> {
    struct Words(String);
    impl From<CommError> for Words {
        fn from(error: CommError) -> Self {
            Words(error.to_string())
        }
    }
    let run = |comm: Session| rank(comm, strategy(), steps, saved).map_err(|error| Words(error.to_string()));
    run_ranks(Local::world(RANKS), run).into_iter().collect::<Result<_, _>>().map_err(|Words(text)| text)
}
