//! Data loader for one rank's share of the data.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use briquette_core::Key;
use briquette_core::error::ConfigError;
use briquette_core::shards::{EpochPlan, Shards};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;

use super::{CurrentShard, Shard};

/// Builds a [`ShardedDataLoader`], like Burn's `DataLoaderBuilder`.
pub struct ShardedDataLoaderBuilder<I, O> {
    batcher: Arc<dyn Batcher<I, O>>,
    shard: CurrentShard,
    batch_size: usize,
    shuffle: Option<u64>,
    drop_last: bool,
    start: (u64, usize),
    device: Device,
}

impl<I, O> std::fmt::Debug for ShardedDataLoaderBuilder<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ShardedDataLoaderBuilder { shard, batch_size, shuffle, drop_last, start, .. } = self;
        write!(f, "ShardedDataLoaderBuilder({shard:?}, {batch_size}, {shuffle:?}, {drop_last}, {start:?})")
    }
}

impl<I, O> ShardedDataLoaderBuilder<I, O> {
    /// Creates a builder for one rank's share: pass `&session` for the rank of a session, or the
    /// [`DataParallel`](crate::DataParallel) of an elastic world, whose size may change from epoch to epoch. By default a batch is
    /// one sample, in the data's order.
    pub fn new(batcher: impl Batcher<I, O> + 'static, shard: impl Into<CurrentShard>) -> Self {
        let (batcher, shard, device) = (Arc::new(batcher), shard.into(), Device::default());
        ShardedDataLoaderBuilder {
            batcher,
            shard,
            batch_size: 1,
            shuffle: None,
            drop_last: false,
            start: (0, 0),
            device,
        }
    }

    /// Sets the batch size *of this rank*: a step uses this many samples on every rank.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size;
        self
    }

    /// Shuffles each epoch differently, in an order that follows from this seed. The seed must be the same on every
    /// rank.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.shuffle = Some(seed);
        self
    }

    /// Drops an epoch's last step if it has fewer samples than the other steps.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.drop_last = true;
        self
    }

    /// Starts with this epoch, counted from 0, and skips `steps` of its steps, to resume a run in the middle of an
    /// epoch.
    #[must_use]
    pub fn start_at(mut self, epoch: u64, steps: usize) -> Self {
        self.start = (epoch, steps);
        self
    }

    /// Sets the device of the batches. If not set, it is Burn's default device.
    #[must_use]
    pub fn set_device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Builds the loader. `dataset` is the whole data set, the same on every rank.
    ///
    /// # Errors
    /// [`ConfigError`] for a batch size of 0, no ranks, a rank outside the world, fewer samples than ranks, or
    /// [`drop_last`](Self::drop_last) with epochs that have no full step.
    pub fn build(self, dataset: impl Dataset<I> + 'static) -> Result<Arc<ShardedDataLoader<I, O>>, ConfigError> {
        let Shard { rank, world } = self.shard.get();
        if rank >= world {
            let (rank, world) = (format!("rank {rank}"), format!("a world of {world} ranks"));
            return Err(ConfigError::conflict(rank, world, "ranks are counted from 0", "give a rank of the world"));
        }
        let dataset: Arc<dyn Dataset<I>> = Arc::new(dataset);
        let samples = 0..dataset.len();
        Shards::new(samples.len(), world, self.batch_size)?;
        if self.drop_last && samples.len() / world < self.batch_size {
            let (samples, batch) = (samples.len(), self.batch_size);
            return Err(ConfigError::conflict(
                "drop_last",
                format!("{samples} samples"),
                format!("it leaves no step, because {world} ranks take {} samples in a step", world * batch),
                "take a smaller batch, or leave drop_last out",
            ));
        }
        let (epoch, skip) = self.start;
        self.shard.start_at(epoch);
        Ok(Arc::new(ShardedDataLoader {
            dataset,
            batcher: self.batcher,
            shard: self.shard,
            batch_size: self.batch_size,
            shuffle: self.shuffle,
            drop_last: self.drop_last,
            samples,
            skip: (epoch, skip),
            epoch: Arc::new(AtomicU64::new(epoch)),
            device: self.device,
        }))
    }
}

/// Data loader of one rank's share of a data set. Each [`iter`](DataLoader::iter) is the next epoch.
pub struct ShardedDataLoader<I, O> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    shard: CurrentShard,
    batch_size: usize,
    shuffle: Option<u64>,
    drop_last: bool,
    /// The range of the data set that is used.
    samples: Range<usize>,
    /// The epoch to start in, and the steps to skip in it.
    skip: (u64, usize),
    /// Shared with the copies of this loader for other devices.
    epoch: Arc<AtomicU64>,
    device: Device,
}

