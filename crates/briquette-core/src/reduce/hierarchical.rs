//! Hierarchical all-reduce: exact sums inside each machine, another reducer between machines.
//!
//! **Why, and when not.** Ranks of one machine share its link to other machines. If each rank exchanges separately, the link carries one
//! message per rank; here it carries one per machine. Inside a machine, memory is fast enough for exact sums. If every rank has its own
//! machine, this gains nothing and adds two hops.
//!
//! **Method.** In a world of `W` ranks on `M` machines:
//!
//! 1. the ranks of a machine sum `x_r·M/W`, by a dense all-reduce;
//! 2. the first rank of each machine exchanges that sum with the other first ranks, by the reducer `between`, in a world of `M`;
//! 3. the first rank sends the average to the other ranks of its machine.
//!
//! The mean over machines of those sums is the mean over ranks, even if machines have different numbers of ranks.
//!
//! **On the wire.** Between machines, the traffic of `between` in a world of `M`. In a gather over `W` ranks, each of the `n = W/M` ranks
//! of a machine sends to each rank of every other machine. Here one rank sends to one, which makes `n²` times fewer messages on each link.
//! A ring crosses each link once anyway, so a dense `between` saves only latencies. Inside a machine of `n` ranks: an all-reduce, and `4d`
//! bytes to each of the other ranks, or twice that if a wrapper requests `sent`.
//!
//! **Properties.** The part that is not sent is missing from a machine's sum. Every rank of the machine adds an equal share of it to its
//! residual, so residuals do not hold the differences between ranks of one machine. One rank's share may exceed its own vector, so there is
//! no error bound per rank. No rank selects coordinates of its own vector, whatever `between` does, so momentum factor masking masks
//! nothing.
//!
//! **State.** That of the reducer between machines, on their first ranks.
//!
//! **Knobs.** `between`, a reducer (default: dense). `group`, the number of consecutive ranks that count as one machine, a divisor of the
//! world size. By default it is the ranks that [are on one machine](crate::comm::MachineMap); machines may then have different numbers of
//! ranks. If `between` is itself hierarchical, for a third level, `group` is required here, so that the number of machines is known.
//!
//! **Deviations.** One rank of a machine exchanges for all. Dividing the vector among the ranks would use a machine's cores better.
//!
//! **Reference.** P. Goyal, P. Dollár, R. Girshick, P. Noordhuis, L. Wesolowski, A. Kyrola, A. Tulloch, Y. Jia, K. He, *Accurate, Large
//! Minibatch SGD: Training ImageNet in 1 Hour*, 2017 (arXiv 1706.02677), section 4.1: the three steps. Compression between machines is
//! common practice; the division of the state among ranks is ours.
//!
//! ```
//! use briquette_core::comm::{Local, run_ranks};
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, dense::Dense, hierarchical::Hierarchical, Reducer, Round};
//! use briquette_core::{Key, Layout};
//!
//! // Three ranks on two machines: 1 and 2 on one, 6 on the other.
//! let world = Local::builder(3).machines_of(2.try_into()?).build();
//! let averages = run_ranks(world, |mut comm| {
//!     let (layout, mut average) = (Layout::flat(1), [0.0]);
//!     let input = [[1.0], [2.0], [6.0]][comm.rank()];
//!     let round = Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None };
//!     Hierarchical::new(Dense, None).reduce(round, &mut comm)?;
//!     Ok::<_, ReduceError>(average[0])
//! });
//! assert!(averages.into_iter().all(|average| (average.unwrap() - 3.0).abs() < 1e-6));
//! # Ok::<_, std::num::TryFromIntError>(())
//! ```

use std::ops::Range;

use crate::comm::MachineMap;
use crate::error::{ConfigError, Conflict, ReduceError};
use crate::report::Report;
use crate::seam::{Exchanged, Reducer, Round, Selection, check_average};
use crate::settings::{Described, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};
use crate::{Layout, Session, Slot, stateful};

/// Exact sums inside machines, another reducer between them; see the [module](self).
#[derive(Debug)]
pub struct Hierarchical<R> {
    between: R,
    group: Option<usize>,
    /// The machine's sum.
    sum: Vec<f32>,
    /// The machine's contribution, as sent by its first rank.
    sent: Vec<f32>,
}

impl<R: Reducer> Hierarchical<R> {
    /// Creates a reducer that exchanges between machines through `between`. Machines have `group` ranks, or are those that the session
    /// reports.
    pub fn new(between: R, group: Option<usize>) -> Self {
        Hierarchical { between, group, sum: Vec::new(), sent: Vec::new() }
    }

    fn exchange(&mut self, round: Round<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let places = comm.machine_map_in(self.group);
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
                // All leaders return this error. The average holds the values that `between` left there, so NaN marks the error for the
                // other ranks.
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
            // Every rank of a machine keeps an equal part of what the machine did not send.
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

stateful! {
    impl<R: Reducer> Stateful for Hierarchical<R> {
        // Only the first rank of a machine exchanges.
        between: part("between").rank_local(Drop),
    }
}

impl<R: Reducer> Reducer for Hierarchical<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let before = comm.traffic();
        self.exchange(round, comm)?;
        // A rank's share of its machine's residual has no coordinates that the rank selected.
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
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "hierarchical",
    help = "exact sums inside each machine, REDUCER (dense) between one rank of each",
    representatives("hierarchical:dense", "hierarchical:gather:topk:8x", "hierarchical:gather:topk:8x,group=1")
)]
pub struct HierarchicalConfig {
    /// The reducer between the first ranks of machines.
    #[setting(syntax = "(REDUCER)")]
    pub between: ReducerConfig,
    /// Ranks per machine; by default the ranks that are on one machine.
    #[setting(range = "[1, inf)", syntax = "RANKS")]
    pub group: Option<usize>,
}

impl ReducerSettings for HierarchicalConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(Hierarchical::new(self.between.get().build(exchange, layout)?, self.group)))
    }

    fn requires_plain_sgd(&self) -> bool {
        self.between.get().requires_plain_sgd()
    }

    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        let between = self.between.get();
        if between.downlink(1).is_some() || between.min_ranks() > 1 {
            let why =
                "hierarchical has one rank of each machine, perhaps of one alone, and the other reducer needs all";
            let instead = format!("use {} alone", self.between.name());
            return Err(Conflict::new("reducer hierarchical", format!("reducer {}", self.between), why, instead));
        }
        between.check_within(exchange)
    }

    fn check_world(&self, world: usize) -> Result<(), Conflict> {
        MachineMap::check_groups(Self::NAME, self.group, world)?;
        let between = self.between.get();
        match self.group {
            Some(size) => between.check_world(world / size),
            // The number of machines is unknown here.
            None => (1..=world).try_for_each(|machines| {
                between.check_world(machines).map_err(|error| {
                    let left = "reducer hierarchical without a group";
                    let why = format!("it may find {machines} machines, and {}", error.why);
                    Conflict::new(left, format!("reducer {}", self.between), why, "set its group")
                })
            }),
        }
    }

    fn requires_all_slots(&self) -> bool {
        self.between.get().requires_all_slots()
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { is_exact: false, aggregates: false, ..self.between.get().traits() }
    }

    /// The loss is that of a machine's sum: one rank's share may be longer than its own vector.
    fn error_bound(&self, _len: usize) -> Option<crate::seam::ErrorBound> {
        None
    }

    fn amplification(&self, len: usize) -> Option<f64> {
        self.between.get().amplification(len)
    }
}

#[cfg(test)]
mod tests;
