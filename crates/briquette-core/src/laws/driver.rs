//! Test ranks on threads: a [`Driver`] with a strategy, or a reducer alone.

use std::cell::Cell;
use std::num::NonZeroUsize;

use super::{Reduces, Synchronizes, gradient, learning_rate, long, sampled, short};
use crate::comm::{Local, LocalBuilder, Session};
use crate::error::SyncError;
use crate::report::Report;
use crate::seam::{AgreedStep, LastExchange, Plan, Reducer, Round};
use crate::state::State;
use crate::step::{Driver, Exchanged};
use crate::sync::Header;
use crate::{Key, Layout, Traffic};

/// Test setup: a strategy or a reducer alone, the parameters, and the number of ranks.
#[derive(Debug, Clone)]
pub struct Setup<C> {
    /// The strategy or reducer under test.
    pub config: C,
    /// The parameters.
    pub layout: Layout,
    /// Number of ranks.
    pub world: usize,
}

impl<C: std::fmt::Debug> std::fmt::Display for Setup<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {} values, {} ranks", self.config, self.layout.len(), self.world)
    }
}

/// Builds a world with two ranks on each machine.
pub(super) fn local(world: usize) -> LocalBuilder {
    Local::builder(world).machines_of(const { NonZeroUsize::new(2).unwrap() })
}

/// Returns the setups with enough ranks: the short layout with 1, 2, 3 and 5 ranks, the long one with up to 3, and, for
/// algorithms that behave differently on long vectors, the longest one with up to 3.
fn places(min_ranks: usize, with_longest: bool) -> Vec<(Layout, usize)> {
    let mut places: Vec<_> = [1, 2, 3, 5].into_iter().map(|world| (short(), world)).collect();
    places.extend([1, 2, 3].map(|world| (long(), world)));
    if with_longest {
        places.extend([1, 2, 3].map(|world| (sampled(), world)));
    }
    places.retain(|(_, world)| *world >= min_ranks);
    if min_ranks > 3 {
        places.push((long(), min_ranks));
    }
    places
}

impl<C: Synchronizes + Clone> Setup<C> {
    /// Returns every setup of a strategy.
    pub fn all(config: &C) -> impl Iterator<Item = Self> + '_ {
        let places = places(config.min_ranks(), config.is_tried_long());
        places.into_iter().map(|(layout, world)| Setup { config: config.clone(), layout, world })
    }

    /// Returns the short setup with `world` ranks, or with more if the strategy needs them.
    pub fn short(config: &C, world: usize) -> Self {
        Setup { config: config.clone(), layout: short(), world: world.max(config.min_ranks()) }
    }

    /// Runs some steps from a fresh start.
    pub fn run(&self, steps: usize) -> Vec<Vec<Outcome>> {
        each_rank(local(self.world).build(), |mut comm, rank| {
            let mut state = Rank::new(self, rank);
            (0..steps).map(|_| state.step(&mut comm).unwrap()).collect()
        })
    }

    /// Returns the first step from `from` on at which ranks exchange something, for a failure there.
    pub(super) fn exchange_from(&self, from: u64) -> u64 {
        (from..).find(|&step| self.plan(step).exchanges()).unwrap()
    }

    /// Returns the plan of a step.
    pub fn plan(&self, step: u64) -> Plan {
        self.config.strategy(&self.layout, self.world).unwrap().plan(step)
    }
}

