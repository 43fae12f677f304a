//! Every rank's message to every rank: compress, all-gather, decode, aggregate.
//!
//! **Why, and when not.** The only exchange that suits any compressor and any aggregator. A rank receives `W−1`
//! messages, so at a wire factor `f` it moves fewer bytes than the dense ring only while `f > W/2`: on many ranks use
//! something that sums on the way.
//!
//! **On the wire.** Per rank and [grain](Grain): a length (4 bytes) and the [message](crate::Message); sent to `W−1`
//! ranks.
//!
//! **Properties.** With [`Mean`](crate::aggregate::Mean), linear in `sent`. The class is the compressor's. An aggregator that
//! rates whole contributions sees those of the whole vector, whatever the grain.

use std::ops::Range;

use super::{Energies, Exchanged, Probing, Reducer, Round, Selection, Stateless, check_average};
use crate::aggregate::Aggregator;
use crate::compress::{Compressor, Tunable};
use crate::error::{AggregateError, ReduceError, WireError};
use crate::math::norm2;
use crate::report::Report;
use crate::state::Stateful;
use crate::{CompressionFactor, Frame, Key, Message, Session, Slot};

/// What one message covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grain {
    /// The whole vector (or bucket): keeps the most energy at a given size.
    #[default]
    Whole,
    /// Each slot by itself: the literature's habit, and right for scaled signs.
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

/// Messages made while probing, to be sent by the next exchange.
#[derive(Debug, Default)]
struct Staged {
    key: Option<Key>,
    /// One entry a factor; entries beyond `factors` are storage for later.
    messages: Vec<Vec<Message>>,
    factors: Vec<CompressionFactor>,
}

/// Compress, all-gather, aggregate; see the [module](self).
#[derive(Debug)]
pub struct Gather<C, A> {
    compressor: C,
    aggregator: A,
    grain: Grain,
    factor: Option<CompressionFactor>,
    staged: Staged,
    mine: Vec<Message>,
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    /// By rank and part.
    decoded: Vec<Vec<Message>>,
    weights: Vec<f32>,
}

