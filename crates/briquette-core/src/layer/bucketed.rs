//! Cuts the vector into buckets of whole slots, so that pieces can be exchanged one after another.
//!
//! A bucket holds consecutive slots until it has at least `min_values` values; each gets its own reducer and its own
//! key (`key.bucket(b)`). Results do not depend on how buckets are scheduled.

use std::ops::Range;

use crate::compress::Tunable;
use crate::error::ReduceError;
use crate::reduce::{Energies, Exchanged, Probing, Reducer, Round, Selections, Stateless};
use crate::report::Report;
use crate::state::Stateful;
use crate::{Communicator, CompressionFactor, Key, Layout, Slot, Traffic};

#[derive(Debug)]
struct Bucket<R> {
    range: Range<usize>,
    /// The slots inside, rebased to the bucket's start.
    slots: Vec<Slot>,
    reducer: R,
}

/// One reducer a bucket; see the [module](self).
#[derive(Debug)]
pub struct Bucketed<R> {
    buckets: Vec<Bucket<R>>,
    len: usize,
    scratch: Energies,
}

impl<R: Stateless> Bucketed<R> {
    /// Cuts `layout` and makes a reducer for each bucket.
    pub fn new(layout: &Layout, min_values: usize, mut make: impl FnMut(usize) -> R) -> Self {
        let mut buckets = Vec::new();
        let mut slots = layout.slots();
        while !slots.is_empty() {
            let start = slots[0].range().start;
            let count = 1 + slots.partition_point(|s| s.range().end - start < min_values);
            let (inside, rest) = slots.split_at(count.min(slots.len()));
            let end = inside[inside.len() - 1].range().end;
            buckets.push(Bucket {
                range: start..end,
                slots: inside.iter().map(|s| s.rebased(start)).collect(),
                reducer: make(buckets.len()),
            });
            slots = rest;
        }
        Bucketed { buckets, len: layout.len(), scratch: Energies::default() }
    }

    /// Where the buckets lie.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.buckets.iter().map(|b| b.range.clone())
    }
}

impl<R: Stateless> Stateful for Bucketed<R> {}
impl<R: Stateless> Stateless for Bucketed<R> {}

impl<R: Stateless> Reducer for Bucketed<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut dyn Communicator) -> Result<Exchanged, ReduceError> {
        let Round { key, facts, input, average, mut sent, .. } = round;
        if input.len() != self.len {
            return Err(ReduceError::Length { expected: self.len, got: input.len() });
        }
        let mut selections = Selections::of(self.buckets.iter().map(|bucket| bucket.slots.len()).sum());
        let (mut traffic, mut first) = (Traffic::default(), 0);
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            let range = bucket.range.clone();
            comm.scope().bucket = Some(index);
            let exchanged = bucket.reducer.reduce(
                Round {
                    key: key.bucket(index),
                    slots: &bucket.slots,
                    facts,
                    input: &input[range.clone()],
                    average: &mut average[range.clone()],
                    sent: sent.as_deref_mut().map(|s| &mut s[range]),
                },
                comm,
            )?;
            traffic += exchanged.traffic;
            selections.put(first..first + bucket.slots.len(), &exchanged.selection);
            first += bucket.slots.len();
        }
        comm.scope().bucket = None;
        Ok(Exchanged { traffic, selection: selections.finish() })
    }

    fn report(&self, report: &mut Report) {
        if let Some(bucket) = self.buckets.first() {
            bucket.reducer.report(report);
        }
    }
}

impl<R: Stateless + Tunable> Tunable for Bucketed<R> {
    fn tune(&mut self, factor: CompressionFactor) {
        self.buckets.iter_mut().for_each(|b| b.reducer.tune(factor));
    }
}

impl<R: Stateless + Probing> Probing for Bucketed<R> {
    fn probe(
        &mut self,
        x: &[f32],
        _slots: &[Slot],
        key: Key,
        factors: &[CompressionFactor],
        rank: usize,
        out: &mut Energies,
    ) {
        out.total = 0.0;
        out.kept.clear();
        out.kept.resize(factors.len(), 0.0);
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            let part = &x[bucket.range.clone()];
            bucket.reducer.probe(part, &bucket.slots, key.bucket(index), factors, rank, &mut self.scratch);
            out.total += self.scratch.total;
            out.kept.iter_mut().zip(&self.scratch.kept).for_each(|(sum, kept)| *sum += kept);
        }
    }
}
