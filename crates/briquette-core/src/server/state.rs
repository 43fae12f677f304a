//! What a server knows and does: a state machine without clock, threads or sockets.

use std::sync::Arc;

use super::{Arrival, Policy, Task, Update, Verdict};
use crate::Message;
use crate::error::{StateError, WireError};
use crate::math::distance2;
use crate::state::State;

/// What a worker sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Contribution {
    /// Of the model that it was computed from.
    pub version: u64,
    /// Behind it.
    pub samples: u64,
    /// Their mean loss.
    pub loss: f64,
    /// Gradients of batches that it took.
    pub gradients: u32,
    /// The vector.
    pub message: Message,
}

/// What a worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Its place among workers, from 0.
    pub worker: usize,
    /// Of its contribution before; absent at first.
    pub verdict: Option<Verdict>,
    /// What it computes next, from the newest model; absent: it stops.
    pub task: Option<Task>,
}

/// What a server has done.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Served {
    /// Contributions that counted.
    pub accepted: u64,
    /// Rejected, as of another version.
    pub late: u64,
    /// Rejected, as too far.
    pub far: u64,
    /// Gradients of batches that workers computed.
    pub gradients: u64,
    /// Over contributions that counted: versions that the model had moved on since.
    pub delays: u64,
    /// The largest of them.
    pub longest_delay: u64,
    /// The mean loss of the contributions of the last update.
    pub loss: f64,
}

/// One worker, as the server sees it.
#[derive(Debug, Clone, Default)]
struct Seat {
    /// The model that it computes from.
    model: Arc<Vec<f32>>,
    version: u64,
    doing: Doing,
}

#[derive(Debug, Clone, Default, PartialEq)]
enum Doing {
    /// Told to stop, or not begun.
    #[default]
    Idle,
    Computes,
    /// Its contribution is in the next update.
    Waits(Contribution),
}

/// The model, and what becomes of what comes.
#[derive(Debug)]
pub struct Server {
    policy: Box<dyn Policy>,
    model: Arc<Vec<f32>>,
    /// Of the version before.
    before: Arc<Vec<f32>>,
    version: u64,
    until: u64,
    seats: Vec<Seat>,
    mean: Vec<f32>,
    served: Served,
}

impl Server {
    /// Of so many workers, which begin at `model`.
    pub fn new(policy: Box<dyn Policy>, model: Vec<f32>, workers: usize) -> Self {
        let model = Arc::new(model);
        let (before, seats) = (Arc::clone(&model), vec![Seat::default(); workers]);
        let (mean, served) = Default::default();
        Server { policy, model, before, version: 0, until: 0, seats, mean, served }
    }

    /// The model.
    pub fn model(&self) -> &[f32] {
        &self.model
    }

    /// The model of the version before; at version 0 the same.
    pub fn model_before(&self) -> &[f32] {
        &self.before
    }

    /// Updates so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What it has done.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Workers that have not been told to stop.
    pub(super) fn busy(&self) -> impl Iterator<Item = usize> {
        (0..self.seats.len()).filter(|worker| self.seats[*worker].doing != Doing::Idle)
    }

    /// What all workers, which are idle, are told to begin with, when there are to be `until` updates.
    pub fn begin(&mut self, until: u64) -> Vec<Reply> {
        self.until = until;
        (0..self.seats.len()).map(|worker| self.assign(worker, None)).collect()
    }

