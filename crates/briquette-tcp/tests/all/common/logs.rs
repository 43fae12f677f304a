//! Log lines of the ranks of this test program. All tests write to one list and identify their lines by the addresses in them.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static BEGIN: Once = Once::new();

/// Starts collecting lines.
pub(crate) fn keep() {
    BEGIN.call_once(|| tracing::subscriber::set_global_default(Lines).expect("there is no other subscriber"));
}

/// Returns the lines that contain all of these words.
pub(crate) fn with(words: &[&str]) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).cloned().collect()
}

/// Waits until `count` lines contain all of these words.
pub(crate) fn wait_for(count: usize, words: &[&str]) {
    let begin = Instant::now();
    while with(words).len() < count {
        assert!(begin.elapsed() < super::PATIENT, "{:?} in place of {count} with {words:?}", with(&words[..1]));
        thread::sleep(Duration::from_millis(5));
    }
}

struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("briquette")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        write!(self.0, "{value:?}").expect("a string takes everything");
    }
}
