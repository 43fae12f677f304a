//! All-gather of compressed messages: compress, send to all ranks, decode, aggregate.
//!
//! **Why, and when not.** The only exchange that suits any compressor and any aggregator. A rank receives `W−1` messages, so at a wire
//! factor `f` it moves fewer bytes than the dense ring only while `f > W/2`. On many ranks use a reducer that sums in transit.
//!
//! **On the wire.** Per rank and [grain](Grain): a length (4 bytes) and the [message](crate::Message), sent to `W−1` ranks.
//!
//! **Properties.** With [`Mean`](crate::aggregate::Mean), linear in `sent`. The error bound is the compressor's. An aggregator that rates
//! whole contributions sees those of the whole vector, whatever the grain. If the aggregator is not the mean, a rank that sends a
//! non-finite value or an invalid message is excluded: [none of its parts count](Aggregator::without), and the report names it. All parts
//! are then held, compressed, until the last has been read.

mod config;

pub use config::GatherConfig;

use std::ops::Range;

use super::incoming::Incoming;
use super::{Energies, Exchanged, Knob, Levels, Probe, Reducer, Round, Selection, Unsent, check_average};
use crate::aggregate::{Aggregator, check_ranks};
use crate::compress::Compressor;
use crate::error::{AggregateError, ReduceError};
use crate::math::{all_finite, norm2};
use crate::report::Report;
use crate::state::Stateful;
use crate::trace::phase;
use crate::{CompressionFactor, Key, Message, Session, Slot};

/// Scope of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Grain {
    /// The whole vector (or bucket): keeps the most energy at a given size.
    #[default]
    Whole,
    /// Each slot separately: the usual choice in the literature, and right for scaled signs.
    PerSlot,
}

impl Grain {
    fn part(self, index: usize, len: usize, slots: &[Slot]) -> Range<usize> {
        match self {
            Grain::Whole => 0..len,
            Grain::PerSlot => slots[index].range(),
        }
    }

    fn parts(self, slots: &[Slot]) -> usize {
        match self {
            Grain::Whole => 1,
            Grain::PerSlot => slots.len(),
        }
    }
}

/// Messages made while probing, for the next exchange to send.
#[derive(Debug, Default)]
struct Staged {
    key: Option<Key>,
    /// One entry per factor; entries beyond `factors` are storage for later.
    messages: Vec<Vec<Message>>,
    factors: Vec<CompressionFactor>,
}

/// Current setting of the compressor's knob.
#[derive(Debug)]
struct Setting {
    /// The compressor's own ratio.
    own: CompressionFactor,
    /// Empty for `own`, one entry for all parts, or one entry per part.
    factors: Vec<CompressionFactor>,
    /// The ratio over all parts of the last exchange, if parts have different ratios.
    mean: Option<CompressionFactor>,
}

impl Setting {
    fn of(&self, part: usize) -> Option<CompressionFactor> {
        match &self.factors[..] {
            [] => None,
            [all] => Some(*all),
            each => Some(each[part]),
        }
    }
}

/// Compress, all-gather, aggregate; see the [module](self).
#[derive(Debug)]
pub struct Gather<C, A> {
    compressor: C,
    aggregator: A,
    grain: Grain,
    setting: Setting,
    staged: Staged,
    mine: Vec<Message>,
    bytes: Vec<u8>,
    incoming: Incoming,
    /// Decoded messages by rank and part.
    decoded: Vec<Vec<Message>>,
    weights: Vec<f32>,
}

