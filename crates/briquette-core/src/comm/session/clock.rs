//! Clock of a session: time accounting, and turns of measured compute.

use std::time::Duration;

use tracing::field::Empty;

use super::{Scope, Session};
use crate::CompressionRatio;
use crate::comm::Overdue;
use crate::error::CommError;
use crate::trace::phase;

/// Time that a session was used, on its clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Seconds inside its calls.
    pub inside: f64,
    /// Start of the first call; `None` without calls.
    pub first: Option<f64>,
    /// Seconds of [waiting](Session::idle) for the data that are to be exchanged.
    pub idle: f64,
}

impl Session {
    /// Returns the seconds on this session's clock: wall time, simulated time, or always 0 without a clock.
    pub fn now(&self) -> f64 {
        self.call.timeline.now()
    }

    /// Returns whether there is a clock: without one, seconds are always 0.
    pub fn has_clock(&self) -> bool {
        self.call.timeline.has_clock()
    }

    /// Sets a simulated clock, and marks the links as idle. With it, a resumed run continues at the saved second, and
    /// the time of work outside of training is excluded. Clocks that are not simulated ignore the call.
    pub fn set_clock(&mut self, seconds: f64) {
        self.call.timeline.set(seconds);
    }

    /// Starts work outside of training, and returns the seconds on this session's clock. Pass them to
    /// [`set_clock`](Self::set_clock) when that work is done. Holds nest: each ends with its own `set_clock`.
    pub fn hold_clock(&mut self) -> f64 {
        self.call.timeline.hold()
    }

    /// Reports the end of an exchange that compressed by this ratio, if any.
    pub(crate) fn compressed(&mut self, ratio: impl Fn() -> Option<CompressionRatio>) {
        self.call.timeline.compressed(&ratio);
    }

    /// Marks the end of the rank's computation. Call it once at the start of every step's exchange.
    pub fn begin_step(&mut self, step: u64) {
        self.begin_step_of(step, None);
    }

    /// As [`begin_step`](Self::begin_step), with the number of samples that this rank has computed, if known. Simulated compute times may
    /// depend on it.
    pub fn begin_step_of(&mut self, step: u64, samples: Option<u64>) {
        self.call.scope = Scope { step, ..Scope::default() };
        self.call.timeline.begin_step(step, samples);
        // A failure here poisons the session, and the next call reports it.
        drop(self.take_turn());
    }

    /// Returns the result of `body`, and the time for which it used the session.
    ///
    /// ```
    /// use briquette_core::comm::{Local, Spent};
    ///
    /// let mut comm = Local::world(1).remove(0); // without a clock
    /// assert_eq!(comm.spent_in(|comm| comm.rank()), (0, Spent { inside: 0.0, first: None, idle: 0.0 }));
    /// assert_eq!(comm.spent_in(|comm| comm.barrier()), (Ok(()), Spent { inside: 0.0, first: Some(0.0), idle: 0.0 }));
    /// ```
    pub fn spent_in<T>(&mut self, body: impl FnOnce(&mut Session) -> T) -> (T, Spent) {
        let outer = std::mem::take(&mut self.spent);
        let out = body(self);
        let inner = self.spent;
        let (inside, idle) = (outer.inside + inner.inside, outer.idle + inner.idle);
        self.spent = Spent { inside, first: outer.first.or(inner.first), idle };
        (out, inner)
    }

    /// Reports the progress of this rank's computation to a job that began with a step: the rank has computed the
    /// fraction `share` of the step, in the time `elapsed` since its start. A simulated clock advances at least to the
    /// corresponding second.
    pub fn computed(&mut self, share: f64, elapsed: Duration) {
        let start = self.now();
        self.call.timeline.computed(self.call.scope.step, share, elapsed.as_secs_f64());
        self.spent.idle += self.now() - start;
    }

    /// Runs `wait`, which waits for this rank's own computation, and returns its result. These seconds count neither as
    /// exchange nor as compression. If ranks compute in turns, this thread gives up its turn meanwhile.
    pub fn idle<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let _arrive = phase!("arrive");
        let start = self.now();
        self.call.timeline.end_turn();
        let out = wait();
        // A failure is reported by the next call, as in `begin_step`.
        drop(self.take_turn());
        self.spent.idle += self.now() - start;
        out
    }

    /// Runs `body` as a timed call, unless it is nested in one.
    pub(in crate::comm) fn timed<T>(&mut self, body: impl FnOnce(&mut Session) -> T) -> T {
        if self.busy {
            return body(self);
        }
        let Scope { step, bucket, .. } = self.call.scope;
        let _exchange = phase!("exchange", operation = Empty, step, bucket);
        self.timed_untraced(body)
    }

    pub(in crate::comm) fn timed_untraced<T>(&mut self, body: impl FnOnce(&mut Session) -> T) -> T {
        if self.busy {
            return body(self);
        }
        let start = self.now();
        self.spent.first.get_or_insert(start);
        self.busy = true;
        let out = body(self);
        self.busy = false;
        self.spent.inside += self.now() - start;
        self.used();
        out
    }

    /// Waits for this rank's turn to compute, if ranks take turns.
    pub(in crate::comm) fn take_turn(&mut self) -> Result<(), CommError> {
        self.call.timeline.take_turn().map_err(|Overdue { holder, seconds }| {
            let (rank, during) = (self.transport.rank(), self.call.scope);
            let error = CommError::Deadline { rank, others: [holder].into(), during, seconds, last_seen: None };
            self.recorder.fails(&error, self.now());
            self.abort(&format!("waited {seconds:.1} s for rank {holder}: deadline passed"));
            self.failed.get_or_insert(error).clone()
        })
    }
}
