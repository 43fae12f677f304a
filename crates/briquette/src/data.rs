//! Sharded sampling: assigns samples to ranks and steps, and handles ranks that run out of data first.
//!
//! [`ShardedDataLoaderBuilder`] creates a Burn [`DataLoader`](burn::data::dataloader::DataLoader) for one rank's share of the
//! data. Every epoch is one shuffled list of all samples. A step takes the next `W · B` samples, and rank `r` gets the `r`-th
//! part of them. In each step, `W` ranks with batch size `B` therefore process the same samples as one process with batch size
//! `W · B`. The order follows from the seed and the epoch's number, so resuming needs no saved state, and there is no `set_epoch`.
//!
//! ```
//! use briquette::data::{Shard, ShardedDataLoaderBuilder};
//! use burn::data::dataloader::batcher::Batcher;
//! use burn::data::dataset::{Dataset, InMemDataset};
//! use burn::tensor::Device;
//!
//! /// Numbers as they are.
//! struct Numbers;
//! impl Batcher<u32, Vec<u32>> for Numbers {
//!     fn batch(&self, items: Vec<u32>, _: &Device) -> Vec<u32> { items }
//! }
//!
//! let loader = |shard, batch| {
//!     let numbers = InMemDataset::new((0..10).collect());
//!     ShardedDataLoaderBuilder::new(Numbers, shard).batch_size(batch).shuffle(42).build(numbers)
//! };
//! let one = loader(Shard { rank: 0, world: 1 }, 4)?;
//! let two = [0, 1].map(|rank| loader(Shard { rank, world: 2 }, 2)).into_iter().collect::<Result<Vec<_>, _>>()?;
//! for epoch in 0..2 {
//!     let (mut first, mut second) = (two[0].iter(), two[1].iter());
//!     for whole in one.iter() {
//!         assert_eq!(whole?, [first.next().unwrap()?, second.next().unwrap()?].concat());
//!     }
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! **Uneven ends.** The samples of an epoch's last step are divided as evenly as possible. If there are fewer than `W` of them,
//! some ranks get none, and have one batch fewer. [`DataParallel`](crate::DataParallel) handles this. A custom loop calls
//! [`next_batch`], or drops the last step ([`drop_last`](ShardedDataLoaderBuilder::drop_last)). If every rank makes its own
//! loader, [`check_steps`] detects different lengths before training instead of in the middle of an epoch.

#[cfg(feature = "data")]
mod loader;
mod uneven;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use briquette_core::Session;

#[cfg(feature = "data")]
pub use self::loader::{ShardedDataLoader, ShardedDataLoaderBuilder};
pub use self::uneven::{Turn, check_steps, next_batch};

/// Rank and world size that determine one rank's share of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// The rank's index.
    pub rank: usize,
    /// The number of ranks.
    pub world: usize,
}

/// Returns the shard of this session's rank.
impl From<&Session> for Shard {
    fn from(session: &Session) -> Shard {
        Shard { rank: session.rank(), world: session.world() }
    }
}

/// A rank's shard in a world whose size may change. Clones share it: a loader reads it at the beginning of an epoch, and
/// [`DataParallel`](crate::DataParallel) updates it in an elastic world.
#[derive(Debug, Clone)]
pub struct CurrentShard(Arc<Mutex<Current>>);

#[derive(Debug)]
#[cfg_attr(not(feature = "data"), allow(dead_code, reason = "loaders read the epochs"))]
struct Current {
    shard: Shard,
    /// The largest first epoch of the loaders.
    start: u64,
    /// The epoch of the next iterator, if the training loop sets it.
    epoch: Option<u64>,
}

impl CurrentShard {
    /// Returns the shard as of now.
    pub fn get(&self) -> Shard {
        self.lock().shard
    }

    /// Sets the shard: the next epoch is divided accordingly.
    pub fn set(&self, shard: Shard) {
        self.lock().shard = shard;
    }

    /// Returns the shard and the epoch of an iterator.
    #[cfg(feature = "data")]
    fn next(&self) -> (Shard, Option<u64>) {
        let current = self.lock();
        (current.shard, current.epoch)
    }

    /// Sets the epoch of the iterators that follow, counted from 0, so that one that is repeated has the same order.
    #[cfg(feature = "train")]
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        self.lock().epoch = Some(epoch);
    }

    /// Returns the epoch at which the loaders start.
    #[cfg(feature = "train")]
    pub(crate) fn start(&self) -> u64 {
        self.lock().start
    }

    /// Registers the epoch at which a loader starts.
    #[cfg(feature = "data")]
    fn start_at(&self, epoch: u64) {
        let mut current = self.lock();
        current.start = current.start.max(epoch);
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Into<Shard>> From<S> for CurrentShard {
    fn from(shard: S) -> CurrentShard {
        CurrentShard(Arc::new(Mutex::new(Current { shard: shard.into(), start: 0, epoch: None })))
    }
}
