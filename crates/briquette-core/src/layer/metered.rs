//! Measures an exchange: bytes, seconds on the session's clock, gain of the whole vector and of each slot.
//!
//! The clock is the session's ([`Session::now`]): wall time, simulated time, or none. Time inside
//! its calls counts as exchange, the rest as compression: where [buckets overlap](super::Bucketed), what was encoded
//! and decoded behind an exchange counts as that, and the sum is what the step waited. Costs one pass over the vector, and one vector where no
//! layer above asks for `sent`.

use crate::comm::Spent;
use crate::error::{ReduceError, StateError};
use crate::math::{distance2, norm2};
use crate::reduce::{Exchanged, Reducer, Round, gain};
use crate::report::{ExchangeSeconds, Report, SlotReport};
use crate::state::{State, Stateful};
use crate::{Session, Slot, Traffic};

/// Measures what the reducer inside it does; see the [module](self).
#[derive(Debug)]
pub struct Metered<R> {
    inner: R,
    gains: bool,
    own_sent: Vec<f32>,
    seconds: ExchangeSeconds,
    traffic: Traffic,
    gain: Option<f64>,
    slots: Vec<SlotReport>,
}

impl<R: Reducer> Metered<R> {
    /// Around any reducer.
    pub fn new(inner: R) -> Self {
        Metered { gains: true, ..Metered::seconds_only(inner) }
    }

    /// Without gains, and without their cost: for reducers that send everything.
    pub fn seconds_only(inner: R) -> Self {
        Metered {
            inner,
            gains: false,
            own_sent: Vec::new(),
            seconds: ExchangeSeconds::default(),
            traffic: Traffic::default(),
            gain: None,
            slots: Vec::new(),
        }
    }
}

impl<R: Reducer> Stateful for Metered<R> {
    fn save(&self, state: &mut State) {
        self.inner.save(state);
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        self.inner.load(state)
    }
    fn commit(&mut self) {
        self.inner.commit();
    }
    fn discard(&mut self) {
        self.inner.discard();
    }
}

impl<R: Reducer> Reducer for Metered<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, facts, input, average, mut sent } = round;
        if sent.is_none() && self.gains {
            self.own_sent.resize(input.len(), 0.0);
            sent = Some(&mut self.own_sent);
        }
        let start = comm.now();
        let inner = Round { key, slots, facts, input, average, sent: sent.as_deref_mut() };
        let (exchanged, Spent { inside: exchange, first }) = comm.spent_in(|comm| self.inner.reduce(inner, comm));
        let exchanged = exchanged?;
        self.traffic = exchanged.traffic;
        let end = comm.now();
        let encode = (first.unwrap_or(end) - start).max(0.0);
        self.seconds = ExchangeSeconds { compress: (end - start - exchange).max(encode), encode, exchange };
        if let Some(sent) = sent.filter(|_| self.gains) {
            (self.gain, self.slots) = measure(input, sent, slots, std::mem::take(&mut self.slots));
        } else {
            self.slots.clear();
            self.slots.extend(slots.iter().map(|slot| SlotReport { gain: 1.0, kept: slot.len() }));
        }
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        report.gain = self.gain;
        report.slots.clone_from(&self.slots);
        report.seconds = Some(self.seconds);
        report.traffic = Some(self.traffic);
        self.inner.report(report);
    }
}

/// Gain of the whole vector and of each slot.
fn measure(input: &[f32], sent: &[f32], slots: &[Slot], mut out: Vec<SlotReport>) -> (Option<f64>, Vec<SlotReport>) {
    out.clear();
    let (mut total, mut lost) = (0.0, 0.0);
    for slot in slots {
        let (x, s) = (&input[slot.range()], &sent[slot.range()]);
        let (energy, error) = (norm2(x), distance2(x, s));
        let kept = s.iter().filter(|v| **v != 0.0).count();
        out.push(SlotReport { gain: gain(energy - error, energy), kept });
        total += energy;
        lost += error;
    }
    (Some(gain(total - lost, total)), out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::comm::{Clock, Local};
    use crate::reduce::{Facts, Selection};
    use crate::{Key, Layout};

    /// A clock that goes on when told.
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn seconds(&self) -> f64 {
            self.0.load(Ordering::Relaxed) as f64
        }
    }

    /// Encodes for two seconds, exchanges, decodes for three.
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
        let hand = Arc::new(Hand(AtomicU64::new(10)));
        let mut comm = Local::builder(1).clock(Arc::clone(&hand) as _).build().remove(0);
        let mut metered = Metered::seconds_only(Slow(hand));
        let (layout, mut average, facts) = (Layout::flat(1), [0.0], Facts::default());
        let round = Round {
            key: Key::new(0),
            slots: layout.slots(),
            facts: &facts,
            input: &[1.0],
            average: &mut average,
            sent: None,
        };
        metered.reduce(round, &mut comm).unwrap();
        let mut report = Report::default();
        metered.report(&mut report);
        assert_eq!(report.seconds, Some(ExchangeSeconds { compress: 5.0, encode: 2.0, exchange: 0.0 }));
    }
}