impl<C: Reduces + Clone> Setup<C> {
    /// Returns every setup of a reducer.
    pub fn reducers(config: &C) -> impl Iterator<Item = Self> + '_ {
        let places = places(config.min_ranks(), config.is_tried_long());
        places.into_iter().map(|(layout, world)| Setup { config: config.clone(), layout, world })
    }

    /// Runs some steps of the reducer alone, with a report of what it sent.
    pub fn reduce_steps(&self, steps: usize) -> Vec<Vec<Outcome>> {
        each_rank(local(self.world).build(), |mut comm, rank| {
            let mut reducer = self.config.reducer(&self.layout, self.world).unwrap();
            (0..steps as u64).map(|step| self.reduce(&mut *reducer, step, (&mut comm, rank))).collect()
        })
    }

    /// Runs one exchange and commits it.
    pub(super) fn reduce(&self, reducer: &mut dyn Reducer, step: u64, on: (&mut Session, usize)) -> Outcome {
        let mut outcome = self.stage(reducer, step, on);
        reducer.commit();
        let mut report = Report::default();
        reducer.report(&mut report);
        outcome.ratio = report.ratio.map(|ratio| ratio.get());
        reducer.save(&mut outcome.state);
        outcome
    }

    /// Runs one exchange without committing or discarding it.
    pub(super) fn stage(&self, reducer: &mut dyn Reducer, step: u64, (comm, rank): (&mut Session, usize)) -> Outcome {
        let input = gradient(&self.layout, rank, step);
        let mut outcome =
            Outcome { average: vec![0.0; input.len()], sent: vec![0.0; input.len()], ..Outcome::default() };
        let start = comm.traffic();
        let round = Round {
            key: Key::new(5).step(step),
            slots: self.layout.slots(),
            agreed_step: &AgreedStep { step, learning_rate: Some(learning_rate(step)), ..AgreedStep::default() },
            input: &input,
            average: &mut outcome.average,
            sent: Some(&mut outcome.sent),
        };
        outcome.reported = reducer.reduce(round, comm).unwrap().traffic;
        outcome.counted = comm.traffic() - start;
        outcome
    }
}

/// One rank's outcome of a step.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// The agreed gradient. Under a strategy that exchanges parameters, the parameters after the step.
    pub average: Vec<f32>,
    /// This rank's effective contribution; only for a reducer alone.
    pub sent: Vec<f32>,
    /// Saved state after the step.
    pub state: State,
    /// The nominal compression ratio, if reported.
    pub ratio: Option<f64>,
    /// The plan of the step.
    pub plan: Option<Plan>,
    /// The vector that an exchange of parameters must conserve in the mean, on this rank before and after, if there is one.
    pub conserved: Option<[Vec<f32>; 2]>,
    /// Reported bytes.
    pub reported: Traffic,
    /// Bytes counted by the transport.
    pub counted: Traffic,
}

/// One rank: a driver with a strategy, and parameters.
pub struct Rank<'a, C> {
    pub(super) setup: &'a Setup<C>,
    pub(super) rank: usize,
    pub(super) driver: Driver,
    pub(super) parameters: Vec<f32>,
    /// Overwrites one value of the next gradient.
    pub poison: Option<(usize, f32)>,
    /// Slots for which no rank has a gradient at the next step, in addition to one every fourth step.
    pub absent: Vec<usize>,
}

/// Period, in steps, of absent slots where only gradients are exchanged: once per period, no rank has a gradient for the last
/// slot.
pub(super) const STEPS_ABSENT: u64 = 4;

impl<'a, C: Synchronizes + Clone> Rank<'a, C> {
    /// Creates a rank at step 0.
    pub fn new(setup: &'a Setup<C>, rank: usize) -> Self {
        let mut strategy = setup.config.strategy(&setup.layout, setup.world).unwrap();
        let parameters = vec![0.0; setup.layout.len()];
        strategy.begin(&parameters);
        let mut driver = Driver::new(Key::new(5));
        driver.drive(strategy, setup.layout.clone());
        Rank { setup, rank, driver, parameters, poison: None, absent: Vec::new() }
    }

    /// Creates a rank that has taken `steps` steps.
    pub fn after(setup: &'a Setup<C>, steps: u64, comm: &mut Session) -> Self {
        let mut rank = Rank::new(setup, comm.rank());
        (0..steps).for_each(|_| drop(rank.step(comm).unwrap()));
        rank
    }

    /// Returns the saved state of the strategy.
    pub fn save(&self) -> State {
        let mut state = State::default();
        self.driver.strategy().save(&mut state);
        state
    }

    /// Restores this rank to the position of `other`, from the saved state of `other`.
    pub fn restore(&mut self, other: &Rank<'_, C>) {
        self.driver.strategy_mut().load(&other.save()).unwrap();
        self.parameters.clone_from(&other.parameters);
        let other = &other.driver;
        self.driver.resume(other.step(), other.agreed_step().copied(), other.previous().copied());
    }

