//! Metering of an exchange: bytes, seconds on the session's clock, and the gain of the whole vector and of each slot.
//!
//! Seconds are those of the session's clock ([`Session::now`]): wall time, simulated time, or none. Time inside the session's calls counts
//! as exchange, other time as compression. [Waiting](Session::idle) for values to compress counts as neither. A simulated clock does not
//! measure compression; recorded seconds are used instead (`CompressSeconds` of `briquette-sim`). Metering costs one pass over the vector,
//! and one vector of memory if no outer wrapper requests `sent`.

use std::ops::Range;

use super::feed::Delivery;
use crate::comm::Spent;
use crate::error::ReduceError;
use crate::math::{SentStatistics, compare, copy_and_norm2};
use crate::report::{ExchangeSeconds, Report, SlotReport};
use crate::seam::{Arriving, CompleteVector, Exchanged, Reducer, Round, SentInput, gain};
use crate::{Session, Slot, Traffic, stateful};

/// Measures the exchanges of the inner reducer; see the [module](self).
#[derive(Debug)]
pub struct Metered<R> {
    inner: R,
    gains: bool,
    /// Set if an outer error-feedback wrapper subtracts the contribution from its vector, and so measures it.
    outer_feedback: bool,
    own: Vec<f32>,
    energies: Vec<f64>,
    kept: Vec<SentStatistics>,
    seconds: ExchangeSeconds,
    traffic: Traffic,
    gain: Option<f64>,
    slots: Vec<SlotReport>,
}

impl<R: Reducer> Metered<R> {
    /// Creates a meter around any reducer.
    pub fn new(inner: R) -> Self {
        Metered { gains: true, ..Metered::seconds_only(inner) }
    }

    /// Sets whether an outer error-feedback wrapper requests `sent` or calls [`subtract_sent`](Reducer::subtract_sent). The meter then measures that
    /// contribution.
    #[must_use]
    pub fn with_outer_feedback(mut self, outer_feedback: bool) -> Self {
        self.outer_feedback = outer_feedback;
        self
    }

    /// Creates a meter without gains and their cost, for reducers that send everything.
    pub fn seconds_only(inner: R) -> Self {
        Metered {
            inner,
            gains: false,
            outer_feedback: false,
            own: Vec::new(),
            energies: Vec::new(),
            kept: Vec::new(),
            seconds: ExchangeSeconds::default(),
            traffic: Traffic::default(),
            gain: None,
            slots: Vec::new(),
        }
    }
}

impl<R: Reducer> Metered<R> {
    fn reduce_measured(
        &mut self,
        round: Round<'_>,
        values: &mut dyn Arriving,
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, agreed_step, input, average, mut sent } = round;
        let len = average.len();
        let subtracts = sent.is_none() && self.inner.can_subtract_sent();
        if sent.is_none() && self.gains && !subtracts {
            self.own.resize(len, 0.0);
            sent = Some(&mut self.own);
        }
        let start = comm.now();
        let inner = Round { key, slots, agreed_step, input, average, sent: sent.as_deref_mut() };
        let (exchanged, Spent { inside: exchange, first, idle }) =
            comm.spent_in(|comm| delivery.reduce(&mut self.inner, inner, values, comm));
        let exchanged = exchanged?;
        self.traffic = exchanged.traffic;
        comm.compressed(|| {
            let mut report = Report::default();
            self.inner.report(&mut report);
            report.ratio
        });
        let end = comm.now();
        let encode = (first.unwrap_or(end) - start - idle).max(0.0);
        let compress = (end - start - exchange - idle).max(encode);
        self.seconds = ExchangeSeconds { compress, encode, exchange, overlapped: 0.0 };
        if !self.gains {
            self.slots.clear();
            self.slots.extend(slots.iter().map(|slot| SlotReport {
                gain: 1.0,
                kept: slot.len(),
                ..SlotReport::default()
            }));
        } else if let Some(sent) = sent {
            let input = values.wait(0..len, comm);
            let compared = slots.iter().map(|slot| compare(&input[slot.range()], &sent[slot.range()]));
            self.gain = summarize(compared.map(|(energy, lost, kept)| (energy, energy - lost, kept)), &mut self.slots);
        } else if !self.outer_feedback && self.inner.subtracts_on_device() && values.on_device().is_some() {
            self.measure_on_device(values, slots, comm)?;
        } else if !self.outer_feedback {
            self.measure_copy(values.wait(0..len, comm), slots);
        }
        Ok(exchanged)
    }

    /// Subtracts the messages from the input on its device, where nothing reads it again.
    fn measure_on_device(
        &mut self,
        input: &mut dyn Arriving,
        slots: &[Slot],
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let (len, rank) = (slots.last().map_or(0, |slot| slot.range().end), comm.rank());
        let Some(mut device) = input.device(0..len, comm) else { return Ok(()) };
        let energies = device.energies(slots).map_err(|source| ReduceError::Device { rank, source })?;
        let mut kept = vec![SentStatistics::default(); slots.len()];
        self.subtract_sent(&mut SentInput::new(slots, &mut [], Some(device), &energies, &mut kept));
        Ok(())
    }

    /// Subtracts the messages from a copy of the input.
    fn measure_copy(&mut self, input: &[f32], slots: &[Slot]) {
        self.own.resize(input.len(), 0.0);
        let (mut own, mut energies) = (std::mem::take(&mut self.own), std::mem::take(&mut self.energies));
        let copy = |slot: &Slot| copy_and_norm2(&input[slot.range()], &mut own[slot.range()]);
        energies.clear();
        energies.extend(slots.iter().map(copy));
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        kept.resize(slots.len(), SentStatistics::default());
        self.subtract_sent(&mut SentInput::new(slots, &mut own, None, &energies, &mut kept));
        (self.own, self.energies, self.kept) = (own, energies, kept);
    }
}

