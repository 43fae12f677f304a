//! Background exchanges: for each channel, a thread and a second endpoint of the transport.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use super::group::Group;
use super::timeline::JobStart;
use super::{Call, Frame, Scope, Session, Transport};
use crate::error::CommError;
use crate::trace::phase;
use crate::traffic::Traffic;

type Job = Box<dyn FnOnce(&mut Session) + Send>;

/// The thread of a channel, which owns its session. If dropped, it completes its queued jobs, then leaves.
pub(super) struct Background {
    /// The transport's number for the channel.
    number: usize,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    fn new(mut comm: Session, channel: usize) -> Result<Self, CommError> {
        let rank = comm.transport.rank();
        let (jobs, todo) = mpsc::channel::<Job>();
        let work = move || todo.into_iter().for_each(|job| job(&mut comm));
        let thread = thread::Builder::new().name(format!("rank {rank} channel {channel}")).spawn(work);
        let cause = |error| format!("the system starts no thread for it: {error}");
        let thread = thread.map_err(|error| CommError::Channel { rank, channel, cause: cause(error) })?;
        Ok(Background { number: channel, jobs: Some(jobs), thread: Some(thread) })
    }

    fn send(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("they end with the background");
        jobs.send(job).unwrap_or_else(|_| unreachable!("the thread ends after the last job"));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.jobs = None;
        // The thread catches the panics of jobs.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// An exchange running in the background; see [`Session::start`].
#[must_use = "its bytes and seconds count once it is finished"]
pub struct Pending<T> {
    result: Receiver<(thread::Result<T>, Ended)>,
    /// Function to call before waiting for the job, from its timeline.
    awaited: Option<Box<dyn Fn() + Send>>,
}

/// Settings that a job's session takes over from the session that starts the job.
struct Begin {
    scope: Scope,
    group: Option<Group>,
    /// Data for the channel's timeline.
    data: Option<Box<dyn Any + Send>>,
}

/// Effects of a job on its session.
struct Ended {
    at: f64,
    traffic: Traffic,
    calls: u64,
    failed: Option<CommError>,
}

impl Session {
    /// Opens a channel for background exchanges, counted from 1, and starts its thread. Does nothing if the channel is
    /// open. [`start`](Self::start) also opens the channel.
    ///
    /// # Errors
    /// [`CommError::Channel`] if the transport has no such channel. The session is then unchanged.
    pub fn open(&mut self, channel: usize) -> Result<(), CommError> {
        if !self.background.contains_key(&channel) {
            let number = self.channel_number(channel);
            let transport = self.transport.open(number)?;
            let mut comm = Session::with_timeline(transport, self.call.timeline.of_channel(number));
            (comm.recorder, comm.channel) = (self.recorder.clone(), number);
            // The transport has the channel on every rank, and the other ranks would wait for this one on it.
            let background = Background::new(comm, number).inspect_err(|error| self.abort(&error.to_string()))?;
            self.background.insert(channel, background);
        }
        Ok(())
    }

    /// Starts `job` on the thread of a channel, counted from 1, where it exchanges while this thread continues. The job
    /// gets the session of that channel, with this session's group, scope, compression times and network. Jobs of one
    /// channel run in the order in which they were started. Every rank must start the same jobs. [`Pending::finish`]
    /// returns the data that `job` owns in all cases.
    ///
    /// **Simulated time.** The job starts at this session's second, and [`finish`](Pending::finish) moves the clock to
    /// the later of the two ends. Until its [`Pending`] is finished, abandoned or dropped, this session and each open
    /// channel have an equal share of the rank's link.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use briquette_core::error::CommError;
    ///
    /// let sums = Local::run(2, |mut comm| {
    ///     let mut x = vec![1.0; 10_000];
    ///     let pending = comm.start(1, move |comm| comm.all_reduce_sum(&mut x).map(|()| x[0]));
    ///     comm.barrier()?; // meanwhile
    ///     let (sum, ended) = pending.finish(&mut comm);
    ///     ended?;
    ///     assert_eq!(comm.traffic().sent, 40_000);
    ///     sum
    /// });
    /// assert_eq!(sums, [Ok::<_, CommError>(2.0), Ok(2.0)]);
    /// ```
    pub fn start<T: Send + 'static>(
        &mut self,
        channel: usize,
        job: impl FnOnce(&mut Session) -> T + Send + 'static,
    ) -> Pending<T> {
        self.start_with(channel, false, job)
    }

    /// Like [`start`](Self::start), for a job during which this session and other channels send almost nothing. On a
    /// simulated network, the job has the whole of the rank's link, and so do they.
    pub fn start_on_free_link<T: Send + 'static>(
        &mut self,
        channel: usize,
        job: impl FnOnce(&mut Session) -> T + Send + 'static,
    ) -> Pending<T> {
        self.start_with(channel, true, job)
    }

