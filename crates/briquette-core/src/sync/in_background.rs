//! Background reduction: starts when a step has been committed, and is waited for at a later step.

use std::sync::Arc;

use super::{Agrees, Context, HEADER_STEPS, Plan};
use crate::comm::{Pending, Session};
use crate::error::{ReduceError, StateError};
use crate::reduce::{AgreedStep, Exchanged, Reducer, Round};
use crate::report::Report;
use crate::state::{OnResize, Place, Staged, State, Stateful};
use crate::{Key, Traffic, layout};

/// The channel of background reductions.
pub(super) const CHANNEL: usize = 1;

/// Schedule of parameter exchanges: after every `period` steps, starting `offset` steps later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Periods {
    pub(super) period: u64,
    pub(super) offset: u64,
}

impl Periods {
    /// Returns the number of periods that have ended with this step, if one ends with it.
    fn ended(self, step: u64) -> Option<u64> {
        let steps = (step + 1).checked_sub(self.offset).filter(|steps| *steps > 0)?;
        steps.is_multiple_of(self.period).then_some(steps / self.period)
    }

    /// Returns whether a period ends with this step.
    pub(super) fn ends(self, step: u64) -> bool {
        self.ended(step).is_some()
    }

    /// Returns the plan: parameters at the end of a period, and a header about every [`HEADER_STEPS`] steps.
    pub(super) fn plan(self, step: u64) -> Plan {
        let agrees = self.ended(step).is_some_and(|ended| ended.is_multiple_of(HEADER_STEPS.div_ceil(self.period)));
        let agrees = if agrees { Agrees::World } else { Agrees::NoRank };
        Plan { agrees, parameters: self.ends(step), ..Plan::ALONE }
    }
}

/// Data that a background exchange owns and returns.
struct Reduced<R> {
    reducer: R,
    input: Vec<f32>,
    mean: Vec<f32>,
    result: Result<Exchanged, ReduceError>,
}

/// The mean of all ranks' inputs, after the wait for it.
struct Arrived {
    mean: Vec<f32>,
    /// Time of its arrival, on the session's clock.
    at: f64,
    /// Bytes of the exchange that no step has counted; zero once the mean has been received.
    uncounted: Traffic,
}

/// A reducer and its background exchange, one at a time.
///
/// **State.** The input of the exchange, and the reducer's state before it: a resumed run sends the input again, and gets the
/// same bits. So does a run that continues in another session, whatever has arrived in the previous session: this rank cannot
/// know whether it arrived on the other ranks.
///
/// **Bytes** count at the step that receives the mean, even if a checkpoint has already waited for it. A resumed run sends the
/// input again and counts it there, so its steps have the bytes of an uninterrupted run.
pub(super) struct InBackground<R> {
    /// `None` while it is in the background.
    reducer: Option<R>,
    pending: Option<Pending<Reduced<R>>>,
    /// Saved state of the reducer from before the exchange that is in flight or has arrived.
    reducer_before: State,
    /// Entry of the strategy's state that the saved input must match in length.
    like: Option<&'static str>,
    /// Input of the exchange that is in flight or has arrived but is not used yet; empty before the first.
    pub(super) input: Staged<Vec<f32>>,
    /// Start time of its exchange, on the session's clock.
    started: f64,
    /// Session of its exchange.
    session: Option<Arc<()>>,
    /// Storage for the vectors that the next exchange owns.
    spare: [Vec<f32>; 2],
    arrived: Option<Arrived>,
    report: Report,
}

impl<R: Reducer + 'static> InBackground<R> {
    /// Creates the exchange. A saved input must be as long as the entry `like` of the strategy's state, or as the current
    /// input; each of the two may be empty.
    pub(super) fn new(reducer: R, like: Option<&'static str>) -> Self {
        InBackground {
            like,
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

    /// Starts with nothing sent.
    pub(super) fn begin(&mut self) {
        self.input.set(Vec::new());
    }

    /// Exchanges the input in the background. The reducer knows nothing of its step except `agreed_step`.
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

    /// Discards an exchange that was started in another session.
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

    /// Waits for the exchange in flight.
    fn finish(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let (Reduced { reducer, input, mean, result }, ended, uncounted) = pending.finish_uncounted(comm);
        self.spare[0] = input;
        let reducer = self.reducer.insert(reducer);
        match ended.map_err(ReduceError::from).and(result) {
            Ok(exchanged) => {
                self.report = Report::default();
                reducer.report(&mut self.report);
                self.report.traffic = Some(exchanged.traffic);
                self.arrived = Some(Arrived { mean, at: comm.now(), uncounted });
                Ok(())
            }
            Err(error) => {
                comm.count(uncounted);
                reducer.discard();
                Err(error)
            }
        }
    }

    /// Waits for the mean of the exchange that was started with `key` and `agreed_step`; [`mean`](Self::mean) then returns it.
    /// Does nothing if nothing was sent.
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
                // A resumed run: the exchange was in flight when the run was saved, and is started again at its original time.
                let now = comm.now();
                comm.set_clock(self.started);
                self.start(key, agreed_step, cx, comm);
                comm.set_clock(now);
            }
            self.finish(comm)?;
        }
        if let Some(arrived) = &mut self.arrived {
            if arrived.at > comm.now() {
                comm.set_clock(arrived.at);
            }
            comm.count(std::mem::take(&mut arrived.uncounted));
        }
        let waited = comm.now() - before;
        if let Some(seconds) = &mut self.report.seconds {
            seconds.hidden = (seconds.compress + seconds.exchange - waited).max(0.0);
        }
        Ok(())
    }

    /// Returns the mean that has arrived and is not committed yet.
    pub(super) fn mean(&self) -> Option<&[f32]> {
        self.arrived.as_ref().map(|arrived| &arrived.mean[..])
    }

    /// Waits for the exchange in flight without advancing the clock: the exchange still ends at its own time, and counts at the
    /// step that uses it.
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
}

/// By hand, because a load abandons the exchange in flight, and the reducer's saved state is the one from before it.
impl<R: Reducer + 'static> Stateful for InBackground<R> {
    fn save(&self, state: &mut State) {
        state.put_at(Place::PerRank(OnResize::Spread), "input", self.input.now().clone());
        state.put_at(Place::PerRank(OnResize::Drop), "started", self.started);
        match &self.reducer {
            Some(reducer) if self.arrived.is_none() => state.put_part("reducer", reducer),
            _ => state.extend(&self.reducer_before),
        }
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let like = self.like.map_or(Ok(&self.input.now()[..]), |name| state.f32s(name, None))?;
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

    /// Commits. If there is a next input, the mean that arrived has been used.
    fn commit(&mut self) {
        if self.input.is_staged() {
            if let Some(arrived) = self.arrived.take() {
                self.spare[1] = arrived.mean;
            }
            self.reducer.iter_mut().for_each(Stateful::commit);
        }
        self.input.commit();
    }

    /// Discards the next input. The mean that arrived stays, and so does the reducer's staged state, because the exchange took
    /// place.
    fn discard(&mut self) {
        self.input.discard();
    }
}