    /// Returns the gradient of this step, and for each slot whether the rank has one.
    pub(super) fn gradient(&self, plan: Plan) -> (Vec<f32>, Vec<bool>) {
        let present = self.present(plan);
        let mut gradient = gradient(&self.setup.layout, self.rank, self.driver.step());
        self.setup.layout.absent(&present).iter().for_each(|absent| absent.clear(&mut gradient));
        (gradient, present)
    }

    /// Waits for the strategy's background exchange, as a save does first.
    pub fn settle(&mut self, comm: &mut Session) -> Result<(), SyncError> {
        self.driver.strategy_mut().settle(comm)
    }

    /// Returns a fresh rank that has loaded this rank's saved state.
    pub(super) fn clone_saved(&self) -> Rank<'a, C> {
        let mut other = Rank::new(self.setup, self.rank);
        other.restore(self);
        other
    }

    /// Returns whether the strategy leaves its state unchanged for slots for which no rank has a gradient.
    pub fn holds(&mut self) -> bool {
        self.driver.strategy_mut().hold(&[])
    }

    pub(super) fn exchanges_gradients_alone(&self) -> bool {
        let plan = self.driver.plan();
        plan.gradients && !plan.parameters
    }

    /// Returns for each slot whether the rank has a gradient for it at this step.
    fn present(&self, plan: Plan) -> Vec<bool> {
        let slots = self.setup.layout.slots().len();
        let is_due = plan.gradients && !plan.parameters && (self.driver.step() + 2).is_multiple_of(STEPS_ABSENT);
        (0..slots).map(|slot| !(self.absent.contains(&slot) || is_due && slot + 1 == slots && slot > 0)).collect()
    }

    /// Takes a step: an optimizer adds the gradient, exchanged or rank-local. On an error nothing has changed.
    ///
    /// # Errors
    /// Those of the [driver](Driver).
    ///
    /// # Panics
    /// If a failed exchange has changed a vector, or if ranks agree on a header and exchange nothing.
    pub fn step(&mut self, comm: &mut Session) -> Result<Outcome, SyncError> {
        self.step_or(comm, |_, _, error| Err(error))
    }

    /// As [`step`](Self::step). If an exchange fails, `resolve` may return its result all the same; the vector is then the one after it.
    pub(super) fn step_or(
        &mut self,
        comm: &mut Session,
        mut resolve: impl FnMut(&mut Driver, &mut Session, SyncError) -> Result<Exchanged, SyncError>,
    ) -> Result<Outcome, SyncError> {
        let plan = self.driver.plan();
        let exchanges = plan.gradients || plan.parameters;
        assert_eq!(
            exchanges,
            plan.exchanges(),
            "{}, step {}: a header, and nothing else",
            self.setup,
            self.driver.step()
        );
        let (mut gradient, mut present) = self.gradient(plan);
        if let Some((index, value)) = self.poison {
            gradient[index] = value;
        }
        let mut parameters = self.parameters.clone();
        let (start, mut headers, mut conserved) = (comm.traffic(), Traffic::default(), None);
        let is_resolved = Cell::new(false);
        let mut resolve = |driver: &mut Driver, comm: &mut Session, error| {
            is_resolved.set(true);
            resolve(driver, comm, error)
        };
        if plan.gradients {
            let (header, before) = (self.header(&gradient), gradient.clone());
            let exchanged = self.driver.exchange_gradient(header, &mut gradient, &mut present, comm);
            let exchanged = exchanged.or_else(|error| resolve(&mut self.driver, comm, error));
            headers += self.unchanged(exchanged, &before, &gradient, is_resolved.get())?;
        }
        parameters.iter_mut().zip(&gradient).for_each(|(p, g)| *p += g);
        if plan.parameters {
            conserved = self.driver.strategy().conserved(&parameters);
            let (header, before) = (self.header(&parameters), parameters.clone());
            let exchanged = self.driver.exchange_parameters(header, &mut parameters, comm);
            let exchanged = exchanged.or_else(|error| resolve(&mut self.driver, comm, error));
            headers += self.unchanged(exchanged, &before, &parameters, is_resolved.get())?;
        }
        // The session of another world has counted from zero.
        let counted = if is_resolved.get() { Traffic::default() } else { comm.traffic() - start - headers };
        let report = if exchanges { self.driver.report() } else { Report::default() };
        if exchanges {
            // Deterministic, and different on each rank.
            let exchange_seconds = 1e-3 + 1e-6 * (counted.sent as f64 + self.rank as f64);
            let previous = LastExchange::reported(&report, counted);
            self.driver.set_previous(LastExchange { compress_seconds: 0.0, exchange_seconds, ..previous });
        }
        self.driver.end_step();
        self.parameters.clone_from(&parameters);
        let conserved = conserved.zip(self.driver.strategy().conserved(&self.parameters)).map(|(a, b)| [a, b]);
        Ok(Outcome {
            average: if plan.parameters { parameters } else { gradient },
            sent: Vec::new(),
            state: self.save(),
            ratio: report.ratio.map(|ratio| ratio.get()),
            plan: Some(plan),
            conserved,
            reported: report.traffic.unwrap_or_default(),
            counted,
        })
    }

    fn header(&self, vector: &[f32]) -> Header {
        let (slots, step) = (self.setup.layout.slots(), self.driver.step());
        let bad = |i: usize| slots.iter().position(|s| s.range().contains(&i)).map(|s| s as u32);
        Header {
            bad_slot: vector.iter().position(|v| !v.is_finite()).and_then(bad),
            samples: 1,
            // The lowest loss moves between ranks.
            loss: Some(1.0 / (step + 1) as f64 + ((3 * step + 2 * self.rank as u64) % 5) as f64),
            learning_rate: Some(learning_rate(step)),
            // Deterministic times that differ between ranks: decisions must not.
            compute_seconds: 0.01 * (self.rank + 1) as f64,
            ..Header::default()
        }
    }

    /// Returns the header bytes of an exchange, after checking that a failed one left the vector unchanged.
    fn unchanged(
        &self,
        exchanged: Result<Exchanged, SyncError>,
        before: &[f32],
        after: &[f32],
        is_resolved: bool,
    ) -> Result<Traffic, SyncError> {
        let is_right = exchanged.is_ok() || is_resolved || same_bits(before, after);
        assert!(is_right, "{}: a failed exchange changed the vector", self.setup);
        exchanged.map(|exchanged| exchanged.header.traffic)
    }
}