impl<C: Compressor, A: Aggregator> Gather<C, A> {
    /// Creates a gather with one message for the whole vector; see [`grain`](Gather::grain).
    pub fn new(compressor: C, aggregator: A) -> Self {
        let setting = Setting { own: compressor.nominal(), factors: Vec::new(), mean: None };
        Gather {
            compressor,
            aggregator,
            grain: Grain::Whole,
            setting,
            staged: Staged::default(),
            mine: Vec::new(),
            bytes: Vec::new(),
            incoming: Incoming::default(),
            decoded: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Returns the compressor and the aggregator.
    pub(super) fn parts(&mut self) -> (&mut C, &mut A) {
        (&mut self.compressor, &mut self.aggregator)
    }

    /// Sets the scope of one message.
    #[must_use]
    pub fn grain(mut self, grain: Grain) -> Self {
        self.grain = grain;
        self
    }

    /// Fills `mine`. Each message comes from the probe's cache if it holds exactly this one; otherwise it is compressed now.
    fn compress_mine(&mut self, round: &Round<'_>, rank: usize) {
        let is_staged = self.staged.key.take() == Some(round.key);
        let place = Place { grain: self.grain, slots: round.slots, key: round.key.rank(rank) };
        let (mut dense, mut sent) = (0.0, 0.0);
        self.mine.resize_with(self.grain.parts(round.slots), Message::default);
        for (part, mine) in self.mine.iter_mut().enumerate() {
            let factor = self.setting.of(part);
            tune(&mut self.compressor, factor);
            let staged = self.staged.factors.iter().position(|staged| is_staged && Some(*staged) == factor);
            match staged {
                Some(probe) => std::mem::swap(mine, &mut self.staged.messages[probe][part]),
                None => compress(&mut self.compressor, place, (part, round.input), None, mine),
            }
            let values = place.range(part, round.input.len()).len() as f64;
            (dense, sent) = (dense + values, sent + values / self.compressor.nominal().get());
        }
        let mean = (self.setting.factors.len() > 1 && sent > 0.0).then(|| CompressionFactor::new(dense / sent));
        self.setting.mean = mean.and_then(Result::ok);
    }

    /// Sends every message to every rank. A single message lends its frame; several are concatenated.
    fn gather(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        let wrong = |source| AggregateError::Message { rank: comm.rank(), source };
        if let [only] = &mut self.mine[..] {
            let frame = only.to_frame(&mut self.bytes).map_err(wrong)?;
            return Ok(comm.all_gather(frame, &mut self.incoming.frames)?);
        }
        self.bytes.clear();
        self.mine.iter().try_for_each(|message| message.append_frame(&mut self.bytes)).map_err(wrong)?;
        Ok(comm.all_gather(&self.bytes, &mut self.incoming.frames)?)
    }

    /// Aggregates part by part. For a mean, no rank holds more than one part of each message. Any other rule is given only the ranks of
    /// which every part can be used.
    fn aggregate(&mut self, slots: &[Slot], rank: usize, average: &mut [f32]) -> Result<(), ReduceError> {
        let (world, parts) = (self.incoming.frames.len(), self.grain.parts(slots));
        let is_mean = self.aggregator.is_mean();
        let held = if is_mean && !self.aggregator.rates() { 1 } else { parts };
        self.decoded.resize_with(world, Vec::new);
        self.decoded.iter_mut().for_each(|parts| parts.resize_with(held, Message::default));
        self.weights.clear();
        self.incoming.begin(!is_mean, rank, &mut self.mine[..parts])?;
        let ranges: Vec<Range<usize>> = (0..parts).map(|part| self.grain.part(part, average.len(), slots)).collect();
        if held == parts {
            let mut next = |part: usize| self.incoming.next(rank, &mut self.decoded, (part, ranges[part].len()));
            (0..parts).try_for_each(&mut next)?;
            self.incoming.end(rank)?;
        }
        let excluded = self.incoming.excluded();
        let ranks: Vec<usize> = (0..world).filter(|rank| !excluded.contains(rank)).collect();
        let mut for_some = if excluded.is_empty() { None } else { Some(without(&self.aggregator, excluded, world)?) };
        let rule: &mut dyn Aggregator = for_some.as_mut().map_or(&mut self.aggregator, |rule| rule);
        if rule.rates() {
            let mine = &self.mine[..parts];
            let of = |from: &usize| if *from == rank { mine } else { &self.decoded[*from] };
            let all: Vec<&[Message]> = ranks.iter().map(of).collect();
            rule.rate(&all, &mut self.weights)?;
        }
        let mut finite = true;
        for part in 0..parts {
            if held < parts {
                self.incoming.next(rank, &mut self.decoded, (0, ranges[part].len()))?;
            }
            // By law 6 this rank's own message equals its decoded wire form, so it need not be decoded.
            let place = if held < parts { 0 } else { part };
            let of = |from: &usize| if *from == rank { &self.mine[part] } else { &self.decoded[*from][place] };
            let column: Vec<&Message> = ranks.iter().map(of).collect();
            let average = &mut average[ranges[part].clone()];
            rule.combine(&self.weights, &column, average)?;
            finite &= is_finite(average, if is_mean { &column } else { &[] });
        }
        if held < parts {
            self.incoming.end(rank)?;
        }
        if finite { Ok(()) } else { check_average(average, slots) }
    }
}

/// Returns the rule for the contributions of the remaining ranks.
pub(super) fn without(
    aggregator: &dyn Aggregator,
    excluded: Vec<usize>,
    world: usize,
) -> Result<Box<dyn Aggregator>, AggregateError> {
    check_ranks(aggregator, world)?;
    aggregator.without(excluded.len(), world).ok_or(AggregateError::Excluded { ranks: excluded, world })
}

/// Returns whether the whole average is finite. A mean of sparse messages is checked only where they have values: elsewhere it is 0.
fn is_finite(average: &[f32], messages: &[&Message]) -> bool {
    let touched: Option<Vec<&[u32]>> = messages.iter().map(|message| message.sparse_indices()).collect();
    match touched {
        Some(touched) if !touched.is_empty() => {
            touched.iter().copied().flatten().fold(true, |finite, &index| finite & average[index as usize].is_finite())
        }
        _ => all_finite(average),
    }
}

/// Grain, slots and key of the parts to compress.
#[derive(Clone, Copy)]
struct Place<'a> {
    grain: Grain,
    slots: &'a [Slot],
    key: Key,
}

impl Place<'_> {
    fn range(&self, part: usize, len: usize) -> Range<usize> {
        self.grain.part(part, len, self.slots)
    }
}

