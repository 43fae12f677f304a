//! Communication loops of a server and its workers over a session.
//!
//! The two sides of a transport compare the operation and the step of each frame. A server and its workers have no common step,
//! so their frames have operation names of their own and step 0; errors state the version instead.

use super::wire::{Assignment, Fate};
use super::{Contribution, Reply, Server, Task, Uplink, Verdict};
use crate::comm::Scope;
use crate::error::{AggregateError, CommError, ReduceError, WireError};
use crate::math::all_finite;
use crate::{Frame, Key, Session};

/// Additional timeouts that a worker waits for the server. The server may have started its own wait for another worker later
/// than this worker did. With the longer timeout the server times out first, and its error names the worker that hangs.
pub const PATIENCE: u32 = 2;

const ASSIGN: Scope = Scope { operation: "assignment by the server", step: 0, bucket: None };
const CONTRIBUTE: Scope = Scope { operation: "contribution to the server", step: 0, bucket: None };
/// The exchange at the end of serving, when every worker is idle.
const END: Scope = Scope { operation: "end of serving", step: 0, bucket: None };

/// Data from which a gradient is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// The rank's batch with this number, counted from 0 over the whole run.
    Number(u64),
    /// All of the rank's data.
    All,
}

/// Numbers that come with a gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Computed {
    /// Number of samples from which it was computed.
    pub samples: u64,
    /// Mean loss of those samples.
    pub loss: f64,
    /// Number of batches used: 1, or the number of batches in all data.
    pub batches: u32,
}

/// The model and its data, as the drivers see them: through vectors only.
pub trait Trainer {
    /// Error of the trainer.
    type Error: From<ReduceError> + std::fmt::Display;

    /// Computes the gradient at `x` into `out`, which has the same length.
    ///
    /// # Errors
    /// Those of the trainer.
    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, Self::Error>;

    /// Steps an optimizer from `x`: the server's own at an update, or a worker's own at a local step. `version` is the
    /// server's.
    ///
    /// # Errors
    /// Those of the trainer.
    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], version: u64) -> Result<(), Self::Error>;

    /// Returns whether this rank, server or worker, is asked to stop. The run then ends with the next update.
    fn stops(&self) -> bool {
        false
    }
}

/// Serves until version `until`, or until any rank's trainer [stops](Trainer::stops), while every other rank [works](work).
/// Afterwards every worker is idle, and has the model.
///
/// # Errors
/// Those of `trainer`, of the session, and of received contributions; the session is then aborted.
pub fn serve<T: Trainer>(server: &mut Server, trainer: &mut T, until: u64, comm: &mut Session) -> Result<(), T::Error> {
    let served = serve_on(server, trainer, until, comm);
    let version = server.version();
    let served = served.and_then(|()| end(comm.rank(), version, comm).map_err(T::Error::from));
    served.inspect_err(|error| stop(error, version, comm))
}

fn serve_on<T: Trainer>(server: &mut Server, trainer: &mut T, until: u64, comm: &mut Session) -> Result<(), T::Error> {
    server.set_now(comm.now());
    let (rank, mut replies) = (comm.rank(), server.begin(until));
    loop {
        let version = server.version();
        for reply in replies {
            send(server, reply, comm).map_err(|error| ReduceError::from(at(error, version)))?;
        }
        let computing: Vec<usize> = server.computing().map(|worker| rank_of(worker, rank)).collect();
        if computing.is_empty() {
            let (got, needed) = server.waiting();
            let missing = ReduceError::from(AggregateError::Ranks { needed, got });
            return if got == 0 { Ok(()) } else { Err(missing.into()) };
        }
        *comm.scope() = CONTRIBUTE;
        // No other rank has anything to send. Waiting ranks may have left, and the server does not wait for them.
        let begin = comm.now();
        let received = comm.recv_any_long_until(&computing, server.due().unwrap_or(f64::INFINITY));
        let received = received.map_err(|error| ReduceError::from(at(error, version)))?;
        // A clock of given step times does not run while this rank waits.
        let due = server.due().filter(|_| received.is_none() && comm.now() == begin);
        server.set_now(due.unwrap_or_else(|| comm.now()));
        let step = |x: &mut Vec<f32>, mean: &[f32], version| trainer.step(x, mean, version).map_err(Failed::Trainer);
        let Some((from, frame)) = received else {
            replies = server.close(step).map_err(|failed| failed.into_error(rank))?;
            check_model(server, rank, &replies)?;
            continue;
        };
        let wrong = |source| ReduceError::from(AggregateError::Message { rank: from, source });
        let contribution = Contribution::read(&frame, server.model().len()).map_err(wrong)?;
        comm.pool().put(frame);
        let worker = if from > rank { from - 1 } else { from };
        if contribution.stops || trainer.stops() {
            server.stop();
        }
        let step = |x: &mut Vec<f32>, mean: &[f32], version| trainer.step(x, mean, version).map_err(Failed::Trainer);
        replies = server.arrived(worker, contribution, step).map_err(|failed| failed.into_error(from))?;
        check_model(server, rank, &replies)?;
    }
}

