//! All-gather of compressed messages: compress, send to all ranks, decode, aggregate.
//!
//! **Why, and when not.** This is the only exchange that suits any compressor and any aggregator. A rank receives `W−1` messages in a world of
//! `W` ranks. With messages that are `r` times smaller than the vector, it moves fewer bytes than the dense ring only if `r > W/2`.
//! With many ranks, use a reducer that sums in transit.
//!
//! **On the wire.** Per rank and [grain](Grain): a length (4 bytes) and the [message](crate::Message), sent to `W−1` ranks.
//!
//! **Properties.** With [`Mean`](crate::aggregate::mean::Mean), the average is the mean of the ranks' `sent` vectors. The error bound is the
//! compressor's. An aggregator that rates whole contributions rates those of the whole vector, whatever the grain. If the aggregator is not the
//! mean, a rank that sends a non-finite value or an invalid message is excluded: [none of its parts count](Aggregator::without), and the report
//! names it. Under such an aggregator, all parts are kept, compressed, until the last has been read.

mod config;
mod knob;

pub use config::GatherConfig;

use std::ops::Range;

use self::knob::{Setting, Staged, tune};
use super::incoming::Incoming;
use crate::error::{AggregateError, ReduceError};
use crate::math::all_finite;
use crate::report::Report;
use crate::seam::{
    Aggregator, Arriving, CompleteVector, Compressor, Exchanged, Knob, Reducer, Round, Selection, SentInput,
    check_average, check_ranks,
};
use crate::state::Stateful;
use crate::trace::phase;
use crate::{CompressionRatio, Key, Message, Session, Slot};

