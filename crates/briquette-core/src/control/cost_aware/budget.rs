//! Budgets of a run: bytes and seconds, spread over the steps that are left.

use super::CostAwareConfig;
use crate::error::{ConfigError, StateError};
use crate::seam::LastExchange;
use crate::state::State;

/// Bytes and seconds that a run may spend, and what it has spent.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    /// Steps of the run.
    steps: u64,
    /// Steps that are left, at least 1.
    left: u64,
    bytes: Option<f64>,
    seconds: Option<f64>,
    /// Bytes and seconds so far.
    spent: [f64; 2],
    /// The last verdict that a decision has stated.
    stated: Verdict,
}

/// Verdict on the budgets, by predicted costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    #[default]
    Met,
    /// Only a ratio above the limit of the inner controller is within the budgets.
    AboveLimit,
    /// No ratio is fast enough.
    TooSlow,
    /// No ratio sends few enough bytes.
    TooManyBytes,
}

impl Budget {
    pub(super) fn new(settings: &CostAwareConfig) -> Result<Budget, ConfigError> {
        let CostAwareConfig { steps, budget, deadline, .. } = *settings;
        if steps.is_none() && (budget.is_some() || deadline.is_some()) {
            return Err(ConfigError::conflict(
                "a budget or a deadline",
                "a run of unknown length",
                "it is spread over the steps that are left",
                "set steps to the number of steps of the run",
            ));
        }
        let steps = steps.unwrap_or(1);
        let (spent, stated) = ([0.0; 2], Verdict::Met);
        Ok(Budget { steps, left: steps, bytes: budget, seconds: deadline, spent, stated })
    }

    /// Counts what the step before has spent, and the steps that are left from `step` on.
    pub(super) fn learn(&mut self, step: u64, last: Option<&LastExchange>) {
        self.left = self.steps.saturating_sub(step).max(1);
        let Some(last) = last else { return };
        let seconds = last.compute_seconds + last.compress_seconds + last.exchange_seconds;
        self.spent[0] += last.traffic.sent as f64;
        self.spent[1] += if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    }

    /// Returns the bytes that each step that is left may send, summed over ranks. Without a budget it is infinite.
    pub(super) fn bytes(&self) -> f64 {
        self.bytes.map_or(f64::INFINITY, |bytes| (bytes - self.spent[0]) / self.left as f64)
    }

    /// Returns the seconds that each step that is left may take, if there is a deadline.
    pub(super) fn seconds(&self) -> Option<f64> {
        self.seconds.map(|seconds| (seconds - self.spent[1]) / self.left as f64)
    }

    /// Returns a text if the verdict differs from the last one that was stated.
    pub(super) fn announce(&mut self, verdict: Verdict) -> Option<String> {
        if verdict == self.stated {
            return None;
        }
        self.stated = verdict;
        let Budget { left, spent, .. } = *self;
        let bytes = self.bytes.map(|bytes| format!("{:.1} MB", (bytes - spent[0]) / 1e6));
        let seconds = self.seconds.map(|seconds| format!("{:.1} s", seconds - spent[1]));
        let all = bytes.into_iter().chain(seconds).collect::<Vec<_>>().join(" and ");
        let verdict = match verdict {
            Verdict::Met => "enough again",
            Verdict::AboveLimit => "only a ratio above the limit is enough",
            Verdict::TooManyBytes | Verdict::TooSlow => "not enough for any ratio",
        };
        Some(format!("{all} are left for {left} steps: {verdict}"))
    }

    /// Describes what is left of each budget.
    pub(super) fn describe(&self) -> Option<String> {
        let share = |of: f64, spent: f64| format!("{:.0} %", 100.0 * (1.0 - spent / of).max(0.0));
        let bytes = self.bytes.map(|of| format!("{} of the bytes", share(of, self.spent[0])));
        let seconds = self.seconds.map(|of| format!("{} of the time", share(of, self.spent[1])));
        let parts: Vec<String> = [bytes, seconds].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("{} left for {} steps", parts.join(" and "), self.left))
    }

    pub(super) fn save(&self, state: &mut State) {
        let [bytes, seconds] = self.spent;
        state.put("spent", vec![bytes, seconds, f64::from(self.stated as u8)]);
    }

    /// A state without this entry is from a version without budgets.
    pub(super) fn load(&mut self, state: &State) -> Result<(), StateError> {
        let saved = if state.contains("spent") { state.f64s("spent")? } else { &[0.0; 3] };
        let wrong = || StateError::mismatch("spent", "bytes, seconds and a verdict", saved);
        let &[bytes, seconds, stated] = saved else { return Err(wrong()) };
        let known = [Verdict::Met, Verdict::AboveLimit, Verdict::TooSlow, Verdict::TooManyBytes];
        self.stated = known.into_iter().find(|verdict| f64::from(*verdict as u8) == stated).ok_or_else(wrong)?;
        self.spent = [bytes, seconds];
        Ok(())
    }
}
