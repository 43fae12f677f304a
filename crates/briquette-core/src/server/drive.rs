//! Drives a server and its workers over a session.
//!
//! Transports compare what both sides of a frame say that they do. A server and its workers are at no common step, so their frames have
//! names of their own and step 0; errors are given the version.

use super::wire::{Assignment, Fate};
use super::{Contribution, Reply, Server, Task, Uplink, Verdict};
use crate::comm::Scope;
use crate::error::{AggregateError, CommError, ReduceError, WireError};
use crate::math::all_finite;
use crate::{Frame, Key, Session};

/// Deadlines for which a worker waits for the server beside the first. The server may wait for another worker, which began before this one
/// waited: it gives up first, and names the worker that hangs.
pub const PATIENCE: u32 = 2;

pub(super) const ASSIGN: Scope = Scope { operation: "assignment by the server", step: 0, bucket: None };
pub(super) const CONTRIBUTE: Scope = Scope { operation: "contribution to the server", step: 0, bucket: None };
/// Every worker is idle.
const END: Scope = Scope { operation: "end of serving", step: 0, bucket: None };

/// What a worker takes a gradient of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Its batch of this number, counted from 0 over the whole run.
    Number(u64),
    /// All its data.
    All,
}

/// What was computed beside a gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Computed {
    /// Behind it.
    pub samples: u64,
    /// Their mean loss.
    pub loss: f64,
    /// Batches that it took, 1 or those of all data.
    pub batches: u32,
}

/// The model and its data, of which the drivers see vectors only.
pub trait Trainer {
    /// What can go wrong.
    type Error: From<ReduceError> + std::fmt::Display;

    /// The gradient at `x`, into `out`, which is as long.
    ///
    /// # Errors
    /// Its own.
    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, Self::Error>;

    /// Steps the optimizer from `x`: the server's at an update, or a worker's own at a local step. `version` is the server's.
    ///
    /// # Errors
    /// Its own.
    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], version: u64) -> Result<(), Self::Error>;

    /// Whether this rank, server or worker, is asked to stop: the run then ends with the next update.
    fn stops(&self) -> bool {
        false
    }
}

/// Serves until there have been so many updates, or any rank's trainer [stops](Trainer::stops): every other rank [works](work). Then every
/// worker is idle, and has the model.
///
/// # Errors
/// Those of `trainer`, of the session, and of what workers send; the world is then stopped.
pub fn serve<T: Trainer>(server: &mut Server, trainer: &mut T, until: u64, comm: &mut Session) -> Result<(), T::Error> {
    let served = serve_on(server, trainer, until, comm);
    let version = server.version();
    let served = served.and_then(|()| end(comm.rank(), version, comm).map_err(T::Error::from));
    served.inspect_err(|error| stop(error, version, comm))
}

fn serve_on<T: Trainer>(server: &mut Server, trainer: &mut T, until: u64, comm: &mut Session) -> Result<(), T::Error> {
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
        // Nobody else has anything to say: who waits may have left, and is not waited for.
        let received = comm.recv_any_long(&computing);
        let (from, frame) = received.map_err(|error| ReduceError::from(at(error, version)))?;
        let wrong = |source| ReduceError::from(AggregateError::Message { rank: from, source });
        let contribution = Contribution::read(&frame, server.model().len()).map_err(wrong)?;
        comm.pool().put(frame);
        let worker = if from > rank { from - 1 } else { from };
        if contribution.stops || trainer.stops() {
            server.stop();
        }
        let step = |x: &mut Vec<f32>, mean: &[f32], version| trainer.step(x, mean, version).map_err(Failed::Trainer);
        replies = server.arrived(worker, contribution, step).map_err(|failed| match failed {
            Failed::Trainer(error) => error,
            Failed::Wire(source) => wrong(source).into(),
        })?;
        if !replies.is_empty() && !all_finite(server.model()) {
            return Err(ReduceError::NonFinite { rank, slot: "the server's model".into() }.into());
        }
    }
}

enum Failed<E> {
    Trainer(E),
    Wire(WireError),
}

impl<E> From<WireError> for Failed<E> {
    fn from(error: WireError) -> Self {
        Failed::Wire(error)
    }
}

/// Workers are the other ranks, in their order.
fn rank_of(worker: usize, server: usize) -> usize {
    worker + usize::from(worker >= server)
}

/// Without waiting until it is gone: the link takes what it can now, and the rest while the server waits for contributions.
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

/// Waits until every worker is idle; whatever the ranks do next, they do at this step.
fn end(server: usize, version: u64, comm: &mut Session) -> Result<(), ReduceError> {
    *comm.scope() = END;
    comm.patient(PATIENCE, |comm| comm.broadcast(server, &mut Vec::new())).map_err(|error| at(error, version))?;
    *comm.scope() = Scope { step: version, ..Scope::default() };
    Ok(())
}

/// The version in the place of the step that both sides of a frame call theirs.
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

/// Works for the rank `server` until it says stop, from batch number `batch` on: the model then, the next batch's number, and the count of
/// updates. `x` is as long as the model.
///
/// # Errors
/// Those of `trainer`, of the session, and of what the server sends; the world is then stopped.
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
    /// Of the model that it was sent last.
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
            // The link takes the rest while this rank waits for what is next.
            let sent = comm.send_long(self.server, contribution);
            sent.map_err(|error| ReduceError::from(at(error, self.version)))?;
        }
    }

    /// What is next, and the models to compute it from.
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

    /// The frame of what was computed from the batch `first` on, compressed or said exactly. Each gradient takes a time of its own, where times are given.
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