/// Part of the vector that one message covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Grain {
    /// The whole vector (or bucket). Of all grains it keeps the most energy (squared norm) at a given size.
    #[default]
    Whole,
    /// Each slot (parameter tensor) separately: the usual choice in the literature, and best for signs with a scale.
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
    /// Creates a gather with one message for the whole vector; [`grain`](Gather::grain) changes that.
    pub fn new(compressor: C, aggregator: A) -> Self {
        let setting = Setting { own: compressor.nominal(), ratios: Vec::new(), mean: None };
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
    pub fn parts(&mut self) -> (&mut C, &mut A) {
        (&mut self.compressor, &mut self.aggregator)
    }

    /// Sets the part of the vector that one message covers.
    #[must_use]
    pub fn grain(mut self, grain: Grain) -> Self {
        self.grain = grain;
        self
    }

    /// Fills `mine`. A message comes from the probe's cache if the cache holds exactly this message; otherwise it is
    /// compressed now.
    fn compress_mine(
        &mut self,
        round: &Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let (rank, len) = (comm.rank(), round.average.len());
        self.start((round.key, round.slots), input, comm)?;
        let is_staged = self.staged.key.take() == Some(round.key);
        let place = Place { grain: self.grain, slots: round.slots, key: round.key.rank(rank) };
        let (mut dense, mut sent) = (0.0, 0.0);
        self.mine.resize_with(self.grain.parts(round.slots), Message::default);
        for (part, mine) in self.mine.iter_mut().enumerate() {
            let ratio = self.setting.of(part);
            tune(&mut self.compressor, ratio);
            let staged = self.staged.ratios.iter().position(|staged| is_staged && Some(*staged) == ratio);
            match staged {
                Some(probe) => std::mem::swap(mine, &mut self.staged.messages[probe][part]),
                None => encode(&mut self.compressor, place, (part, len), input, mine, comm)?,
            }
            let values = place.range(part, len).len() as f64;
            (dense, sent) = (dense + values, sent + values / self.compressor.nominal().get());
        }
        let mean = (self.setting.ratios.len() > 1 && sent > 0.0).then(|| CompressionRatio::new(dense / sent));
        self.setting.mean = mean.and_then(Result::ok);
        Ok(())
    }

    /// Sends every message to every rank. A single message is sent from its own storage; several are concatenated.
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

    /// Aggregates part by part. For a mean, only one part of each rank's contribution is decoded at a time. Any other aggregator gets
    /// only the ranks whose parts are all valid.
    fn aggregate(
        &mut self,
        slots: &[Slot],
        input: &mut dyn Arriving,
        average: &mut [f32],
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let (world, parts, rank) = (self.incoming.frames.len(), self.grain.parts(slots), comm.rank());
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
            // A device whose average is not finite leaves it to the host, which names the slot.
            if is_mean && averages_on_device(input, ranges[part].clone(), &column, comm)? {
                continue;
            }
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

/// Returns the aggregator for the contributions of the remaining ranks.
pub fn without(
    aggregator: &dyn Aggregator,
    excluded: Vec<usize>,
    world: usize,
) -> Result<Box<dyn Aggregator>, AggregateError> {
    check_ranks(aggregator, world)?;
    aggregator.without(excluded.len(), world).ok_or(AggregateError::Excluded { ranks: excluded, world })
}

/// Averages messages on the input's device. Returns whether it did, with a finite average.
fn averages_on_device(
    input: &mut dyn Arriving,
    range: Range<usize>,
    messages: &[&Message],
    comm: &mut Session,
) -> Result<bool, ReduceError> {
    let rank = comm.rank();
    let Some(mut device) = input.device(range, comm) else { return Ok(false) };
    let averaged = device.average(1.0 / messages.len() as f32, messages, rank);
    Ok(averaged.map_err(|source| ReduceError::Device { rank, source })? == Some(true))
}

/// Returns whether the whole average is finite. A mean of sparse messages is 0 where they have no values, so only the other places
/// are checked.
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

/// Returns the length of a vector of these slots.
fn len(slots: &[Slot]) -> usize {
    slots.last().map_or(0, |slot| slot.range().end)
}

/// Compresses one part of a vector of `len` values where it is: on its device, or on the host.
fn encode<C: Compressor>(
    compressor: &mut C,
    place: Place<'_>,
    (part, len): (usize, usize),
    input: &mut dyn Arriving,
    out: &mut Message,
    comm: &mut Session,
) -> Result<(), ReduceError> {
    let (range, key) = (place.range(part, len), place.key.bucket(part));
    if let Some(mut device) = input.device(range.clone(), comm) {
        let encoded = device.encode(compressor, key, out);
        if encoded.map_err(|source| ReduceError::Device { rank: comm.rank(), source })? {
            return Ok(());
        }
    }
    compressor.compress_into(input.wait(range, comm), key, out);
    Ok(())
}

/// By hand: it saves nothing, and each step discards what was staged.
impl<C: Compressor, A: Aggregator> Stateful for Gather<C, A> {
    /// Messages staged after this step's exchange belong to no other step.
    fn commit(&mut self) {
        self.staged.key = None;
    }

    /// The step may be repeated with another vector.
    fn discard(&mut self) {
        self.staged.key = None;
    }
}

impl<C: Compressor, A: Aggregator> Reducer for Gather<C, A> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let mut input = CompleteVector(round.input);
        self.reduce_arriving(round, &mut input, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let rank = comm.rank();
        if input.on_device().is_none() {
            input.wait(0..round.average.len(), comm);
        }
        let encode = phase!("encode");
        self.compress_mine(&round, input, comm)?;
        drop(encode);
        let selection = if self.compressor.selects() { Selection::Some } else { Selection::All };
        let exchanged = Exchanged::count(comm, selection, |comm| self.gather(comm))?;
        let _decode = phase!("decode");
        self.aggregate(round.slots, input, round.average, comm)?;
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

    /// Queues the encoding of every part, unless a probe has left its message.
    fn start(
        &mut self,
        (key, slots): (Key, &[Slot]),
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        if input.on_device().is_none() {
            return Ok(());
        }
        let (rank, is_staged) = (comm.rank(), self.staged.key == Some(key));
        let (place, len) = (Place { grain: self.grain, slots, key: key.rank(rank) }, len(slots));
        for part in 0..self.grain.parts(slots) {
            let ratio = self.setting.of(part);
            if is_staged && self.staged.ratios.iter().any(|staged| Some(*staged) == ratio) {
                continue;
            }
            tune(&mut self.compressor, ratio);
            let Some(mut device) = input.device(place.range(part, len), comm) else { continue };
            let started = device.start_encoding(&mut self.compressor, place.key.bucket(part));
            started.map_err(|source| ReduceError::Device { rank, source })?;
        }
        Ok(())
    }

    fn can_subtract_sent(&self) -> bool {
        true
    }

    fn subtracts_on_device(&self) -> bool {
        true
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        let (len, slots, is_selected) = (input.len(), input.slots, self.compressor.selects());
        (0..self.grain.parts(slots)).fold(true, |finite, index| {
            let places = match self.grain {
                Grain::Whole => 0..slots.len(),
                Grain::PerSlot => index..index + 1,
            };
            let range = self.grain.part(index, len, slots);
            input.part(&slots[places.clone()], places, range).subtract(&self.mine[index], is_selected) & finite
        })
    }

    fn report(&self, report: &mut Report) {
        report.ratio = self.setting.mean.or_else(|| Some(self.compressor.nominal()));
        self.incoming.report(&mut report.excluded);
        if self.setting.ratios.len() > 1 {
            report.slots.iter_mut().zip(&self.setting.ratios).for_each(|(slot, ratio)| slot.ratio = Some(*ratio));
        }
    }

    fn knob(&mut self) -> Option<&mut dyn Knob> {
        self.compressor.knob().is_some().then_some(self as _)
    }
}

#[cfg(test)]
mod tests;
