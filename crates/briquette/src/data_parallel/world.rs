//! Global metrics: replaces one rank's metric values by means over all ranks.
//!
//! At the end of a split (training or validation) Burn's metric processor sends its loggers a last update with the values over
//! the split, then reports the end of the epoch. A [`Ledger`] withholds that update. The training thread exchanges it with the
//! other ranks and publishes the means to Burn's files (from which its summary reads them), to the screen, and to early stopping
//! and the checkpointers, which are clients of Burn's event store.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::train::logger::{FileMetricLogger, MetricLogger};
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::store::{
    Aggregate, EpochSummary, EventStoreClient, MetricsUpdate, NumericMetricUpdate, Split,
};
use burn::train::metric::{MetricAttributes, MetricDefinition, MetricId, NumericEntry, SerializedEntry};
use burn::train::renderer::MetricState;

use super::screen::Screen;
use crate::error::Error;

/// The loggers of one rank; clones share them.
#[derive(Clone)]
pub(super) struct Ledger(Arc<Mutex<State>>);

struct State {
    /// Burn's file logger, on rank 0.
    files: Option<FileMetricLogger>,
    directory: PathBuf,
    definitions: HashMap<MetricId, MetricDefinition>,
    /// The latest update, which is the last of its split if the epoch ends now.
    latest: Option<Update>,
    /// The last update of a split, until it is published.
    last: Option<(Update, EpochSummary)>,
    /// The number of samples in each value of the split.
    weights: HashMap<MetricId, u64>,
    /// The published values.
    values: HashMap<(String, usize, Split), f64>,
}

struct Update {
    update: MetricsUpdate,
    epoch: usize,
    split: Split,
}

/// A metric's name, its value over this rank's share of a split (as bits) and its weight.
type Share = (String, u64, u64);

