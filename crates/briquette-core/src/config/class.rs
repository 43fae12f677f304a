//! Error class of an exchange, and its checks against the requirements of the feedback.

use super::{ControllerConfig, Exchange, FeedbackRequirement, ReducerConfig};
use crate::Layout;
use crate::compress::ErrorBound;
use crate::error::{ConfigError, Conflict};

/// Longest probe vector. An error that grows with the length exceeds the vector long before this length, and longer probes would only use memory.
const LONGEST_PROBE: usize = 1 << 20;

/// Returns probe vectors for constants that depend on the vector: all values equal, and one large value among small ones. The latter
/// is near the worst case for compressors that scale by the largest value.
pub(crate) fn probes(len: usize) -> impl Iterator<Item = Vec<f32>> {
    let small = 1.0 / (len.max(1) as f32).sqrt();
    [1.0, small].into_iter().map(move |rest| {
        let mut x = vec![rest; len];
        x.iter_mut().take(1).for_each(|first| *first = 1.0);
        x
    })
}

/// Returns whether the class, unbiased or contractive, is that of the identity: nothing is lost.
pub(super) fn is_identity(class: ErrorBound) -> bool {
    matches!(class, ErrorBound::Unbiased { .. } | ErrorBound::Contractive { .. }) && class.error() == 0.0
}

/// Returns the class with the weaker guarantee.
pub(crate) fn worse(a: ErrorBound, b: ErrorBound) -> ErrorBound {
    use ErrorBound::{Biased, Contractive, MeanContractive, Unbiased};
    match (a, b) {
        (Unbiased { omega: a }, Unbiased { omega: b }) => Unbiased { omega: a.max(b) },
        (Contractive { delta: a }, Contractive { delta: b }) => Contractive { delta: a.min(b) },
        (
            Contractive { delta: a } | MeanContractive { delta: a },
            Contractive { delta: b } | MeanContractive { delta: b },
        ) => MeanContractive { delta: a.min(b) },
        (identity, other) | (other, identity) if is_identity(identity) => other,
        // A compressor belongs to one class. If classes are mixed, only the size of the error is certain.
        _ => Biased { omega: a.error().max(b.error()) },
    }
}

/// Length of the vector for which an exchange is checked if the model is not known.
const USUAL_LENGTH: usize = 1000;

/// A reducer with the layout of the slots that it exchanges.
type Part<'a> = (&'a ReducerConfig, Layout);

impl Exchange {
    /// Returns the error class of `reducer` over the vectors of this exchange: the worst of their classes.
    pub(crate) fn error_bound(&self, reducer: &ReducerConfig, layout: &Layout) -> Option<ErrorBound> {
        let classes = self.lengths(reducer, layout).into_iter().map(|len| reducer.get().error_bound(len));
        classes.collect::<Option<Vec<ErrorBound>>>()?.into_iter().reduce(worse)
    }

