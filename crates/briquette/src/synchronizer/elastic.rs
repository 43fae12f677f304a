//! Elastic worlds: training continues with the survivors when a rank is lost.

mod hand_over;

use briquette_core::comm::Scope;
use briquette_core::error::{CommError, ConfigError, ReduceError, SyncError};
use briquette_core::membership::{Generation, MembershipError, Regroup, Regrouped, Standing, is_loss};
use briquette_core::state::State;
use briquette_core::step::{Exchanged, check_elastic};
use briquette_core::sync::{Plan, RankStep, StopFlags, SyncStrategy};
use burn::module::Module;

use super::Synchronizer;
use super::timing::Start;
use crate::error::Error;
use crate::handshake::Identity;
use crate::step_report::NewGeneration;

/// Names of the step and the strategy in a state that is handed over.
const STEP: &str = "step";
const EXCHANGES: &str = "exchanges";
const STRATEGY: &str = "strategy";

/// Membership of this rank, if its world is elastic.
#[derive(Default)]
pub(super) struct Elastic {
    membership: Option<Box<dyn Regroup>>,
    /// The step at which the current generation began, unless it is the first.
    pub(super) began: Option<u64>,
    /// Set from a change of the world in a committed step to the end of that step.
    is_new: bool,
    /// Number of exchanges and [calls](Synchronizer::conclude) that were committed, now and when the current generation began.
    exchanges: u64,
    exchanges_before: u64,
    /// Set if some steps exchange nothing: ranks then notice a loss at different steps.
    has_local_steps: bool,
    /// Set until all ranks have completed an exchange in the current generation.
    is_unsettled: bool,
    /// Set if ranks have agreed to admit candidates at the end of this step.
    pub(super) admits: bool,
    /// Set while members hand their state over to new ones.
    hands_over: bool,
    /// Number of new members in the current generation.
    new: usize,
    /// Set on a new member until it has received its state.
    enters: bool,
    /// Energy of each rank's residual before the last exchange.
    residual_energies: Vec<f64>,
    /// Generations that the next report contains.
    pub(super) unreported: Vec<NewGeneration>,
}

/// Reason for which a rank leaves its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// A rank was lost. If the driver has voted on a step, the step is in doubt.
    Loss,
    /// A rank was lost during the vote on a call outside of a step, which is in doubt.
    Call,
    /// Ranks have agreed to admit candidates.
    Admission,
}

/// Beginning of a generation.
struct Begun {
    /// The step's exchange that was in doubt, if it is committed.
    exchanged: Option<Exchanged>,
    /// Set if what was in doubt is committed.
    commits: bool,
    has_new_members: bool,
}

impl Elastic {
    /// Keeps the energies of the ranks' residuals, as they have agreed on them.
    pub(super) fn observe_residuals(&mut self, ranks: &[RankStep]) {
        if self.membership.is_some() {
            self.residual_energies = ranks.iter().map(|rank| rank.residual_energy).collect();
        }
    }

    /// Returns the share of the energy of all residuals that these ranks had, if there was any.
    fn residual_share(&self, ranks: &[usize]) -> Option<f64> {
        let all: f64 = self.residual_energies.iter().sum();
        let own: f64 = ranks.iter().filter_map(|rank| self.residual_energies.get(*rank)).sum();
        (all > 0.0 && all.is_finite()).then(|| own / all)
    }

    /// Returns the request to admit a candidate, if one has called this rank.
    pub(super) fn asks(&self) -> StopFlags {
        let has_candidates = self.membership.as_ref().is_some_and(|membership| membership.has_candidates());
        if has_candidates { StopFlags::CANDIDATE } else { StopFlags::NONE }
    }

    /// Returns what ranks compare. With new members, this leaves out what depends on the steps that were made: settings of a part or a
    /// size of the run, and the optimizer's answer to test gradients.
    pub(super) fn compared(&self, identity: &Identity) -> Identity {
        let mut compared = identity.clone();
        if self.hands_over {
            (compared.part, compared.size, compared.optimizer) = Default::default();
        }
        compared
    }
}

