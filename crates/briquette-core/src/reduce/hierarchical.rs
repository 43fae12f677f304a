//! Adds up inside each machine first, exactly, and exchanges between machines by another reducer.
//!
//! **Why, and when not.** Ranks of one machine share its link to the others. If each exchanges by itself, that link carries as many messages
//! as the machine has ranks; here it carries one. Inside, memory is fast enough for exact sums. Where every rank has a machine of its own
//! nothing is gained, and two hops are lost.
//!
//! **Method.** In a world of `W` ranks on `M` machines:
//!
//! 1. the ranks of a machine sum `x_r·M/W`, by a dense all-reduce;
//! 2. the first rank of each machine exchanges that sum with the other first ranks, by the reducer `between`, in a world of `M`;
//! 3. and sends the average to the others of its machine.
//!
//! The mean over machines of those sums is the mean over ranks, also where machines have different numbers of ranks.
//!
//! **On the wire.** Between machines what `between` sends in a world of `M`. A gather of `W` ranks has `n = W/M` ranks of a machine send to each
//! rank of every other; here one sends to one: `n²` times fewer messages on each link. A ring crosses each link once anyway, so a dense `between`
//! saves latencies alone. Inside a machine of `n` ranks an all-reduce and `4d` to each of the others, twice that where a wrapper asks what was
//! sent.
//!
//! **Properties.** What is not sent is lost of a machine's sum: every rank of it remembers the same share, so residuals do not hold what differs
//! between ranks of one machine. That of one rank may exceed its own vector, so no class is promised for each rank. No rank chose
//! coordinates of its own vector, whatever `between` does: momentum factor masking has nothing to mask.
//!
//! **State.** The reducer's between machines, on their first ranks.
//!
//! **Knobs.** `between`, a reducer (dense); `group`, ranks that count as on one machine, in the order of their numbers, a divisor of the
//! world; by default the ranks that [are on one](crate::comm::Places), of which machines may have different numbers. A `between` with groups of
//! its own, for a third level, wants `group` here, so that it is known how many machines there are.
//!
//! **Deviations.** One rank of a machine exchanges for all; dividing the vector among them would use a machine's cores better.
//!
//! **Reference.** P. Goyal, P. Dollár, R. Girshick, P. Noordhuis, L. Wesolowski, A. Kyrola, A. Tulloch, Y. Jia, K. He, *Accurate, Large Minibatch
//! SGD: Training ImageNet in 1 Hour*, 2017 (arXiv 1706.02677), section 4.1: the three steps. Compressed between machines it is common
//! practice; the state's division among ranks is ours.
//!
//! ```
//! use briquette_core::comm::{Compute, Simulated, run_ranks};
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, Dense, Hierarchical, Reducer, Round};
//! use briquette_core::{Key, Layout};
//! use std::time::Duration;
//!
//! // Three ranks on two machines: 1 and 2 on one, 6 on the other.
//! let world = Simulated::world(3, "1gbit,50us,2".parse()?, Compute::Fixed(Duration::ZERO));
//! let averages = run_ranks(world, |mut comm| {
//!     let (layout, mut average) = (Layout::flat(1), [0.0]);
//!     let input = [[1.0], [2.0], [6.0]][comm.rank()];
//!     let round = Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None };
//!     Hierarchical::new(Dense, None).reduce(round, &mut comm)?;
//!     Ok::<_, ReduceError>(average[0])
//! });
//! assert!(averages.into_iter().all(|average| (average.unwrap() - 3.0).abs() < 1e-6));
//! # Ok::<_, briquette_core::error::ConfigError>(())
//! ```

use std::ops::Range;

use super::{Exchanged, Reducer, Round, Selection, check_average};
use crate::comm::Places;
use crate::config::{Described, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};
use crate::error::{ConfigError, ReduceError, StateError};
use crate::report::Report;
use crate::state::{OnResize, Place, State, Stateful};
use crate::{Layout, Session, Slot};

/// Exact inside machines, another reducer between them; see the [module](self).
#[derive(Debug)]
pub struct Hierarchical<R> {
    between: R,
    group: Option<usize>,
    /// The machine's sum.
    sum: Vec<f32>,
    /// What its first rank sent of it.
    sent: Vec<f32>,
}

impl<R: Reducer> Hierarchical<R> {
    /// Machines of `group` ranks, or as the session knows them, exchange through `between`.
    pub fn new(between: R, group: Option<usize>) -> Self {
        Hierarchical { between, group, sum: Vec::new(), sent: Vec::new() }
    }

