//! Candidate signals of the accuracy lost to compression, measured between the error feedback and its reducer while a trainer runs.
//!
//! Let `x` be the input of the reducer (gradient and residual), `s` the part of it that is sent, `e = x − s` the new
//! residual and `g = x − e_before` the contribution of a step. Measured are the gain `1 − ‖e‖²/‖x‖²`, the effective
//! delay `‖e‖/‖g‖`, and the cosine between `Σs` and `Σg` over windows of some steps. Without error feedback `e` is
//! lost, the residual is empty, and `g = x`.

use std::sync::{Arc, Mutex, PoisonError};

use briquette::core::config::{Config, Exchange};
use briquette::core::error::{ConfigError, ReduceError};
use briquette::core::reduce::{Exchanged, Reducer, Round};
use briquette::core::report::Report;
use briquette::core::sync::{SyncStrategy, every_step::EveryStep};
use briquette::core::{Layout, Session};
use briquette::strategy::BuildStrategy;
use serde::{Deserialize, Serialize};

/// Lengths of the windows in steps.
pub const WINDOWS: [u64; 2] = [10, 30];

/// Measurements of one rank at a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// The step.
    pub step: u64,
    /// Share of the energy that was sent.
    pub gain: f64,
    /// Norm of the residual relative to that of the step's contribution; 0 without error feedback.
    pub delay: f64,
    /// Cosine over the shorter window that ends here; `None` inside a window.
    pub cosine_10: Option<f64>,
    /// Cosine over the longer window.
    pub cosine_30: Option<f64>,
}

/// Measurements of one rank of a run.
pub type Signals = Arc<Mutex<Vec<Signal>>>;

/// The settings' own strategy, with measurement inside its error feedback.
#[derive(Debug)]
pub struct Observed {
    /// Settings.
    pub config: Config,
    /// Destination of the measurements.
    pub signals: Signals,
}

impl BuildStrategy for Observed {
    fn settings(&self) -> String {
        BuildStrategy::settings(&self.config)
    }
    fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let exchange = &self.config.exchange;
        // Refuses what the settings as a whole refuse.
        exchange.build_reducer(layout, world)?;
        let inner = Exchange { feedback: "none".parse()?, ..exchange.clone() }.build_reducer(layout, world)?;
        let feedback = exchange.feedback.get();
        let keeps_residual = feedback.requirement().keeps_residual();
        let windows = WINDOWS.map(|steps| Window { steps, sent: Vec::new(), added: Vec::new() });
        let signals = Arc::clone(&self.signals);
        let observer = Observer { inner, keeps_residual, sent: Vec::new(), left: Vec::new(), windows, signals };
        Ok(Box::new(EveryStep::new(feedback.wrap(Box::new(observer), exchange, layout)?)))
    }
    fn keeps_state(&self) -> bool {
        self.config.keeps_state()
    }
    fn weights_by_samples(&self) -> bool {
        self.config.weights_by_samples()
    }
}

struct Observer {
    inner: Box<dyn Reducer>,
    keeps_residual: bool,
    sent: Vec<f32>,
    /// Residual after the previous exchange.
    left: Vec<f32>,
    windows: [Window; 2],
    signals: Signals,
}

/// Sums over a window of steps.
#[derive(Debug)]
struct Window {
    steps: u64,
    sent: Vec<f64>,
    added: Vec<f64>,
}

impl Window {
    /// Adds a step, and returns the cosine if the window ends.
    fn add(&mut self, step: u64, sent: &[f32], added: &[f32]) -> Option<f64> {
        self.sent.resize(sent.len(), 0.0);
        self.added.resize(sent.len(), 0.0);
        self.sent.iter_mut().zip(sent).for_each(|(sum, v)| *sum += f64::from(*v));
        self.added.iter_mut().zip(added).for_each(|(sum, v)| *sum += f64::from(*v));
        if !(step + 1).is_multiple_of(self.steps) {
            return None;
        }
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let norms = (dot(&self.sent, &self.sent) * dot(&self.added, &self.added)).sqrt();
        let cosine = dot(&self.sent, &self.added) / norms;
        self.sent.clear();
        self.added.clear();
        Some(cosine)
    }
}

