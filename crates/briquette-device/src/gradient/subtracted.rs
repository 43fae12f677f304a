//! Subtraction of messages from a gradient on the device: queued for each message, and measured in one wait for all.

use std::ops::Range;

use briquette_core::reduce::SentStatistics;
use briquette_core::{Message, Slot};

use super::Gradient;
use super::messages::statistics_of_kept;
use crate::encode;
use crate::error::DeviceError;
use crate::finite::queue_first_bad;
use crate::message::DeviceMessage;
use crate::run::Vector;
use crate::sent::{Sent, Slots, sent};
use crate::sparse::kept_values;

/// A subtraction, with what is read of it.
#[derive(Debug)]
pub(super) struct Subtracted {
    /// The first value of the remainder that is not finite.
    bad: Vector,
    measured: Measured,
}

#[derive(Debug)]
enum Measured {
    /// The values before, in the places of a sparse message, and its values; for each slot, which of them.
    Kept {
        before: Vector,
        sent: Vec<f32>,
        slots: Vec<Range<usize>>,
    },
    All(Sent),
}

impl Measured {
    fn words(&self) -> &Vector {
        match self {
            Measured::Kept { before, .. } => before,
            Measured::All(sent) => &sent.words,
        }
    }

    fn totals(&self, words: &[u32]) -> Vec<(f64, usize)> {
        match self {
            Measured::Kept { sent, slots, .. } => {
                slots.iter().map(|kept| statistics_of_kept(&words[kept.clone()], &sent[kept.clone()])).collect()
            }
            Measured::All(sent) => sent.totals(words),
        }
    }
}

impl Gradient {
    /// Queues the subtraction of a message.
    pub(super) fn subtract_message(
        &mut self,
        range: Range<usize>,
        message: &Message,
        slots: &[Slot],
    ) -> Result<(), DeviceError> {
        let on_device = self.message(&range, message)?;
        let Some(indices) = message.sparse_indices() else {
            self.subtract_dense(range, &on_device, slots);
            return Ok(());
        };
        let sent = kept_values(message)?;
        let before = encode::gather(&self.run, &self.run.part(&self.values, range.clone()), indices);
        on_device.subtract(&self.run, &self.values, range.start);
        let start = slots.first().map_or(0, |slot| slot.range().start);
        let place = |value: usize| indices.partition_point(|&index| (index as usize) < value - start);
        let slots = slots.iter().map(|slot| place(slot.range().start)..place(slot.range().end)).collect();
        self.record(range, Measured::Kept { before, sent, slots });
        Ok(())
    }

    /// Queues the subtraction of a message that holds all values.
    pub(super) fn subtract_dense(&mut self, range: Range<usize>, message: &DeviceMessage, slots: &[Slot]) {
        let (run, part) = (&self.run, self.run.part(&self.values, range.clone()));
        let sent = sent(run, &part, &message.decode(run), &Slots::new(run, slots.iter().map(Slot::len)));
        message.subtract(run, &self.values, range.start);
        self.record(range, Measured::All(sent));
    }

    fn record(&mut self, range: Range<usize>, measured: Measured) {
        let bad = queue_first_bad(&self.run, &self.run.part(&self.values, range));
        self.subtracted.push(Subtracted { bad, measured });
    }

    /// Waits for the statistics of all subtractions, in the order of the calls, and for whether the remainders are finite.
    pub(super) fn read_subtracted(&mut self) -> Result<(Vec<SentStatistics>, bool), DeviceError> {
        let subtracted = std::mem::take(&mut self.subtracted);
        if subtracted.is_empty() {
            return Ok((Vec::new(), true));
        }
        let vectors: Vec<&Vector> = subtracted.iter().flat_map(|one| [one.measured.words(), &one.bad]).collect();
        let read = self.run.read_words(&vectors)?;
        let (pairs, _) = read.as_chunks::<2>();
        let finite = pairs.iter().all(|[_, bad]| bad[0] == u32::MAX);
        let totals = subtracted.iter().zip(pairs).flat_map(|(one, [words, _])| one.measured.totals(words));
        let statistics = totals.map(|(energy, values)| {
            let mut sent = SentStatistics::default();
            (sent.energy, sent.values) = (energy, values);
            sent
        });
        Ok((statistics.collect(), finite))
    }
}