/// Checks the model after an update.
fn check_model(server: &Server, rank: usize, replies: &[Reply]) -> Result<(), ReduceError> {
    match !replies.is_empty() && !all_finite(server.model()) {
        true => Err(ReduceError::NonFinite { rank, slot: "the server's model".into() }),
        false => Ok(()),
    }
}

enum Failed<E> {
    Trainer(E),
    Wire(WireError),
}

impl<E: From<ReduceError>> Failed<E> {
    /// Returns the error; `from` is the rank whose message could not be read.
    fn into_error(self, from: usize) -> E {
        match self {
            Failed::Trainer(error) => error,
            Failed::Wire(source) => ReduceError::from(AggregateError::Message { rank: from, source }).into(),
        }
    }
}

impl<E> From<WireError> for Failed<E> {
    fn from(error: WireError) -> Self {
        Failed::Wire(error)
    }
}

/// Returns the rank of a worker. Workers are the ranks other than the server, in order.
fn rank_of(worker: usize, server: usize) -> usize {
    worker + usize::from(worker >= server)
}

/// Sends a reply without waiting for completion. The link takes what it can now, and the rest while the server waits for
/// contributions.
fn send(server: &Server, Reply { worker, verdict, task }: Reply, comm: &mut Session) -> Result<(), CommError> {
    let models = [server.model_of(worker), server.model_before()];
    let models = if task == Some(Task::Difference) { &models[..] } else { &models[..1] };
    let mut frame = comm.pool().take_for(super::wire::ASSIGNMENT + models.len() * 4 * server.model().len());
    let fate = verdict.map(|verdict| match verdict {
        Verdict::Accepted => Fate::Counted,
        Verdict::Late | Verdict::Far if server.puts_back() => Fate::PutBack,
        Verdict::Late | Verdict::Far => Fate::Dropped,
    });
    Assignment { task, fate, version: server.version() }.write(models, &mut frame);
    *comm.scope() = ASSIGN;
    comm.send_long(rank_of(worker, comm.rank()), frame)
}

/// Waits until every worker is idle. Later operations of the ranks use this version as their step.
fn end(server: usize, version: u64, comm: &mut Session) -> Result<(), ReduceError> {
    *comm.scope() = END;
    comm.patient(PATIENCE, |comm| comm.broadcast(server, &mut Vec::new())).map_err(|error| at(error, version))?;
    *comm.scope() = Scope { step: version, ..Scope::default() };
    Ok(())
}

/// Replaces the step of an error with the version. The step is the same constant on both sides of a frame.
fn at(mut error: CommError, version: u64) -> CommError {
    if let CommError::Deadline { during, .. } | CommError::Lost { during, .. } | CommError::Size { during, .. } =
        &mut error
    {
        during.step = version;
    }
    error
}

fn stop(error: &dyn std::fmt::Display, version: u64, comm: &mut Session) {
    comm.scope().step = version;
    comm.abort(&error.to_string());
}

/// Works for the server, rank `server`, until the server stops this worker. Starts with batch number `batch`. Returns the final
/// model, the next batch's number, and the number of updates. `x` has the length of the model.
///
/// # Errors
/// Those of `trainer`, of the session, and of received assignments; the session is then aborted.
pub fn work<T: Trainer>(
    uplink: &mut Uplink,
    trainer: &mut T,
    (server, batch): (usize, &mut u64),
    (key, x): (Key, &mut Vec<f32>),
    comm: &mut Session,
) -> Result<u64, T::Error> {
    let mut worker = Worker { uplink, trainer, server, key, batch, version: 0 };
    let worked = worker.run(x, comm);
    let version = worker.version;
    let worked = worked.and_then(|()| end(server, version, comm).map_err(T::Error::from));
    worked.inspect_err(|error| stop(error, version, comm)).map(|()| version)
}

struct Worker<'a, T> {
    uplink: &'a mut Uplink,
    trainer: &'a mut T,
    server: usize,
    key: Key,
    batch: &'a mut u64,
    /// Version of the model received last.
    version: u64,
}