impl Synchronizer {
    /// Makes the world elastic: if a rank is lost during a step, the survivors form a new world and compute the same step again;
    /// see [`DistributedOptimizer::with_membership`](crate::DistributedOptimizer::with_membership).
    #[must_use]
    pub fn with_membership(mut self, membership: impl Regroup + 'static) -> Self {
        self.driver.set_votes(true);
        self.elastic.new = membership.new_members();
        self.elastic.enters = self.is_new_member();
        self.elastic.membership = Some(Box::new(membership));
        self
    }

    /// Returns the current generation of an elastic world.
    pub fn generation(&self) -> Option<&Generation> {
        self.elastic.membership.as_ref().map(|membership| membership.generation())
    }

    /// Returns the number of members that are new in the current generation; they have the last ranks.
    pub fn new_members(&self) -> usize {
        self.elastic.new
    }

    /// Returns whether all ranks are at the same step of the current generation. With steps that exchange nothing (Local SGD), ranks notice a loss at
    /// different steps. Change everything that depends on rank and world, such as the division of the samples, only when the world is settled: at
    /// the latest at the end of the generation's first exchange. Until then, make no calls of all ranks between exchanges (evaluations, saves),
    /// except at the end of the run.
    pub fn is_settled(&self) -> bool {
        !self.elastic.is_unsettled
    }

    /// Continues after `error` if it means that a rank of an elastic world was lost: forms the next world, unless the failed call
    /// has done so. The caller then repeats the call, or computes the step again, as every survivor does.
    ///
    /// # Errors
    /// The error itself, if it has another cause; [`Error::Membership`] if this rank cannot be part of the next world.
    pub fn recover<M: Module>(&mut self, module: &M, error: Error) -> Result<(), Error> {
        match error {
            Error::WorldChanged { .. } => Ok(()),
            error if self.is_survivable(&error) => {
                self.undo_forward(module);
                match self.next_world(module, Occasion::Loss)?.exchanged {
                    // The gradient of a vote is known only within the step.
                    Some(_) => Err(error),
                    None => Ok(()),
                }
            }
            error => Err(error),
        }
    }

    /// Concludes a call of all ranks outside of a step, whose result on this rank is `result`: returns it once every rank has made the call, or
    /// `None` if a rank was lost meanwhile and the survivors repeat the call in their next world. Like a step, the call is voted on, so that
    /// either all survivors repeat it or none. In a fixed world it does nothing. Under local steps, ranks must be at the same step.
    ///
    /// # Errors
    /// The error of the call, if it has another cause; [`Error::Membership`] if this rank cannot be part of the next world.
    pub fn conclude<M: Module, T>(&mut self, module: &M, result: Result<T, Error>) -> Result<Option<T>, Error> {
        if self.elastic.membership.is_none() {
            return result.map(Some);
        }
        let value = match result {
            Ok(value) => value,
            Err(error) => return self.recover(module, error).map(|()| None),
        };
        self.comm.scope().operation = "vote";
        if let Err(error) = self.comm.barrier() {
            let error = Error::from(error);
            if !self.is_survivable(&error) {
                return Err(error);
            }
            if !self.next_world(module, Occasion::Call)?.commits {
                return Ok(None);
            }
        }
        self.elastic.exchanges += 1;
        Ok(Some(value))
    }

