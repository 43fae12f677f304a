//! Two levels: exact means of gradients inside a machine at every step, another strategy between machines.
//!
//! **Why, and when not.** Communication is fast inside a machine and slow between machines. Inside, every step is one with a
//! large minibatch, and replicas stay equal. Between machines, ranks stay apart for as long as the strategy there allows. If
//! every rank has its own machine this is that strategy alone, and on one machine it is synchronous SGD. To exchange between
//! machines at every step, use the two-level [reducer](briquette_core::reduce::hierarchical).
//!
//! **Method.** For `W` ranks on `M` machines, with `g_i` the gradient of rank `i` over `n_i` samples:
//!
//! ```text
//! inside a machine, every step:  g = Σ n_i·g_i / Σ n_i        a dense all-reduce, then the optimizer's step
//! between machines, when due:    x ← the strategy's, among the first ranks of machines, in a world of M
//! inside again:                  x from the first rank to the others
//! ```
//!
//! | setting | equivalent to |
//! |---|---|
//! | one machine | synchronous SGD |
//! | one rank on each machine | the strategy between machines, to the bit |
//! | Local SGD between machines | hierarchical local SGD, with one step inside a block |
//!
//! **On the wire.** Inside a machine of `n` ranks, a header and a ring's `8d(n−1)/n` bytes per rank at every step, and `4d + 8`
//! to each of `n − 1` ranks after an exchange between machines. Between machines, the messages of that strategy for a world of
//! `M`: `n` times fewer than if every rank took part.
//!
//! **Properties.** Ranks of a machine have the same parameters and the same learning rate at every step. They agree on their
//! own header. All ranks agree where the strategy between machines requires it, and then also on stop requests. At steps on
//! which only machines agree, a non-finite value aborts the whole process group. The evaluated model is the mean over machines:
//! machines have equal weights, whatever their numbers of ranks.
//!
//! **State.** The state of the strategy between machines, on the first ranks of machines; if the world size changes, it
//! restarts from the mean. The assignment of ranks to machines is saved with it: with the same world size, a run resumes only
//! if that assignment is unchanged.
//!
//! **Knobs.** `between`, a strategy that exchanges parameters in the foreground and not at every step; `group`, the number of
//! consecutive ranks that count as one machine, a divisor of the world size; by default the ranks that [are on one
//! machine](briquette_core::comm::MachineMap). In that case the number of machines is not known when settings are checked: `between` must be
//! possible for every number of machines, and its controller plans for as many machines as ranks.
//!
//! **Deviations.** The paper also has local steps inside blocks, and one period for each level; here every step inside is
//! synchronous.
//!
//! **Reference.** T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, *Don't Use Large Mini-Batches, Use Local SGD*, ICLR 2020 (arXiv 1808.07217):
//! its *hierarchical local SGD*.
//!
//! ```
//! use briquette_core::config::StrategyConfig;
//! use briquette_core::sync::{Agrees, periodic::Periodic, SyncStrategy};
//! use briquette_zoo::sync::two_level::{TwoLevel, TwoLevelConfig};
//! briquette_zoo::install();
//!
//! let strategy = TwoLevel::new(Periodic::new(4)?, Some(2));
//! let plans: Vec<_> = (0..8).map(|step| strategy.plan(step)).collect();
//! assert!(plans.iter().all(|plan| plan.gradients));
//! let between: Vec<usize> = (0..8).filter(|&step| plans[step].parameters).collect();
//! assert_eq!((between, plans[0].agrees), (vec![3, 7], Agrees::Machine(Some(2))));
//! let between = "slowmo:8".parse()?;
//! assert_eq!("two-level:(slowmo:8),group=2".parse(), Ok(StrategyConfig::from(TwoLevelConfig { between, group: Some(2) })));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod config;

pub use config::TwoLevelConfig;

use briquette_core::comm::MachineMap;
use briquette_core::error::{StateError, SyncError};
use briquette_core::report::{Measured, Report};
use briquette_core::state::{OnResize, Place, Staged, State, Stateful};
use briquette_core::sync::{Agrees, Context, Momenta, Plan, RankStep, SyncStrategy, check_own};
use briquette_core::{CompressionRatio, Session, Traffic};

/// Treatments of momenta, indexed by their codes on the wire.
const MOMENTA: [Momenta; 3] = [Momenta::Keep, Momenta::Reset, Momenta::Average];

/// Value of the saved share before the first step, so that a state of step 0 differs from one that was dropped.
const BEFORE_THE_FIRST_STEP: f32 = -1.0;

