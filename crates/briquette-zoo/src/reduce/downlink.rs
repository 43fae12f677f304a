//! Downlink: compressed messages from servers to ranks, and the server state behind them.
//!
//! Let `x` be the vector that a server compresses for its range, `Ω = C(x)` the vector that all ranks receive, and `m` the mean:
//!
//! | memory | `x` | average | kept |
//! |---|---|---|---|
//! | none | `m` | `Ω` | |
//! | error | `m + kept` | `Ω` | `x − Ω` |
//! | model, `α` | `γm + kept` | `(Ω − (1−α)Ω′)/γ`, `Ω′` of the step before | `x − αΩ` |
//!
//! The third row is MCM in terms of differences: see [`mcm`](crate::reduce::mcm). A server may keep a separate memory for each receiver. A
//! receiver that is absent from a step gets one byte instead of a message and keeps its values. The memory for it continues as if nothing had
//! been sent.

use std::ops::Range;

use super::link::LinkEncoder;
use briquette_core::error::{AggregateError, ReduceError, WireError};
use briquette_core::math::all_finite;
use briquette_core::reduce::AgreedStep;
use briquette_core::state::{OnResize, Place, Staged};
use briquette_core::{Frame, Key, Slot, layout, stateful};

/// Marker sent instead of a message to an absent rank.
const ABSENT: u8 = 0;

/// Server memory: the treatment of the part of the mean that a message does not carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Memory {
    Nothing,
    /// Error feedback: adds it to the next mean.
    Error,
    /// Keeps the exact model and sends its difference to the ranks' memory, which moves by this share of each message.
    Model(f32),
}

/// One server's part of the downlink, and the state that every rank needs to decode it.
pub(super) struct Downlink {
    link: LinkEncoder,
    memory: Memory,
    /// Set if every rank receives a separate message.
    per_rank: bool,
    /// Memory of this server's values; with a message per rank, one copy per rank in order.
    kept: Staged<Vec<f32>>,
    /// The vector sent for all values at the previous step, for `Model`.
    last: Staged<Vec<f32>>,
    /// The ranges of this server's values at the last exchange.
    served: Vec<Range<usize>>,
}

/// Learning rate of a step in units of the memory; absent where nothing can be applied.
#[derive(Debug, Clone, Copy)]
struct Units {
    rate: f32,
    share: f32,
}

impl Downlink {
    pub(super) fn new(link: LinkEncoder, memory: Memory) -> Self {
        Downlink { link, memory, per_rank: false, kept: Staged::default(), last: Staged::default(), served: Vec::new() }
    }

    /// Sets whether each receiver has its own message and memory.
    pub(super) fn per_rank(self, per_rank: bool) -> Self {
        Downlink { per_rank, ..self }
    }

    pub(super) fn is_per_rank(&self) -> bool {
        self.per_rank
    }

    /// Returns the rate and the share of this step; `None` without a memory, or where a rate of 0 applies nothing.
    fn units(&self, agreed_step: &AgreedStep) -> Result<Option<Units>, ReduceError> {
        Ok(match self.memory {
            Memory::Nothing => None,
            Memory::Error => Some(Units { rate: 1.0, share: 1.0 }),
            Memory::Model(share) => Some(Units { rate: agreed_step.rate()?, share }).filter(|units| units.rate > 0.0),
        })
    }

    /// Appends the messages of `mean`, whose `parts` have keys. Appends nothing if the message or the new memory would not be finite; every
    /// rank detects that equally.
    pub(super) fn send(
        &mut self,
        mean: &mut [f32],
        parts: &[(Key, Range<usize>)],
        agreed_step: &AgreedStep,
        rank: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), ReduceError> {
        self.send_to((0, 1), mean, parts, agreed_step, rank, bytes).map(drop)
    }

