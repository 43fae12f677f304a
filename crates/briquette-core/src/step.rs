//! Step driver: the protocol of a training step around a [`SyncStrategy`].
//!
//! The optimizer, the model and the data belong to a framework. The driver implements everything else of a step. The
//! Burn integration, the laws (feature `testing`) and the benchmarks call the same functions.
//!
//! ```text
//! exchange_gradient    header ─► weigh ─► after_backward ─► hold ─┐
//! (the optimizer steps)                                           ├─► commit ─► after_commit
//! exchange_parameters  [header] ─► after_step ────────────────────┘
//! end_step
//! ```
//!
//! *Weigh* scales a gradient by its rank's share of the samples. If a step exchanges parameters and no gradient, the context has the
//! [factor](Context::weight) instead. *Hold* discards the state that the strategy has staged for slots (parameter
//! tensors) for which no rank has a gradient at this step. A parameter exchange uses the header of the step's gradient exchange, and has its
//! own only if there was none.
//!
//! In an elastic world ranks also [vote](Driver::set_votes) before the commit.
//!
//! A gradient exchange that runs [during the backward pass](LentStrategy::exchange) has a second header at its end, before the commit.
//!
//! After an error, the strategy has discarded its staged state. After a failed vote, however, the state stays staged until
//! [`Driver::resolve`]. Parameters are unchanged; a gradient may already be multiplied by its weight.
//! If only some ranks detect the error, the driver aborts the session, so that no rank blocks.
//!
//! ```
//! use briquette_core::{Key, Layout, comm::Local, config::Config, error::CommError, step::Driver, sync::Header};
//! let ranks = Local::run(2, |mut comm| {
//!     let layout = Layout::flat(2);
//!     let mut driver = Driver::new(Key::new(1));
//!     driver.drive(Config::dense().build(&layout, comm.world()).expect("dense"), layout);
//!     let mut gradient = [vec![1.0, 2.0], vec![3.0, 6.0]][comm.rank()].clone();
//!     // The second rank has three times as many samples.
//!     let header = Header { samples: [1, 3][comm.rank()], ..Header::default() };
//!     driver.exchange_gradient(header, &mut gradient, &mut [true], &mut comm).expect("both ranks step");
//!     driver.end_step();
//!     Ok::<_, CommError>((gradient, driver.step()))
//! });
//! assert!(ranks.into_iter().all(|rank| rank == Ok((vec![2.5, 5.0], 1))));
//! ```

mod arriving;
mod elastic;
mod exchanged;
mod gradient;
mod vote;

pub use arriving::{ArrivingGradient, EarlyExchange, LentStrategy};
pub use elastic::check_elastic;
use exchanged::exchanged;
pub use exchanged::{Exchanged, HeaderCost};
pub use gradient::Gradient;

use crate::comm::Session;
use crate::error::SyncError;
use crate::report::Report;
use crate::seam::{AgreedStep, Agrees, Context, LastExchange, Momenta, Plan, RankStep, SyncStrategy};
use crate::sync::{Agreement, Header, Placeholder, agree};
use crate::{Key, Layout};

/// Drives one rank's strategy from step to step; see the [module](self).
pub struct Driver {
    strategy: Box<dyn SyncStrategy>,
    layout: Layout,
    /// The layout's slots, then tensors that are checked and not exchanged.
    names: Layout,
    key: Key,
    weights_by_samples: bool,
    keeps_state: bool,
    step: u64,
    /// Agreement of the last exchange, and this rank's part of it.
    last: (Option<AgreedStep>, Option<LastExchange>),
    /// Agreement of a step between its gradient exchange and its parameter exchange.
    open: Option<Agreement>,
    vote: vote::Vote,
    /// The host's part of an average on a device.
    average: Vec<f32>,
}

