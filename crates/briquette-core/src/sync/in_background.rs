//! Background reduction: starts when a step has been committed, and overlaps with the following steps until its result
//! is received.

use crate::comm::{Pending, Session, SessionId};
use crate::error::{ReduceError, StateError};
use crate::report::Report;
use crate::seam::{AgreedStep, Context, Exchanged, Reducer, Round};
use crate::state::{OnResize, Place, Staged, State, Stateful};
use crate::{Key, Traffic, layout};

/// Channel that background reductions use.
pub const CHANNEL: usize = 1;

/// Data that a background exchange owns and returns.
struct Reduced<R> {
    reducer: R,
    input: Vec<f32>,
    mean: Vec<f32>,
    result: Result<Exchanged, ReduceError>,
}

/// Mean of all ranks' inputs, once it has arrived.
struct Arrived {
    mean: Vec<f32>,
    /// Time of arrival, on the session's clock.
    at: f64,
    /// Bytes of the exchange that no step has counted yet; zero once the mean has been received.
    uncounted: Traffic,
}

/// A reducer that runs one exchange at a time in the background.
///
/// **State.** The input of the exchange, and the reducer's state before it. A resumed run sends the input again and gets the
/// same bits. So does a run that continues in another session, even if the mean has already arrived in the previous session,
/// because it may not have arrived on the other ranks.
///
/// **Bytes** count at the step that receives the mean, even if a checkpoint has already waited for it. A resumed run sends the
/// input again and counts it at that step, so its steps report the same bytes as those of an uninterrupted run.
pub struct InBackground<R> {
    /// `None` while an exchange is in the background.
    reducer: Option<R>,
    pending: Option<Pending<Reduced<R>>>,
    /// Saved state of the reducer from before the exchange that is in flight or has arrived.
    reducer_before: State,
    /// Name of the entry in the strategy's state whose length the saved input must have.
    like: Option<&'static str>,
    /// Input of the exchange whose mean is in flight, or has arrived and is not used yet; empty before the first
    /// exchange.
    pub input: Staged<Vec<f32>>,
    /// Treatment of the saved input in a world of another size.
    on_resize: OnResize,
    /// Start time of the exchange, on the session's clock.
    started: f64,
    /// Session of the exchange.
    session: Option<SessionId>,
    /// Storage for the vectors that the next exchange owns.
    spare: [Vec<f32>; 2],
    arrived: Option<Arrived>,
    report: Report,
}

impl<R> std::fmt::Debug for InBackground<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InBackground").field("is_under_way", &self.pending.is_some()).finish_non_exhaustive()
    }
}

impl<R: Reducer + 'static> InBackground<R> {
    /// Creates the reduction. A saved input must be as long as the entry `like` of the strategy's state, or as the
    /// current input if `like` is `None`. Either may be empty.
    pub fn new(reducer: R, like: Option<&'static str>) -> Self {
        InBackground {
            like,
            reducer: Some(reducer),
            pending: None,
            reducer_before: State::default(),
            input: Staged::default(),
            on_resize: OnResize::Spread,
            started: 0.0,
            session: None,
            spare: Default::default(),
            arrived: None,
            report: Report::default(),
        }
    }

    /// Drops the input if the world size changes. By default it is spread over the new ranks.
    #[must_use]
    pub fn dropped_on_resize(self) -> Self {
        InBackground { on_resize: OnResize::Drop, ..self }
    }

    /// Resets to the state before the first exchange.
    pub fn begin(&mut self) {
        self.input.set(Vec::new());
    }

    /// Starts the exchange of the input in the background. `agreed_step` is all that the reducer gets of its step.
    pub fn start(&mut self, key: Key, agreed_step: AgreedStep, cx: &Context<'_>, comm: &mut Session) {
        let Some(mut reducer) = self.reducer.take() else { return };
        self.reducer_before = State::default();
        self.reducer_before.put_part("reducer", &reducer);
        let [mut input, mut mean] = std::mem::take(&mut self.spare);
        input.clone_from(self.input.now());
        mean.resize(input.len(), 0.0);
        let slots = cx.slots.to_vec();
        (self.started, self.session) = (comm.now(), Some(comm.identity().clone()));
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

    /// Abandons an exchange that was started in another session.
    fn forget_other_sessions(&mut self, comm: &Session) {
        if self.session.as_ref().is_none_or(|session| session == comm.identity()) {
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
    /// Does nothing before the first exchange.
    pub fn receive(
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
                // A resumed run: the exchange was in flight when the run was saved. It is started again at its original time.
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
            seconds.overlapped = (seconds.compress + seconds.exchange - waited).max(0.0);
        }
        Ok(())
    }

    /// Returns the mean, if it has arrived and its use is not committed yet.
    pub fn mean(&self) -> Option<&[f32]> {
        self.arrived.as_ref().map(|arrived| &arrived.mean[..])
    }

    /// Waits for the exchange in flight without advancing the clock. The exchange still ends at its own time, and its bytes
    /// count at the step that receives the mean.
    pub fn settle(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        self.forget_other_sessions(comm);
        let now = comm.now();
        let settled = self.finish(comm);
        if comm.now() > now {
            comm.set_clock(now);
        }
        settled
    }

    /// Writes the reducer's report of the last exchange.
    pub fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

/// By hand, because loading abandons the exchange in flight, and the saved state of the reducer is that from before
/// this exchange.
impl<R: Reducer + 'static> Stateful for InBackground<R> {
    fn save(&self, state: &mut State) {
        state.put_at(Place::PerRank(self.on_resize), "input", self.input.now().clone());
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

    /// Commits. A staged next input means that the mean has been used.
    fn commit(&mut self) {
        if self.input.is_staged() {
            if let Some(arrived) = self.arrived.take() {
                self.spare[1] = arrived.mean;
            }
            self.reducer.iter_mut().for_each(Stateful::commit);
        }
        self.input.commit();
    }

    /// Discards the staged next input. The mean and the reducer's staged state are kept, because their exchange has taken
    /// place.
    fn discard(&mut self) {
        self.input.discard();
    }
}
