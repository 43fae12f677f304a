//! Metric renderer: Burn's renderer on rank 0, none on other ranks. Progress is forwarded in `progress.rs`.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::train::logger::TrainingProgressLogger;
use burn::train::metric::{MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining, default_renderer,
};
use burn::train::{Interrupter, LearnerSummary};

use super::progress::{Split, resume_split};

pub(super) type Inner = Box<dyn MetricsRenderer>;

/// Rank 0 uses Burn's own renderer, for a terminal or for lines. However, the last value of a split is [shown](Screen::show)
/// only when the global value is known. The renderer of other ranks shows nothing, until one of them becomes rank 0.
#[derive(Clone)]
pub(super) struct Screen(Arc<Mutex<State>>);

enum State {
    /// Nothing is shown. Burn's renderer is created on rank 0 when training starts: it needs the first epoch, and takes over the
    /// terminal.
    Waiting {
        /// Set on rank 0.
        leads: bool,
        interrupter: Interrupter,
        metrics: Vec<MetricDefinition>,
        started: Option<Started>,
        epoch: Option<usize>,
        split: Option<Split>,
    },
    Lit(Inner),
}

/// Arguments of Burn's start event.
pub(super) struct Started {
    pub(super) epochs: usize,
    pub(super) first: usize,
    pub(super) items: Option<usize>,
    pub(super) label: Option<String>,
}

impl Screen {
    pub(super) fn new(rank: usize) -> Screen {
        let (leads, interrupter) = (rank == 0, Interrupter::new());
        Screen(Arc::new(Mutex::new(State::Waiting {
            leads,
            interrupter,
            metrics: Vec::new(),
            started: None,
            epoch: None,
            split: None,
        })))
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

    /// Creates Burn's renderer when training starts, if this is rank 0.
    pub(super) fn start(&self, start: Started) {
        let mut state = self.lock();
        match &mut *state {
            State::Waiting { started, .. } => {
                *started = Some(start);
                state.light();
            }
            State::Lit(inner) => start.on(inner),
        }
    }

    /// Keeps the current epoch, for a renderer that is created later.
    pub(super) fn keep_epoch(&self, current: usize) {
        if let State::Waiting { epoch, .. } = &mut *self.lock() {
            *epoch = Some(current);
        }
    }

    /// Keeps the current split, for a renderer that is created later.
    pub(super) fn keep_split(&self, current: Split) {
        if let State::Waiting { split, .. } = &mut *self.lock() {
            *split = Some(current);
        }
    }

    /// Creates Burn's renderer on a rank that has become rank 0.
    pub(super) fn take_over(&self) {
        let mut state = self.lock();
        if let State::Waiting { leads, .. } = &mut *state {
            *leads = true;
            state.light();
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

impl State {
    /// Creates Burn's renderer if this is rank 0 and training has started.
    fn light(&mut self) {
        if let State::Waiting { leads: true, interrupter, metrics, started: Some(started), epoch, split } = self {
            let before = started.first.checked_sub(1).filter(|before| *before > 0);
            let mut inner = default_renderer(interrupter.clone(), before);
            metrics.drain(..).for_each(|metric| inner.register_metric(metric));
            started.on(&mut inner);
            epoch.iter().for_each(|epoch| inner.update_epoch(*epoch));
            split.iter().for_each(|split| resume_split(&mut inner, split));
            *self = State::Lit(inner);
        }
    }
}

impl Started {
    fn on(&self, inner: &mut Inner) {
        let Started { epochs, first, items, label } = self;
        TrainingProgressLogger::start(inner.as_mut(), *epochs, *first, *items, label.as_deref());
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
            State::Waiting { metrics, .. } => metrics.push(definition),
            State::Lit(inner) => inner.register_metric(definition),
        }
    }
}