impl<C: std::fmt::Debug> std::fmt::Debug for Rank<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rank")
            .field("setup", self.setup)
            .field("rank", &self.rank)
            .field("step", &self.driver.step())
            .finish_non_exhaustive()
    }
}

/// Checks that two runs are equal: averages, contributions, saved state, bytes and ratios, of every rank and step.
///
/// # Panics
/// If they differ, with the place and `setup`.
pub fn assert_same_runs(setup: &impl std::fmt::Display, a: &[Vec<Outcome>], b: &[Vec<Outcome>]) {
    assert_eq!(a.len(), b.len(), "{setup}: ranks");
    for (rank, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len(), "{setup}, rank {rank}: steps");
        for (step, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(same_bits(&a.average, &b.average), "{setup}, rank {rank}, step {step}: average");
            assert!(same_bits(&a.sent, &b.sent), "{setup}, rank {rank}, step {step}: sent");
            assert_eq!(a.state, b.state, "{setup}, rank {rank}, step {step}");
            let books = |o: &Outcome| (o.reported, o.counted, o.ratio);
            assert_eq!(books(a), books(b), "{setup}, rank {rank}, step {step}");
        }
    }
}

/// Runs `body` on one thread per rank.
pub fn each_rank<T: Send>(world: Vec<Session>, body: impl Fn(Session, usize) -> T + Sync) -> Vec<T> {
    let nothing = world.iter().map(|_| ()).collect();
    each_pair(world, nothing, |comm, (), rank| body(comm, rank))
}

/// Runs `body` on one thread per rank, with a separate value for each.
pub(super) fn each_pair<S: Send, T: Send>(
    world: Vec<Session>,
    own: Vec<S>,
    body: impl Fn(Session, S, usize) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let pairs = world.into_iter().zip(own).enumerate();
        let handles: Vec<_> = pairs.map(|(rank, (comm, own))| scope.spawn(move || body(comm, own, rank))).collect();
        // The panic message names the broken law.
        handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Returns whether both are equal to the bit.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