    fn exchange(&mut self, round: Round<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let places = comm.places_in(self.group);
        let (machine, leaders) = (places.machine(), places.leaders());
        let share = leaders.len() as f32 / comm.world() as f32;
        self.sum.clear();
        self.sum.extend(input.iter().map(|x| x * share));
        comm.within(machine, |machine| machine.all_reduce_sum(&mut self.sum))?;
        let mut result = Ok(());
        if places.leads() {
            let sent = sent.is_some().then(|| {
                self.sent.resize(input.len(), 0.0);
                &mut self.sent[..]
            });
            let round = Round { key, slots, agreed_step, input: &self.sum, average: &mut *average, sent };
            let exchanged = comm.within(&leaders, |leaders| self.between.reduce(round, leaders));
            result = exchanged.map(drop);
            match &result {
                // All leaders have this error. The average holds what `between` left there, so it is marked for the others.
                Err(ReduceError::Overflow { slot: path }) => {
                    let slot = slots.iter().find(|slot| slot.path() == path);
                    average[slot.map_or(0..input.len(), Slot::range)].fill(f32::NAN);
                }
                Err(_) => return result,
                Ok(()) => {}
            }
        }
        comm.within(machine, |machine| machine.broadcast_values(0, average))?;
        if let Some(sent) = sent {
            self.sent.resize(input.len(), 0.0);
            comm.within(machine, |machine| machine.broadcast_values(0, &mut self.sent))?;
            // Of what the machine did not send, every rank of it remembers an equal part.
            let part = 1.0 / (share * machine.len() as f32);
            let machines = self.sum.iter().zip(&self.sent);
            for ((sent, input), (sum, of_machine)) in sent.iter_mut().zip(input).zip(machines) {
                *sent = input - part * (sum - of_machine);
            }
        }
        check_average(average, slots)?;
        result
    }
}

impl<R: Reducer> Stateful for Hierarchical<R> {
    /// Other ranks than the first of a machine never exchange: what that one remembers is its own.
    fn save(&self, state: &mut State) {
        let mut between = State::default();
        between.put_part("between", &self.between);
        for (name, value) in between.iter() {
            state.put_at(Place::PerRank(OnResize::Drop), name, value.clone());
        }
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        state.load_part("between", &mut self.between)
    }
    fn commit(&mut self) {
        self.between.commit();
    }
    fn discard(&mut self) {
        self.between.discard();
    }
}

impl<R: Reducer> Reducer for Hierarchical<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let before = comm.traffic();
        self.exchange(round, comm)?;
        // A rank's share of what its machine did not send has no coordinates that the rank chose.
        Ok(Exchanged { traffic: comm.traffic() - before, selection: Selection::All })
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.between.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.between.report(report);
    }
}

/// Settings of [`Hierarchical`].
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HierarchicalConfig {
    /// What the first ranks of machines exchange through.
    pub between: Box<ReducerConfig>,
    /// Ranks of a machine; absent, those that are on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
}

impl Described for HierarchicalConfig {
    const NAME: &'static str = "hierarchical";
    const SETTINGS: &'static str = "(REDUCER)[,group=RANKS]";
    const HELP: &'static str = "exact sums inside each machine, REDUCER (dense) between one rank of each";

    fn check(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.group != Some(0), "group of hierarchical", "at least 1", 0)
    }

    fn representatives() -> Vec<Self> {
        let top_k = ReducerConfig::gather("topk:8x".parse().expect("a compressor's text"));
        let between = Box::new(top_k);
        vec![
            Self::default(),
            HierarchicalConfig { between: between.clone(), group: None },
            HierarchicalConfig { between, group: Some(1) },
        ]
    }
}

impl ReducerSettings for HierarchicalConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        let between = self.between.get();
        if between.downlink(1).is_some() || between.fewest_ranks() > 1 {
            let name = self.between.name();
            let why = format!(
                "hierarchical has one rank of each machine, perhaps of one alone, and {name} needs all: use it alone"
            );
            return Err(ConfigError::Conflict(why));
        }
        Ok(Box::new(Hierarchical::new(between.build(exchange, layout)?, self.group)))
    }

    fn takes_plain_sgd(&self) -> bool {
        self.between.get().takes_plain_sgd()
    }

    fn check_world(&self, world: usize) -> Result<(), ConfigError> {
        Places::check_groups(Self::NAME, self.group, world)?;
        let between = self.between.get();
        match self.group {
            Some(size) => between.check_world(world / size),
            // Nobody knows here how many machines there are.
            None => (1..=world).try_for_each(|machines| {
                let why = |error| {
                    format!("hierarchical without a group may find {machines} machines: {error}; set its group")
                };
                between.check_world(machines).map_err(|error| ConfigError::Conflict(why(error)))
            }),
        }
    }

    fn takes_all_slots(&self) -> bool {
        self.between.get().takes_all_slots()
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { is_exact: false, aggregates: false, ..self.between.get().traits() }
    }

    /// What is lost is of a machine's sum: one rank's may be longer than its own vector.
    fn error_bound(&self, _len: usize) -> Option<crate::compress::ErrorBound> {
        None
    }

    fn amplification(&self, len: usize) -> Option<f64> {
        self.between.get().amplification(len)
    }
}

#[cfg(test)]
mod tests;