impl<C: Compressor, A: Aggregator> Gather<C, A> {
    /// One message for the whole vector; see [`grain`](Gather::grain).
    pub fn new(compressor: C, aggregator: A) -> Self {
        Gather {
            compressor,
            aggregator,
            grain: Grain::Whole,
            factor: None,
            staged: Staged::default(),
            mine: Vec::new(),
            bytes: Vec::new(),
            frames: Vec::new(),
            decoded: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// What one message covers.
    #[must_use]
    pub fn grain(mut self, grain: Grain) -> Self {
        self.grain = grain;
        self
    }

    /// Fills `mine`: from the probe's stage when it holds this very message, else by compressing.
    fn encode(&mut self, round: &Round<'_>, rank: usize) -> Result<(), ReduceError> {
        let staged = (self.staged.key == Some(round.key))
            .then(|| self.staged.factors.iter().position(|f| Some(*f) == self.factor))
            .flatten();
        self.staged.key = None;
        match staged {
            Some(i) => std::mem::swap(&mut self.mine, &mut self.staged.messages[i]),
            None => {
                let place = Place { grain: self.grain, slots: round.slots, key: round.key.rank(rank) };
                compress(&mut self.compressor, place, round.input, None, &mut self.mine);
            }
        }
        self.bytes.clear();
        for message in &self.mine[..self.grain.parts(round.slots)] {
            // The length first, known only afterwards: finding it out beforehand is half of the work.
            let start = self.bytes.len() + 4;
            self.bytes.extend_from_slice(&[0; 4]);
            message.encode_into(&mut self.bytes);
            let len = self.bytes.len() - start;
            let prefix = u32::try_from(len).map_err(|_| {
                let source = WireError::Field { what: "bytes of a message", value: len as u64 };
                AggregateError::Message { rank, source }
            })?;
            self.bytes[start - 4..start].copy_from_slice(&prefix.to_le_bytes());
        }
        Ok(())
    }

    /// Combines part by part, so that no rank holds more than one part of each, but where the aggregator rates whole
    /// contributions first.
    fn aggregate(&mut self, slots: &[Slot], rank: usize, average: &mut [f32]) -> Result<(), ReduceError> {
        let (world, parts) = (self.frames.len(), self.grain.parts(slots));
        let held = if self.aggregator.rates() { parts } else { 1 };
        self.decoded.resize_with(world, Vec::new);
        self.decoded.iter_mut().for_each(|parts| parts.resize_with(held, Message::default));
        let mut cursors = vec![0; world];
        self.weights.clear();
        let ranges: Vec<Range<usize>> = (0..parts).map(|part| self.grain.part(part, average.len(), slots)).collect();
        let mut decode = |decoded: &mut [Vec<Message>], place: usize, part: usize| {
            next_messages(&self.frames, rank, &mut cursors, decoded, (place, ranges[part].len()))
        };
        if held == parts {
            (0..parts).try_for_each(|part| decode(&mut self.decoded, part, part))?;
        }
        if self.aggregator.rates() {
            let mine = &self.mine[..parts];
            let all: Vec<&[Message]> =
                (0..world).map(|from| if from == rank { mine } else { &self.decoded[from] }).collect();
            self.aggregator.rate(&all, &mut self.weights)?;
        }
        for part in 0..parts {
            if held < parts {
                decode(&mut self.decoded, 0, part)?;
            }
            // A rank's own message holds exactly what its wire form decodes to (law 6), so it need not be decoded.
            let place = if held < parts { 0 } else { part };
            let column = |from: usize| if from == rank { &self.mine[part] } else { &self.decoded[from][place] };
            let column: Vec<&Message> = (0..world).map(column).collect();
            self.aggregator.combine(&self.weights, &column, &mut average[ranges[part].clone()])?;
        }
        for (from, cursor) in cursors.iter().enumerate() {
            let extra = self.frames[from].len() - cursor;
            if from != rank && extra > 0 {
                return Err(AggregateError::Message { rank: from, source: WireError::Trailing { extra } }.into());
            }
        }
        Ok(())
    }
}

/// Reads the next message of every other rank, which must be of `len` values, into its place among those decoded: no
/// aggregator is given a message that is shorter or longer than the others.
fn next_messages(
    frames: &[Frame],
    rank: usize,
    cursors: &mut [usize],
    decoded: &mut [Vec<Message>],
    (place, len): (usize, usize),
) -> Result<(), AggregateError> {
    (0..frames.len()).filter(|from| *from != rank).try_for_each(|from| {
        let message = &mut decoded[from][place];
        let read = next_message(&frames[from], &mut cursors[from], message);
        let fits = read.and_then(|()| match message.len() {
            got if got == len => Ok(()),
            got => Err(WireError::Length { expected: len, got }),
        });
        fits.map_err(|source| AggregateError::Message { rank: from, source })
    })
}

/// Where compression happens.
#[derive(Clone, Copy)]
struct Place<'a> {
    grain: Grain,
    slots: &'a [Slot],
    key: Key,
}

fn compress<C: Compressor>(
    compressor: &mut C,
    place: Place<'_>,
    x: &[f32],
    coarse: Option<&[Message]>,
    out: &mut Vec<Message>,
) {
    let parts = place.grain.parts(place.slots);
    out.resize_with(parts, Message::default);
    for (index, message) in out.iter_mut().enumerate() {
        let part = &x[place.grain.part(index, x.len(), place.slots)];
        let key = place.key.bucket(index);
        match coarse {
            Some(coarse) => compressor.refine_into(part, &coarse[index], key, message),
            None => compressor.compress_into(part, key, message),
        }
    }
}

/// Reads the length-prefixed message at `cursor`.
fn next_message(frame: &[u8], cursor: &mut usize, out: &mut Message) -> Result<(), WireError> {
    let left = frame.len() - *cursor;
    let truncated = |what, needed| WireError::Truncated { what, needed, left };
    let prefix = frame[*cursor..].first_chunk::<4>().ok_or(truncated("length of a message", 4))?;
    let len = u32::from_le_bytes(*prefix) as usize;
    let start = *cursor + 4;
    let bytes = frame.get(start..start.saturating_add(len)).ok_or(truncated("message", len))?;
    *cursor = start + len;
    out.decode_from(bytes)
}

impl<C: Compressor, A: Aggregator> Stateful for Gather<C, A> {}
impl<C: Compressor, A: Aggregator> Stateless for Gather<C, A> {}

impl<C: Compressor, A: Aggregator> Reducer for Gather<C, A> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let rank = comm.rank();
        self.encode(&round, rank)?;
        let selection = if self.compressor.selects() { Selection::Some } else { Selection::All };
        let exchanged = Exchanged::count(comm, selection, |comm| Ok(comm.all_gather(&self.bytes, &mut self.frames)?))?;
        self.aggregate(round.slots, rank, round.average)?;
        check_average(round.average, round.slots)?;
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

    fn report(&self, report: &mut Report) {
        report.factor = Some(self.compressor.nominal());
    }
}

impl<C: Compressor + Tunable, A: Aggregator> Tunable for Gather<C, A> {
    fn tune(&mut self, factor: CompressionFactor) {
        self.compressor.tune(factor);
        self.factor = Some(factor);
    }
}

impl<C: Compressor + Tunable, A: Aggregator> Probing for Gather<C, A> {
    fn probe(
        &mut self,
        x: &[f32],
        slots: &[Slot],
        key: Key,
        factors: &[CompressionFactor],
        rank: usize,
        out: &mut Energies,
    ) {
        let place = Place { grain: self.grain, slots, key: key.rank(rank) };
        self.staged.messages.resize_with(factors.len().max(self.staged.messages.len()), Vec::new);
        out.total = norm2(x);
        out.kept.clear();
        let own = self.compressor.nominal();
        for (i, &factor) in factors.iter().enumerate() {
            self.compressor.tune(factor);
            let (before, now) = self.staged.messages.split_at_mut(i);
            let coarse = before.last().map(Vec::as_slice);
            compress(&mut self.compressor, place, x, coarse, &mut now[0]);
            let kept =
                (now[0].iter().enumerate()).map(|(p, m)| m.kept_energy(&x[self.grain.part(p, x.len(), slots)])).sum();
            out.kept.push(kept);
        }
        self.staged.key = Some(key);
        self.staged.factors.clear();
        self.staged.factors.extend_from_slice(factors);
        self.compressor.tune(self.factor.unwrap_or(own));
    }
}
