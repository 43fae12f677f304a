//! Drives a server and its workers over a session.

use super::wire::Assignment;
use super::{Contribution, Reply, Server, Task, Uplink, Verdict};
use crate::error::{AggregateError, CommError, ReduceError, WireError};
use crate::math::all_finite;
use crate::{Frame, Key, Session};

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
}

/// Serves until there have been so many updates: every other rank [works](work). Then every worker is idle, and has the model.
///
/// # Errors
/// Those of `trainer`, of the session, and of what workers send; the world is then stopped.
pub fn serve<T: Trainer>(server: &mut Server, trainer: &mut T, until: u64, comm: &mut Session) -> Result<(), T::Error> {
    let served = serve_on(server, trainer, until, comm);
    served.inspect_err(|error| comm.abort(&error.to_string()))
}

fn serve_on<T: Trainer>(server: &mut Server, trainer: &mut T, until: u64, comm: &mut Session) -> Result<(), T::Error> {
    let (rank, mut replies) = (comm.rank(), server.begin(until));
    loop {
        for reply in replies {
            send(server, reply, comm).map_err(ReduceError::from)?;
        }
        let busy: Vec<usize> = server.busy().map(|worker| rank_of(worker, rank)).collect();
        if busy.is_empty() {
            return Ok(());
        }
        *comm.scope() = crate::comm::Scope { operation: "wait for any worker", step: server.version(), bucket: None };
        let (from, frame) = comm.recv_any(&busy).map_err(ReduceError::from)?;
        let wrong = |source| ReduceError::from(AggregateError::Message { rank: from, source });
        let contribution = Contribution::read(&frame, server.model().len()).map_err(wrong)?;
        comm.pool().put(frame);
        let worker = if from > rank { from - 1 } else { from };
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

fn send(server: &Server, Reply { worker, verdict, task }: Reply, comm: &mut Session) -> Result<(), CommError> {
    let models = [server.model(), server.model_before()];
    let models = if task == Some(Task::Difference) { &models[..] } else { &models[..1] };
    let mut frame = comm.pool().take_for(super::wire::ASSIGNMENT + models.len() * 4 * server.model().len());
    Assignment { task, verdict, version: server.version() }.write(models, &mut frame);
    comm.scope().operation = "assign work";
    comm.send(rank_of(worker, comm.rank()), frame)?;
    comm.flush()
}

/// Works for the rank `server` until it says stop, from batch number `batch` on: the model then, and the next batch's number. `x` is as
/// long as the model.
///
/// # Errors
/// Those of `trainer`, of the session, and of what the server sends; the world is then stopped.
pub fn work<T: Trainer>(
    uplink: &mut Uplink,
    trainer: &mut T,
    (server, batch): (usize, &mut u64),
    (key, x): (Key, &mut Vec<f32>),
    comm: &mut Session,
) -> Result<(), T::Error> {
    let worked = Worker { uplink, trainer, server, key, batch }.run(x, comm);
    worked.inspect_err(|error| comm.abort(&error.to_string()))
}

struct Worker<'a, T> {
    uplink: &'a mut Uplink,
    trainer: &'a mut T,
    server: usize,
    key: Key,
    batch: &'a mut u64,
}

impl<T: Trainer> Worker<'_, T> {
    fn run(&mut self, x: &mut Vec<f32>, comm: &mut Session) -> Result<(), T::Error> {
        let (rank, server) = (comm.rank(), self.server);
        let (mut before, mut out) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        loop {
            *comm.scope() = crate::comm::Scope { operation: "wait for the server", step: *self.batch, bucket: None };
            let frame = comm.recv(server).map_err(ReduceError::from)?;
            let wrong = |source| ReduceError::from(AggregateError::Message { rank: server, source });
            let (assignment, models) = Assignment::read(&frame).map_err(wrong)?;
            let points = if assignment.task == Some(Task::Difference) { 2 } else { 1 };
            let (expected, got, during) = (points * 4 * x.len(), models.len(), *comm.scope());
            if got != expected {
                return Err(ReduceError::from(CommError::Size { rank, other: server, during, expected, got }).into());
            }
            let (newest, older) = models.split_at(4 * x.len());
            for (bytes, model) in [(newest, &mut *x), (older, &mut before)] {
                model
                    .iter_mut()
                    .zip(bytes.as_chunks().0)
                    .for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
            }
            comm.pool().put(frame);
            let Assignment { task, verdict, version } = assignment;
            self.uplink.judged(verdict == Some(Verdict::Accepted));
            let Some(task) = task else { return Ok(()) };
            let first = *self.batch;
            let computed = self.compute(task, version, (&*x, &before), &mut out)?;
            (first..first + u64::from(computed.batches)).for_each(|batch| comm.begin_step(batch));
            let key = self.key.step(first).rank(rank);
            let message = self.uplink.compress(&out, key, rank)?.clone();
            let Computed { samples, loss, batches: gradients } = computed;
            let mut frame = Frame::new();
            Contribution { version, samples, loss, gradients, message }.write(&mut frame);
            comm.scope().operation = "contribute";
            comm.send(server, frame).and_then(|()| comm.flush()).map_err(ReduceError::from)?;
        }
    }

    fn compute(
        &mut self,
        task: Task,
        version: u64,
        (x, before): (&[f32], &[f32]),
        out: &mut Vec<f32>,
    ) -> Result<Computed, T::Error> {
        match task {
            Task::Gradient => {
                let computed = self.next(x, out)?;
                *self.batch += 1;
                Ok(computed)
            }
            Task::Full => {
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
                    self.trainer.step(&mut at, &gradient, version)?;
                    all = Computed {
                        samples: all.samples + samples,
                        loss: all.loss + loss,
                        batches: all.batches + batches,
                    };
                }
                out.clear();
                out.extend(x.iter().zip(&at).map(|(x, at)| x - at));
                Ok(Computed { loss: all.loss / f64::from(steps.max(1)), ..all })
            }
        }
    }

    fn next(&mut self, x: &[f32], out: &mut Vec<f32>) -> Result<Computed, T::Error> {
        self.trainer.gradient(x, Batch::Number(*self.batch), out)
    }
}