/// Compresses one part of `x`, by refining the coarser message `coarse` if there is one.
fn compress<C: Compressor>(
    compressor: &mut C,
    place: Place<'_>,
    (part, x): (usize, &[f32]),
    coarse: Option<&Message>,
    out: &mut Message,
) {
    let (x, key) = (&x[place.range(part, x.len())], place.key.bucket(part));
    match coarse {
        Some(coarse) => compressor.refine_into(x, coarse, key, out),
        None => compressor.compress_into(x, key, out),
    }
}

fn tune<C: Compressor>(compressor: &mut C, factor: Option<CompressionFactor>) {
    if let (Some(factor), Some(knob)) = (factor, compressor.knob()) {
        knob.tune(factor);
    }
}

/// By hand: it saves nothing, and forgets what was staged with every step.
impl<C: Compressor, A: Aggregator> Stateful for Gather<C, A> {
    /// Messages staged after this step's exchange belong to no other step.
    fn commit(&mut self) {
        self.staged.key = None;
    }

    /// The step may be repeated with other values.
    fn discard(&mut self) {
        self.staged.key = None;
    }
}

impl<C: Compressor, A: Aggregator> Reducer for Gather<C, A> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let rank = comm.rank();
        let encode = phase!("encode");
        self.compress_mine(&round, rank);
        drop(encode);
        let selection = if self.compressor.selects() { Selection::Some } else { Selection::All };
        let exchanged = Exchanged::count(comm, selection, |comm| self.gather(comm))?;
        let _decode = phase!("decode");
        self.aggregate(round.slots, rank, round.average)?;
        if let Some(sent) = round.sent {
            for index in 0..self.grain.parts(round.slots) {
                let range = self.grain.part(index, sent.len(), round.slots);
                self.mine[index]
                    .decode_into(&mut sent[range])
                    .map_err(|source| AggregateError::Message { rank, source })?;
            }
        }
        Ok(exchanged)
    }

    fn can_subtract_sent(&self) -> bool {
        true
    }

    fn subtract_sent(&mut self, unsent: &mut Unsent<'_>) -> bool {
        let Unsent { slots, vector, kept, .. } = unsent;
        (0..self.grain.parts(slots)).fold(true, |finite, index| {
            let range = self.grain.part(index, vector.len(), slots);
            let places = match self.grain {
                Grain::Whole => 0..slots.len(),
                Grain::PerSlot => index..index + 1,
            };
            let (start, part) = (range.start, &mut vector[range]);
            self.mine[index].subtract_sent(start, &slots[places.clone()], part, &mut kept[places]) & finite
        })
    }

    fn report(&self, report: &mut Report) {
        report.factor = self.setting.mean.or_else(|| Some(self.compressor.nominal()));
        self.incoming.report(&mut report.excluded);
        if self.setting.factors.len() > 1 {
            report.slots.iter_mut().zip(&self.setting.factors).for_each(|(slot, factor)| slot.factor = Some(*factor));
        }
    }

    fn knob(&mut self) -> Option<&mut dyn Knob> {
        self.compressor.knob().is_some().then_some(self as _)
    }
}

