//! `evaluations.json`: the results on test samples in the course of a run.

use serde::{Deserialize, Serialize};

use super::{Totals, float};

/// An evaluation: an element of `evaluations.json`. Means over the test samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps of training before it.
    pub step: u64,
    /// Share of correct predictions, in 0–1.
    #[serde(with = "float")]
    pub test_accuracy: f64,
    /// Loss.
    #[serde(with = "float")]
    pub test_loss: f64,
}

impl Totals {
    /// Adds an evaluation, and removes those at the same or later steps.
    pub(crate) fn add(&mut self, evaluation: Evaluation) {
        self.evaluations.retain(|earlier| earlier.step < evaluation.step);
        self.evaluations.push(evaluation);
    }
}
