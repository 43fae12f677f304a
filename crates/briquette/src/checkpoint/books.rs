//! Step, clock, and what the next step's header must repeat.

use briquette_core::Traffic;
use briquette_core::error::StateError;
use briquette_core::reduce::{Facts, Previous};
use briquette_core::state::State;

use crate::synchronizer::Synchronizer;

pub(super) struct Books {
    step: u64,
    clock: f64,
    last: Option<(Facts, Previous)>,
}

impl Books {
    pub(super) fn of(sync: &Synchronizer) -> Books {
        Books { step: sync.step, clock: sync.comm.now(), last: sync.facts.zip(sync.previous) }
    }

    pub(super) fn apply(self, sync: &mut Synchronizer) {
        sync.step = self.step;
        sync.set_clock(self.clock);
        (sync.facts, sync.previous) = self.last.unzip();
        sync.computing();
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("step", self.step);
        state.put("clock", self.clock);
        if let Some((facts, previous)) = &self.last {
            state.put("facts/samples", facts.samples);
            state.put("facts/compute_seconds", facts.compute_seconds);
            state.put("previous/seconds", vec![previous.compress_seconds, previous.exchange_seconds]);
            state.put("previous/sent", previous.traffic.sent);
            state.put("previous/received", previous.traffic.received);
        }
    }

    pub(super) fn read(state: &State) -> Result<Books, StateError> {
        let last = || -> Result<(Facts, Previous), StateError> {
            let seconds = state.f64s("previous/seconds")?;
            let facts = Facts {
                samples: state.u64("facts/samples")?,
                compute_seconds: state.f64("facts/compute_seconds")?,
                ..Facts::default()
            };
            let previous = Previous {
                compress_seconds: seconds.first().copied().unwrap_or_default(),
                exchange_seconds: seconds.get(1).copied().unwrap_or_default(),
                traffic: Traffic { sent: state.u64("previous/sent")?, received: state.u64("previous/received")? },
                ..Previous::default()
            };
            Ok((facts, previous))
        };
        let last = if state.contains("facts/samples") { Some(last()?) } else { None };
        Ok(Books { step: state.u64("step")?, clock: state.f64("clock")?, last })
    }
}
