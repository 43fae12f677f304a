//! Reproducible random numbers for a model, from one seed.

use std::sync::{Mutex, PoisonError};

use briquette_core::Key;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// Serializes draws, because a backend's generator belongs to the process.
static TURN: Mutex<()> = Mutex::new(());

/// Random numbers for a model (initial weights, dropout), from one seed on all ranks.
///
/// Burn's backends have one generator per process or device. Ranks that are threads compete for it, so two runs differ. Ranks
/// that are processes start with generators in the same state, so all use the same dropout masks. [`Randomness`] derives every
/// draw from the seed instead and, where ranks must differ, from the step and the rank. A run then has the same bits in
/// threads, in processes, and when it is resumed.
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
/// **Cost.** Ranks of one process take turns: while one rank runs [`step`](Randomness::step), other threads of the process
/// wait. Run only the forward pass in it, not the backward pass. Ranks that are processes each have their own generator, and do
/// not wait.
#[derive(Debug, Clone)]
pub struct Randomness {
    key: Key,
    rank: usize,
    device: Device,
}

impl Randomness {
    /// Creates the random numbers of this rank. `seed` must be the same on every rank, and `device` is that of the
    /// model.
    pub fn new(seed: u64, rank: usize, device: &Device) -> Randomness {
        // Autodiff has no generator of its own.
        Randomness { key: Key::new(seed).purpose("model"), rank, device: device.clone().inner() }
    }

    /// Runs `body`, which creates a model, with draws that are the same on every rank. (Joining replaces weights by rank 0's
    /// in any case. With these draws, frozen or shared parts of a model, and values derived from them, are equal even before.)
    /// Burn draws a weight when it is first read; here it is drawn immediately.
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

    /// Runs a step's forward pass with draws that differ between ranks, such as those of dropout and noise.
    pub fn step<T>(&self, step: u64, body: impl FnOnce() -> T) -> T {
        self.draw(self.key.step(step).rank(self.rank), body)
    }

    /// Continues as another rank, in a world of another size.
    #[cfg(feature = "train")]
    pub(crate) fn set_rank(&mut self, rank: usize) {
        self.rank = rank;
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
