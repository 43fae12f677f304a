//! A reduction in the background: started when one step has been committed, waited for at a later one.

use std::sync::Arc;

use super::{Agrees, Context, HEADER_STEPS, Plan};
use crate::comm::{Pending, Session};
use crate::error::{ReduceError, StateError};
use crate::reduce::{AgreedStep, Exchanged, Reducer, Round};
use crate::report::Report;
use crate::state::{OnResize, Place, Staged, State, Stateful};
use crate::{Key, layout};

/// The channel that it uses.
pub(super) const CHANNEL: usize = 1;

/// When parameters are exchanged: after every `period` steps, the first time `offset` steps later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Periods {
    pub(super) period: u64,
    pub(super) offset: u64,
}

impl Periods {
    /// How many have ended at the end of this step, where one does.
    fn ended(self, step: u64) -> Option<u64> {
        let steps = (step + 1).checked_sub(self.offset).filter(|steps| *steps > 0)?;
        steps.is_multiple_of(self.period).then_some(steps / self.period)
    }

    /// Whether one ends with this step.
    pub(super) fn ends(self, step: u64) -> bool {
        self.ended(step).is_some()
    }

    /// Parameters where one ends; a header about every [`HEADER_STEPS`] steps.
    pub(super) fn plan(self, step: u64) -> Plan {
        let agrees = self.ended(step).is_some_and(|ended| ended.is_multiple_of(HEADER_STEPS.div_ceil(self.period)));
        let agrees = if agrees { Agrees::World } else { Agrees::NoRank };
        Plan { agrees, parameters: self.ends(step), ..Plan::ALONE }
    }
}

/// What a background exchange owns, and what comes back.
struct Reduced<R> {
    reducer: R,
    input: Vec<f32>,
    mean: Vec<f32>,
    result: Result<Exchanged, ReduceError>,
}

/// A reducer, and what it does in the background: one exchange at a time.
///
/// **State.** What is being exchanged, and the reducer as it was before: a run that is resumed sends it again, and gets the same bits. So
/// does one that goes on in another session, whatever has arrived in the one before: of the other ranks' it is not known.
pub(super) struct InBackground<R> {
    /// Nothing while it is in the background.
    reducer: Option<R>,
    pending: Option<Pending<Reduced<R>>>,
    /// What the reducer saved before the exchange that is under way or has arrived.
    reducer_before: State,
    /// What is being exchanged, or has been and waits to be used; empty before the first.
    pub(super) input: Staged<Vec<f32>>,
    /// When its exchange began, on the session's clock.
    started: f64,
    /// The session in which it did.
    session: Option<Arc<()>>,
    /// Storage for what the next exchange owns.
    spare: [Vec<f32>; 2],
    /// The mean of all ranks' inputs once it has been waited for, and when that was.
    arrived: Option<(Vec<f32>, f64)>,
    report: Report,
}

