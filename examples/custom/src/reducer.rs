//! A reducer of your own.

use briquette::core::compress::ErrorBound;
use briquette::core::config::{Described, Exchange, ReducerSettings, ReducerTraits};
use briquette::core::error::{ConfigError, ReduceError};
use briquette::core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette::core::state::Stateful;
use briquette::core::{Layout, Session};
use serde::{Deserialize, Serialize};

/// Sends one of `parts` equal parts of the vector, drawn alike by all ranks, as an all-reduce: `random-part:8`. The mean
/// error is the energy times `1 − 1/parts`, and error feedback keeps what was not sent.
///
/// These settings are the reducer as well, because it has no state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomPart {
    /// Number of parts.
    pub parts: usize,
}

impl Default for RandomPart {
    fn default() -> Self {
        RandomPart { parts: 8 }
    }
}

impl Described for RandomPart {
    const NAME: &'static str = "random-part";
    const SETTINGS: &'static str = "PARTS";
    const HELP: &'static str = "an all-reduce of one of PARTS parts (8), drawn at each step";

    fn check(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.parts > 0, "parts of random-part", "at least 1", self.parts)
    }

    fn representatives() -> Vec<Self> {
        vec![RandomPart { parts: 1 }, RandomPart { parts: 4 }]
    }
}

impl ReducerSettings for RandomPart {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(*self))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { needs_feedback: true, is_exact: true, ..ReducerTraits::default() }
    }

    fn error_bound(&self, _: usize) -> Option<ErrorBound> {
        Some(ErrorBound::MeanContractive { delta: 1.0 / self.parts as f64 })
    }
}

/// Has no state.
impl Stateful for RandomPart {}

impl Reducer for RandomPart {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, input, average, sent, .. } = round;
        let part = (key.word(0) % self.parts as u64) as usize;
        let range = input.len() * part / self.parts..input.len() * (part + 1) / self.parts;
        if let Some(sent) = sent {
            sent.fill(0.0);
            sent[range.clone()].copy_from_slice(&input[range.clone()]);
        }
        average.fill(0.0);
        let values = &mut average[range.clone()];
        values.copy_from_slice(&input[range]);
        let exchanged = Exchanged::count(comm, Selection::Some, |comm| Ok(comm.all_reduce_sum(values)?))?;
        let weight = 1.0 / comm.world() as f32;
        values.iter_mut().for_each(|value| *value *= weight);
        check_average(average, slots)?;
        Ok(exchanged)
    }
}