impl Observer {
    fn measure(&mut self, step: u64, input: &[f32], sent: &[f32]) {
        self.left.resize(input.len(), 0.0);
        let added: Vec<f32> = input.iter().zip(&self.left).map(|(x, left)| x - left).collect();
        let unsent = input.iter().zip(sent).map(|(x, sent)| x - sent);
        self.left.iter_mut().zip(unsent).for_each(|(left, unsent)| *left = unsent);
        let norm2 = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        let gain = 1.0 - norm2(&self.left) / norm2(input);
        let delay = if self.keeps_residual { (norm2(&self.left) / norm2(&added)).sqrt() } else { 0.0 };
        let [cosine_10, cosine_30] = self.windows.each_mut().map(|window| window.add(step, sent, &added));
        if !self.keeps_residual {
            self.left.fill(0.0);
        }
        let signal = Signal { step, gain, delay, cosine_10, cosine_30 };
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).push(signal);
    }
}

briquette::core::stateful! {
    impl Stateful for Observer { inner: flatten() }
}

impl Reducer for Observer {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let mut own = std::mem::take(&mut self.sent);
        own.resize(input.len(), 0.0);
        let inner = Round { key, slots, agreed_step, input, average, sent: Some(&mut own) };
        let exchanged = self.inner.reduce(inner, comm)?;
        sent.into_iter().for_each(|sent| sent.copy_from_slice(&own));
        self.measure(agreed_step.step, input, &own);
        self.sent = own;
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

#[cfg(test)]
mod tests {
    use briquette::core::Key;
    use briquette::core::comm::Local;
    use briquette::core::reduce::AgreedStep;

    use super::*;

    /// Returns the measurements over `inputs`, one after another, by one rank.
    fn signals(exchange: &str, inputs: &[[f32; 2]]) -> Vec<Signal> {
        let exchange: Exchange = serde_json::from_str(exchange).unwrap();
        let observed = Observed { config: Config::every_step(exchange), signals: Signals::default() };
        let layout = Layout::flat(2);
        let mut strategy = observed.build(&layout, 1).unwrap();
        let mut comm = Local::world(1).remove(0);
        for (step, input) in (0..).zip(inputs) {
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            let (key, slots) = (Key::new(1), layout.slots());
            let cx = briquette::core::sync::Context::new(key, slots, &agreed_step);
            strategy.after_backward(&mut input.to_vec(), &cx, &mut comm).unwrap();
            strategy.commit();
        }
        observed.signals.lock().unwrap().clone()
    }

    #[test]
    fn what_waits_is_measured_beside_what_a_step_adds() {
        // (3, 2): 3 goes, 2 waits: gain 9/13, delay 2/√13. (3, 2) again: (3, 4) is given, 3 waits: 16/25 and 3/√13.
        let exchange = r#"{"reducer": "gather:topk:0.5", "feedback": "error"}"#;
        let seen = signals(exchange, &[[3.0, 2.0], [3.0, 2.0]]);
        let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-6, "{got}, expected {expected}");
        near(seen[0].gain, 9.0 / 13.0);
        near(seen[0].delay, 2.0 / 13f64.sqrt());
        near(seen[1].gain, 16.0 / 25.0);
        near(seen[1].delay, 3.0 / 13f64.sqrt());
    }

    #[test]
    fn windows_end_at_their_steps_and_without_a_memory_nothing_waits() {
        let seen = signals(r#"{"reducer": "gather:topk:0.5", "feedback": "none"}"#, &[[4.0, 3.0]; 30]);
        let ends = |of: fn(&Signal) -> Option<f64>| -> Vec<u64> {
            seen.iter().filter(|s| of(s).is_some()).map(|s| s.step).collect()
        };
        assert_eq!(ends(|s| s.cosine_10), [9, 19, 29]);
        assert_eq!(ends(|s| s.cosine_30), [29]);
        // (4, 0) against (4, 3), whatever the window.
        assert!((seen[29].cosine_10.unwrap() - 0.8).abs() < 1e-9 && (seen[29].cosine_30.unwrap() - 0.8).abs() < 1e-9);
        assert!(seen.iter().all(|s| s.delay == 0.0 && (s.gain - 0.64).abs() < 1e-6));
        // With one the smaller value is sent in the end: the window's cosine is larger.
        let fed = signals(r#"{"reducer": "gather:topk:0.5", "feedback": "error"}"#, &[[4.0, 3.0]; 30]);
        assert!(fed[29].cosine_30.unwrap() > 0.99);
    }
}