    /// Waits until every rank has ended its last step, and returns whether all have. A rank that leaves at once may leave another one in
    /// doubt about that step. If a rank is lost meanwhile, this one is in the next world: it repeats what the ranks do together at the end
    /// of the run, and calls this again. Call it at the end of an elastic run; in a fixed world it does nothing.
    ///
    /// # Errors
    /// Those of [`recover`](Self::recover), except that a rank whose steps are complete needs no other one.
    pub fn leave<M: Module>(&mut self, module: &M) -> Result<bool, Error> {
        if self.elastic.membership.is_none() {
            return Ok(true);
        }
        let Err(error) = self.comm.barrier() else { return Ok(true) };
        match self.recover(module, error.into()) {
            Ok(()) => Ok(false),
            // The others have passed the barrier and left.
            Err(Error::Membership(MembershipError::Minority { .. })) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Refuses `what` in an elastic world: a new member would not have it.
    pub(crate) fn check_fixed(&self, what: &str) -> Result<(), ConfigError> {
        match self.elastic.membership {
            None => Ok(()),
            Some(_) => {
                let why = "a new member would begin with another one";
                Err(ConfigError::conflict("an elastic world", what, why, "leave out one of the two"))
            }
        }
    }

    /// Refuses averages of parameters in an elastic world for `what`, which repeats a step before its optimizer's.
    #[cfg(feature = "train")]
    pub(crate) fn check_averages_gradients(&self, what: &str) -> Result<(), ConfigError> {
        let averages_gradients = !self.elastic.has_local_steps && super::averages_gradients(self.driver.plan());
        if self.elastic.membership.is_none() || averages_gradients {
            return Ok(());
        }
        let why = "ranks may be at different steps when one is lost";
        let with = format!("an average of parameters in {what}");
        Err(ConfigError::conflict("an elastic world", with, why, "use every-step, or a loop of your own"))
    }

    /// Refuses what an elastic world cannot continue.
    pub(super) fn check_elastic(&mut self, strategy: &dyn SyncStrategy) -> Result<(), ConfigError> {
        if self.elastic.membership.is_none() {
            return Ok(());
        }
        self.elastic.has_local_steps = check_elastic(strategy)?;
        let conflict = |with: &str, why: &str, instead: &str| {
            Err(ConfigError::conflict("an elastic world", with.to_owned(), why, instead.to_owned()))
        };
        if self.config.channels() > usize::from(self.config.during_backward()) {
            let why = "an exchange in the background cannot be repeated";
            return conflict("exchanges in the background", why, "leave out delayed strategies");
        }
        if self.rebroadcast.is_some_and(|steps| steps > 0) {
            let why = "a broadcast that fails half-way cannot be repeated";
            return conflict("re-broadcasts of parameters", why, "leave out the re-broadcast");
        }
        Ok(())
    }

    /// Handles a failed exchange: if a rank was lost, forms the next world. Returns the exchange if it was in doubt and is committed.
    pub(super) fn continue_without_lost<M: Module>(
        &mut self,
        module: &M,
        error: impl Into<Error>,
    ) -> Result<Exchanged, Error> {
        let error = error.into();
        if !self.is_survivable(&error) {
            // No election decides on a step in doubt.
            self.driver.resolve(false);
            return Err(error);
        }
        let before = self.world();
        match self.next_world(module, Occasion::Loss)?.exchanged {
            // Those that committed have had the election with candidates in common with this one.
            Some(mut exchanged) => {
                exchanged.stop = exchanged.stop.without(StopFlags::CANDIDATE);
                // Of the old world; the others have forgotten them.
                exchanged.ranks.clear();
                Ok(exchanged)
            }
            None => {
                let (step, rank, world) = (self.step(), self.rank(), self.world());
                let generation = self.generation().map_or(0, |generation| generation.number);
                Err(Error::WorldChanged { step, generation, rank, world, before })
            }
        }
    }

    /// As [`continue_without_lost`](Self::continue_without_lost), where no step is in doubt. Returns the error.
    pub(super) fn repeat_without_lost<M: Module>(&mut self, module: &M, error: Error) -> Error {
        match self.continue_without_lost(module, error) {
            Err(error) => error,
            Ok(_) => unreachable!("no step is in doubt"),
        }
    }

    /// As [`continue_without_lost`](Self::continue_without_lost), for an exchange of parameters: `None` if this rank repeats the exchange, of
    /// the same parameters, in the next world.
    pub(super) fn exchange_again<M: Module>(
        &mut self,
        module: &M,
        error: SyncError,
    ) -> Result<Option<Exchanged>, Error> {
        match self.continue_without_lost(module, error) {
            Ok(exchanged) => Ok(Some(exchanged)),
            Err(Error::WorldChanged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends a step after which the world is new.
    pub(super) fn end_elastic_step(&mut self, plan: Plan) {
        let is_new = std::mem::take(&mut self.elastic.is_new);
        if plan.exchanges() {
            self.elastic.exchanges += 1;
            self.elastic.is_unsettled &= is_new;
        }
        if is_new {
            // Measurements of the old world are not compared with those of the new one.
            self.driver.resume(self.driver.step(), None, None);
            self.elastic.began = Some(self.driver.step());
        }
    }

    fn is_survivable(&self, error: &Error) -> bool {
        let lost = match error {
            Error::Comm(error) => Some(error),
            Error::Sync(SyncError::Reduce { source: ReduceError::Comm(error), .. }) => Some(error),
            Error::Reduce(ReduceError::Comm(error)) => Some(error),
            _ => None,
        };
        // A rank whose own transport failed is the one that is lost.
        let is_own = |error: &CommError| matches!(error, CommError::Lost { rank, other, .. } if rank == other);
        // A new member that fails by itself before its first exchange is lost, too.
        let is_untrained = self.elastic.exchanges == self.elastic.exchanges_before;
        let is_of_new = |error: &CommError| matches!(error, CommError::Aborted { by, .. } if is_untrained && *by >= self.world() - self.elastic.new);
        let is_loss = |error: &CommError| is_loss(error) && !is_own(error) || is_of_new(error);
        self.elastic.membership.is_some() && lost.is_some_and(is_loss)
    }

    fn load_strategy<M: Module>(&mut self, module: &M, saved: &State) -> Result<(), Error> {
        let strategy = self.strategy_of(module, saved)?;
        self.driver.set_strategy(strategy);
        Ok(())
    }

    /// Forms the next world with the other members, and converts this rank's state to it.
    fn next_world<M: Module>(&mut self, module: &M, occasion: Occasion) -> Result<Begun, Error> {
        let (step, in_doubt) = (self.elastic.exchanges, self.driver.in_doubt() || occasion == Occasion::Call);
        let standing = Standing { step, in_doubt, is_new: false };
        let (before, began) = (self.world(), self.comm.now());
        self.end_with_session();
        let membership = self.elastic.membership.as_mut().expect("checked by the callers");
        let regrouped = membership.regroup(standing, occasion == Occasion::Admission).inspect_err(|_| {
            // Without a next world, this rank does not commit a step in doubt.
            self.driver.resolve(false);
        })?;
        let Regrouped { session, generation, before: ranks, commits, .. } = regrouped;
        let mut lost = std::mem::replace(&mut self.comm, session);
        // Seconds go on as they were.
        std::mem::swap(lost.timeline_mut(), self.comm.timeline_mut());
        drop(lost);
        let exchanged = self.driver.resolve(commits);
        self.forget_speeds();
        self.forget_order();
        self.survive(module, before).inspect_err(|error| self.comm.abort(&error.to_string()))?;
        let (step, now) = (self.step(), self.comm.now());
        match exchanged {
            Some(_) => self.elastic.is_new = true,
            None => {
                self.driver.resume(step, None, None);
                self.elastic.began = Some(step);
            }
        }
        (self.last_end, self.leaders) = (now, None);
        self.start = Start { now, compute_seconds: self.start.compute_seconds, ..Start::default() };
        let lost: Vec<usize> = (0..before).filter(|rank| !ranks.contains(rank)).collect();
        let begun = NewGeneration {
            number: generation.number,
            world: self.world(),
            lost_residual: self.elastic.residual_share(&lost),
            lost,
            new_members: self.world() - ranks.len(),
            seconds: now - began,
        };
        if self.rank() == 0 {
            let NewGeneration { number, lost, new_members, seconds, lost_residual, .. } = &begun;
            let share = lost_residual
                .filter(|_| !lost.is_empty())
                .map(|share| format!(" and {:.0} % of the residuals", 100.0 * share));
            let (left, share) = (ranks.len(), share.unwrap_or_default());
            tracing::warn!(
                "generation {number} at step {step}, after {seconds:.2} s: {left} of {before} ranks, without {lost:?}{share}, and {new_members} new"
            );
        }
        self.elastic.unreported.push(begun);
        self.elastic.residual_energies.clear();
        *self.comm.scope() = Scope { operation: "compute", step, bucket: None };
        self.elastic.new = self.world() - ranks.len();
        self.elastic.exchanges_before = self.elastic.exchanges;
        // New members are admitted after an exchange, at the same step on all ranks.
        self.elastic.is_unsettled = self.elastic.has_local_steps && self.elastic.new == 0;
        Ok(Begun { exchanged, commits, has_new_members: self.elastic.new > 0 })
    }

    /// Converts the strategy's state from a world of `before` ranks: what waits keeps its weight in the mean.
    fn survive<M: Module>(&mut self, module: &M, before: usize) -> Result<(), Error> {
        let fresh = self.fresh_strategy(module)?;
        Ok(self.driver.survive(fresh, before, self.world())?)
    }
}
