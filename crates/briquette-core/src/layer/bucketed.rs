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
//! exchanged by then, on every rank that overlaps alike, and none beyond that. What the buckets before it have staged is
//! [discarded](Stateful::discard) with it, so that reducers with memories work in buckets. A panic ends the other thread, then goes on.

use std::ops::Range;

use crate::error::{ReduceError, StateError};
use crate::reduce::{Energies, Exchanged, Knob, Levels, Probe, Reducer, Round, Selections, Unsent};
use crate::report::Report;
use crate::state::{State, Stateful, load_each, save_each};
use crate::{CompressionFactor, Layout, Session, Slot, Traffic};

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
    /// Whether every bucket compresses each of its slots by itself.
    per_slot: bool,
    scratch: Energies,
}

impl<R: Reducer> Bucketed<R> {
    /// Cuts `layout` and makes a reducer for each bucket.
    pub fn new(layout: &Layout, min_values: usize, mut make: impl FnMut(usize) -> R) -> Self {
        let mut buckets: Vec<Bucket<R>> = Vec::new();
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
        let per_slot = buckets.iter_mut().all(|bucket| bucket.reducer.knob().is_some_and(|knob| knob.per_slot()));
        Bucketed { buckets, len: layout.len(), overlapped: false, per_slot, scratch: Energies::new() }
    }

    /// Whether a bucket is exchanged while others are encoded and decoded; by default not.
    #[must_use]
    pub fn overlapped(mut self, overlapped: bool) -> Self {
        self.overlapped = overlapped;
        self
    }

    /// The nominal ratio of all values together, the first bucket's being `first`.
    fn factor(&self, first: Option<CompressionFactor>) -> Option<CompressionFactor> {
        let (mut sent, mut is_first) = (0.0, true);
        for bucket in &self.buckets {
            let mut part = Report::default();
            bucket.reducer.report(&mut part);
            is_first &= part.factor == first;
            sent += bucket.range.len() as f64 / part.factor?.get();
        }
        if is_first { first } else { CompressionFactor::new(self.len as f64 / sent).ok() }
    }

    /// Where the buckets lie.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.buckets.iter().map(|b| b.range.clone())
    }
}

impl<R: Reducer> Stateful for Bucketed<R> {
    fn save(&self, state: &mut State) {
        save_each("bucket", self.buckets.iter().map(|bucket| &bucket.reducer), state);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        load_each("bucket", self.buckets.iter_mut().map(|bucket| &mut bucket.reducer), state)
    }

    fn commit(&mut self) {
        self.buckets.iter_mut().for_each(|bucket| bucket.reducer.commit());
    }

    fn discard(&mut self) {
        self.buckets.iter_mut().for_each(|bucket| bucket.reducer.discard());
    }
}

impl<R: Reducer> Reducer for Bucketed<R> {
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

    fn can_take_off(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.reducer.can_take_off())
    }

    fn take_off(&mut self, unsent: &mut Unsent<'_>) -> bool {
        let mut first = 0;
        self.buckets.iter_mut().fold(true, |finite, Bucket { range, slots, reducer }| {
            let places = first..first + slots.len();
            first = places.end;
            reducer.take_off(&mut unsent.part(slots, places, range.clone())) & finite
        })
    }

    fn report(&self, report: &mut Report) {
        let Some(first) = self.buckets.first() else { return };
        first.reducer.report(report);
        report.factor = self.factor(report.factor);
    }

    fn knob(&mut self) -> Option<&mut dyn Knob> {
        let knobs = self.buckets.iter_mut().all(|bucket| bucket.reducer.knob().is_some());
        knobs.then_some(self as _)
    }
}

/// One knob for all buckets: each has its share of the levels.
impl<R: Reducer> Knob for Bucketed<R> {
    fn per_slot(&self) -> bool {
        self.per_slot
    }

    fn set(&mut self, levels: Levels<'_>) {
        let mut first = 0;
        for Bucket { slots, reducer, .. } in &mut self.buckets {
            let share = match levels {
                Levels::PerSlot(factors) => Levels::PerSlot(&factors[first..first + slots.len()]),
                Levels::Own | Levels::All(_) => levels,
            };
            first += slots.len();
            reducer.knob().into_iter().for_each(|knob| knob.set(share));
        }
    }

    fn probe(&mut self, probe: &Probe<'_>, out: &mut Energies) {
        out.clear(probe.factors.len());
        for (index, Bucket { range, slots, reducer }) in self.buckets.iter_mut().enumerate() {
            let part = Probe { input: &probe.input[range.clone()], slots, key: probe.key.bucket(index), ..*probe };
            reducer.knob().into_iter().for_each(|knob| knob.probe(&part, &mut self.scratch));
            out.append(&self.scratch, probe.per_slot);
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
