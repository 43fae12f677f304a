//! Server state machine, without clock, threads or sockets: contributions and times in, replies out.

use std::sync::Arc;

use super::{Arrival, Policy, Task, Update, Verdict};
use crate::Message;
use crate::error::{StateError, WireError};
use crate::math::distance2;
use crate::state::State;

/// Relative tolerance of the end of a grace window.
const ROUNDING: f64 = 1e-9;

/// A worker's contribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Contribution {
    /// Version of the model from which it was computed.
    pub version: u64,
    /// Number of samples from which it was computed.
    pub samples: u64,
    /// Mean loss of those samples.
    pub loss: f64,
    /// Number of batch gradients computed for it.
    pub gradients: u32,
    /// Set if the worker requests a stop of the run.
    pub stops: bool,
    /// The encoded vector.
    pub message: Message,
}

/// The server's reply to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// Index of the worker, from 0.
    pub worker: usize,
    /// Verdict on its previous contribution, if any.
    pub verdict: Option<Verdict>,
    /// Its next task, on the newest model. `None` stops the worker.
    pub task: Option<Task>,
}

/// Statistics of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Served {
    /// Contributions that counted.
    pub accepted: u64,
    /// Contributions rejected because they were computed from another version.
    pub late: u64,
    /// Contributions rejected because the model has moved too far.
    pub far: u64,
    /// Batch gradients that workers computed.
    pub gradients: u64,
    /// Sum of the delays of the contributions that counted. A delay is the number of versions since the model from
    /// which the contribution was computed.
    pub delays: u64,
    /// The largest such delay.
    pub longest_delay: u64,
    /// Mean loss of the contributions of the last update.
    pub loss: f64,
}

/// The server's state of one worker.
#[derive(Debug, Clone, Default)]
struct Seat {
    /// The model from which the worker computes.
    model: Arc<Vec<f32>>,
    version: u64,
    /// The second of its assignment.
    since: f64,
    doing: Doing,
}

#[derive(Debug, Clone, Default, PartialEq)]
enum Doing {
    /// Stopped, or not started.
    #[default]
    Idle,
    Computes,
    /// Its contribution is in the next update.
    Waits(Contribution),
}

/// Server state machine: the model, and the handling of contributions.
#[derive(Debug)]
pub struct Server {
    policy: Box<dyn Policy>,
    model: Arc<Vec<f32>>,
    /// Model of the previous version, or of the last version that the policy [marks](Policy::marks).
    before: Arc<Vec<f32>>,
    version: u64,
    until: u64,
    seats: Vec<Seat>,
    mean: Vec<f32>,
    served: Served,
    /// Seconds: the current time, and that of the last update.
    now: f64,
    updated: f64,
}

impl Server {
    /// Creates a server with this many workers, all of which start from `model`.
    pub fn new(policy: Box<dyn Policy>, model: Vec<f32>, workers: usize) -> Self {
        let model = Arc::new(model);
        let (before, seats) = (Arc::clone(&model), vec![Seat::default(); workers]);
        let (mean, served) = Default::default();
        Server { policy, model, before, version: 0, until: 0, seats, mean, served, now: 0.0, updated: 0.0 }
    }

    /// Sets the current time, in seconds since a fixed moment. An earlier time than the current one changes nothing.
    pub fn set_now(&mut self, now: f64) {
        self.now = self.now.max(now);
    }

    /// Returns the second at which the server makes the next update with what has arrived by then, if there is a quorum: the end of the policy's
    /// [grace](Policy::grace) window.
    pub fn due(&self) -> Option<f64> {
        let ((waiting, quorum), grace) = (self.waiting(), self.policy.grace());
        // Workers of the same speed may differ by rounding.
        let end = if grace > 0.0 { self.updated + grace * (1.0 + ROUNDING) } else { self.now };
        (waiting >= quorum).then_some(end)
    }

