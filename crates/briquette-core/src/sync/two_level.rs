//! Two levels: exact means of gradients inside a machine at every step, another strategy between machines.
//!
//! **Why, and when not.** Ranks of one machine exchange fast, machines slowly. Inside, every step is one of a large minibatch, and replicas
//! stay equal; between machines ranks are apart for as long as the strategy there leaves them. Where every rank has a machine of its own it is
//! that strategy alone, and on one machine synchronous SGD; for an exchange between machines at every step take the
//! [reducer](crate::reduce::hierarchical) of two levels.
//!
//! **Method.** In a world of `W` ranks on `M` machines, `g_i` the gradient of rank `i` over `n_i` samples:
//!
//! ```text
//! inside a machine, every step:  g = Σ n_i·g_i / Σ n_i        a dense all-reduce, then the optimizer's step
//! between machines, when due:    x ← the strategy's, among the first ranks of machines, in a world of M
//! inside again:                  x from the first rank to the others
//! ```
//!
//! | setting | is then |
//! |---|---|
//! | one machine | synchronous SGD |
//! | a rank on each | the strategy between, to the bit |
//! | Local SGD between | hierarchical local SGD, with one step inside a block |
//!
//! **On the wire.** Inside a machine of `n` ranks a header and a ring's `8d(n−1)/n` bytes of a rank at every step, and `4d + 8` to each of
//! `n − 1` ranks when the strategy between has exchanged. Between machines what that sends in a world of `M`: `n` times fewer messages than
//! if every rank took part.
//!
//! **Properties.** Ranks of a machine have the same parameters at every step, and the same learning rate. They agree on a header of their
//! own; all ranks do where the strategy between wants that, and learn there of requests to stop. Values that are not finite end the
//! world at steps on which only machines agree. The mean over machines is what is evaluated: machines weigh the same, whatever their ranks.
//!
//! **State.** The strategy's between, on the first ranks of machines; in a world of another size it begins anew from the mean.
//!
//! **Knobs.** `between`, a strategy of parameters that exchanges in the foreground and not at every step; `group`, ranks that count as
//! on one machine, in the order of their numbers, a divisor of the world; by default the ranks that [are on one](crate::comm::Places).
//!
//! **Deviations.** The paper has local steps inside blocks, too, and one period for each level; inside, here, every step is synchronous.
//!
//! **Reference.** T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, *Don't Use Large Mini-Batches, Use Local SGD*, ICLR 2020 (arXiv 1808.07217):
//! its *hierarchical local SGD*.
//!
//! ```
//! use briquette_core::config::StrategyConfig;
//! use briquette_core::sync::{Agrees, Periodic, SyncStrategy, TwoLevel, TwoLevelConfig};
//!
//! let strategy = TwoLevel::new(Periodic::new(4)?, Some(2));
//! let plans: Vec<_> = (0..8).map(|step| strategy.plan(step)).collect();
//! assert!(plans.iter().all(|plan| plan.gradients));
//! let between: Vec<usize> = (0..8).filter(|&step| plans[step].parameters).collect();
//! assert_eq!((between, plans[0].agrees), (vec![3, 7], Agrees::Machine(Some(2))));
//! let between = Box::new("slowmo:8".parse::<StrategyConfig>()?);
//! assert_eq!("two-level:(slowmo:8),group=2".parse(), Ok(StrategyConfig::from(TwoLevelConfig { between, group: Some(2) })));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod config;

pub use config::TwoLevelConfig;

use super::{Agrees, Context, Momenta, Plan, RankStep, SyncStrategy, check_own};
use crate::error::{StateError, SyncError};
use crate::report::{Measured, Report};
use crate::state::{OnResize, Place, Staged, State, Stateful};
use crate::{CompressionFactor, Session, Traffic};

/// By the numbers that they travel as.
const MOMENTA: [Momenta; 3] = [Momenta::Keep, Momenta::Reset, Momenta::Average];

/// Exact inside machines, another strategy between them; see the [module](self).
#[derive(Debug)]
pub struct TwoLevel<S> {
    between: S,
    group: Option<usize>,
    /// Whether gradients come weighed by their samples.
    weighs: bool,
    /// What takes the vector's place when the exchange has succeeded.
    next: Vec<f32>,
    /// What this rank's vector counts for in a mean over ranks that is to be one over machines: `W/M` on the first of a machine, else 0;
    /// nothing before the first step.
    share: Staged<Vec<f32>>,
    report: Report,
}

impl<S: SyncStrategy> TwoLevel<S> {
    /// Machines of `group` ranks, or as the session knows them, exchange through `between`.
    pub fn new(between: S, group: Option<usize>) -> Self {
        let (next, share, report) = Default::default();
        TwoLevel { between, group, weighs: true, next, share, report }
    }

    /// Whether gradients come weighed by their samples; they do if this is not called.
    #[must_use]
    pub fn weighed(self, weighs: bool) -> Self {
        TwoLevel { weighs, ..self }
    }

    /// The weights of this rank's machine together.
    fn weights(&self, cx: &Context<'_>, machine: &[usize], world: usize) -> f32 {
        // Where machines agree by themselves, weights are of the machine.
        if !self.weighs || cx.ranks.len() != world {
            return machine.len() as f32;
        }
        let samples = |ranks: &mut dyn Iterator<Item = &RankStep>| ranks.map(|rank| rank.samples as f64).sum::<f64>();
        let all = samples(&mut cx.ranks.iter());
        let own = samples(&mut machine.iter().map(|rank| &cx.ranks[*rank]));
        if all == 0.0 { 0.0 } else { (own * world as f64 / all) as f32 }
    }

