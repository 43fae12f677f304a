//! A timeline with given compression times and a recording.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use briquette_core::CompressionRatio;
use briquette_core::comm::{Clock, JobStart, Overdue, Sender, Session, Timeline};

use super::recording::{Event, Recorder};
use super::source::Source;
use super::{CompressSeconds, Network};

/// A [`Source`], or any other timeline, with settings of one session.
pub(super) struct Timed {
    inner: Box<dyn Timeline>,
    pub(super) compress_seconds: Option<CompressSeconds>,
    pub(super) recorder: Option<Recorder>,
}

/// Data for the timeline of a channel.
struct Begin {
    compress_seconds: Option<CompressSeconds>,
    inner: Option<Box<dyn Any + Send>>,
}

impl Timed {
    pub(super) fn around(inner: Box<dyn Timeline>) -> Timed {
        Timed { inner, compress_seconds: None, recorder: None }
    }

    /// Returns the timeline of a session, which becomes a [`Timed`] one if it is not.
    pub(super) fn of(comm: &mut Session) -> &mut Timed {
        let timeline = comm.timeline_mut();
        if !(&**timeline as &dyn Any).is::<Timed>() {
            *timeline = Box::new(Timed::around(std::mem::take(timeline)));
        }
        (&mut **timeline as &mut dyn Any).downcast_mut().expect("it has just become one")
    }

    /// Returns the simulated network of a session, if there is one.
    pub(super) fn network_of(comm: &Session) -> Option<Network> {
        let timed = (comm.timeline() as &dyn Any).downcast_ref::<Timed>()?;
        let source = (&*timed.inner as &dyn Any).downcast_ref::<Source>()?;
        source.of_network(|network| network.network().clone())
    }

    pub(super) fn set_source(&mut self, source: Source) {
        self.inner = Box::new(source);
    }

    pub(super) fn set_network(&mut self, network: Network) {
        let is_simulated = self.source().and_then(|source| source.with_network(|own| own.set_network(network)));
        if is_simulated.is_some() {
            self.recorder.iter_mut().for_each(Recorder::set_network);
        }
    }

    /// Adds compute time that the timeline does not measure.
    pub(super) fn spend(&mut self, seconds: f64) {
        self.source().into_iter().for_each(|source| source.spend(seconds));
    }

    fn source(&mut self) -> Option<&mut Source> {
        (&mut *self.inner as &mut dyn Any).downcast_mut()
    }

    fn note(&mut self, event: Event) {
        self.recorder.iter_mut().for_each(|recorder| recorder.note(event));
    }
}

impl Timeline for Timed {
    fn now(&self) -> f64 {
        self.inner.now()
    }

    fn has_clock(&self) -> bool {
        self.inner.has_clock()
    }

    fn or_clock(&mut self, clock: Arc<dyn Clock + Sync>) {
        self.inner.or_clock(clock);
    }

    fn share(&mut self) -> Box<dyn Timeline> {
        let compress_seconds = self.compress_seconds.clone();
        Box::new(Timed { inner: self.inner.share(), compress_seconds, recorder: None })
    }

    fn of_channel(&self, channel: usize) -> Box<dyn Timeline> {
        Box::new(Timed::around(self.inner.of_channel(channel)))
    }

    fn machine(&self, rank: usize) -> Option<usize> {
        self.inner.machine(rank)
    }

    fn set(&mut self, seconds: f64) {
        self.inner.set(seconds);
        self.recorder.iter_mut().for_each(Recorder::set_clock);
    }

    fn hold(&mut self) -> f64 {
        self.recorder.iter_mut().for_each(Recorder::hold);
        self.inner.hold()
    }

    fn begin_step(&mut self, step: u64, samples: Option<u64>) {
        self.inner.begin_step(step, samples);
        self.note(Event::BeginStep);
    }

    fn computed(&mut self, step: u64, share: f64, elapsed: f64) {
        self.inner.computed(step, share, elapsed);
    }

    fn compressed(&mut self, ratio: &dyn Fn() -> Option<CompressionRatio>) {
        self.inner.compressed(ratio);
        if let Some(seconds) = &self.compress_seconds {
            let seconds = seconds.at(ratio().unwrap_or(CompressionRatio::DENSE));
            self.spend(seconds);
            self.note(Event::Compressed(seconds));
        }
    }

    fn sends(&mut self, to: usize, bytes: usize) -> f64 {
        self.note(Event::Sent(to, bytes));
        self.inner.sends(to, bytes)
    }

    fn receives(&mut self, from: usize) {
        self.note(Event::Received(from));
        self.inner.receives(from);
    }

    fn receives_any(&mut self, from: &[usize], until: f64) -> Result<Sender, Duration> {
        self.note(Event::Unrepeatable);
        self.inner.receives_any(from, until)
    }

    fn received(&mut self, from: usize, bytes: usize, departure: f64) {
        self.inner.received(from, bytes, departure);
    }

    fn take_turn(&mut self) -> Result<(), Overdue> {
        self.inner.take_turn()
    }

    fn end_turn(&mut self) {
        self.inner.end_turn();
    }

    fn progress(&self) -> Option<u64> {
        self.inner.progress()
    }

    fn stop(&mut self) {
        self.inner.stop();
    }

    fn leave(&mut self) {
        self.inner.leave();
    }

    fn start_job(&mut self, channel: usize, shares: usize) -> JobStart {
        self.note(Event::Unrepeatable);
        let JobStart { data: inner, awaited } = self.inner.start_job(channel, shares);
        let begin = Begin { compress_seconds: self.compress_seconds.clone(), inner };
        JobStart { data: Some(Box::new(begin)), awaited }
    }

    fn begin_job(&mut self, data: Box<dyn Any + Send>) {
        let Ok(begin) = data.downcast::<Begin>() else { return };
        self.compress_seconds = begin.compress_seconds;
        begin.inner.into_iter().for_each(|data| self.inner.begin_job(data));
    }

    fn end_job(&mut self) {
        self.inner.end_job();
    }

    fn finish_job(&mut self, at: f64) {
        self.inner.finish_job(at);
    }
}
