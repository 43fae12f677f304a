//! Saved state of a [`CostAware`].

use super::CostAware;
use crate::CompressionRatio;
use crate::error::StateError;
use crate::seam::Controller;
use crate::state::{State, Stateful};

/// By hand, because most entries are indices of rungs, which must be checked against the rungs of this controller.
impl<K: Controller> Stateful for CostAware<K> {
    fn save(&self, state: &mut State) {
        self.costs.save(state);
        self.budget.save(state);
        state.put("chosen", self.chosen as u64);
        let passed_over = (0..self.rungs.len()).filter(|rung| self.passed_over[*rung]);
        state.put("passed_over", passed_over.map(|rung| rung as f64).collect::<Vec<f64>>());
        state.put("until_look", self.until_look);
        state.put("has_started", u64::from(self.has_started));
        state.put("is_chosen", u64::from(self.is_chosen));
        // Counted from 1. 0 stands for none.
        state.put("sent", self.sent.map_or(0, |sent| sent as u64 + 1));
        let overruled = self.overruled.map(|(ratio, left)| vec![ratio.get(), left as f64]);
        state.put("overruled", overruled.unwrap_or_default());
        state.put("to_time", self.to_time.iter().map(|rung| *rung as f64).collect::<Vec<f64>>());
        state.put_part("limit", &self.limit);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let rungs = self.rungs.len();
        let valid = |name: &str, rung: u64| match usize::try_from(rung) {
            Ok(rung) if rung < rungs => Ok(rung),
            _ => Err(StateError::mismatch(name, &format!("below {rungs} ratios"), rung)),
        };
        let chosen = valid("chosen", state.u64("chosen")?)?;
        let sent = state.u64("sent")?.checked_sub(1).map(|sent| valid("sent", sent)).transpose()?;
        let to_time = state.f64s("to_time")?.iter().map(|rung| valid("to_time", *rung as u64));
        let to_time = to_time.collect::<Result<_, _>>()?;
        let (until_look, has_started) = (state.u64("until_look")?, state.u64("has_started")? != 0);
        // A state without this entry is from a version that always kept its choice.
        let is_chosen = if state.contains("is_chosen") { state.u64("is_chosen")? != 0 } else { has_started };
        let overruled = match state.f64s("overruled")? {
            &[ratio, left] => CompressionRatio::new(ratio).ok().map(|ratio| (ratio, left as u64)),
            _ => None,
        };
        let mut passed_over = vec![false; rungs];
        for rung in state.f64s("passed_over")? {
            passed_over[valid("passed_over", *rung as u64)?] = true;
        }
        self.costs.load(state)?;
        self.budget.load(state)?;
        state.load_part("limit", &mut self.limit)?;
        (self.chosen, self.sent, self.to_time) = (chosen, sent, to_time);
        (self.until_look, self.has_started, self.is_chosen) = (until_look, has_started, is_chosen);
        (self.passed_over, self.overruled, self.change) = (passed_over, overruled, None);
        Ok(())
    }
}
