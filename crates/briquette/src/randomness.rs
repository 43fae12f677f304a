//! One seed for all that a model draws.

use std::sync::{Mutex, PoisonError};

use briquette_core::Key;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// Whose turn it is to draw: the generators that it guards are the process's, too.
static TURN: Mutex<()> = Mutex::new(());

/// Random numbers of a model (initial weights, dropout), from one seed on all ranks.
///
/// Burn's backends have one generator for each process or device. Ranks that are threads race for it, so that two runs differ; ranks that are
/// processes begin alike, so that all drop out the same. [`Randomness`] gives every draw a place instead: the seed, and for what is to differ
/// between ranks the step and the rank. The same run has the same bits in threads and in processes, and when it is resumed.
///
/// ```
/// use briquette::Randomness;
/// use burn::nn::{DropoutConfig, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// # fn main() -> Result<(), briquette::RunError> {
/// let once = || briquette::run(2, |session| {
///     let device = Device::flex().autodiff();
///     let random = Randomness::new(42, session.rank(), &device);
///     let layer = random.init(|| LinearConfig::new(3, 1).init(&device));
///     let dropout = DropoutConfig::new(0.5).init();
///     let seen = random.step(0, || dropout.forward(Tensor::<1>::ones([4], &device)));
///     Ok::<_, String>((layer.weight.val().into_data(), seen.into_data()))
/// });
/// assert_eq!(once()?, once()?);
/// # Ok(())
/// # }
/// ```
///
/// **Cost.** Draws from one process's generator take turns: while a rank is [inside](Randomness::step), other threads of the process wait. Put the
/// forward pass in it, not the backward pass; give ranks that are processes their own generator, where nobody waits.
#[derive(Debug, Clone)]
pub struct Randomness {
    key: Key,
    rank: usize,
    device: Device,
}

impl Randomness {
    /// For this rank, from the run's seed, which is the same on every rank. `device` is where its model computes.
    pub fn new(seed: u64, rank: usize, device: &Device) -> Randomness {
        // Autodiff has no generator of its own.
        Randomness { key: Key::new(seed).purpose("model"), rank, device: device.clone().inner() }
    }

    /// Draws the same on every rank: initial weights. (They would be rank 0's after joining in any case; frozen or shared
    /// parts of a model, and what is made of them, are equal before.) Burn draws a weight when it is first read: here that is now.
    pub fn init<M: Module>(&self, body: impl FnOnce() -> M) -> M {
        struct Draw;
        impl ModuleVisitor for Draw {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let _ = param.base();
            }
        }
        self.draw(self.key.purpose("init"), || {
            let module = body();
            module.visit(&mut Draw);
            module
        })
    }

    /// Draws of a step's forward pass, another one on each rank: dropout, noise.
    pub fn step<T>(&self, step: u64, body: impl FnOnce() -> T) -> T {
        self.draw(self.key.step(step).rank(self.rank), body)
    }

    /// As [`step`](Self::step), where epochs and their batches are counted, and not steps.
    #[cfg(feature = "train")]
    pub(crate) fn batch<T>(&self, epoch: usize, batch: usize, body: impl FnOnce() -> T) -> T {
        self.draw(self.key.purpose("epoch").step(epoch as u64).bucket(batch).rank(self.rank), body)
    }

    fn draw<T>(&self, key: Key, body: impl FnOnce() -> T) -> T {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.seed(key.word(0));
        body()
    }
}
