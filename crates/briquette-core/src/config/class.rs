//! Error class of an exchange, and checks against the requirements of the feedback.

use super::{Exchange, FeedbackRequirement, ReducerConfig};
use crate::Layout;
use crate::error::{ConfigError, Conflict};
use crate::seam::ErrorBound;

/// Longest probe vector. An error that grows with the length exceeds the vector long before this length, and longer probes would only use memory.
const LONGEST_PROBE: usize = 1 << 20;

/// Length of the vector for which an exchange is checked if the model is not known.
const USUAL_LENGTH: usize = 1000;

/// A reducer with the layout of the slots that it exchanges.
type Part = (ReducerConfig, Layout);

impl Exchange {
    /// Returns the error class of `reducer` over the vectors of this exchange: the worst of the classes for these
    /// vectors.
    pub fn error_bound(&self, reducer: &ReducerConfig, layout: &Layout) -> Option<ErrorBound> {
        let classes = self.lengths(reducer, layout).into_iter().map(|len| reducer.get().error_bound(len));
        classes.collect::<Option<Vec<ErrorBound>>>()?.into_iter().reduce(ErrorBound::worse)
    }

    /// Returns the distinct lengths of the vectors that `reducer` compresses.
    fn lengths(&self, reducer: &ReducerConfig, layout: &Layout) -> Vec<usize> {
        let mut lengths: Vec<usize> = match reducer.get().traits().is_per_slot {
            true => layout.slots().iter().map(crate::Slot::len).collect(),
            false => self.bucketed(layout, |_| crate::reduce::dense::Dense).ranges().map(|r| r.len()).collect(),
        };
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// Returns the main reducer with its slots, which may be none, and those of the other groups. Without a layout, every reducer has
    /// one slot.
    fn parts(&self, layout: Option<&Layout>) -> Result<(Part, Vec<Part>), Conflict> {
        let Some(layout) = layout else {
            let others = self.rules.iter().map(|rule| (rule.reducer.clone(), Layout::flat(USUAL_LENGTH)));
            return Ok(((self.reducer.clone(), Layout::flat(USUAL_LENGTH)), others.collect()));
        };
        let (main, others) = self.groups(layout)?;
        Ok(((main.reducer, main.layout), others.into_iter().map(|group| (group.reducer, group.layout)).collect()))
    }

    /// Checks that the compression error has the class that the feedback requires.
    pub(super) fn check_class(&self, layout: Option<&Layout>) -> Result<(), Conflict> {
        match self.feedback.get().requirement() {
            FeedbackRequirement::Nothing => Ok(()),
            FeedbackRequirement::Unbiased => self.variance(layout).map(drop),
            FeedbackRequirement::Bounded => self.check_residual_stays_bounded(layout),
            FeedbackRequirement::Contractive => self.check_contracts(layout),
        }
    }

    /// Creates the conflict of the feedback with the main reducer.
    fn refused(&self, why: impl Into<String>, instead: &str) -> Conflict {
        Conflict::new(format!("feedback {}", self.feedback), format!("reducer {}", self.reducer), why, instead)
    }

    /// Checks that the error of compressing the residual is smaller than the residual. Otherwise the residual, which is always
    /// fed back in full, would grow without bound.
    fn check_residual_stays_bounded(&self, layout: Option<&Layout>) -> Result<(), Conflict> {
        let (main, others) = self.parts(layout)?;
        // No controller sets the ratio of a rule's reducer.
        for ((reducer, layout), is_turned) in [(main, !self.controller.is_none())]
            .into_iter()
            .chain(others.into_iter().map(|part| (part, false)))
            .filter(|((_, layout), _)| !layout.slots().is_empty())
        {
            let amplified = |len: usize| reducer.get().amplification(len.min(LONGEST_PROBE));
            let omega = self.lengths(&reducer, &layout).into_iter().filter_map(amplified).reduce(f64::max);
            if is_turned && omega.is_some_and(|omega| omega > 0.0) {
                let why = format!(
                    "under a controller {} may get so few levels that its error exceeds the vector's energy, and a residual of it \
                     grows without bound",
                    reducer.name()
                );
                return Err(self.refused(why, "use feedback none, or a sparsifier"));
            }
            if let Some(omega) = omega.filter(|omega| *omega >= 1.0) {
                let why = format!(
                    "the compression is not contractive: its error may be {omega:.2} times the energy of its input, and from 1 on the \
                     residual grows without bound"
                );
                let instead = "use feedback none, or diana with an unbiased compressor, or more levels";
                return Err(Conflict { right: format!("reducer {reducer}"), ..self.refused(why, instead) });
            }
        }
        Ok(())
    }

    /// Returns the worst class over all groups of slots.
    fn worst_class(&self, layout: Option<&Layout>) -> Result<Option<ErrorBound>, Conflict> {
        let (main, others) = self.parts(layout)?;
        let parts = [main].into_iter().chain(others).filter(|(_, layout)| !layout.slots().is_empty());
        let classes: Option<Vec<ErrorBound>> =
            parts.map(|(reducer, layout)| self.error_bound(&reducer, &layout)).collect();
        Ok(classes.and_then(|classes| classes.into_iter().reduce(ErrorBound::worse)))
    }

    /// Returns `ω` of the compressor, which must be unbiased.
    fn variance(&self, layout: Option<&Layout>) -> Result<f64, Conflict> {
        match self.worst_class(layout)? {
            Some(ErrorBound::Unbiased { omega }) => Ok(omega),
            // The identity is in both classes.
            Some(ErrorBound::Contractive { delta: 1.0 }) => Ok(0.0),
            _ => Err(self.refused(
                "it needs an unbiased compressor (qsgd, or scaled shared-random-k), and with these settings this one is not unbiased",
                "use feedback ef21 for a contractive compressor, or error",
            )),
        }
    }

    /// Returns the step of DIANA's memory, checked against the compressor.
    pub fn memory_step(&self, alpha: Option<f32>, layout: &Layout) -> Result<f32, ConfigError> {
        let omega = self.variance(Some(layout))?;
        let (largest, has_controller) = ((1.0 / (1.0 + omega)) as f32, !self.controller.is_none());
        match alpha {
            None if has_controller => {
                let right = format!("controller {}", self.controller);
                let why = "under a controller the compressor changes, and diana's alpha with it";
                let instead = "set alpha to at most 1/(1+omega) of the highest ratio";
                Err(Conflict { right, ..self.refused(why, instead) }.into())
            }
            None => Ok(largest),
            Some(alpha) if !has_controller && alpha > largest => {
                let why = format!("diana's alpha must be at most 1/(1+omega) = {largest} here, got {alpha}");
                Err(self.refused(why, "omit it for that value").into())
            }
            Some(alpha) => Ok(alpha),
        }
    }

    /// Checks that the compressor of every rank is contractive, as EF21 requires.
    fn check_contracts(&self, layout: Option<&Layout>) -> Result<(), Conflict> {
        let (why, instead) = match self.worst_class(layout)? {
            Some(ErrorBound::Contractive { .. } | ErrorBound::MeanContractive { .. }) => return Ok(()),
            Some(ErrorBound::Unbiased { omega: 0.0 }) => return Ok(()),
            Some(ErrorBound::Unbiased { omega }) => (
                format!(
                    "it needs a contractive compressor, and with these settings this one is only unbiased (omega {omega:.2})"
                ),
                "use feedback diana",
            ),
            Some(ErrorBound::Biased { .. }) => (
                "it needs a contractive compressor, and with these settings this one may not be contractive".to_owned(),
                "use feedback none",
            ),
            None => (
                "it needs a compressor that is contractive on every rank, and this one is contractive only for the mean".to_owned(),
                "use feedback error",
            ),
        };
        Err(self.refused(why, instead))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Feedback};
    use super::*;

    fn exchange(reducer: &str, feedback: Feedback) -> Exchange {
        let reducer: Config = toml::from_str(&format!("strategy = 'every-step'\nreducer = {{ {reducer} }}")).unwrap();
        Exchange { feedback, dense_below: Some(0), ..reducer.exchange }
    }

    #[test]
    fn the_memory_step_follows_from_the_compressor() {
        let layout = Layout::new([("w", vec![80, 10]), ("b", vec![10])]);
        let step = |reducer| exchange(reducer, Feedback::none()).memory_step(None, &layout);
        assert_eq!(step("kind = 'dense'"), Ok(1.0));
        // 810 values, 81 kept: omega = 9.
        assert_eq!(step("kind = 'shared-random-k', ratio = 10.0, scaled = true"), Ok(0.1));
        // The identity for other slots does not change the step.
        let unbiased = exchange("kind = 'gather', compressor = 'qsgd:2:10:l2'", Feedback::none());
        let ruled = Exchange { dense_below: Some(11), ..unbiased };
        assert_eq!(ruled.memory_step(None, &layout), Ok((1.0 / (1.0 + 10_f64.sqrt())) as f32));
        // L2, 2 bits: s = 1; whole: n = 512, omega = sqrt(512); by slot: the larger slot's, the same.
        let expected = (1.0 / (1.0 + 512_f64.sqrt())) as f32;
        assert_eq!(step("kind = 'gather', compressor = 'qsgd:2:512:l2'"), Ok(expected));
        assert_eq!(step("kind = 'gather', compressor = 'qsgd:2:512:l2', per_slot = true"), Ok(expected));
    }
}
