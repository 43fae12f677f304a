//! A reducer of your own.

use briquette::core::compress::ErrorBound;
use briquette::core::config::{Described, Exchange, ReducerSettings, ReducerTraits};
use briquette::core::error::{ConfigError, ReduceError};
use briquette::core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette::core::state::Stateful;
use briquette::core::{Layout, Session};
use serde::{Deserialize, Serialize};

/// Sends every `n`-th value from an offset that is the same on all ranks, as an all-reduce: `every-nth:8`. The mean error is
/// the energy times `1 − 1/n`, and error feedback keeps what was not sent.
///
/// These settings are the reducer as well, because it has no state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "every-nth",
    help = "an all-reduce of every N-th value (8), from an offset drawn at each step",
    representatives("every-nth:1", "every-nth:4")
)]
pub struct EveryNth {
    /// Distance of the values that are sent.
    #[setting(default = 8, range = "[1, inf)")]
    pub n: usize,
    /// Memory for the values sent.
    #[serde(skip)]
    values: Vec<f32>,
}

impl EveryNth {
    /// Creates a reducer that sends every `n`-th value.
    pub fn new(n: usize) -> Self {
        EveryNth { n, values: Vec::new() }
    }
}

impl ReducerSettings for EveryNth {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(self.clone()))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { needs_feedback: true, is_exact: true, ..ReducerTraits::default() }
    }

    fn error_bound(&self, _: usize) -> Option<ErrorBound> {
        Some(ErrorBound::MeanContractive { delta: 1.0 / self.n as f64 })
    }
}

/// Has no state.
impl Stateful for EveryNth {}

impl Reducer for EveryNth {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, input, average, sent, .. } = round;
        let (n, offset) = (self.n, (key.word(0) % self.n as u64) as usize);
        self.values.clear();
        self.values.extend(input.iter().skip(offset).step_by(n));
        if let Some(sent) = sent {
            sent.fill(0.0);
            sent.iter_mut().skip(offset).step_by(n).zip(&self.values).for_each(|(sent, value)| *sent = *value);
        }
        let exchanged = Exchanged::count(comm, Selection::Some, |comm| Ok(comm.all_reduce_sum(&mut self.values)?))?;
        let weight = 1.0 / comm.world() as f32;
        average.fill(0.0);
        average.iter_mut().skip(offset).step_by(n).zip(&self.values).for_each(|(mean, sum)| *mean = sum * weight);
        check_average(average, slots)?;
        Ok(exchanged)
    }
}
