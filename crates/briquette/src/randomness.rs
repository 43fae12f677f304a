//! Reproducible random numbers of a model, from one seed.

use std::sync::{Mutex, PoisonError};

use briquette_core::Key;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// Serializes draws, because the backends' generators belong to the process, too.
static TURN: Mutex<()> = Mutex::new(());

/// Random numbers of a model (initial weights, dropout), from one seed on all ranks.
///
/// Burn's backends have one generator for each process or device. Ranks that are threads race for it, so two runs differ. Ranks
/// that are processes start from the same state, so all use the same dropout masks. [`Randomness`] instead derives every draw
/// from the seed and, where ranks must differ, from the step and the rank. A run has the same bits in threads and in processes,
/// and when it is resumed.
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
/// **Cost.** Draws from one process's generator take turns: while a rank is [inside](Randomness::step), other threads of the
/// process wait. Put the forward pass in it, not the backward pass. Ranks that are processes each have their own generator, and
/// do not wait.
#[derive(Debug, Clone)]
pub struct Randomness {
    key: Key,
    rank: usize,
    device: Device,
}

impl Randomness {
    /// Creates it for this rank, from the run's seed, which is the same on every rank. `device` is that of its model.
    pub fn new(seed: u64, rank: usize, device: &Device) -> Randomness {
        // Autodiff has no generator of its own.
        Randomness { key: Key::new(seed).purpose("model"), rank, device: device.clone().inner() }
    }

    /// Runs `body` with draws that are the same on every rank, for initial weights. (After joining, weights are rank 0's in any
    /// case. Frozen or shared parts of a model, and values derived from them, are equal before.) Burn draws a weight when it is
    /// first read; here it is drawn immediately.
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

    /// Runs a step's forward pass with draws that differ between ranks: dropout, noise.
    pub fn step<T>(&self, step: u64, body: impl FnOnce() -> T) -> T {
        self.draw(self.key.step(step).rank(self.rank), body)
    }

    /// As [`step`](Self::step), for a loop that counts epochs and their batches instead of steps.
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
