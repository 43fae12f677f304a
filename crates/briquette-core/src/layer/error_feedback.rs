//! Remembers what was not sent and adds it to the next vector.
//!
//! **Why, and when not.** A contractive compressor alone can diverge on several ranks; with the residual fed back, it
//! converges like the uncompressed method. Unbiased compressors do without. Under an inner optimizer with momentum it
//! loses accuracy at high factors: see [`MomentumCorrection`](super::MomentumCorrection).
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `p = g + e` | input + `residual` |
//! | `Δ = C(p)` | `sent` |
//! | `e ← p − Δ` | the new `residual` |
//!
//! Here the memory is *outside* the learning rate: a coordinate that waits is applied with the rate of the step that sends
//! it. [Inside](ErrorFeedback::inside_learning_rate) (the paper's form, `p = γg + e`, `x ← x − Δ`) it keeps the rate of the
//! step it comes from. The optimizer multiplies by `γ` afterwards, so what is exchanged is `g + e/γ`, and the memory is
//! `e ← γ·(g + e/γ − Δ)`: in the units of a gradient, `e` is rescaled by `γ_{t−1}/γ_t` at every step. While `γ` is constant
//! both are the same, bit for bit where `γ` is a power of two. At a step with `γ = 0` nothing could be applied: the memory
//! stays as it is and out of the exchange.
//!
//! **Properties.** Outside, conserves: `input + residual_before = sent + residual_after`, bit for bit where the sent values are
//! the vector's own (top-k with f32 values). With a dense exchange the residual is exactly 0.
//!
//! **State.** The residual: one vector a rank. While exchanging, two more (the fed vector and `sent`).
//!
//! **Deviations.** The learning rate is outside the memory unless asked for, as in GraVAC. Under parameter groups of
//! different rates, inside means the base rate. The identity `Σ γΔ + e = Σ γg` is one of plain SGD: an inner momentum goes on
//! multiplying `e/γ` by later rates, which is much after a very small one (a restart), and Adam's step is no multiple of the
//! gradient at all.
//!
//! **Reference.** S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, *Error Feedback Fixes SignSGD and other Gradient
//! Compression Schemes*, ICML 2019 (arXiv 1901.09847), algorithm 2.
//!
//! ```
//! use briquette_core::{Key, Layout, aggregate::Mean, comm::Local, compress::TopK};
//! use briquette_core::{layer::ErrorFeedback, reduce::{Facts, Gather, Reducer, Round}};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = ErrorFeedback::new(Gather::new(TopK::fraction(0.5)?, Mean));
//! let layout = Layout::flat(2);
//! let mut step = |input: [f32; 2]| {
//!     let mut average = [0.0; 2];
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), facts: &Facts::default(),
//!         input: &input, average: &mut average, sent: None }, &mut comm).map(|_| average)
//! };
//! assert_eq!(step([3.0, 2.0])?, [3.0, 0.0]); // 2 stays behind …
//! assert_eq!(step([3.0, 2.0])?, [0.0, 4.0]); // … and now wins with 2 + 2
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{check_finite, keep_unsent};
use crate::config::{Asks, Described, Exchange, FeedbackSettings};
use crate::error::{ConfigError, ReduceError, StateError};
use crate::reduce::{Exchanged, Facts, Reducer, Round};
use crate::report::Report;
use crate::state::{OnResize, Place, Staged, State, Stateful};
use crate::{Layout, Session};

/// Feeds back what was not sent; see the [module](self).
#[derive(Debug)]
pub struct ErrorFeedback<R> {
    inner: R,
    inside: bool,
    /// The next one is the fed vector until what was sent is known.
    residual: Staged<Vec<f32>>,
    sent: Vec<f32>,
}

impl<R: Reducer> ErrorFeedback<R> {
    /// Around any reducer that reports what it sent.
    pub fn new(inner: R) -> Self {
        ErrorFeedback { inner, inside: false, residual: Staged::default(), sent: Vec::new() }
    }

    /// With the memory inside the learning rate. Rounds must then tell the rate, see
    /// [`Facts::learning_rate`](crate::reduce::Facts::learning_rate).
    pub fn inside_learning_rate(inner: R) -> Self {
        ErrorFeedback { inside: true, ..ErrorFeedback::new(inner) }
    }

