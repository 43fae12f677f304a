//! Data over ranks: who sees which sample when, and what becomes of ranks that run out first.
//!
//! [`ShardedDataLoaderBuilder`] makes a Burn [`DataLoader`](burn::data::dataloader::DataLoader) of one rank's share. Every epoch is one shuffled list of all samples; a step
//! uses the next `W · B` of it, and rank `r` the `r`-th part of these: `W` ranks with batch `B` see in each step what one process
//! with batch `W · B` sees. The order follows from the seed and the epoch's number, so that nothing is saved to resume, and no
//! `set_epoch` is called.
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
//! **Uneven ends.** The samples of an epoch's last step are divided as evenly as possible; with fewer than `W` of them some ranks get none, and
//! have one batch fewer. [`DataParallel`](crate::DataParallel) steps along by itself then. A loop of your own asks [`next_batch`], or drops
//! what is left ([`drop_last`](ShardedDataLoaderBuilder::drop_last)). Where every rank has a loader of its own making, [`check_steps`] says before training
//! that their lengths differ, and not in the middle of an epoch.

#[cfg(feature = "train")]
mod loader;
mod uneven;

use briquette_core::Session;

#[cfg(feature = "train")]
pub use self::loader::{ShardedDataLoader, ShardedDataLoaderBuilder};
pub use self::uneven::{Turn, check_steps, next_batch};

/// Which part of the data is a rank's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// The rank's number.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
}

/// This rank's.
impl From<&Session> for Shard {
    fn from(session: &Session) -> Shard {
        Shard { rank: session.rank(), world: session.world() }
    }
}
