//! Progress of a split: events for Burn's processor, and Burn's progress loggers on the [`Screen`].
//!
//! This is the only file that differs between Burn 0.22 and Burn 0.23 (`--cfg burn_0_23`). Burn 0.22 reports numbers of items.
//! Burn 0.23 reports a [`Progress`], whose total may be unknown until the split ends.

use burn::data::dataloader::Progress;
use burn::train::LearnerEvent;
use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};

use super::screen::{Inner, Screen, Started};

/// Creates the event at the start of a split. `items` is the loader's number of items; `progress` is its iterator's.
#[cfg(not(burn_0_23))]
pub(super) fn split_start<T>(epoch: usize, items: usize, _progress: Progress) -> LearnerEvent<T> {
    LearnerEvent::StartSplit { epoch_number: epoch, total_items: items }
}

#[cfg(burn_0_23)]
pub(super) fn split_start<T>(epoch: usize, _items: usize, progress: Progress) -> LearnerEvent<T> {
    LearnerEvent::StartSplit { epoch_number: epoch, progress }
}

/// Creates the event at the end of a split. A split that was interrupted is not complete.
#[cfg(not(burn_0_23))]
pub(super) fn split_end<T>(epoch: usize, _progress: Progress, _is_complete: bool) -> LearnerEvent<T> {
    LearnerEvent::EndSplit(epoch)
}

#[cfg(burn_0_23)]
pub(super) fn split_end<T>(epoch: usize, mut progress: Progress, is_complete: bool) -> LearnerEvent<T> {
    if is_complete {
        progress.resolve_total();
    }
    LearnerEvent::EndSplit { epoch, progress }
}

/// The number of items (Burn 0.22) or the progress (Burn 0.23) that a logger receives.
#[cfg(not(burn_0_23))]
type Items<'a> = usize;
#[cfg(burn_0_23)]
type Items<'a> = &'a Progress;

/// A split that has started: its name, and what the logger received.
#[cfg(not(burn_0_23))]
pub(super) type Split = (String, usize);
#[cfg(burn_0_23)]
pub(super) type Split = (String, Progress);

/// Reports a split that has started before this renderer existed.
pub(super) fn resume_split(inner: &mut Inner, (name, items): &Split) {
    #[cfg(not(burn_0_23))]
    inner.start_split(name, *items);
    #[cfg(burn_0_23)]
    inner.start_split(name, items);
}

impl TrainingProgressLogger for Screen {
    fn start(&mut self, epochs: usize, first: usize, items: Option<usize>, label: Option<&str>) {
        Screen::start(self, Started { epochs, first, items, label: label.map(str::to_owned) });
    }

    fn update_epoch(&mut self, epoch: usize) {
        self.keep_epoch(epoch);
        self.with(|inner| inner.update_epoch(epoch));
    }

    fn start_split(&mut self, split: &str, items: Items<'_>) {
        #[cfg(not(burn_0_23))]
        self.keep_split((split.to_owned(), items));
        #[cfg(burn_0_23)]
        self.keep_split((split.to_owned(), items.clone()));
        self.with(|inner| inner.start_split(split, items));
    }

    fn update_split(&mut self, items: Items<'_>) {
        self.with(|inner| inner.update_split(items));
    }

    #[cfg(not(burn_0_23))]
    fn end_split(&mut self) {
        self.with(|inner| inner.end_split());
    }

    #[cfg(burn_0_23)]
    fn end_split(&mut self, progress: &Progress) {
        self.with(|inner| inner.end_split(progress));
    }

    fn end(&mut self) {
        self.with(|inner| TrainingProgressLogger::end(inner.as_mut()));
    }

    fn log_event_training(&mut self, event: String) {
        self.with(|inner| inner.log_event_training(event));
    }
}

impl EvaluationProgressLogger for Screen {
    fn start_global_progress(&mut self, tests: usize) {
        self.with(|inner| inner.start_global_progress(tests));
    }

    fn start_test(&mut self, name: &str, items: Items<'_>) {
        self.with(|inner| inner.start_test(name, items));
    }

    fn update_test_progress(&mut self, items: Items<'_>) {
        self.with(|inner| inner.update_test_progress(items));
    }

    #[cfg(not(burn_0_23))]
    fn end_test(&mut self) {
        self.with(|inner| inner.end_test());
    }

    #[cfg(burn_0_23)]
    fn end_test(&mut self, progress: &Progress) {
        self.with(|inner| inner.end_test(progress));
    }

    fn end_global_progress(&mut self) {
        self.with(|inner| inner.end_global_progress());
    }

    fn log_event_evaluation(&mut self, event: String) {
        self.with(|inner| inner.log_event_evaluation(event));
    }
}