    /// The learning rate that the memory is in; 1 outside.
    fn rate(&self, facts: &Facts) -> Result<f32, ReduceError> {
        match (self.inside, facts.learning_rate) {
            (false, _) => Ok(1.0),
            // Its inverse must be a number, too.
            (true, Some(rate)) if rate == 0.0 || (1e-30..=1e30).contains(&rate) => Ok(rate as f32),
            (true, Some(rate)) => Err(ReduceError::LearningRate { step: facts.step, rate }),
            (true, None) => Err(ReduceError::NoLearningRate { step: facts.step }),
        }
    }

    /// What this rank wanted to send and did not, times the learning rate where that is inside; empty before the first
    /// exchange.
    pub fn residual(&self) -> &[f32] {
        self.residual.now()
    }
}

impl<R: Reducer> Stateful for ErrorFeedback<R> {
    fn save(&self, state: &mut State) {
        state.put_at(Place::PerRank(OnResize::Spread), "residual", self.residual.now().clone());
        state.put_part("inner", &self.inner);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let residual = state.memory("residual", self.residual.now())?;
        state.load_part("inner", &mut self.inner)?;
        self.residual.set(residual);
        Ok(())
    }

    fn commit(&mut self) {
        self.residual.commit();
        self.inner.commit();
    }

    fn discard(&mut self) {
        self.residual.discard();
        self.inner.discard();
    }
}

impl<R: Reducer> Reducer for ErrorFeedback<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let rate = self.rate(round.facts)?;
        let len = round.input.len();
        self.residual.fit(len)?;
        self.sent.resize(len, 0.0);
        let (residual, fed) = self.residual.both();
        // A rate of 0 applies nothing: what waits goes on waiting.
        let weight = if rate == 0.0 { 0.0 } else { 1.0 / rate };
        for ((fed, residual), input) in fed.iter_mut().zip(residual).zip(round.input) {
            *fed = residual * weight + input;
        }
        // Any of it may stay behind, times the rate.
        check_finite(fed, rate.max(1.0), round.slots, comm.rank())?;
        let Round { key, slots, facts, average, sent: wanted, .. } = round;
        let inner = Round { key, slots, facts, input: fed, average, sent: Some(&mut self.sent) };
        let exchanged = self.inner.reduce(inner, comm)?;
        if rate != 0.0 {
            keep_unsent(fed, &self.sent, rate, slots, comm.rank())?;
            self.residual.stage();
        }
        if let Some(wanted) = wanted {
            wanted.copy_from_slice(&self.sent);
        }
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

/// Settings of [`ErrorFeedback`] outside the learning rate: none.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct ErrorFeedbackConfig;

impl Described for ErrorFeedbackConfig {
    const NAME: &'static str = "error";
    const HELP: &'static str = "it is added to the next vector";
}

impl FeedbackSettings for ErrorFeedbackConfig {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::new(inner)))
    }

    fn asks(&self) -> Asks {
        Asks::Bounded
    }
}

/// Settings of [`ErrorFeedback`] inside the learning rate: none.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct ErrorInsideConfig;

impl Described for ErrorInsideConfig {
    const NAME: &'static str = "error-inside";
    const HELP: &'static str = "the same, where what was not sent counts by the learning rate of its own step";
}