impl Driver {
    /// Creates a driver at step 0 without a strategy: every rank steps alone until one is [set](Self::drive). `key` is the run's root key.
    pub fn new(key: Key) -> Self {
        Driver {
            strategy: Box::new(Placeholder(Plan::ALONE)),
            layout: Layout::default(),
            names: Layout::default(),
            key,
            weights_by_samples: true,
            keeps_state: true,
            step: 0,
            last: (None, None),
            open: None,
            vote: vote::Vote::default(),
            average: Vec::new(),
        }
    }

    /// Sets the strategy and the layout of its vectors. The step counter stays.
    pub fn drive(&mut self, strategy: Box<dyn SyncStrategy>, layout: Layout) {
        (self.strategy, self.names, self.layout, self.open) = (strategy, layout.clone(), layout, None);
    }

    /// Sets the names of all tensors whose index may be in [`Header::bad_slot`]: the layout's slots, then tensors that are checked and not
    /// exchanged.
    pub fn set_names(&mut self, names: Layout) {
        self.names = names;
    }

    /// Sets whether a rank's vector is multiplied by `n_i · W / Σ n` (the default), which turns the mean over ranks into the mean over samples.
    pub fn set_weights_by_samples(&mut self, weights_by_samples: bool) {
        self.weights_by_samples = weights_by_samples;
    }

    /// Sets whether an average may have values in slots for which no rank has a gradient (the default). If not, these values
    /// are set to 0.
    pub fn set_keeps_state(&mut self, keeps_state: bool) {
        self.keeps_state = keeps_state;
    }

    /// Returns the number of completed steps.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Resumes at `step`, with the agreement of the previous step and this rank's part of its exchange.
    pub fn resume(&mut self, step: u64, agreed_step: Option<AgreedStep>, previous: Option<LastExchange>) {
        (self.step, self.last, self.open) = (step, (agreed_step, previous), None);
    }

    /// Returns the agreement of the last exchange, if all ranks agreed on it.
    pub fn agreed_step(&self) -> Option<&AgreedStep> {
        self.last.0.as_ref()
    }

    /// Returns this rank's part of the last exchange, as the next header reports it.
    pub fn previous(&self) -> Option<&LastExchange> {
        self.last.1.as_ref()
    }

    /// Returns the layout of the vectors.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the strategy.
    pub fn strategy(&self) -> &dyn SyncStrategy {
        &*self.strategy
    }

    /// Returns the strategy mutably, to load its state or to [settle](SyncStrategy::settle) it.
    pub fn strategy_mut(&mut self) -> &mut dyn SyncStrategy {
        &mut *self.strategy
    }

    /// Replaces the strategy with one that was loaded from a checkpoint.
    pub fn set_strategy(&mut self, strategy: Box<dyn SyncStrategy>) {
        self.strategy = strategy;
    }

    /// Returns the plan for this step.
    pub fn plan(&self) -> Plan {
        self.strategy.plan(self.step)
    }