/// Exact means inside machines and another strategy between them; see the [module](self).
#[derive(Debug)]
pub struct TwoLevel<S> {
    between: S,
    /// State of `between` before its first step.
    unbegun: State,
    group: Option<usize>,
    /// Set if gradients are weighted by their samples.
    weighs: bool,
    /// Replacement for the vector once the exchange has succeeded.
    next: Vec<f32>,
    /// Weight of this rank's vector in a mean over ranks that equals the mean over machines: `W/M` on the first rank of a
    /// machine, otherwise 0; empty before the first step.
    share: Staged<Vec<f32>>,
    /// For every rank the first rank of its machine; empty before the first step.
    firsts: Staged<Vec<f32>>,
    report: Report,
}

impl<S: SyncStrategy> TwoLevel<S> {
    /// Creates the strategy. Machines, of `group` ranks or as the session knows them, exchange through `between`.
    pub fn new(between: S, group: Option<usize>) -> Self {
        let (mut unbegun, next, share, firsts, report) = Default::default();
        between.save(&mut unbegun);
        TwoLevel { between, unbegun, group, weighs: true, next, share, firsts, report }
    }

    /// Sets whether gradients are weighted by their samples (the default).
    #[must_use]
    pub fn weighed(self, weighs: bool) -> Self {
        TwoLevel { weighs, ..self }
    }

    /// Returns the sum of the weights of this rank's machine.
    fn weights(&self, cx: &Context<'_>, machine: &[usize], world: usize) -> f32 {
        // If each machine agrees separately, weights are relative to the machine.
        if !self.weighs || cx.ranks.len() != world {
            return machine.len() as f32;
        }
        let samples = |ranks: &mut dyn Iterator<Item = &RankStep>| ranks.map(|rank| rank.samples as f64).sum::<f64>();
        let all = samples(&mut cx.ranks.iter());
        let own = samples(&mut machine.iter().map(|rank| &cx.ranks[*rank]));
        if all == 0.0 { 0.0 } else { (own * world as f64 / all) as f32 }
    }

    /// Returns whether another rank exchanges between machines for this one.
    fn is_led(&self) -> bool {
        self.share.latest().first() == Some(&0.0)
    }

    /// Scales a vector so that the mean over ranks becomes the mean over machines.
    fn count(&self, vector: &mut [f32]) {
        if let Some(&share) = self.share.latest().first().filter(|share| **share != 1.0) {
            vector.iter_mut().for_each(|x| *x *= share);
        }
    }

    /// Stages the assignment of ranks to machines at the first step. At later steps, and after resuming, checks that it is
    /// unchanged.
    fn take_places(&mut self, places: &MachineMap, cx: &Context<'_>, comm: &Session) -> Result<(), SyncError> {
        let mut firsts = vec![0.0; comm.world()];
        for machine in places.machines() {
            machine.iter().for_each(|rank| firsts[*rank] = machine[0] as f32);
        }
        let before = self.firsts.now();
        if before.is_empty() {
            let share = comm.world() as f32 / places.machines().len() as f32;
            *self.share.next_mut() = vec![if places.leads() { share } else { 0.0 }];
            self.share.stage();
            *self.firsts.next_mut() = firsts;
            self.firsts.stage();
        } else if *before != firsts {
            let at = |firsts: &[f32], rank: usize| firsts.get(rank).map_or(rank, |first| *first as usize);
            let rank = (0..firsts.len()).find(|&rank| before.get(rank) != Some(&firsts[rank])).unwrap_or_default();
            let (step, saved, here) = (cx.agreed_step.step, at(before, rank), at(&firsts, rank));
            return Err(SyncError::OtherMachines { step, rank, saved, here });
        }
        Ok(())
    }

    fn took(&mut self, (seconds, before): (f64, Traffic), comm: &Session) {
        let own = self.report.seconds.get_or_insert_default();
        // Time that the strategy between machines did not report.
        own.exchange += (comm.now() - seconds - own.compress - own.exchange).max(0.0);
        self.report.traffic = Some(comm.traffic() - before);
    }
}