stateful! {
    impl<R: Reducer> Stateful for Metered<R> { inner: flatten() }
}

impl<R: Reducer> Reducer for Metered<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let mut input = CompleteVector(round.input);
        self.reduce_measured(round, &mut input, Delivery::Complete, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        self.reduce_measured(round, input, Delivery::InParts, comm)
    }

    fn can_subtract_sent(&self) -> bool {
        self.inner.can_subtract_sent()
    }

    fn subtracts_on_device(&self) -> bool {
        self.inner.subtracts_on_device()
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        let mut finite = self.inner.subtract_sent(input);
        if self.gains {
            finite &= input.settle();
            let parts =
                input.energies.iter().zip(&*input.kept).map(|(energy, kept)| (*energy, kept.energy, kept.values));
            self.gain = summarize(parts, &mut self.slots);
        }
        finite
    }

    fn discards_residual(&self) -> bool {
        self.inner.discards_residual()
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        report.gain = self.gain;
        report.slots.clone_from(&self.slots);
        report.seconds = Some(self.seconds);
        report.traffic = Some(self.traffic);
        self.inner.report(report);
    }
}

/// Returns the gain of the whole vector and writes that of each slot, from `‖x‖²`, the kept energy, and the number of values.
fn summarize(parts: impl Iterator<Item = (f64, f64, usize)>, slots: &mut Vec<SlotReport>) -> Option<f64> {
    slots.clear();
    let (mut total, mut sum) = (0.0, 0.0);
    for (energy, kept, values) in parts {
        slots.push(SlotReport { gain: gain(kept, energy), kept: values, ..SlotReport::default() });
        total += energy;
        sum += kept;
    }
    Some(gain(sum, total))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::error::StateError;
    use crate::state::{State, Stateful};

    use crate::aggregate::mean::Mean;
    use crate::comm::{Clock, Local};
    use crate::compress::top_k::TopK;
    use crate::laws::{HostDevice, Kernels};
    use crate::reduce::gather::Gather;
    use crate::seam::{AgreedStep, DeviceInput, Selection};
    use crate::{Key, Layout};

    /// A clock that a test advances.
    struct Hand(Arc<AtomicU64>);

    impl Clock for Hand {
        fn seconds(&self) -> f64 {
            self.0.load(Ordering::Relaxed) as f64
        }
    }

    /// A reducer that encodes for two seconds, exchanges, and decodes for three.
    struct Slow(Arc<Hand>);

    impl Stateful for Slow {
        fn save(&self, _state: &mut State) {}
        fn load(&mut self, _state: &State) -> Result<(), StateError> {
            Ok(())
        }
    }

    impl Reducer for Slow {
        fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
            self.0.0.fetch_add(2, Ordering::Relaxed);
            comm.barrier()?;
            self.0.0.fetch_add(3, Ordering::Relaxed);
            round.average.copy_from_slice(round.input);
            Ok(Exchanged { traffic: Traffic::default(), selection: Selection::All })
        }
    }

    #[test]
    fn what_comes_before_the_first_call_is_encoding() {
        let hand = Arc::new(Hand(Arc::new(AtomicU64::new(10))));
        let mut comm = Local::builder(1).clock(Arc::clone(&hand) as _).build().remove(0);
        let mut metered = Metered::seconds_only(Slow(hand));
        let (layout, mut average, agreed_step) = (Layout::flat(1), [0.0], AgreedStep::default());
        let round = Round {
            key: Key::new(0),
            slots: layout.slots(),
            agreed_step: &agreed_step,
            input: &[1.0],
            average: &mut average,
            sent: None,
        };
        metered.reduce(round, &mut comm).unwrap();
        let mut report = Report::default();
        metered.report(&mut report);
        assert_eq!(report.seconds, Some(ExchangeSeconds { compress: 5.0, encode: 2.0, ..ExchangeSeconds::default() }));
    }

    /// Encoding takes two seconds, averaging three, and copying a vector to the host seven.
    #[test]
    fn the_seconds_of_a_device_are_those_of_encoding_and_decoding() {
        let seconds = |operation: &str| match operation {
            "encode" => 2,
            "average" => 3,
            "fetch" => 7,
            _ => 0,
        };
        let clock = Arc::new(AtomicU64::new(0));
        let mut comm = Local::builder(1).clock(Arc::new(Hand(Arc::clone(&clock)))).build().remove(0);
        let (layout, agreed_step) = (Layout::flat(4), AgreedStep::default());
        // Without kernels, the device declines to encode, and the vector is copied.
        for (kernels, compress, encode) in [(Kernels::All, 5.0, 2.0), (Kernels::None, 12.0, 9.0)] {
            let mut metered = Metered::new(Gather::new(TopK::fraction(0.5).unwrap(), Mean)).with_outer_feedback(true);
            let mut vector = HostDevice::new(vec![1.0, 2.0, 3.0, 4.0], kernels);
            vector.set_clock(Arc::clone(&clock), seconds);
            let (key, slots, mut average) = (Key::new(0), layout.slots(), [0.0; 4]);
            let round = Round { key, slots, agreed_step: &agreed_step, input: &[], average: &mut average, sent: None };
            let mut input = DeviceInput::new(&mut vector, 1);
            metered.reduce_arriving(round, &mut input, &mut comm).unwrap();
            let mut report = Report::default();
            metered.report(&mut report);
            let expected = ExchangeSeconds { compress, encode, ..ExchangeSeconds::default() };
            assert_eq!(report.seconds, Some(expected), "{kernels:?}");
        }
    }
}