impl<T: Trainer> Worker<'_, T> {
    fn run(&mut self, x: &mut Vec<f32>, comm: &mut Session) -> Result<(), T::Error> {
        let (mut before, mut out) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        loop {
            let assignment = self.receive(x, &mut before, comm)?;
            self.version = assignment.version;
            self.uplink.judged(assignment.fate);
            let Some(task) = assignment.task else { return Ok(()) };
            *comm.scope() = Scope { operation: Scope::COMPUTE, step: self.version, bucket: None };
            let first = *self.batch;
            let computed = self.compute(task, (&*x, &before), &mut out)?;
            let contribution = self.contribution((&computed, task == Task::Exact), &out, first, comm)?;
            *comm.scope() = CONTRIBUTE;
            // The link sends the rest while this rank waits for its next assignment.
            let sent = comm.send_long(self.server, contribution);
            sent.map_err(|error| ReduceError::from(at(error, self.version)))?;
        }
    }

    /// Receives the next assignment, and the models from which to compute.
    fn receive(&self, x: &mut [f32], before: &mut [f32], comm: &mut Session) -> Result<Assignment, ReduceError> {
        let (rank, server) = (comm.rank(), self.server);
        *comm.scope() = ASSIGN;
        let received = comm.patient(PATIENCE, |comm| comm.recv_long(server));
        let frame = received.map_err(|error| at(error, self.version))?;
        let wrong = |source| AggregateError::Message { rank: server, source };
        let (assignment, models) = Assignment::read(&frame).map_err(wrong)?;
        let points = if assignment.task == Some(Task::Difference) { 2 } else { 1 };
        let (expected, got, during) = (points * 4 * x.len(), models.len(), *comm.scope());
        if got != expected {
            return Err(at(CommError::Size { rank, other: server, during, expected, got }, self.version).into());
        }
        let (newest, older) = models.split_at(4 * x.len());
        for (bytes, model) in [(newest, x), (older, before)] {
            model.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
        }
        comm.pool().put(frame);
        Ok(assignment)
    }

    /// Computes and encodes the contribution, from batch `first` on, compressed or exact. If compute times are given,
    /// each gradient advances the clock by its own.
    fn contribution(
        &mut self,
        (computed, is_exact): (&Computed, bool),
        out: &[f32],
        first: u64,
        comm: &mut Session,
    ) -> Result<Frame, ReduceError> {
        let Computed { samples, loss, batches: gradients } = *computed;
        let taken = self.uplink.taken;
        self.uplink.taken += u64::from(gradients);
        (taken..self.uplink.taken).for_each(|gradient| comm.begin_step(gradient));
        comm.scope().step = self.version;
        if !loss.is_finite() {
            return Err(ReduceError::NonFinite { rank: comm.rank(), slot: "the loss".into() });
        }
        let key = self.key.step(first).rank(comm.rank());
        let sends = if is_exact { Uplink::exact } else { Uplink::compress };
        let message = sends(self.uplink, out, key, comm.rank())?.clone();
        let (version, stops) = (self.version, self.trainer.stops());
        let mut frame = comm.pool().take_for(super::wire::CONTRIBUTION + message.encoded_len());
        Contribution { version, samples, loss, gradients, stops, message }.write(&mut frame);
        Ok(frame)
    }

    fn compute(&mut self, task: Task, (x, before): (&[f32], &[f32]), out: &mut Vec<f32>) -> Result<Computed, T::Error> {
        match task {
            Task::Gradient => {
                let computed = self.next(x, out)?;
                *self.batch += 1;
                Ok(computed)
            }
            Task::Full | Task::Exact => {
                let computed = self.trainer.gradient(x, Batch::All, out)?;
                *self.batch += u64::from(computed.batches);
                Ok(computed)
            }
            Task::Difference => {
                let computed = self.next(x, out)?;
                let mut older = vec![0.0; before.len()];
                self.next(before, &mut older)?;
                *self.batch += 1;
                out.iter_mut().zip(&older).for_each(|(out, older)| *out -= older);
                Ok(Computed { batches: 2 * computed.batches, ..computed })
            }
            Task::Steps(steps) => {
                let (mut at, mut gradient) = (x.to_vec(), vec![0.0; x.len()]);
                let mut all = Computed::default();
                for _ in 0..steps {
                    let Computed { samples, loss, batches } = self.next(&at, &mut gradient)?;
                    *self.batch += 1;
                    self.trainer.step(&mut at, &gradient, self.version)?;
                    all = Computed {
                        samples: all.samples.saturating_add(samples),
                        loss: all.loss + loss,
                        batches: all.batches.saturating_add(batches),
                    };
                }
                out.clear();
                out.extend(x.iter().zip(&at).map(|(x, at)| x - at));
                Ok(Computed { loss: all.loss / f64::from(steps), ..all })
            }
        }
    }

    fn next(&mut self, x: &[f32], out: &mut Vec<f32>) -> Result<Computed, T::Error> {
        self.trainer.gradient(x, Batch::Number(*self.batch), out)
    }
}
