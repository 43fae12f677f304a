//! Bucketing: splits the vector into buckets of whole slots that are exchanged one after another.
//!
//! A bucket holds consecutive slots until it has at least `min_values` values. Each bucket has its own reducer and its own key
//! (`key.bucket(b)`). Results do not depend on the order in which buckets are exchanged.
//!
//! **Arriving vectors** ([`reduce_arriving`](Reducer::reduce_arriving)). Each bucket is exchanged as soon as it has arrived, one after
//! another. Their order is that in which the last slots of the buckets are expected.
//!
//! **Failure.** The error is that of the first bucket that fails, and no later bucket is exchanged. The state that the buckets have
//! staged is [discarded](crate::state::Stateful::discard), so buckets may contain stateful reducers.

use std::ops::Range;

use crate::error::ReduceError;
use crate::report::{Measured, Report};
use crate::seam::{
    Arriving, DevicePart, DevicePlace, Energies, Exchanged, Knob, OnDevice, Probe, ProbeInput, Ratios, Reducer, Round,
    Selections, SentInput,
};
use crate::trace::phase;
use crate::{CompressionRatio, Layout, Session, Slot, Traffic, layout, stateful};

#[derive(Debug)]
struct Bucket<R> {
    index: usize,
    range: Range<usize>,
    /// The slots of the bucket, relative to its start.
    slots: Vec<Slot>,
    reducer: R,
}

/// One reducer per bucket; see the [module](self).
#[derive(Debug)]
pub struct Bucketed<R> {
    buckets: Vec<Bucket<R>>,
    len: usize,
    /// Number of slots of all buckets together.
    slots: usize,
    /// Set if every bucket compresses each of its slots separately.
    per_slot: bool,
    scratch: Energies,
}

impl<R: Reducer> Bucketed<R> {
    /// Splits `layout` and makes a reducer for each bucket.
    pub fn new(layout: &Layout, min_values: usize, make: impl FnMut(usize) -> R) -> Self {
        let mut ends = Vec::new();
        let (mut start, slots) = (0, layout.slots());
        for (index, slot) in slots.iter().enumerate() {
            if slot.range().end - start >= min_values || index + 1 == slots.len() {
                ends.push(index + 1);
                start = slot.range().end;
            }
        }
        Bucketed::cut(layout, &ends, make)
    }

    /// Splits from the end, for vectors whose last slots arrive first. The last bucket has at least an eighth of `min_values`, so that it
    /// can be sent early.
    pub fn last_first(layout: &Layout, min_values: usize, make: impl FnMut(usize) -> R) -> Self {
        let slots = layout.slots();
        let (mut ends, mut end, mut fewest) = (vec![slots.len()], layout.len(), min_values.div_ceil(8));
        for (index, slot) in slots.iter().enumerate().skip(1).rev() {
            if end - slot.range().start >= fewest {
                ends.push(index);
                (end, fewest) = (slot.range().start, min_values);
            }
        }
        ends.reverse();
        Bucketed::cut(layout, &ends, make)
    }

    /// Creates buckets that end before these slot numbers.
    fn cut(layout: &Layout, ends: &[usize], mut make: impl FnMut(usize) -> R) -> Self {
        let mut buckets: Vec<Bucket<R>> = Vec::new();
        let mut first = 0;
        for &end in ends {
            let inside = &layout.slots()[first..end];
            let Some(range) = inside.first().zip(inside.last()).map(|(a, b)| a.range().start..b.range().end) else {
                continue;
            };
            buckets.push(Bucket {
                index: buckets.len(),
                slots: inside.iter().map(|s| s.rebased(range.start)).collect(),
                range,
                reducer: make(buckets.len()),
            });
            first = end;
        }
        let per_slot = buckets.iter_mut().all(|bucket| bucket.reducer.knob().is_some_and(|knob| knob.per_slot()));
        let slots = layout.slots().len();
        Bucketed { buckets, len: layout.len(), slots, per_slot, scratch: Energies::new() }
    }

    /// Returns the nominal ratio of all values together. The report holds the first bucket's ratio and receives the ratio of each slot.
    fn ratio(&self, report: &mut Report) -> Option<CompressionRatio> {
        let (mut sent, mut is_first, mut slots) = (0.0, true, 0..0);
        let first = report.ratio;
        for bucket in &self.buckets {
            slots = slots.end..slots.end + bucket.slots.len();
            let part = report.part(slots.clone(), |part| bucket.reducer.report(part));
            is_first &= part.ratio == first;
            sent += part.ratio.map_or(f64::NAN, |ratio| bucket.range.len() as f64 / ratio.get());
        }
        if is_first { first } else { CompressionRatio::new(self.len as f64 / sent).ok() }
    }