    fn start_with<T: Send + 'static>(
        &mut self,
        channel: usize,
        is_alone: bool,
        job: impl FnOnce(&mut Session) -> T + Send + 'static,
    ) -> Pending<T> {
        let (sender, result) = mpsc::sync_channel(1);
        let opened = self.open(channel);
        let shares = if is_alone { 1 } else { 1 + self.background.len() };
        let number = self.background.get(&channel).map_or(channel, |background| background.number);
        let start = opened.as_ref().map(|()| self.call.timeline.start_job(number, shares));
        let JobStart { data, awaited } = start.unwrap_or_default();
        let begin = Begin { scope: self.call.scope, group: self.group.clone(), data };
        let run = move |comm: &mut Session| drop(sender.send(comm.run(begin, job)));
        match opened {
            Ok(()) => self.background[&channel].send(Box::new(run)),
            Err(error) => {
                self.abort(&error.to_string());
                let mut closed = Session::from(Closed { rank: self.transport.rank(), world: self.transport.world() });
                closed.failed = Some(error);
                run(&mut closed);
            }
        }
        Pending { result, awaited }
    }

    /// Runs a job on this session, which belongs to a channel.
    fn run<T>(&mut self, begin: Begin, job: impl FnOnce(&mut Session) -> T) -> (thread::Result<T>, Ended) {
        (self.call.scope, self.group) = (begin.scope, begin.group);
        begin.data.into_iter().for_each(|data| self.call.timeline.begin_job(data));
        let (traffic, calls) = (self.traffic, self.calls);
        // The next call reports a failure, as in `begin_step`.
        drop(self.take_turn());
        let result = catch_unwind(AssertUnwindSafe(|| job(self)));
        if result.is_err() {
            self.abort("panicked");
        }
        self.call.timeline.end_job();
        let (traffic, calls) = (self.traffic - traffic, self.calls - calls);
        (result, Ended { at: self.now(), traffic, calls, failed: self.failed.clone() })
    }
}

impl<T> Pending<T> {
    /// Waits for the job, and returns its result and the first error of its session, if any. That error is also the
    /// error of this session's later calls. Bytes and calls of the job count from here on.
    ///
    /// The job's waits have deadlines, and so does this one, except for the job's compute time.
    ///
    /// # Errors
    /// The first error of the job's calls.
    ///
    /// # Panics
    /// If the job panicked, with its panic.
    pub fn finish(self, comm: &mut Session) -> (T, Result<(), CommError>) {
        let (result, ended, traffic) = self.finish_uncounted(comm);
        comm.count(traffic);
        (result, ended)
    }

    /// Like [`finish`](Self::finish), for a result that a later step may use: returns the job's bytes without counting
    /// them. Use [`Session::count`] at the step that uses the result. The bytes of a step then do not depend on the
    /// time of the wait: an exchange that a checkpoint waits for is counted at the same step as without the checkpoint.
    ///
    /// # Panics
    /// If the job panicked, with its panic.
    pub fn finish_uncounted(self, comm: &mut Session) -> (T, Result<(), CommError>, Traffic) {
        let _wait = phase!("wait");
        comm.timed_untraced(|comm| {
            comm.call.timeline.end_turn();
            let (result, ended) = self.wait();
            comm.call.timeline.finish_job(ended.at);
            comm.calls += ended.calls;
            let result = result.unwrap_or_else(|panic| resume_unwind(panic));
            let (traffic, failed) = (ended.traffic, ended.failed);
            let ended = failed.map_or(Ok(()), Err).and_then(|()| comm.take_turn());
            (result, comm.keep_failure(ended), traffic)
        })
    }
}

impl<T> Pending<T> {
    fn wait(self) -> (thread::Result<T>, Ended) {
        self.awaited.iter().for_each(|awaited| awaited());
        self.result.recv().expect("a job sends what became of it")
    }

    /// Waits for the job and returns its result without counting its bytes and seconds. For a job whose session is gone
    /// or continues from another state.
    ///
    /// # Panics
    /// If the job panicked, with its panic.
    pub fn abandon(self) -> T {
        let (result, _) = self.wait();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

/// The transport of a channel that could not be opened. Its session has failed and does not call it.
pub(super) struct Closed {
    pub(super) rank: usize,
    pub(super) world: usize,
}

impl Transport for Closed {
    fn rank(&self) -> usize {
        self.rank
    }
    fn world(&self) -> usize {
        self.world
    }
    fn send(&mut self, _to: usize, _frame: Frame, _call: &mut Call) -> Result<(), CommError> {
        unreachable!("its session has failed")
    }
    fn recv_any(&mut self, _from: &[usize], _call: &mut Call) -> Result<(usize, Frame), CommError> {
        unreachable!("its session has failed")
    }
    fn abort(&mut self, _during: Scope, _reason: &str) {}
}

#[cfg(test)]
mod tests;
