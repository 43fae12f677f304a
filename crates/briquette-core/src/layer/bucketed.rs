//! Cuts the vector into buckets of whole slots, so that pieces can be exchanged one after another.
//!
//! A bucket holds consecutive slots until it has at least `min_values` values; each gets its own reducer and its own
//! key (`key.bucket(b)`). Results do not depend on how buckets are scheduled.
//!
//! **Overlap.** [`overlapped`](Bucketed::overlapped), a second thread takes every other bucket: while one is exchanged, the
//! one before it is decoded and the one after it encoded. What goes over the wire, and in which order, is the same, and so
//! are all bits. Worth it where encoding and decoding take long beside the exchange and a core is idle meanwhile; it costs
//! the start of a thread an exchange. Inside `Threaded` the second thread works alone, and the pool works for the
//! other buckets.
//!
//! **Failure.** The error is that of the first bucket that fails, as without overlap. The bucket after it may have been
//! exchanged by then, on every rank that overlaps alike, and none beyond that. A panic ends the other thread, then goes on.

use std::ops::Range;

use crate::compress::Tunable;
use crate::error::ReduceError;
use crate::reduce::{Energies, Exchanged, Probing, Reducer, Round, Selections, Stateless};
use crate::report::Report;
use crate::state::Stateful;
use crate::{CompressionFactor, Key, Layout, Session, Slot, Traffic};

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
    overlapped: bool,
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
        Bucketed { buckets, len: layout.len(), overlapped: false, scratch: Energies::default() }
    }

    /// Whether a bucket is exchanged while others are encoded and decoded; by default not.
    #[must_use]
    pub fn overlapped(mut self, overlapped: bool) -> Self {
        self.overlapped = overlapped;
        self
    }

    /// Where the buckets lie.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.buckets.iter().map(|b| b.range.clone())
    }
}

impl<R: Stateless> Stateful for Bucketed<R> {}
impl<R: Stateless> Stateless for Bucketed<R> {}

impl<R: Stateless> Reducer for Bucketed<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        if round.input.len() != self.len {
            return Err(ReduceError::Length { expected: self.len, got: round.input.len() });
        }
        let slots = self.buckets.iter().map(|bucket| bucket.slots.len()).sum();
        let parts = parts(&mut self.buckets, round);
        let each = |part: Part<'_, R>| {
            comm.scope().bucket = Some(part.index);
            part.reduce(comm)
        };
        let exchanged = together(slots, parts.map(each))?;
        comm.scope().bucket = None;
        Ok(exchanged)
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

/// A bucket's share of a round.
struct Part<'a, R> {
    index: usize,
    reducer: &'a mut R,
    round: Round<'a>,
}

/// What came of it.
struct Done {
    slots: usize,
    result: Result<Exchanged, ReduceError>,
}

impl<R: Reducer> Part<'_, R> {
    fn reduce(self, comm: &mut Session) -> Done {
        let slots = self.round.slots.len();
        Done { slots, result: self.reducer.reduce(self.round, comm) }
    }
}

/// Every bucket's share of `round`, in order.
fn parts<'a, R>(buckets: &'a mut [Bucket<R>], round: Round<'a>) -> impl Iterator<Item = Part<'a, R>> {
    let Round { key, facts, input, mut average, mut sent, .. } = round;
    let tiled = "buckets tile the vector";
    buckets.iter_mut().enumerate().map(move |(index, Bucket { range, slots, reducer })| {
        let part = Round {
            key: key.bucket(index),
            slots,
            facts,
            input: &input[range.clone()],
            average: average.split_off_mut(..range.len()).expect(tiled),
            sent: sent.as_mut().map(|sent| sent.split_off_mut(..range.len()).expect(tiled)),
        };
        Part { index, reducer, round: part }
    })
}

/// One exchange of several; the first error ends it.
fn together(slots: usize, parts: impl Iterator<Item = Done>) -> Result<Exchanged, ReduceError> {
    let (mut selections, mut traffic, mut first) = (Selections::of(slots), Traffic::default(), 0);
    for Done { slots, result, .. } in parts {
        let exchanged = result?;
        traffic += exchanged.traffic;
        selections.put(first..first + slots, &exchanged.selection);
        first += slots;
    }
    debug_assert_eq!(first, slots, "every bucket was exchanged");
    Ok(Exchanged { traffic, selection: selections.finish() })
}