    /// Returns the buckets in the order in which the last of their slots are expected.
    fn order(&self, slots: &[usize]) -> Vec<usize> {
        let mut place = vec![0; self.slots];
        slots.iter().enumerate().for_each(|(at, slot)| place[*slot] = at);
        let mut first = 0;
        let last = self.buckets.iter().map(|bucket| {
            let inside = first..first + bucket.slots.len();
            first = inside.end;
            inside.map(|slot| place[slot]).max().unwrap_or(0)
        });
        let mut order: Vec<(usize, usize)> = last.zip(0..).collect();
        if slots.is_empty() {
            order.reverse();
        } else {
            order.sort_unstable();
        }
        order.into_iter().map(|(_, bucket)| bucket).collect()
    }

    /// Returns the ranges of the buckets.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.buckets.iter().map(|b| b.range.clone())
    }
}

stateful! {
    impl<R: Reducer> Stateful for Bucketed<R> { buckets: parts("bucket") }
}

stateful! {
    impl<R: Reducer> Stateful for Bucket<R> { reducer: flatten() }
}

impl<R: Reducer> Reducer for Bucketed<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        if round.input.len() != self.len {
            return Err(ReduceError::Length { expected: self.len, got: round.input.len() });
        }
        // Buckets take no measurements of the whole vector.
        let of_a_part = round.agreed_step.of_a_part();
        let mut round = Round { agreed_step: &of_a_part, ..round };
        let input = round.input;
        let part = |bucket: &mut Bucket<R>| bucket.reduce(&input[bucket.range.clone()], &mut round, comm);
        let exchanged = together(self.slots, self.buckets.iter_mut().map(part))?;
        comm.scope().bucket = None;
        Ok(exchanged)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        if round.average.len() != self.len {
            return Err(ReduceError::Length { expected: self.len, got: round.average.len() });
        }
        let of_a_part = round.agreed_step.of_a_part();
        let mut round = Round { agreed_step: &of_a_part, ..round };
        let order = self.order(input.order());
        let buckets = &mut self.buckets;
        let is_complete = input.on_device().is_some_and(|place| place.is_complete);
        let mut done = until_failure((0..order.len()).map(|turn| {
            // The device encodes the next bucket while this one is exchanged.
            for &next in order[turn..].iter().take(if is_complete { 2 } else { 0 }) {
                if let Err(error) = buckets[next].start(&round, input, comm) {
                    return Done { index: next, slots: buckets[next].slots.len(), result: Err(error) };
                }
            }
            let bucket = &mut buckets[order[turn]];
            if input.on_device().is_some() {
                let mut part = PartOf { range: bucket.range.clone(), whole: &mut *input };
                return bucket.exchange(&mut round, comm, |reducer, share, comm| {
                    reducer.reduce_arriving(share, &mut part, comm)
                });
            }
            let values = input.wait(bucket.range.clone(), comm);
            bucket.reduce(values, &mut round, comm)
        }));
        done.sort_by_key(|done| done.index);
        if let Some(failed) = done.iter().find(|done| done.result.is_err()) {
            comm.scope().bucket = Some(failed.index);
        }
        let exchanged = together(self.slots, done.into_iter())?;
        comm.scope().bucket = None;
        Ok(exchanged)
    }

    fn can_subtract_sent(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.reducer.can_subtract_sent())
    }

    fn subtracts_on_device(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.reducer.subtracts_on_device())
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        let mut first = 0;
        self.buckets.iter_mut().fold(true, |finite, Bucket { range, slots, reducer, .. }| {
            let places = first..first + slots.len();
            first = places.end;
            reducer.subtract_sent(&mut input.part(slots, places, range.clone())) & finite
        })
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.buckets.iter_mut().for_each(|bucket| bucket.reducer.hold(&layout::inside(absent, &bucket.range)));
    }

    fn report(&self, report: &mut Report) {
        let Some(first) = self.buckets.first() else { return };
        report.narrowed(0..first.slots.len(), |report| first.reducer.report(report));
        report.measured = Measured::default();
        report.ratio = self.ratio(report);
    }

    fn knob(&mut self) -> Option<&mut dyn Knob> {
        let knobs = self.buckets.iter_mut().all(|bucket| bucket.reducer.knob().is_some());
        knobs.then_some(self as _)
    }
}