impl<R: Reducer + 'static> InBackground<R> {
    pub(super) fn new(reducer: R) -> Self {
        InBackground {
            reducer: Some(reducer),
            pending: None,
            reducer_before: State::default(),
            input: Staged::default(),
            started: 0.0,
            session: None,
            spare: Default::default(),
            arrived: None,
            report: Report::default(),
        }
    }

    /// Nothing has been sent yet.
    pub(super) fn begin(&mut self) {
        self.input.set(Vec::new());
    }

    /// Exchanges the input in the background. `agreed_step` is all that the reducer knows of its step.
    pub(super) fn start(&mut self, key: Key, agreed_step: AgreedStep, cx: &Context<'_>, comm: &mut Session) {
        let Some(mut reducer) = self.reducer.take() else { return };
        self.reducer_before = State::default();
        self.reducer_before.put_part("reducer", &reducer);
        let [mut input, mut mean] = std::mem::take(&mut self.spare);
        input.clone_from(self.input.now());
        mean.resize(input.len(), 0.0);
        let slots = cx.slots.to_vec();
        (self.started, self.session) = (comm.now(), Some(Arc::clone(&comm.identity)));
        self.pending = Some(comm.start_on_free_link(CHANNEL, move |comm| {
            let round =
                Round { key, slots: &slots, agreed_step: &agreed_step, input: &input, average: &mut mean, sent: None };
            let result = reducer.reduce(round, comm);
            let absent = layout::absent(&slots);
            reducer.hold(&absent);
            absent.into_iter().for_each(|place| mean[place].fill(0.0));
            Reduced { reducer, input, mean, result }
        }));
    }

    /// What was started in another session has not been.
    fn forget_other_sessions(&mut self, comm: &Session) {
        if self.session.as_ref().is_none_or(|session| Arc::ptr_eq(session, &comm.identity)) {
            return;
        }
        if let Some(pending) = self.pending.take() {
            self.reducer = Some(pending.abandon().reducer);
        }
        self.arrived = None;
        self.reducer.iter_mut().for_each(Stateful::discard);
    }

    /// Waits for what is under way.
    fn finish(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let (Reduced { reducer, input, mean, result }, ended) = pending.finish(comm);
        self.spare[0] = input;
        let reducer = self.reducer.insert(reducer);
        match ended.map_err(ReduceError::from).and(result) {
            Ok(exchanged) => {
                self.report = Report::default();
                reducer.report(&mut self.report);
                self.report.traffic = Some(exchanged.traffic);
                self.arrived = Some((mean, comm.now()));
                Ok(())
            }
            Err(error) => {
                reducer.discard();
                Err(error)
            }
        }
    }

    /// Waits for the mean of what was started with `key` and `agreed_step`; [`mean`](Self::mean) has it then. Does nothing before
    /// anything was sent.
    pub(super) fn receive(
        &mut self,
        key: Key,
        agreed_step: AgreedStep,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        if self.input.now().is_empty() {
            return Ok(());
        }
        self.forget_other_sessions(comm);
        let before = comm.now();
        if self.arrived.is_none() {
            if self.pending.is_none() {
                // A run that was resumed: it was under way when the run was saved, and began when it did.
                let now = comm.now();
                comm.set_clock(self.started);
                self.start(key, agreed_step, cx, comm);
                comm.set_clock(now);
            }
            self.finish(comm)?;
        }
        if let Some((_, at)) = self.arrived.as_ref().filter(|(_, at)| *at > comm.now()) {
            comm.set_clock(*at);
        }
        let waited = comm.now() - before;
        if let Some(seconds) = &mut self.report.seconds {
            seconds.hidden = (seconds.compress + seconds.exchange - waited).max(0.0);
        }
        Ok(())
    }

    /// What has arrived and is not committed yet.
    pub(super) fn mean(&self) -> Option<&[f32]> {
        self.arrived.as_ref().map(|(mean, _)| &mean[..])
    }

    /// Waits for what is under way; training goes on from where it is: the exchange still ends when it ends.
    pub(super) fn settle(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        self.forget_other_sessions(comm);
        let now = comm.now();
        let settled = self.finish(comm);
        if comm.now() > now {
            comm.set_clock(now);
        }
        settled
    }

    pub(super) fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }

    /// That `input` is of as many values as `like`, where it is of any.
    pub(super) fn load_like(&mut self, state: &State, like: &[f32]) -> Result<(), StateError> {
        let (input, started) = (state.memory("input", like)?, state.f64("started")?);
        if let Some(pending) = self.pending.take() {
            self.reducer = Some(pending.abandon().reducer);
        }
        if let Some(reducer) = &mut self.reducer {
            state.load_part("reducer", reducer)?;
        }
        self.input.set(input);
        (self.arrived, self.started) = (None, started);
        Ok(())
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put_at(Place::PerRank(OnResize::Spread), "input", self.input.now().clone());
        state.put_at(Place::PerRank(OnResize::Drop), "started", self.started);
        match &self.reducer {
            Some(reducer) if self.arrived.is_none() => state.put_part("reducer", reducer),
            _ => state.extend(&self.reducer_before),
        }
    }

    /// Where there is a next input, what has arrived has been used.
    pub(super) fn commit(&mut self) {
        if self.input.is_staged() {
            if let Some((mean, _)) = self.arrived.take() {
                self.spare[1] = mean;
            }
            self.reducer.iter_mut().for_each(Stateful::commit);
        }
        self.input.commit();
    }

    /// What has arrived stays, with what the reducer has staged: the exchange has been.
    pub(super) fn discard(&mut self) {
        self.input.discard();
    }
}