impl<I, O> std::fmt::Debug for ShardedDataLoader<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ShardedDataLoader { shard, batch_size, shuffle, samples, epoch, .. } = self;
        write!(f, "ShardedDataLoader({shard:?} of {samples:?}, batch {batch_size}, seed {shuffle:?}, epoch {epoch:?})")
    }
}

impl<I, O> ShardedDataLoader<I, O> {
    /// Returns the number of steps in an epoch, the same on every rank. A rank may have no batch in the last step.
    pub fn steps(&self) -> usize {
        self.steps_of(self.shard.get())
    }

    fn steps_of(&self, shard: Shard) -> usize {
        let (samples, global) = (self.samples.len(), self.global_batch(shard));
        if self.drop_last { samples / global } else { samples.div_ceil(global) }
    }

    fn items_of(&self, shard: Shard) -> usize {
        let Shard { rank, world } = shard;
        let global = self.global_batch(shard);
        let (whole, rest) = (self.samples.len() / global, self.samples.len() % global);
        let last = if self.drop_last { 0 } else { rest / world + usize::from(rank < rest % world) };
        whole * self.batch_size + last
    }

    /// The epoch of the next [`iter`](DataLoader::iter), counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn global_batch(&self, Shard { world, .. }: Shard) -> usize {
        world.saturating_mul(self.batch_size)
    }

    fn plan(&self, epoch: u64, Shard { world, .. }: Shard) -> Result<EpochPlan, ConfigError> {
        let shards = Shards::new(self.samples.len(), world, self.batch_size)?;
        Ok(self.shuffle.map_or_else(|| shards.in_order(), |seed| shards.epoch(Key::new(seed), epoch)))
    }

    fn with(&self, device: Device, samples: Range<usize>) -> Self {
        ShardedDataLoader {
            dataset: self.dataset.clone(),
            batcher: self.batcher.clone(),
            shard: self.shard.clone(),
            epoch: self.epoch.clone(),
            samples,
            device,
            ..*self
        }
    }
}

impl<I: 'static, O: Send + 'static> ShardedDataLoader<I, O> {
    /// Iterates over this rank's batches of the next epoch.
    pub fn iter(&self) -> Box<dyn DataLoaderIterator<O> + '_> {
        DataLoader::iter(self)
    }

    /// The number of samples of this rank in an epoch.
    pub fn num_items(&self) -> usize {
        DataLoader::num_items(self)
    }
}

impl<I: 'static, O: Send + 'static> DataLoader<O> for ShardedDataLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let (shard, set) = self.shard.next();
        if let Some(epoch) = set {
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        let first = if epoch == self.skip.0 { self.skip.1 } else { 0 };
        let steps = first.min(self.steps_of(shard))..self.steps_of(shard);
        let (plan, error) = match self.plan(epoch, shard) {
            Ok(plan) => (Some(plan), None),
            Err(error) => (None, Some(error)),
        };
        Box::new(Batches { loader: self, shard, plan, error, steps, seen: 0 })
    }

    fn num_items(&self) -> usize {
        self.items_of(self.shard.get())
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.with(device.clone(), self.samples.clone()))
    }

    /// Returns the loader of a slice of the whole data set. The slice is taken before the data are divided among ranks.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let from = self.samples.start;
        Arc::new(self.with(self.device.clone(), from + start..from + end))
    }
}

/// The batches of one epoch.
struct Batches<'a, I, O> {
    loader: &'a ShardedDataLoader<I, O>,
    /// The rank's shard when the epoch began.
    shard: Shard,
    /// Absent if the world has become larger than the data set; the error is then the only item.
    plan: Option<EpochPlan>,
    error: Option<ConfigError>,
    steps: Range<usize>,
    seen: usize,
}

impl<I, O> Iterator for Batches<'_, I, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let ShardedDataLoader { dataset, batcher, samples, device, .. } = self.loader;
        if let Some(error) = self.error.take() {
            return Some(Err(DatasetError::new(error)));
        }
        let indices = self.plan.as_ref()?.indices(self.steps.next()?, self.shard.rank);
        if indices.is_empty() {
            return None;
        }
        self.seen += indices.len();
        let items = dataset.get_many(indices.iter().map(|index| samples.start + index).collect());
        Some(items.map(|items| batcher.batch(items, device)))
    }
}

impl<I: 'static, O: Send + 'static> DataLoaderIterator<O> for Batches<'_, I, O> {
    fn progress(&self) -> Progress {
        Progress::new(self.seen, self.loader.items_of(self.shard), Some("items".to_owned()))
    }
}