/// One knob for all buckets: each gets its share of the ratios.
impl<R: Reducer> Knob for Bucketed<R> {
    fn per_slot(&self) -> bool {
        self.per_slot
    }

    fn set(&mut self, ratios: Ratios<'_>) {
        let mut first = 0;
        for Bucket { slots, reducer, .. } in &mut self.buckets {
            let share = match ratios {
                Ratios::PerSlot(ratios) => Ratios::PerSlot(&ratios[first..first + slots.len()]),
                Ratios::Own | Ratios::All(_) => ratios,
            };
            first += slots.len();
            reducer.knob().into_iter().for_each(|knob| knob.set(share));
        }
    }

    fn probe(&mut self, probe: &Probe<'_>, mut input: ProbeInput<'_>, out: &mut Energies) -> OnDevice<bool> {
        out.clear(probe.ratios.len());
        for Bucket { index, range, slots, reducer, .. } in &mut self.buckets {
            let part = Probe { slots, key: probe.key.bucket(*index), ..*probe };
            let Some(knob) = reducer.knob() else { return Ok(false) };
            if !knob.probe(&part, input.part(range.clone()), &mut self.scratch)? {
                return Ok(false);
            }
            out.append(&self.scratch, probe.per_slot);
        }
        Ok(true)
    }
}

/// Part of a vector that is on a device.
struct PartOf<'a> {
    range: Range<usize>,
    whole: &'a mut dyn Arriving,
}

impl Arriving for PartOf<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.whole.wait(self.range.start + range.start..self.range.start + range.end, comm)
    }

    fn on_device(&self) -> Option<DevicePlace> {
        self.whole.on_device()
    }

    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        self.whole.device(self.range.start + range.start..self.range.start + range.end, comm)
    }
}

/// Outcome of a bucket's exchange.
struct Done {
    index: usize,
    slots: usize,
    result: Result<Exchanged, ReduceError>,
}

impl<R: Reducer> Bucket<R> {
    /// Exchanges this bucket's share of `whole`, with these values.
    fn reduce(&mut self, input: &[f32], whole: &mut Round<'_>, comm: &mut Session) -> Done {
        self.exchange(whole, comm, |reducer, share, comm| reducer.reduce(Round { input, ..share }, comm))
    }

    /// Starts to encode this bucket's share of `whole`, which is on a device.
    fn start(&mut self, whole: &Round<'_>, input: &mut dyn Arriving, comm: &mut Session) -> Result<(), ReduceError> {
        let mut part = PartOf { range: self.range.clone(), whole: input };
        comm.scope().bucket = Some(self.index);
        self.reducer.start((whole.key.bucket(self.index), &self.slots), &mut part, comm)
    }

    /// Exchanges this bucket's share of `whole`, whose input is left to `exchange`.
    fn exchange(
        &mut self,
        whole: &mut Round<'_>,
        comm: &mut Session,
        exchange: impl FnOnce(&mut R, Round<'_>, &mut Session) -> Result<Exchanged, ReduceError>,
    ) -> Done {
        let Bucket { index, range, slots, reducer, .. } = self;
        let share = Round {
            key: whole.key.bucket(*index),
            slots,
            agreed_step: whole.agreed_step,
            input: &[],
            average: &mut whole.average[range.clone()],
            sent: whole.sent.as_deref_mut().map(|sent| &mut sent[range.clone()]),
        };
        comm.scope().bucket = Some(*index);
        let _bucket = phase!("bucket", bucket = *index);
        Done { index: *index, slots: share.slots.len(), result: exchange(reducer, share, comm) }
    }
}

/// Returns the exchanges up to and including the first that failed.
fn until_failure(exchanges: impl Iterator<Item = Done>) -> Vec<Done> {
    let mut all = Vec::new();
    for done in exchanges {
        all.push(done);
        if all.last().is_some_and(|done| done.result.is_err()) {
            break;
        }
    }
    all
}

/// Merges the exchanges of buckets, in order, into one; the first error is the error of the whole.
fn together(slots: usize, parts: impl Iterator<Item = Done>) -> Result<Exchanged, ReduceError> {
    let (mut selections, mut traffic, mut first) = (Selections::of(slots), Traffic::default(), 0);
    for Done { slots, result, .. } in parts {
        let exchanged = result?;
        traffic += exchanged.traffic;
        selections.put(first..first + slots, &exchanged.selection);
        first += slots;
    }
    assert_eq!(first, slots, "every bucket is exchanged, unless an earlier exchange panicked");
    Ok(Exchanged { traffic, selection: selections.finish() })
}

#[cfg(test)]
mod tests;