impl<C: Compressor, A: Aggregator> Knob for Gather<C, A> {
    fn per_slot(&self) -> bool {
        self.grain == Grain::PerSlot
    }

    fn set(&mut self, levels: Levels<'_>) {
        let was_own = self.setting.factors.is_empty();
        self.setting.factors.clear();
        match levels {
            Levels::Own if was_own => {}
            Levels::Own => tune(&mut self.compressor, Some(self.setting.own)),
            Levels::All(factor) => self.setting.factors.push(factor),
            Levels::PerSlot(factors) => {
                assert!(self.per_slot(), "one message of the whole vector cannot have a ratio for each slot");
                self.setting.factors.extend_from_slice(factors);
            }
        }
    }

    fn probe(&mut self, probe: &Probe<'_>, out: &mut Energies) {
        assert!(self.per_slot() || !probe.per_slot, "slots have no energies of their own in one message");
        let Probe { input, slots, factors, .. } = *probe;
        // After an exchange, the report gives the ratio that was sent.
        let sent = self.compressor.nominal();
        let place = Place { grain: self.grain, slots, key: probe.key.rank(probe.rank) };
        let parts = self.grain.parts(slots);
        self.staged.messages.resize_with(factors.len().max(self.staged.messages.len()), Vec::new);
        out.clear(factors.len());
        let range = |part| place.range(part, input.len());
        match probe.per_slot {
            false => out.push(norm2(input)),
            true => (0..parts).for_each(|part| out.push(norm2(&input[range(part)]))),
        }
        for (index, &factor) in factors.iter().enumerate() {
            tune(&mut self.compressor, Some(factor));
            let (before, now) = self.staged.messages.split_at_mut(index);
            now[0].resize_with(parts, Message::default);
            for (part, message) in now[0].iter_mut().enumerate() {
                let coarse = before.last().map(|before| &before[part]);
                compress(&mut self.compressor, place, (part, input), coarse, message);
                let row = if probe.per_slot { part } else { 0 };
                out.kept_mut(row)[index] += message.kept_energy(&input[range(part)]);
            }
        }
        self.staged.key = Some(probe.key);
        self.staged.factors.clear();
        self.staged.factors.extend_from_slice(factors);
        tune(&mut self.compressor, Some(sent));
    }
}

#[cfg(test)]
mod tests;