    /// Of a mean over ranks makes one over machines.
    fn count(&self, vector: &mut [f32]) {
        if let Some(&share) = self.share.latest().first().filter(|share| **share != 1.0) {
            vector.iter_mut().for_each(|x| *x = if share == 0.0 { 0.0 } else { *x * share });
        }
    }

    fn took(&mut self, (seconds, before): (f64, Traffic), comm: &Session) {
        let own = self.report.seconds.get_or_insert_default();
        // What the strategy between has not stated itself.
        own.exchange += (comm.now() - seconds - own.compress - own.exchange).max(0.0);
        self.report.traffic = Some(comm.traffic() - before);
    }
}

impl<S: SyncStrategy> Stateful for TwoLevel<S> {
    /// Other ranks than the first of a machine never exchange between: what that one keeps is its own.
    fn save(&self, state: &mut State) {
        let (mut between, own) = (State::default(), Place::PerRank(OnResize::Drop));
        between.put_part("between", &self.between);
        for (name, value) in between.iter() {
            state.put_at(own, name, value.clone());
        }
        state.put_at(own, "share", self.share.now().clone());
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let share = state.f32s("share", None)?.to_vec();
        state.load_part("between", &mut self.between)?;
        self.share.set(share);
        Ok(())
    }

    fn commit(&mut self) {
        let is_first = self.share.is_staged();
        self.share.commit();
        self.between.commit();
        if is_first && self.share.now() == &[0.0] {
            // It was not known at the beginning that nothing is to be kept here.
            self.between.begin(&[]);
        }
    }

    fn discard(&mut self) {
        self.share.discard();
        self.between.discard();
    }
}

impl<S: SyncStrategy> SyncStrategy for TwoLevel<S> {
    fn plan(&self, step: u64) -> Plan {
        let between = self.between.plan(step);
        let agrees = if between.agrees == Agrees::World { Agrees::World } else { Agrees::Machine(self.group) };
        Plan { agrees, gradients: true, same_rate: true, ..between }
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.share.set(Vec::new());
        self.between.begin(parameters);
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let (start, places) = ((comm.now(), comm.traffic()), comm.places_in(self.group));
        let machine = places.machine();
        let weights = self.weights(cx, machine, comm.world());
        let share = if weights == 0.0 { 0.0 } else { 1.0 / weights };
        self.next.clear();
        self.next.extend(gradient.iter().map(|g| g * share));
        comm.scope().operation = "mean of gradients inside a machine";
        let sum = comm.within(machine, |machine| machine.all_reduce_sum(&mut self.next));
        comm.scope().operation = "";
        sum.map_err(|error| SyncError::Reduce { step: cx.agreed_step.step, source: error.into() })?;
        check_own(&self.next, cx, comm)?;
        std::mem::swap(gradient, &mut self.next);
        if self.share.now().is_empty() {
            let share = comm.world() as f32 / places.machines().len() as f32;
            *self.share.next_mut() = vec![if places.leads() { share } else { 0.0 }];
            self.share.stage();
        }
        self.report = Report::default();
        self.took(start, comm);
        Ok(())
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let (start, inside) = ((comm.now(), comm.traffic()), std::mem::take(&mut self.report));
        let (places, mut momenta) = (comm.places_in(self.group), Momenta::Keep);
        self.next.clone_from(parameters);
        if places.leads() {
            let machine = |machine: &Vec<usize>| RankStep::together(machine.iter().map(|rank| &cx.ranks[*rank]));
            let all_agree = cx.ranks.len() == comm.world();
            let ranks: Vec<RankStep> = places.machines().iter().filter(|_| all_agree).map(machine).collect();
            let cx = Context { ranks: &ranks, ..*cx };
            momenta = comm.within(&places.leaders(), |all| self.between.after_step(&mut self.next, &cx, all))?;
            self.between.report(&mut self.report);
            // The other ranks of a machine have nothing to measure, and headers are as long as theirs.
            self.report.measured = Measured::default();
        }
        // What all ranks are to know of it goes behind the parameters.
        let code = MOMENTA.iter().position(|one| *one == momenta).unwrap_or_default();
        self.next.extend([code as f32, self.report.factor.map_or(0.0, |factor| factor.get() as f32)]);
        comm.scope().operation = "parameters inside a machine";
        let sent = comm.within(places.machine(), |machine| machine.broadcast_values(0, &mut self.next));
        comm.scope().operation = "";
        let [factor, code] = [(); 2].map(|()| self.next.pop().unwrap_or_default());
        sent.map_err(|error| SyncError::Reduce { step: cx.agreed_step.step, source: error.into() })?;
        self.report.factor = CompressionFactor::new(f64::from(factor)).ok();
        std::mem::swap(parameters, &mut self.next);
        self.took(start, comm);
        self.report.seconds.get_or_insert_default().exchange += inside.seconds.map_or(0.0, |seconds| seconds.exchange);
        self.report.traffic = self.report.traffic.map(|traffic| traffic + inside.traffic.unwrap_or_default());
        Ok(MOMENTA.get(code as usize).copied().unwrap_or_default())
    }

    fn view(&self, parameters: &mut [f32]) {
        self.between.view(parameters);
        self.count(parameters);
    }

    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        let mut conserved = self.between.conserved(parameters)?;
        self.count(&mut conserved);
        Some(conserved)
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

#[cfg(test)]
mod tests;