    /// A worker's contribution has come. `step` applies an update to the model, as the server's optimizer does.
    ///
    /// # Errors
    /// Those of `step`, and of a message that does not fit; the server cannot be used any more.
    pub fn arrived<E: From<WireError>>(
        &mut self,
        worker: usize,
        contribution: Contribution,
        step: impl FnOnce(&mut Vec<f32>, &[f32], u64) -> Result<(), E>,
    ) -> Result<Vec<Reply>, E> {
        self.served.gradients += u64::from(contribution.gradients);
        // Whose version it is of is the server's to know.
        let (now, version) = (self.version, self.seats[worker].version);
        let (model, theirs) = (&self.model, &self.seats[worker].model);
        let distance = || distance2(model, theirs).sqrt();
        let verdict = match now < self.until {
            true => self.policy.judge(&Arrival { version, now, distance: &distance }),
            false => Verdict::Late,
        };
        match verdict {
            Verdict::Accepted => self.served.accepted += 1,
            Verdict::Late => self.served.late += 1,
            Verdict::Far => self.served.far += 1,
        }
        if verdict != Verdict::Accepted {
            return Ok(vec![self.assign(worker, Some(verdict))]);
        }
        self.served.delays += now - version;
        self.served.longest_delay = self.served.longest_delay.max(now - version);
        self.seats[worker].doing = Doing::Waits(contribution);
        let waiting = |seat: &&Seat| matches!(seat.doing, Doing::Waits(_));
        if self.seats.iter().filter(waiting).count() < self.policy.quorum(now) {
            return Ok(Vec::new());
        }
        self.update(step)?;
        let waiting: Vec<usize> =
            (0..self.seats.len()).filter(|worker| matches!(self.seats[*worker].doing, Doing::Waits(_))).collect();
        Ok(waiting.into_iter().map(|worker| self.assign(worker, Some(Verdict::Accepted))).collect())
    }

    /// By worker, so that the sum does not depend on who came first.
    fn update<E: From<WireError>>(
        &mut self,
        step: impl FnOnce(&mut Vec<f32>, &[f32], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let contributions = || {
            self.seats.iter().filter_map(|seat| match &seat.doing {
                Doing::Waits(contribution) => Some(contribution),
                _ => None,
            })
        };
        let samples = contributions().map(|contribution| contribution.samples).sum::<u64>().max(1) as f64;
        self.mean.clear();
        self.mean.resize(self.model.len(), 0.0);
        let mut loss = 0.0;
        for contribution in contributions() {
            let share = contribution.samples as f64 / samples;
            loss += share * contribution.loss;
            contribution.message.add_to(share as f32, &mut self.mean)?;
        }
        self.served.loss = loss;
        self.policy.direct(&mut self.mean, self.version);
        let mut next = (*self.model).clone();
        match self.policy.update() {
            Update::Optimizer => step(&mut next, &self.mean, self.version)?,
            Update::Subtract(factor) => next.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= factor * mean),
        }
        self.before = std::mem::replace(&mut self.model, Arc::new(next));
        self.version += 1;
        Ok(())
    }

    fn assign(&mut self, worker: usize, verdict: Option<Verdict>) -> Reply {
        let task = (self.version < self.until).then(|| self.policy.task(self.version));
        let doing = if task.is_some() { Doing::Computes } else { Doing::Idle };
        self.seats[worker] = Seat { model: Arc::clone(&self.model), version: self.version, doing };
        Reply { worker, verdict, task }
    }

    /// Between two calls of [`serve`](super::serve), when every worker is idle.
    pub fn save(&mut self, state: &mut State) {
        state.put("version", self.version);
        state.put("model", self.model.to_vec());
        state.put("before", self.before.to_vec());
        state.put("memory", self.policy.memory().cloned().unwrap_or_default());
        let Served { accepted, late, far, gradients, delays, longest_delay, loss } = self.served;
        let counts = [accepted, late, far, gradients, delays, longest_delay].map(|count| count as f64);
        state.put("served", counts.into_iter().chain([loss]).collect::<Vec<f64>>());
    }

    /// What was saved.
    ///
    /// # Errors
    /// [`StateError`] for what is missing or of another shape; nothing has changed then.
    pub fn load(&mut self, state: &State) -> Result<(), StateError> {
        let model = state.f32s("model", Some(self.model.len()))?.to_vec();
        let before = state.f32s("before", Some(self.model.len()))?.to_vec();
        let memory = state.f32s("memory", None)?.to_vec();
        let (version, counts) = (state.u64("version")?, state.f64s("served")?);
        let [accepted, late, far, gradients, delays, longest_delay] = std::array::from_fn(|i| counts[i] as u64);
        self.served = Served { accepted, late, far, gradients, delays, longest_delay, loss: counts[6] };
        self.policy.memory().into_iter().for_each(|own| own.clone_from(&memory));
        (self.model, self.before, self.version) = (Arc::new(model), Arc::new(before), version);
        Ok(())
    }
}
