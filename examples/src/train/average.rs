//! The mean of iterates, evaluated in place of the model: taken after steps, and kept beside the checkpoints.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use briquette::DistributedOptimizer;
use briquette::optim::{IterateAverage, IterateAverageConfig};
use briquette_datasets::EpochPlan;
use burn::module::Module;
use burn::tensor::{Bytes, Device};

use crate::directory::{AVERAGES, write_whole};
use crate::settings::Settings;
use crate::task::{Place, Task};

/// Of a run with --average-from.
pub(super) struct Average {
    mean: IterateAverage,
    directory: PathBuf,
}

impl Average {
    pub(super) fn new(settings: &Settings) -> Option<Average> {
        let mean = IterateAverageConfig::new().with_from(settings.average_from?).init();
        Some(Average { mean, directory: settings.out.join(AVERAGES) })
    }

    /// After a step.
    pub(super) fn update<M: Module>(&mut self, model: &M) {
        self.mean.update(model);
    }

    /// The model, in training form, with the mean in it, and running statistics of a pass over this rank's share of the training data; none before the
    /// first step that counts.
    pub(super) fn model<T: Task>(
        &self,
        (task, plan): (&T, &EpochPlan),
        model: &T::Model,
        rank: usize,
        device: &Device,
    ) -> Result<Option<T::Model>> {
        let batches = (0..plan.steps()).map(|step| plan.indices(step, rank)).filter(|batch| !batch.is_empty());
        let batches: Vec<&[usize]> = batches.collect();
        if batches.is_empty() {
            return Ok(self.mean.evaluation_model(model).map(T::Model::train));
        }
        let forward = |model: &T::Model, batch: u64| {
            task.loss(model, batches[batch as usize], Place { rank, epoch: 0, step: batch }, device);
        };
        Ok(self.mean.evaluation_model_with(model, batches.len() as u64, forward)?.map(T::Model::train))
    }

    fn file(&self, step: u64) -> PathBuf {
        self.directory.join(format!("step-{step:08}"))
    }

    /// Rank 0's, which all ranks have alike. As of checkpoints, this one and the one before stay.
    pub(super) fn save(&self, step: u64) -> Result<()> {
        let path = self.file(step);
        let at = || format!("cannot write {}", path.display());
        let bytes = self.mean.to_bytes()?;
        fs::create_dir_all(&self.directory).and_then(|()| write_whole(&path, &bytes)).with_context(at)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(at)? {
            found.push(entry?.path());
        }
        let before = found.iter().filter(|other| **other < path && other.extension().is_none()).max();
        for other in found.iter().filter(|other| **other != path && Some(*other) != before) {
            fs::remove_file(other).with_context(at)?;
        }
        Ok(())
    }

    /// What rank 0 saved with a checkpoint, on every rank.
    pub(super) fn load<M: Module>(self, optim: &mut DistributedOptimizer, model: &M) -> Result<Average> {
        let sync = optim.synchronizer_mut();
        let path = self.file(sync.step());
        let read = if sync.rank() == 0 { fs::read(&path) } else { Ok(Vec::new()) };
        let read = read.with_context(|| format!("cannot read {}, which belongs to the checkpoint", path.display()));
        let mut bytes = read.inspect_err(|error| sync.session().abort(&format!("{error:#}")))?;
        let clock = sync.session().hold_clock();
        sync.session().broadcast(0, &mut bytes)?;
        sync.set_clock(clock);
        let mean = self.mean.load_bytes(Bytes::from_bytes_vec(bytes), model);
        Ok(Average { mean: mean.with_context(|| path.display().to_string())?, directory: self.directory })
    }
}