/// By hand, because the strategy between machines runs on some ranks only, and is reset on the others.
impl<S: SyncStrategy> Stateful for TwoLevel<S> {
    /// Saves the state of `between` as rank-local: only the first rank of a machine exchanges between machines.
    fn save(&self, state: &mut State) {
        let (mut between, own) = (State::default(), Place::PerRank(OnResize::Drop));
        between.put_part("between", &self.between);
        for (name, value) in between.iter() {
            state.put_at(own, name, value.clone());
        }
        let share = self.share.now().first().copied().unwrap_or(BEFORE_THE_FIRST_STEP);
        state.put_at(own, "share", vec![share]);
        state.put_at(own, "firsts", self.firsts.now().clone());
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let (mut share, firsts) = (state.f32s("share", None)?.to_vec(), state.f32s("firsts", None)?.to_vec());
        match share[..] {
            // Dropped because the world size changed: it restarts from its initial state.
            [] => {}
            [0.0] => self.between.load(&self.unbegun)?,
            _ => state.load_part("between", &mut self.between)?,
        }
        share.retain(|share| *share != BEFORE_THE_FIRST_STEP);
        self.share.set(share);
        self.firsts.set(firsts);
        Ok(())
    }

    fn commit(&mut self) {
        let is_first = self.share.is_staged();
        self.share.commit();
        self.firsts.commit();
        self.between.commit();
        if is_first && self.is_led() {
            // At the start it was not known that nothing needs to be kept here. If this fails, more is kept than needed.
            let _ = self.between.load(&self.unbegun);
        }
    }

    fn discard(&mut self) {
        self.share.discard();
        self.firsts.discard();
        self.between.discard();
    }
}

impl<S: SyncStrategy> SyncStrategy for TwoLevel<S> {
    fn plan(&self, step: u64) -> Plan {
        let between = self.between.plan(step);
        let agrees = if between.agrees == Agrees::World { Agrees::World } else { Agrees::Machine(self.group) };
        between.agreeing(agrees).with_gradients(true).with_same_rate(true)
    }

    fn ends_at(&mut self, last: u64) {
        self.between.ends_at(last);
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.share.set(Vec::new());
        self.firsts.set(Vec::new());
        self.between.begin(parameters);
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let (start, places) = ((comm.now(), comm.traffic()), comm.machine_map_in(self.group));
        self.take_places(&places, cx, comm)?;
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
        let (places, mut momenta) = (comm.machine_map_in(self.group), Momenta::Keep);
        self.next.clone_from(parameters);
        if places.leads() {
            let machine = |machine: &Vec<usize>| RankStep::together(machine.iter().map(|rank| &cx.ranks[*rank]));
            let all_agree = cx.ranks.len() == comm.world();
            let ranks: Vec<RankStep> = places.machines().iter().filter(|_| all_agree).map(machine).collect();
            let cx = cx.with_ranks(&ranks);
            momenta = comm.within(&places.leaders(), |all| self.between.after_step(&mut self.next, &cx, all))?;
            self.between.report(&mut self.report);
            // The other ranks of a machine have nothing to measure, but their headers must have the same length.
            self.report.measured = Measured::default();
        }
        // The values that all ranks must know follow the parameters.
        let code = MOMENTA.iter().position(|one| *one == momenta).unwrap_or_default();
        self.next.extend([code as f32, self.report.ratio.map_or(0.0, |ratio| ratio.get() as f32)]);
        comm.scope().operation = "parameters inside a machine";
        let sent = comm.within(places.machine(), |machine| machine.broadcast_values(0, &mut self.next));
        comm.scope().operation = "";
        let [ratio, code] = [(); 2].map(|()| self.next.pop().unwrap_or_default());
        sent.map_err(|error| SyncError::Reduce { step: cx.agreed_step.step, source: error.into() })?;
        self.report.ratio = CompressionRatio::new(f64::from(ratio)).ok();
        std::mem::swap(parameters, &mut self.next);
        self.took(start, comm);
        self.report.seconds.get_or_insert_default().exchange += inside.seconds.map_or(0.0, |seconds| seconds.exchange);
        self.report.traffic = self.report.traffic.map(|traffic| traffic + inside.traffic.unwrap_or_default());
        Ok(MOMENTA.get(code as usize).copied().unwrap_or_default())
    }

    fn averages_momenta(&self) -> bool {
        self.between.averages_momenta()
    }

    fn view(&self, parameters: &mut [f32]) {
        if self.is_led() {
            return parameters.fill(0.0);
        }
        self.between.view(parameters);
        self.count(parameters);
    }

    /// Without a group, `between` was built for a number of machines that may differ from the actual one, and its conserved
    /// quantity may depend on that number.
    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        self.group?;
        if self.is_led() {
            return Some(vec![0.0; parameters.len()]);
        }
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