impl FeedbackSettings for ErrorInsideConfig {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::inside_learning_rate(inner)))
    }

    fn asks(&self) -> Asks {
        Asks::Bounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::Mean;
    use crate::comm::Local;
    use crate::compress::TopK;
    use crate::reduce::Gather;
    use crate::{Key, Layout};

    type Fed = ErrorFeedback<Gather<TopK, Mean>>;

    fn reducer(make: fn(Gather<TopK, Mean>) -> Fed) -> Fed {
        make(Gather::new(TopK::fraction(0.5).unwrap(), Mean))
    }

    fn step(reducer: &mut Fed, input: [f32; 2], learning_rate: Option<f64>) -> Result<[f32; 2], ReduceError> {
        let (layout, mut average) = (Layout::flat(2), [0.0; 2]);
        let facts = Facts { learning_rate, ..Facts::default() };
        let (key, slots) = (Key::new(0), layout.slots());
        let round = Round { key, slots, facts: &facts, input: &input, average: &mut average, sent: None };
        reducer.exchange(round, &mut Local::world(1).remove(0)).map(|_| average)
    }

    #[test]
    fn inside_what_waits_keeps_the_rate_of_its_step() {
        // By hand: 2 waits at rate 0.5, so 1 in parameters; at rate 0.25 that is 4 in gradients.
        let mut inside = reducer(ErrorFeedback::inside_learning_rate);
        assert_eq!(step(&mut inside, [3.0, 2.0], Some(0.5)).unwrap(), [3.0, 0.0]);
        assert_eq!(inside.residual(), [0.0, 1.0]);
        assert_eq!(step(&mut inside, [3.0, 2.0], Some(0.25)).unwrap(), [0.0, 6.0]);
        assert_eq!(inside.residual(), [0.75, 0.0]);
        // At rate 0 nothing is applied and nothing forgotten.
        assert_eq!(step(&mut inside, [0.0, 1.0], Some(0.0)).unwrap(), [0.0, 1.0]);
        assert_eq!(inside.residual(), [0.75, 0.0]);
        assert_eq!(step(&mut inside, [0.0, 1.0], Some(1.0)).unwrap(), [0.0, 1.0]);
        assert_eq!(inside.residual(), [0.75, 0.0]);
    }

    #[test]
    fn inside_what_moves_is_what_was_asked_for_whatever_the_rates() {
        // Σ γ·Δ + e = Σ γ·g: the virtual iterate. Outside, this holds for constant rates only.
        let rates = [0.5, 0.25, 1.0, 0.125, 0.5];
        let (mut moved, mut asked) = ([0.0; 2], [0.0; 2]);
        let mut inside = reducer(ErrorFeedback::inside_learning_rate);
        for (index, rate) in rates.into_iter().enumerate() {
            let input = [1.0 + index as f32, 3.0 - index as f32];
            let sent = step(&mut inside, input, Some(rate)).unwrap();
            (0..2).for_each(|i| moved[i] += rate as f32 * sent[i]);
            (0..2).for_each(|i| asked[i] += rate as f32 * input[i]);
        }
        assert_eq!([moved[0] + inside.residual()[0], moved[1] + inside.residual()[1]], asked);
    }

    #[test]
    fn a_constant_rate_makes_no_difference() {
        let (mut inside, mut outside) = (reducer(ErrorFeedback::inside_learning_rate), reducer(ErrorFeedback::new));
        for index in 0..6 {
            let input = [0.3 * index as f32, 1.7 - 0.9 * index as f32];
            let with = step(&mut inside, input, Some(0.125)).unwrap();
            assert_eq!(with, step(&mut outside, input, None).unwrap());
        }
    }

    #[test]
    fn rates_that_no_memory_can_be_kept_in_are_refused() {
        let mut inside = reducer(ErrorFeedback::inside_learning_rate);
        for rate in [f64::INFINITY, f64::NAN, -0.1, 1e-40, 1e39] {
            let error = step(&mut inside, [1.0, 2.0], Some(rate)).unwrap_err().to_string();
            assert!(error.contains(&format!("learning rate is {rate}")), "{error}");
            assert!(inside.residual().is_empty(), "as before");
        }
        // 2.9e38 would wait at rate 8: more than there are numbers for.
        let error = step(&mut inside, [3e38, 2.9e38], Some(8.0)).unwrap_err();
        assert!(matches!(&error, ReduceError::NonFinite { rank: 0, .. }), "{error}");
        assert!(inside.residual().is_empty(), "as before");
    }

    #[test]
    fn without_a_rate_inside_says_what_is_missing() {
        let mut inside = reducer(ErrorFeedback::inside_learning_rate);
        let error = step(&mut inside, [1.0, 2.0], None).unwrap_err().to_string();
        assert!(error.contains("step 0") && error.contains("record_learning_rate"), "{error}");
        assert!(inside.residual().is_empty(), "as before");
    }
}