    /// Returns the distinct lengths of the vectors that `reducer` compresses.
    fn lengths(&self, reducer: &ReducerConfig, layout: &Layout) -> Vec<usize> {
        let mut lengths: Vec<usize> = match reducer.get().traits().is_per_slot {
            true => layout.slots().iter().map(crate::Slot::len).collect(),
            false => self.bucketed(layout, |_| crate::reduce::Dense).ranges().map(|r| r.len()).collect(),
        };
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// Returns the main reducer with its slots, which may be none, and those of the other groups. Without a layout, every reducer has
    /// one slot.
    fn parts(&self, layout: Option<&Layout>) -> Result<(Part<'_>, Vec<Part<'_>>), Conflict> {
        let Some(layout) = layout else {
            let others = self.rules.iter().map(|rule| (&rule.reducer, Layout::flat(USUAL_LENGTH)));
            return Ok(((&self.reducer, Layout::flat(USUAL_LENGTH)), others.collect()));
        };
        let (main, others) = self.groups(layout)?;
        Ok(((main.reducer, main.layout), others.into_iter().map(|group| (group.reducer, group.layout)).collect()))
    }

    /// Checks that the compression error has the class that the feedback asks for.
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

    /// Checks that the error of compressing the residual is smaller than the residual. The whole residual is fed back, and would
    /// otherwise grow without bound.
    fn check_residual_stays_bounded(&self, layout: Option<&Layout>) -> Result<(), Conflict> {
        let (main, others) = self.parts(layout)?;
        // No controller sets the ratio of a rule's reducer.
        for ((reducer, layout), is_turned) in [(main, self.controller != ControllerConfig::None)]
            .into_iter()
            .chain(others.into_iter().map(|part| (part, false)))
            .filter(|((_, layout), _)| !layout.slots().is_empty())
        {
            let amplified = |len: usize| reducer.get().amplification(len.min(LONGEST_PROBE));
            let omega = self.lengths(reducer, &layout).into_iter().filter_map(amplified).reduce(f64::max);
            if is_turned && omega.is_some_and(|omega| omega > 0.0) {
                let why = format!(
                    "under a controller {} may get so few levels that its error exceeds the vector's energy, and a residual of it \
                     grows without bound",
                    reducer.name()
                );
                return Err(self.refused(why, "use feedback none, or a sparsifier"));
            }
            if let Some(omega) = omega.filter(|omega| *omega >= 1.0) {
                let compressor = reducer.get().compressor();
                let name = compressor.map_or_else(|| reducer.name().to_owned(), |c| c.to_string());
                let why = format!(
                    "{name} is not contractive: its error may be {omega:.2} times the energy of what it compresses, and from 1 on a \
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
            parts.map(|(reducer, layout)| self.error_bound(reducer, &layout)).collect();
        Ok(classes.and_then(|classes| classes.into_iter().reduce(worse)))
    }

    /// Returns `ω` of the compressor, which must be unbiased.
    fn variance(&self, layout: Option<&Layout>) -> Result<f64, Conflict> {
        match self.worst_class(layout)? {
            Some(ErrorBound::Unbiased { omega }) => Ok(omega),
            // The identity belongs to both classes.
            Some(ErrorBound::Contractive { delta: 1.0 }) => Ok(0.0),
            _ => Err(self.refused(
                "it needs an unbiased compressor (qsgd, or scaled shared-random-k), and with these settings this one is not",
                "use feedback ef21 for a contractive one, or error",
            )),
        }
    }

    /// Returns the step of DIANA's memory, checked against the compressor.
    pub(crate) fn memory_step(&self, alpha: Option<f32>, layout: &Layout) -> Result<f32, ConfigError> {
        let omega = self.variance(Some(layout))?;
        let (largest, has_controller) = ((1.0 / (1.0 + omega)) as f32, self.controller != ControllerConfig::None);
        match alpha {
            None if has_controller => {
                let right = format!("controller {}", self.controller);
                let why = "under a controller the compressor changes, and diana's alpha with it";
                let instead = "set alpha to at most 1/(1+omega) of the highest factor";
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
                    "it needs a contractive compressor, and with these settings this one is unbiased with omega {omega:.2}"
                ),
                "use feedback diana",
            ),
            Some(ErrorBound::Biased { .. }) => (
                "it needs a contractive compressor, and this one as set promises nothing".to_owned(),
                "use feedback none",
            ),
            None => (
                "it needs a compressor that contracts on every rank, and this one does so only for the mean".to_owned(),
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
    use crate::control::ScheduleConfig;
    use crate::wrapper::DianaConfig;

    fn exchange(reducer: &str, feedback: Feedback) -> Exchange {
        let reducer: Config = toml::from_str(&format!("strategy = 'every-step'\nreducer = {{ {reducer} }}")).unwrap();
        Exchange { feedback, dense_below: Some(0), ..reducer.exchange }
    }

    #[test]
    fn the_memory_step_follows_from_the_compressor() {
        let layout = Layout::new([("w", vec![80, 10]), ("b", vec![10])]);
        let step = |reducer| exchange(reducer, Feedback::None).memory_step(None, &layout);
        assert_eq!(step("kind = 'dense'"), Ok(1.0));
        // 810 values, 81 kept: omega = 9.
        assert_eq!(step("kind = 'shared-random-k', factor = 10.0, scaled = true"), Ok(0.1));
        // The identity for other slots does not change the step.
        let unbiased = exchange("kind = 'gather', compressor = 'qsgd:2:10:l2'", Feedback::None);
        let ruled = Exchange { dense_below: Some(11), ..unbiased };
        assert_eq!(ruled.memory_step(None, &layout), Ok((1.0 / (1.0 + 10_f64.sqrt())) as f32));
        // L2, 2 bits: s = 1; whole: n = 512, omega = sqrt(512); by slot: the larger slot's, the same.
        let expected = (1.0 / (1.0 + 512_f64.sqrt())) as f32;
        assert_eq!(step("kind = 'gather', compressor = 'qsgd:2:512:l2'"), Ok(expected));
        assert_eq!(step("kind = 'gather', compressor = 'qsgd:2:512:l2', per_slot = true"), Ok(expected));
    }

    #[test]
    fn memories_refuse_compressors_they_cannot_work_with() {
        let diana = |alpha| Feedback::from(DianaConfig { alpha });
        let qsgd = "kind = 'gather', compressor = 'qsgd:2:512:l2'";
        let (top_k, power) = ("kind = 'gather', compressor = 'topk:0.1'", "kind = 'power-sgd', rank = 1");
        for (reducer, feedback, says) in [
            (top_k, diana(None), "use feedback ef21"),
            (power, diana(None), "use feedback ef21"),
            (qsgd, diana(Some(0.5)), "at most 1/(1+omega)"),
            (qsgd, diana(Some(0.0)), "above 0"),
            (qsgd, diana(Some(f32::NAN)), "above 0"),
            (qsgd, Feedback::Ef21, "use feedback diana"),
            (power, Feedback::Ef21, "use feedback error"),
            ("kind = 'shared-random-k', factor = 10.0, scaled = true", Feedback::Ef21, "use feedback diana"),
        ] {
            let error =
                exchange(reducer, feedback).build_reducer(&Layout::flat(1000), 2).map(drop).unwrap_err().to_string();
            assert!(error.contains(says), "{reducer}, {feedback:?}: {error}");
        }
        let momentum = Feedback::Momentum(crate::wrapper::Momentum::default());
        for (reducer, omega) in [
            (qsgd, "22.6"),
            ("kind = 'gather', compressor = 'qsgd:2:512:l2', per_slot = true", "22.6"),
            // A table's row without feedback: s = 4 and n = 512, so min(512/16, sqrt(512)/4).
            ("kind = 'gather', compressor = 'qsgd:s4:512:l2:elias'", "5.66"),
            ("kind = 'gather', compressor = 'terngrad:none'", "15.3"),
            ("kind = 'gather', compressor = 'topk:10x+qsgd:2:512:l2'", ""),
            ("kind = 'multi-step', rounds = 1, inner = { kind = 'gather', compressor = 'qsgd:2:512:l2' }", "22.6"),
            ("kind = 'ternary-all-reduce', clip = 2.5", ""),
        ] {
            for feedback in [Feedback::Error, Feedback::ErrorInside, momentum] {
                let built = exchange(reducer, feedback).build_reducer(&Layout::flat(1000), 2);
                let error = built.map(drop).expect_err(reducer).to_string();
                assert!(error.contains("not contractive") && error.contains(omega), "{reducer}, {feedback:?}: {error}");
            }
        }
        // A compressor that is not contractive is refused in a rule as well; a contractive one is not.
        let ruled = format!("reducer = 'dense'\nrules = [{{ slots = '*', reducer = {{ {qsgd} }} }}]");
        let ruled: Config = toml::from_str(&ruled).unwrap();
        let ruled = Exchange { feedback: Feedback::Error, dense_below: Some(0), ..ruled.exchange };
        assert!(
            ruled.build_reducer(&Layout::flat(1000), 2).map(drop).unwrap_err().to_string().contains("not contractive")
        );
        for reducer in
            [top_k, power, "kind = 'gather', compressor = 'qsgd:8'", "kind = 'gather', compressor = 'natural'"]
        {
            exchange(reducer, Feedback::Error).build_reducer(&Layout::flat(1000), 2).map(drop).unwrap();
        }
        // A controller sets the ratio of the main reducer, and not that of a rule.
        let factor = crate::CompressionFactor::new(8.0).unwrap();
        let turned = |reducer| Exchange {
            controller: ScheduleConfig::constant(factor).into(),
            ..exchange(reducer, Feedback::Error)
        };
        let (q8, layout) =
            ("kind = 'gather', compressor = 'qsgd:8'", Layout::new([("w", vec![900]), ("b", vec![100])]));
        let error = turned(q8).build_reducer(&layout, 2).map(drop).unwrap_err().to_string();
        assert!(error.contains("under a controller"), "{error}");
        let rule = crate::config::Rule::compressor("b", "qsgd:8".parse().unwrap()).unwrap();
        Exchange { rules: vec![rule], ..turned(top_k) }.build_reducer(&layout, 2).map(drop).unwrap();
        let controller = ScheduleConfig::constant(factor).into();
        let adaptive = Exchange { controller, ..exchange(qsgd, diana(None)) };
        let error = adaptive.build_reducer(&Layout::flat(1000), 2).map(drop).unwrap_err().to_string();
        assert!(error.contains("set alpha"), "{error}");
    }
}