    /// Returns the report of the last exchange.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        self.strategy.report(&mut report);
        report
    }

    /// Agrees on the step header and exchanges `gradient`, at a step whose [plan](Self::plan) has gradients. `present` has an
    /// entry for each slot. On input it states whether this rank has a gradient for the slot; on output, whether any rank
    /// has. The driver fills in the step of `header`, and the statistics of the previous exchange.
    ///
    /// # Errors
    /// [`SyncError`]; the strategy is unchanged, and the gradient is unchanged or multiplied by its weight.
    pub fn exchange_gradient<'g>(
        &mut self,
        header: Header,
        gradient: impl Into<Gradient<'g>>,
        present: &mut [bool],
        comm: &mut Session,
    ) -> Result<Exchanged, SyncError> {
        let plan = self.plan();
        let rate = header.learning_rate;
        let result = self.agree(header, present, plan, comm).and_then(|(agreement, header)| {
            let now = with_rate(agreement.clone(), rate);
            self.gradient((plan, header), &now, gradient.into(), present, comm)?;
            self.open = plan.parameters.then_some(agreement);
            Ok(exchanged(now, Momenta::Keep, header))
        });
        self.settled(plan, result, comm)
    }

    /// Exchanges `parameters` after the optimizer's step, at a step whose [plan](Self::plan) has parameters. Uses the header of
    /// the step's gradient exchange, or agrees on a new one if there was none. Its samples are then those since the last exchange.
    ///
    /// # Errors
    /// [`SyncError`]; the parameters and the strategy are unchanged, unless the step is [in doubt](Self::in_doubt).
    pub fn exchange_parameters(
        &mut self,
        header: Header,
        parameters: &mut Vec<f32>,
        comm: &mut Session,
    ) -> Result<Exchanged, SyncError> {
        let (plan, rate) = (self.plan(), header.learning_rate);
        let is_weighed = self.weights_by_samples && self.open.is_none();
        let agreed = match self.open.take() {
            // The header was agreed before the optimizer's step, so only this rank knows the result of that step.
            Some(agreement) => {
                let checked = Header { step: self.step, ..header }.check_slot(comm.rank(), self.names.slots());
                checked.map(|()| (agreement, HeaderCost::default())).inspect_err(|error| comm.abort(&error.to_string()))
            }
            None => self.agree(header, &mut vec![true; self.layout.slots().len()], plan, comm),
        };
        let result = agreed.and_then(|(agreement, header)| {
            let agreement = with_rate(agreement, rate);
            let weight = if is_weighed && agreement.agreed_step.samples > 0 { agreement.weight } else { 1.0 };
            let cx = Context { weight, ..context(self.key, &self.layout, &agreement) };
            let momenta = self.strategy.after_step(parameters, &cx, comm)?;
            self.vote.cast(&agreement, (momenta, header), comm)?;
            self.strategy.commit();
            self.strategy.after_commit(&cx, comm);
            Ok(exchanged(agreement, momenta, header))
        });
        self.settled(plan, result, comm)
    }

    /// Runs a whole step of an optimizer on flat vectors, with a gradient for every slot. `optimize` receives the parameters
    /// and the gradient to step with: the average, if the plan exchanges gradients. Returns the required treatment of the
    /// optimizer's momenta.
    ///
    /// # Errors
    /// [`SyncError`] of either exchange.
    pub fn take_step(
        &mut self,
        header: Header,
        (gradient, parameters): (&mut Vec<f32>, &mut Vec<f32>),
        optimize: impl FnOnce(&mut [f32], &[f32]),
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let (plan, traffic, mut momenta) = (self.plan(), comm.traffic(), Momenta::Keep);
        comm.begin_step(self.step);
        if plan.gradients {
            self.exchange_gradient(header, &mut *gradient, &mut vec![true; self.layout.slots().len()], comm)?;
        }
        if plan.optimizes {
            optimize(parameters, gradient);
        }
        if plan.parameters {
            momenta = self.exchange_parameters(header, parameters, comm)?.momenta;
        }
        if plan.exchanges() {
            self.set_previous(LastExchange::reported(&self.report(), comm.traffic() - traffic));
        }
        self.end_step();
        Ok(momenta)
    }

    /// Agrees on the header of a step that exchanges no vector. Does not call the strategy; otherwise like
    /// [`exchange_gradient`](Self::exchange_gradient).
    ///
    /// # Errors
    /// As for `exchange_gradient`.
    pub fn exchange_header(
        &mut self,
        header: Header,
        present: &mut [bool],
        comm: &mut Session,
    ) -> Result<Exchanged, SyncError> {
        let (plan, rate) = (self.plan(), header.learning_rate);
        let result = self.agree(header, present, plan, comm);
        let result = result.map(|(agreement, header)| exchanged(with_rate(agreement, rate), Momenta::Keep, header));
        self.settled(plan, result, comm)
    }

    /// Agrees on each rank's samples and compute seconds at a step that exchanges nothing.
    ///
    /// # Errors
    /// As for `exchange_gradient`.
    pub fn agree_on_speeds(&mut self, header: Header, comm: &mut Session) -> Result<Vec<RankStep>, SyncError> {
        let header = Header { step: self.step, previous: None, ..header };
        let agreed = agree(&header, None, &[], &mut [], comm);
        let agreed = agreed.inspect_err(|error| {
            if !error.is_on_all_ranks() {
                comm.abort(&error.to_string());
            }
        });
        Ok(agreed?.ranks)
    }

    /// Sets this rank's part of this step's exchange, which the next header reports.
    pub fn set_previous(&mut self, previous: LastExchange) {
        self.last.1 = Some(previous);
    }

    /// Ends the step: increments the step counter.
    pub fn end_step(&mut self) {
        self.step += 1;
    }

    /// Records the agreement if all ranks took part in it. Rank-local values are not an agreement.
    fn record(&mut self, agreed_step: AgreedStep, plan: Plan) {
        self.last.0 = Some(agreed_step).filter(|_| plan.agrees == Agrees::World);
    }

    fn agree(
        &self,
        header: Header,
        present: &mut [bool],
        plan: Plan,
        comm: &mut Session,
    ) -> Result<(Agreement, HeaderCost), SyncError> {
        let (before, previous) = self.last;
        let learning_rate = header.learning_rate.filter(|_| plan.same_rate);
        let mine = Header { step: self.step, previous, learning_rate, ..header };
        let (start, before_header) = (comm.now(), comm.traffic());
        let agreement = plan.agrees.agree(&mine, before.as_ref(), self.names.slots(), present, comm);
        let agreement = agreement.inspect_err(|error| {
            // Without a header from all ranks, only this rank detects the error.
            if plan.agrees != Agrees::World {
                comm.abort(&error.to_string());
            }
        })?;
        Ok((agreement, HeaderCost { seconds: comm.now() - start, traffic: comm.traffic() - before_header }))
    }

    fn gradient(
        &mut self,
        (plan, header): (Plan, HeaderCost),
        agreement: &Agreement,
        mut gradient: Gradient<'_>,
        present: &[bool],
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        // Where not all ranks agree, `present` may differ between ranks.
        let absent = if plan.agrees == Agrees::World { self.layout.absent(present) } else { None };
        let slots = absent.as_ref().map_or(self.layout.slots(), |absent| &absent.slots);
        let cx = Context { slots, ..context(self.key, &self.layout, agreement) };
        if agreement.weight != 1.0 && self.weights_by_samples {
            gradient.scale(agreement.weight, &cx, comm)?;
        }
        gradient.exchange(&mut *self.strategy, &mut self.average, &cx, comm)?;
        let is_held = absent.as_ref().is_some_and(|absent| self.strategy.hold(&absent.ranges));
        if is_held || !self.keeps_state {
            gradient.clear(self.layout.slots(), present, &cx, comm)?;
        }
        if !plan.parameters {
            self.vote.cast(agreement, (Momenta::Keep, header), comm)?;
            self.strategy.commit();
            self.strategy.after_commit(&cx, comm);
        }
        Ok(())
    }

    /// Handles an error: discards staged state and, if other ranks do not detect the same error, aborts the session.
    fn settled(
        &mut self,
        plan: Plan,
        result: Result<Exchanged, SyncError>,
        comm: &mut Session,
    ) -> Result<Exchanged, SyncError> {
        match &result {
            Ok(exchanged) => self.record(exchanged.agreed_step, plan),
            Err(error) => {
                if !self.in_doubt() {
                    self.strategy.discard();
                }
                self.open = None;
                if !error.is_on_all_ranks() {
                    comm.abort(&error.to_string());
                }
            }
        }
        result
    }
}

fn context<'a>(key: Key, layout: &'a Layout, agreement: &'a Agreement) -> Context<'a> {
    Context::new(key, layout.slots(), &agreement.agreed_step).with_ranks(&agreement.ranks)
}

/// Adds this rank's own learning rate, if ranks need not agree on one.
fn with_rate(mut agreement: Agreement, learning_rate: Option<f64>) -> Agreement {
    agreement.agreed_step.learning_rate = agreement.agreed_step.learning_rate.or(learning_rate);
    agreement
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("step", &self.step).field("plan", &self.plan()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
