//! Metric renderer: Burn's renderer on rank 0, none on other ranks. Progress is forwarded in `progress.rs`.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::train::metric::{MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining, default_renderer,
};
use burn::train::{Interrupter, LearnerSummary};

pub(super) type Inner = Box<dyn MetricsRenderer>;

/// Rank 0 uses Burn's own renderer, for a terminal or for lines. However, the last value of a split is [shown](Screen::show)
/// only when the global value is known. The renderer of other ranks shows nothing.
#[derive(Clone)]
pub(super) struct Screen(Arc<Mutex<State>>);

enum State {
    /// Nothing is shown.
    Dark,
    /// Burn's renderer is created when training starts: it needs the first epoch, and takes over the terminal.
    Waiting {
        interrupter: Interrupter,
        metrics: Vec<MetricDefinition>,
    },
    Lit(Inner),
}

impl Screen {
    pub(super) fn new(rank: usize) -> Screen {
        let waiting = State::Waiting { interrupter: Interrupter::new(), metrics: Vec::new() };
        Screen(Arc::new(Mutex::new(if rank == 0 { waiting } else { State::Dark })))
    }

    /// Sets the interrupter that receives the user's stop requests.
    pub(super) fn stops(&self, training: Interrupter) {
        if let State::Waiting { interrupter, .. } = &mut *self.lock() {
            *interrupter = training;
        }
    }

    /// Shows the global metrics at the end of a split.
    pub(super) fn show(&self, is_training: bool, state: MetricState) {
        self.with(|inner| if is_training { inner.update_train(state) } else { inner.update_valid(state) });
    }

    /// Creates Burn's renderer on rank 0, if it does not exist yet. `first` is the first epoch.
    pub(super) fn light(&self, first: usize) {
        let mut state = self.lock();
        if let State::Waiting { interrupter, metrics } = &mut *state {
            let mut inner = default_renderer(interrupter.clone(), first.checked_sub(1).filter(|before| *before > 0));
            metrics.drain(..).for_each(|metric| inner.register_metric(metric));
            *state = State::Lit(inner);
        }
    }

    /// Calls Burn's renderer, if it exists.
    pub(super) fn with(&self, call: impl FnOnce(&mut Inner)) {
        if let State::Lit(inner) = &mut *self.lock() {
            call(inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether `state` is this rank's last value of a split, which the global value replaces.
fn is_last(state: &MetricState) -> bool {
    matches!(state, MetricState::Numeric(_, Some(NumericEntry::Final(_))))
}

impl MetricsRendererTraining for Screen {
    fn update_train(&mut self, state: MetricState) {
        if !is_last(&state) {
            self.show(true, state);
        }
    }

    fn update_valid(&mut self, state: MetricState) {
        if !is_last(&state) {
            self.show(false, state);
        }
    }

    fn on_train_end(&mut self, summary: Option<LearnerSummary>) -> Result<(), Box<dyn StdError>> {
        match &mut *self.lock() {
            State::Lit(inner) => inner.on_train_end(summary),
            _ => Ok(()),
        }
    }
}

impl MetricsRendererEvaluation for Screen {
    fn update_test(&mut self, name: EvaluationName, state: MetricState) {
        self.with(|inner| inner.update_test(name, state));
    }

    fn on_test_end(&mut self, summary: Option<LearnerSummary>) -> Result<(), Box<dyn StdError>> {
        match &mut *self.lock() {
            State::Lit(inner) => inner.on_test_end(summary),
            _ => Ok(()),
        }
    }
}

impl MetricsRenderer for Screen {
    fn manual_close(&mut self) {
        self.with(|inner| inner.manual_close());
    }

    fn register_metric(&mut self, definition: MetricDefinition) {
        match &mut *self.lock() {
            State::Dark => {}
            State::Waiting { metrics, .. } => metrics.push(definition),
            State::Lit(inner) => inner.register_metric(definition),
        }
    }
}