    /// Sends the messages to receiver `to` of `of`, each of which has its own memory. Returns whether all values were finite.
    fn send_to(
        &mut self,
        (to, of): (usize, usize),
        mean: &mut [f32],
        parts: &[(Key, Range<usize>)],
        agreed_step: &AgreedStep,
        rank: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, ReduceError> {
        let (units, start) = (self.units(agreed_step)?, bytes.len());
        if !parts.is_empty() {
            self.served.clear();
            self.served.extend(parts.iter().map(|(_, range)| range.clone()));
        }
        let copy = to * mean.len()..(to + 1) * mean.len();
        if let Some(Units { rate, share }) = units {
            self.kept.fit(of * mean.len())?;
            if let Some(begins) = self.kept.begins().filter(|_| !self.last.now().is_empty()) {
                // The world size changed: the model is the one that the ranks hold.
                let mut at = copy.start;
                for (_, range) in parts {
                    let (kept, last) = (&mut begins[at..at + range.len()], &self.last.now()[range.clone()]);
                    kept.iter_mut().zip(last).for_each(|(kept, last)| *kept = (1.0 - share) * last);
                    at += range.len();
                }
            }
            let (kept, next) = self.kept.both();
            let (kept, next) = (&kept[copy.clone()], &mut next[copy.clone()]);
            next.copy_from_slice(kept);
            mean.iter_mut().zip(&*next).for_each(|(mean, kept)| *mean = rate * *mean + kept);
            next.copy_from_slice(mean);
        }
        let mut finite = all_finite(mean);
        let mut at = 0;
        for (key, range) in parts.iter().filter(|_| finite) {
            let here = at..at + range.len();
            at = here.end;
            let (weight, kept) = (self.link.weight(), units.map(|units| (units.share, self.kept.next_mut())));
            let mut kept = kept.map(|(share, kept)| (share, &mut kept[copy.clone()][here.clone()]));
            let sent = self.link.send(&mean[here], *key, |message| {
                message.append_frame(bytes)?;
                match &mut kept {
                    Some((share, kept)) => message.add_to(-*share * weight, kept),
                    None => Ok(()),
                }
            });
            sent.map_err(|source| AggregateError::Message { rank, source })?;
        }
        if units.is_some() {
            finite &= all_finite(&self.kept.next_mut()[copy]);
            self.kept.stage();
        }
        if !finite {
            bytes.truncate(start);
        }
        Ok(finite)
    }

    /// Adds a message of `mean`, which covers `range` of the whole vector, to the frame of each active rank. Adds none if one of them would
    /// not be finite.
    pub(super) fn send_to_each(
        &mut self,
        mean: &[f32],
        (key, range): (Key, Range<usize>),
        agreed_step: &AgreedStep,
        rank: usize,
        (frames, active): (&mut [Frame], &[bool]),
    ) -> Result<(), ReduceError> {
        let (of, mut own) = (frames.len(), Vec::with_capacity(mean.len()));
        for to in 0..of {
            own.clear();
            own.extend_from_slice(mean);
            let part = [(key.rank(to), range.clone())];
            let parts = if active[to] { &part[..] } else { &[] };
            if !self.send_to((to, of), &mut own, parts, agreed_step, rank, &mut frames[to])? {
                frames.iter_mut().for_each(Frame::clear);
                break;
            }
            frames[to].extend((!active[to]).then_some(ABSENT));
        }
        Ok(())
    }

    /// Decodes the message of `server` for `range` into the average. A server whose mean was not finite sent nothing, and every rank
    /// returns the same error.
    pub(super) fn read(
        &mut self,
        (frame, cursor): (&mut Frame, &mut usize),
        (server, range): (usize, Range<usize>),
        slots: &[Slot],
        average: &mut [f32],
    ) -> Result<(), ReduceError> {
        if frame.len() <= *cursor {
            return Err(overflow(slots, &range));
        }
        let read = self.link.read(frame, cursor, &mut average[range]);
        Ok(read.map_err(|source| AggregateError::Message { rank: server, source })?)
    }

    /// Reads the message of `server` for `range` to an absent rank, which only says that the mean was finite. Applies nothing.
    pub(super) fn absent(
        frame: &[u8],
        (server, range): (usize, Range<usize>),
        slots: &[Slot],
        average: &mut [f32],
    ) -> Result<(), ReduceError> {
        match frame {
            [] => Err(overflow(slots, &range)),
            [ABSENT] => {
                average[range].fill(0.0);
                Ok(())
            }
            [first, ..] => {
                let source = WireError::Field { what: "sign to an absent rank", value: u64::from(*first) };
                Err(AggregateError::Message { rank: server, source }.into())
            }
        }
    }

    /// Checks that the frame of `server` has no bytes after its last message.
    pub(super) fn end(frame: &Frame, cursor: usize, server: usize) -> Result<(), AggregateError> {
        match frame.len().saturating_sub(cursor) {
            0 => Ok(()),
            extra => Err(AggregateError::Message { rank: server, source: WireError::Trailing { extra } }),
        }
    }

    /// Reverts the state staged for these ranges.
    pub(super) fn hold(&mut self, absent: &[Range<usize>]) {
        self.last.hold(absent);
        let (mut places, mut len) = (Vec::new(), 0);
        for range in &self.served {
            places.extend(layout::moved(&layout::inside(absent, range), len));
            len += range.len();
        }
        let copies = self.kept.latest().len() / len.max(1);
        (0..copies).for_each(|copy| self.kept.hold(&layout::moved(&places, copy * len)));
    }

    /// Returns the placement of the last average.
    fn place(&self) -> Place {
        if self.per_rank { Place::PerRank(OnResize::Drop) } else { Place::Replicated }
    }

    /// Converts the received vector to the average that is applied, after all messages were read.
    pub(super) fn finish(&mut self, average: &mut [f32], agreed_step: &AgreedStep) -> Result<(), ReduceError> {
        if let (Memory::Model(_), Some(Units { rate, share })) = (self.memory, self.units(agreed_step)?) {
            self.last.fit(average.len())?;
            let (last, next) = self.last.both();
            next.copy_from_slice(average);
            average.iter_mut().zip(last).for_each(|(sent, last)| *sent = (*sent - (1.0 - share) * last) / rate);
            self.last.stage();
        }
        Ok(())
    }
}

/// Returns the error for a server whose mean of `range` was not finite.
fn overflow(slots: &[Slot], range: &Range<usize>) -> ReduceError {
    let slot = slots.iter().find(|slot| slot.range().end > range.start);
    ReduceError::Overflow { slot: slot.map_or("", Slot::path).to_owned() }
}

stateful! {
    impl Stateful for Downlink as it {
        kept: when(it.memory != Memory::Nothing, vector("kept").rank_local(Drop)),
        last: when(matches!(it.memory, Memory::Model(_)), vector("last").at(it.place())),
    }
}