    /// Sets the number of updates made so far, for a resumed run.
    #[must_use]
    pub fn at_version(mut self, version: u64) -> Self {
        self.version = version;
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &[f32] {
        &self.model
    }

    /// Returns the model from which differences are taken: that of the previous version, or of the last version that the
    /// policy [marks](Policy::marks). At version 0 it is the model itself.
    pub fn model_before(&self) -> &[f32] {
        &self.before
    }

    /// Returns the model from which a worker computes, or with which it ends.
    pub fn model_of(&self, worker: usize) -> &[f32] {
        &self.seats[worker].model
    }

    /// Returns the number of updates so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the server's statistics.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Returns the workers that compute. Each owes a contribution.
    pub fn computing(&self) -> impl Iterator<Item = usize> {
        (0..self.seats.len()).filter(|worker| self.seats[*worker].doing == Doing::Computes)
    }

    /// Returns the number of contributions to the next update so far, and the number required.
    pub fn waiting(&self) -> (usize, usize) {
        (self.waiters().count(), self.policy.quorum(self.version))
    }

    fn waiters(&self) -> impl Iterator<Item = (usize, &Contribution)> {
        self.seats.iter().enumerate().filter_map(|(worker, seat)| match &seat.doing {
            Doing::Waits(contribution) => Some((worker, contribution)),
            _ => None,
        })
    }

    /// Returns whether a worker with error feedback [puts back](Policy::puts_back) a contribution that did not count.
    pub fn puts_back(&self) -> bool {
        self.policy.puts_back()
    }

    /// Starts a run until version `until`: returns the first reply to each worker. All workers must be idle.
    pub fn begin(&mut self, until: u64) -> Vec<Reply> {
        self.until = until;
        self.updated = self.now;
        self.policy.begin();
        (0..self.seats.len()).map(|worker| self.assign(worker, None)).collect()
    }

    /// Makes the next update the last. Workers whose contributions are part of it then stop; the others stop when their
    /// contributions arrive.
    pub fn stop(&mut self) {
        self.until = self.until.min(self.version.saturating_add(1));
    }

    /// Handles a worker's contribution. `step` applies an update to the model with the server's optimizer.
    ///
    /// # Errors
    /// Those of `step`, of a message with the wrong length, and of a contribution that was not requested. The server cannot be
    /// used afterwards.
    pub fn arrived<E: From<WireError>>(
        &mut self,
        worker: usize,
        contribution: Contribution,
        step: impl FnOnce(&mut Vec<f32>, &[f32], u64) -> Result<(), E>,
    ) -> Result<Vec<Reply>, E> {
        self.expects(worker, contribution.version)?;
        self.served.gradients += u64::from(contribution.gradients);
        let Seat { model: theirs, version, .. } = &self.seats[worker];
        let (now, version) = (self.version, *version);
        let model = &self.model;
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
        self.policy.observe(self.now - self.seats[worker].since);
        self.seats[worker].doing = Doing::Waits(contribution);
        self.close(step)
    }

    /// Makes the next update if it is [due](Self::due), or if there is a quorum and no other worker computes. Returns the replies to the workers
    /// whose contributions are part of it.
    ///
    /// # Errors
    /// As for [`arrived`](Self::arrived).
    pub fn close<E: From<WireError>>(
        &mut self,
        step: impl FnOnce(&mut Vec<f32>, &[f32], u64) -> Result<(), E>,
    ) -> Result<Vec<Reply>, E> {
        let Some(due) = self.due() else { return Ok(Vec::new()) };
        if self.now < due && self.computing().next().is_some() {
            return Ok(Vec::new());
        }
        self.update(step)?;
        let waiting: Vec<usize> = self.waiters().map(|(worker, _)| worker).collect();
        Ok(waiting.into_iter().map(|worker| self.assign(worker, Some(Verdict::Accepted))).collect())
    }

    /// Checks that a contribution to this version is due. A worker that states another version answers a different
    /// assignment.
    fn expects(&self, worker: usize, value: u64) -> Result<(), WireError> {
        let Seat { doing, version, .. } = &self.seats[worker];
        match *doing {
            Doing::Computes if *version == value => Ok(()),
            Doing::Computes => Err(WireError::Field { what: "version of a contribution", value }),
            _ => Err(WireError::Field { what: "contribution of a worker without a task, its version", value }),
        }
    }

    /// Applies an update. Contributions are summed in worker order, so the sum does not depend on the order of arrival.
    fn update<E: From<WireError>>(
        &mut self,
        step: impl FnOnce(&mut Vec<f32>, &[f32], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let (marks, mut mean) = (self.policy.marks(self.version), std::mem::take(&mut self.mean));
        mean.clear();
        mean.resize(self.model.len(), 0.0);
        let samples = self.waiters().map(|(_, contribution)| contribution.samples as f64).sum::<f64>().max(1.0);
        let mut loss = 0.0;
        for (_, contribution) in self.waiters() {
            let share = contribution.samples as f64 / samples;
            loss += share * contribution.loss;
            contribution.message.add_to(share as f32, &mut mean)?;
        }
        self.served.loss = loss;
        self.policy.direct(&mut mean, self.version);
        let mut next = Vec::clone(&self.model);
        let next = match self.policy.update() {
            Update::Optimizer => step(&mut next, &mean, self.version).map(|()| Arc::new(next))?,
            Update::Subtract(factor) => {
                next.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= factor * mean);
                Arc::new(next)
            }
            Update::Follow => self.follow(&mean, loss),
        };
        self.mean = mean;
        let before = std::mem::replace(&mut self.model, next);
        if marks {
            self.before = before;
        }
        self.version += 1;
        self.updated = self.now;
        Ok(())
    }

    /// Handles a contribution of a worker with its own model, whose parameters moved by `moved`. Returns the server's model
    /// afterwards.
    fn follow(&mut self, moved: &[f32], loss: f64) -> Arc<Vec<f32>> {
        let Some(worker) = self.waiters().map(|(worker, _)| worker).next() else { return Arc::clone(&self.model) };
        let mut own: Vec<f32> = self.seats[worker].model.iter().zip(moved).map(|(x, moved)| x - moved).collect();
        let model = self.policy.follow(worker, &mut own, loss);
        self.seats[worker].model = Arc::new(own);
        model
    }

    fn assign(&mut self, worker: usize, verdict: Option<Verdict>) -> Reply {
        let task = (self.version < self.until).then(|| self.policy.task(self.version));
        let doing = if task.is_some() { Doing::Computes } else { Doing::Idle };
        let follows = self.policy.update() == Update::Follow && verdict.is_some() && task.is_some();
        let model = if follows { &self.seats[worker].model } else { &self.model };
        self.seats[worker] = Seat { model: Arc::clone(model), version: self.version, since: self.now, doing };
        Reply { worker, verdict, task }
    }

    /// Saves the state between two calls of [`serve`](super::serve), when every worker is idle. The model is not included; the
    /// caller saves it.
    pub fn save(&mut self, state: &mut State) {
        state.put("version", self.version);
        state.put("before", if self.policy.looks_back() { self.before.to_vec() } else { Vec::new() });
        state.put("memory", self.policy.memory().cloned().unwrap_or_default());
        let Served { accepted, late, far, gradients, delays, longest_delay, loss } = self.served;
        let counts = [accepted, late, far, gradients, delays, longest_delay].map(|count| count as f64);
        state.put("served", counts.into_iter().chain([loss]).collect::<Vec<f64>>());
    }

    /// Loads a saved state. The server must have been created with the model saved at the same time.
    ///
    /// # Errors
    /// [`StateError`] for fields that are missing or have another shape; nothing has changed then.
    pub fn load(&mut self, state: &State) -> Result<(), StateError> {
        let before = vector_or_none(state, "before", self.model.len())?;
        let memory = vector_or_none(state, "memory", self.model.len())?;
        let (version, served) = (state.u64("version")?, served(state)?);
        self.policy.memory().into_iter().for_each(|own| own.clone_from(&memory));
        self.before = if before.is_empty() { Arc::clone(&self.model) } else { Arc::new(before) };
        (self.version, self.served) = (version, served);
        Ok(())
    }

    /// Checks that [`load`](Self::load) and [`Uplink::load`](super::Uplink::load) can read what was saved for a model of `len`
    /// values, on any rank.
    ///
    /// # Errors
    /// Those of both.
    pub fn check(state: &State, len: usize) -> Result<(), StateError> {
        if !state.contains("served") {
            return vector_or_none(state, "residual", len).and(state.u64("taken")).map(|_| ());
        }
        vector_or_none(state, "before", len)?;
        vector_or_none(state, "memory", len)?;
        state.u64("version").and(served(state)).map(|_| ())
    }
}

fn served(state: &State) -> Result<Served, StateError> {
    let saved = state.f64s("served")?;
    let &[accepted, late, far, gradients, delays, longest_delay, loss] = saved else {
        return Err(StateError::mismatch("served", "7 numbers", saved));
    };
    let [accepted, late, far, gradients, delays, longest_delay] =
        [accepted, late, far, gradients, delays, longest_delay].map(|count| count as u64);
    Ok(Served { accepted, late, far, gradients, delays, longest_delay, loss })
}

/// Reads a vector that is empty or as long as the model.
pub(super) fn vector_or_none(state: &State, name: &str, len: usize) -> Result<Vec<f32>, StateError> {
    match state.f32s(name, None)? {
        [] => Ok(Vec::new()),
        _ => state.f32s(name, Some(len)).map(<[f32]>::to_vec),
    }
}