impl Ledger {
    pub(super) fn new(rank: usize, directory: &Path) -> Ledger {
        Ledger(Arc::new(Mutex::new(State {
            files: (rank == 0).then(|| FileMetricLogger::new(directory)),
            directory: directory.to_owned(),
            definitions: HashMap::new(),
            latest: None,
            last: None,
            weights: HashMap::new(),
            values: HashMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.lock().directory.clone()
    }

    /// Opens Burn's files, on a rank that has become rank 0.
    pub(super) fn take_over(&self) {
        let mut state = self.lock();
        if state.files.is_none() {
            let mut files = FileMetricLogger::new(&state.directory);
            state.definitions.values().for_each(|definition| files.log_metric_definition(definition.clone()));
            state.files = Some(files);
        }
    }

    /// Returns this rank's values of a split, for the other ranks, once Burn's processor has been flushed: some 20 bytes and the name for each
    /// metric.
    pub(super) fn shares(&self, store: &EventStoreClient) -> Vec<u8> {
        // The answer arrives after everything that was sent to the store before, so it flushes the store.
        let _ = store.find_metric("", 0, Aggregate::Mean, &Split::Train);
        serde_json::to_vec(&self.lock().shares()).unwrap_or_default()
    }

    /// Replaces this rank's values of a split by the global ones, from the [shares](Self::shares) of all ranks.
    pub(super) fn publish(&self, all: &[Vec<u8>], this: usize, screen: &Screen) -> Result<(), Error> {
        let mut sums = HashMap::<String, (f64, u64)>::new();
        for (rank, text) in all.iter().enumerate() {
            let shares = serde_json::from_slice::<Vec<Share>>(text).map_err(|problem| Error::Mismatch {
                this,
                rank,
                field: "list of metrics".into(),
                ours: format!("of {} metrics", self.lock().shares().len()),
                theirs: problem.to_string(),
            })?;
            for (name, value, weight) in shares.into_iter().filter(|(_, _, weight)| *weight > 0) {
                let sum = sums.entry(name).or_default();
                sum.0 += f64::from_bits(value) * weight as f64;
                sum.1 = sum.1.saturating_add(weight);
            }
        }
        let means = sums.into_iter().map(|(name, (sum, weight))| (name, sum / weight as f64)).collect();
        self.lock().publish(&means, all.len(), screen);
        Ok(())
    }
}

impl State {
    fn name(&self, metric: &MetricId) -> String {
        self.definitions.get(metric).map(|definition| definition.name.to_string()).unwrap_or_default()
    }

    fn shares(&self) -> Vec<Share> {
        let Some((last, _)) = &self.last else { return Vec::new() };
        let share = |metric: &NumericMetricUpdate| {
            let id = &metric.entry.metric_id;
            let weight = self.weights.get(id).copied().unwrap_or_default();
            Some((self.name(id), metric.numeric_entry.as_ref()?.current().to_bits(), weight))
        };
        last.update.entries_numeric.iter().filter_map(share).collect()
    }

    fn publish(&mut self, means: &HashMap<String, f64>, world: usize, screen: &Screen) {
        let Some((Update { mut update, epoch, split }, summary)) = self.last.take() else { return };
        for metric in &mut update.entries_numeric {
            let name = self.name(&metric.entry.metric_id);
            if let Some(mean) = means.get(&name) {
                let unit = self.definitions.get(&metric.entry.metric_id).and_then(unit);
                metric.entry.serialized_entry = entry(&name, unit, *mean, world);
                metric.numeric_entry = Some(NumericEntry::Final(*mean));
                self.values.insert((name, epoch, split.clone()), *mean);
            }
            screen
                .show(split == Split::Train, MetricState::Numeric(metric.entry.clone(), metric.numeric_entry.clone()));
        }
        if let Some(files) = &mut self.files {
            files.log(update, epoch, &split);
            files.log_epoch_summary(summary);
        }
        self.weights.clear();
    }
}

fn unit(definition: &MetricDefinition) -> Option<&str> {
    match &definition.attributes {
        MetricAttributes::Numeric(attributes) => attributes.unit.as_deref(),
        MetricAttributes::None => None,
    }
}

/// Returns the entry that Burn writes for the value of a split, with the number of ranks.
fn entry(name: &str, unit: Option<&str>, mean: f64, world: usize) -> SerializedEntry {
    let format = FormatOptions::new(Arc::new(name.to_owned())).precision(2);
    let mut state = NumericMetricState::new();
    state.update(mean, 1);
    let SerializedEntry { formatted, serialized } =
        state.compute_final(unit.into_iter().fold(format, |format, unit| format.unit(unit)));
    let value = formatted.split(" - ").next().unwrap_or_default();
    let ranks = if world == 1 { "1 rank".into() } else { format!("all {world} ranks") };
    SerializedEntry::new(format!("{value} - {ranks}"), serialized)
}

impl MetricLogger for Ledger {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        let mut state = self.lock();
        for metric in &update.entries_numeric {
            // A running value contains its number of samples. For other values, all batches have equal weights.
            let weight = state.weights.entry(metric.entry.metric_id.clone()).or_default();
            match &metric.running_entry {
                Some(NumericEntry::Aggregated { count, .. }) => *weight = *count as u64,
                Some(_) => *weight += 1,
                None => {}
            }
        }
        if let Some(Update { update, epoch, split }) =
            state.latest.replace(Update { update, epoch, split: split.clone() })
            && let Some(files) = &mut state.files
        {
            files.log(update, epoch, &split);
        }
    }

    fn read_numeric(&mut self, name: &str, epoch: usize, split: &Split) -> Result<Vec<NumericEntry>, String> {
        let mut state = self.lock();
        let value = state.values.get(&(name.to_owned(), epoch, split.clone())).copied();
        match (value, &mut state.files) {
            (Some(value), _) => Ok(vec![NumericEntry::Final(value)]),
            // The epoch was trained before this run was resumed.
            (None, Some(files)) if !name.is_empty() => files.read_numeric(name, epoch, split),
            (None, _) => Ok(Vec::new()),
        }
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        let mut state = self.lock();
        if let Some(files) = &mut state.files {
            files.log_metric_definition(definition.clone());
        }
        state.definitions.insert(definition.metric_id.clone(), definition);
    }

    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        let mut state = self.lock();
        state.last = state.latest.take().map(|update| (update, summary));
    }
}
