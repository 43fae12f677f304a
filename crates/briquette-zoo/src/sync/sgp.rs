//! Stochastic gradient push (SGP): every rank steps by itself, and averages parameters with a few neighbors instead of
//! all ranks.
//!
//! **Why, and when not.** A step costs one message to each of a few peers, whatever the world size: no ring, no header, no
//! barrier, one latency. Replicas differ, and information needs about `log₂ W` steps to reach all `W` ranks, so a step makes
//! slightly less progress than with an exact mean. With few ranks and a fast network, exact means are better. A rank waits for
//! the messages of its current step. An occasional straggler therefore delays its neighbors, and other ranks only through
//! them.
//!
//! **Method.** The parameters that a rank trains and evaluates are `z = x / w`:
//!
//! | paper | here |
//! |---|---|
//! | `x^½ = x − γ·∇F(z)` | the inner optimizer's step of `z`, added to `x` |
//! | send `(p·x^½, p·w)` to the out-neighbors, `p = 1/(out + 1)` | to the peers of this step, keeping the own share |
//! | `x = Σ p_ij x_j^½`, `w = Σ p_ij w_j`, `z = x / w` | summed in the order own share, then by rank |
//!
//! On the directed exponential graph (the default) rank `i` sends, at step `k`, to rank `i + 2^(k mod ⌈log₂ W⌉)`. If the number
//! of ranks is a power of two and gradients are zero, all ranks agree exactly after `log₂ W` steps. If all ranks have the same
//! number of out-neighbors, the weight `w` stays 1. On other graphs it corrects for ranks that receive more than they send.
//!
//! **Overlap.** With a `staleness` of `τ`, messages travel while ranks compute, and are added `τ` steps after they were sent.
//! Shares in flight are missing from both `x` and `w`, so their quotient `z` is correct; without the weights it would not be.
//! With `p` peers `w` is near `(p + 1)/(p + 1 + τp)`, and a step of the optimizer moves `z` by `1/w` times as much, which is
//! `1 + τ/2` with one peer. The largest stable learning rate is therefore `w` times that of SGD.
//!
//! A run starts as if messages had always been in flight. Otherwise nothing would arrive during the first `τ` steps, and `w`
//! would decrease to `(p + 1)^−τ`. Each rank keeps a share `w` (as above) of its initial `x`, and gets the rest back in `τ`
//! equal parts, one per step, until the first messages arrive.
//!
//! **On the wire.** `4d + 4` bytes to each peer: the share of `x`, then that of `w`.
//!
//! **Properties.** Conserves `Σ x` and `Σ w = W`, including shares in flight, up to rounding. Replicas differ at every step:
//! the model to evaluate is `Σ x / W`, the exact mean. Ranks agree on a header only at every hundredth step. Between headers, a
//! rank whose values are not finite stops, and all other ranks stop with it. `DataParallel` must know whether every rank has
//! another batch, so it waits for all ranks at every step.
//!
//! **State.** A rank's own `z` after the last step, `w`, and its last `τ` shares, which a resumed run sends again. If the
//! world size changes, all of it is dropped, and the run restarts from the mean.
//!
//! **Knobs.** `graph`: `exponential` (the default), `exponential+p` for `p` out-neighbors a step, `ring`, `complete`, or the
//! edges of a fixed graph, `0>1;1>2;2>0`, which must connect every rank to every other. `staleness`, steps up to 8, default 0.
//!
//! **Deviations.** The paper adds a message as soon as it arrives, at most `τ` steps late. Here it is added exactly `τ` steps
//! late, so that a run is reproducible to the bit. In both, a rank that is slow for less than `τ` steps delays no other rank.
//! The paper starts with `w = 1` and nothing in flight.
//!
//! **Reference.** M. Assran, N. Loizou, N. Ballas, M. Rabbat, *Stochastic Gradient Push for Distributed Deep Learning*, ICML 2019
//! (arXiv 1811.10792), algorithms 1 and 2.
//!
//! ```
//! use briquette_zoo::sync::{graph::Graph, sgp::Sgp};
//! use briquette_core::sync::SyncStrategy;
//! let graph = Graph::default();
//! assert_eq!((0..4).map(|step| graph.peers(step, 5, 6)).collect::<Vec<_>>(), [[0], [1], [3], [0]]);
//! assert!("0>1".parse::<Graph>()?.check(2).is_err()); // nothing comes back from rank 1
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod in_flight;

use self::in_flight::InFlight;
use super::graph::Graph;
use briquette_core::config::{Described, Exchange, Sends, StrategySettings, StrategyTraits};
use briquette_core::error::{CommError, ConfigError, SyncError};
use briquette_core::report::{ExchangeSeconds, Report};
use briquette_core::state::Staged;
use briquette_core::sync::{Agrees, Context, HEADER_STEPS, Momenta, Plan, SyncStrategy, check_own};
use briquette_core::{Frame, Layout, Session, Traffic, stateful};

/// Averages parameters with neighbors; see the [module](self).
#[derive(Debug)]
pub struct Sgp {
    graph: Graph,
    in_flight: InFlight,
    /// `z` after the last step. Empty before the first step, when it equals `x`.
    shown: Staged<Vec<f32>>,
    weight: Staged<f32>,
    seconds: ExchangeSeconds,
    traffic: Traffic,
}

impl Sgp {
    /// Creates the strategy on `graph`, for `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] when the graph does not connect every rank to every other.
    pub fn new(graph: Graph, world: usize) -> Result<Self, ConfigError> {
        graph.check(world)?;
        let (in_flight, shown, seconds, traffic) = Default::default();
        Ok(Sgp { graph, in_flight, shown, weight: Staged::new(1.0), seconds, traffic })
    }

    /// Sets the staleness (Overlap SGP): messages are added this many steps after they were sent.
    #[must_use]
    pub fn with_staleness(mut self, steps: usize) -> Self {
        self.in_flight.staleness = steps;
        self
    }

    /// Returns this rank's push-sum weight `w`.
    pub fn weight(&self) -> f32 {
        *self.weight.now()
    }

    /// Computes `x` from `z`: a change of `z` by the inner optimizer is the same change of `x`.
    fn numerator(&self, z: &[f32], out: &mut Vec<f32>) {
        out.clear();
        match (self.weight(), self.shown.now()) {
            (1.0, _) => out.extend_from_slice(z),
            (w, shown) => out.extend(z.iter().zip(shown).map(|(z, shown)| w * shown + (z - shown))),
        }
    }

    /// Sends shares of `x` and of the weight, and adds the shares that arrive, which other ranks sent at this step or, with a
    /// staleness, at an earlier one. Returns the new weight.
    fn mix(&mut self, x: &mut [f32], step: u64, comm: &mut Session) -> Result<f32, CommError> {
        let peers = self.graph.peers(step, comm.rank(), comm.world()).len();
        let share = 1.0 / (peers + 1) as f32;
        let late = self.in_flight.staleness > 0 && peers > 0;
        let weight = if late { self.in_flight.begin_with(x, self.weight(), peers) } else { self.weight() };
        let weight = weight * share;
        x.iter_mut().for_each(|x| *x *= share);
        let before = comm.traffic();
        if !late {
            let came = swap((None, weight), x, (step, &self.graph), comm)?;
            self.traffic = comm.traffic() - before;
            return Ok(weight + came);
        }
        let (came, traffic) = self.in_flight.exchange((x, weight, peers), step, &self.graph, comm)?;
        self.traffic = traffic;
        Ok(weight + came)
    }
}

/// Sends a share, with its weight, to this step's peers, and adds the received shares to `x`. Returns the new weight. Without a
/// given share, `x` itself is the share.
fn swap(
    (share, weight): (Option<&[f32]>, f32),
    x: &mut [f32],
    (step, graph): (u64, &Graph),
    comm: &mut Session,
) -> Result<f32, CommError> {
    comm.scope().operation = "push to neighbours";
    let (rank, world, mut came) = (comm.rank(), comm.world(), 0.0);
    let mut mine = comm.pool().take_for(4 * x.len() + 4);
    mine.extend(share.unwrap_or(x).iter().chain([&weight]).flat_map(|v| v.to_le_bytes()));
    let sends = |from: &usize| *from != rank && graph.peers(step, *from, world).contains(&rank);
    let (to, from) = (graph.peers(step, rank, world), (0..world).filter(sends).collect::<Vec<_>>());
    let messages = comm.swap_long(&to, mine, &from)?;
    for (from, message) in from.into_iter().zip(messages) {
        came += add(x, &message).ok_or_else(|| {
            let (expected, got, during) = (4 * x.len() + 4, message.len(), *comm.scope());
            CommError::Size { rank, other: from, during, expected, got }
        })?;
        comm.pool().put(message);
    }
    comm.flush()?;
    comm.scope().operation = "";
    Ok(came)
}

/// Adds a frame's values, and returns its weight; `None` if it has another length.
fn add(x: &mut [f32], frame: &Frame) -> Option<f32> {
    let (values, rest) = frame.as_chunks::<4>();
    let (last, values) = values.split_last().filter(|(_, values)| rest.is_empty() && values.len() == x.len())?;
    x.iter_mut().zip(values).for_each(|(x, bytes)| *x += f32::from_le_bytes(*bytes));
    Some(f32::from_le_bytes(*last))
}

stateful! {
    impl Stateful for Sgp as it {
        shown: vector("shown").rank_local(Drop),
        // If the world size changed, all ranks start with the mean.
        weight: scalar("weight", 1.0),
        in_flight: when(it.in_flight.staleness > 0, flatten()),
    }
}

impl SyncStrategy for Sgp {
    fn plan(&self, step: u64) -> Plan {
        let agrees = if (step + 1).is_multiple_of(HEADER_STEPS) { Agrees::World } else { Agrees::NoRank };
        Plan::ALONE.agreeing(agrees).with_parameters(true)
    }

    fn begin(&mut self, _parameters: &[f32]) {
        self.shown.clear();
        self.weight.set(1.0);
        self.in_flight.begin();
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        let failed = |source| SyncError::Reduce { step, source };
        let start = comm.now();
        let mut x = std::mem::take(self.shown.next_mut());
        self.numerator(parameters, &mut x);
        let mixed = self.mix(&mut x, step, comm).map_err(|error| failed(error.into()));
        *self.shown.next_mut() = x;
        let weight = mixed?;
        let z = self.shown.next_mut();
        if weight != 1.0 {
            z.iter_mut().for_each(|x| *x /= weight);
        }
        check_own(z, cx, comm)?;
        parameters.copy_from_slice(z);
        self.shown.stage();
        *self.weight.next_mut() = weight;
        self.weight.stage();
        self.seconds = ExchangeSeconds::exchanging(comm.now() - start);
        Ok(Momenta::Keep)
    }

    fn after_commit(&mut self, cx: &Context<'_>, comm: &mut Session) {
        if self.in_flight.staleness > 0 {
            self.in_flight.send(cx.agreed_step.step, &self.graph, comm);
        }
    }

    fn settle(&mut self, comm: &mut Session) -> Result<(), SyncError> {
        let step = comm.scope().step;
        self.in_flight.settle(comm).map_err(|error| SyncError::Reduce { step, source: error.into() })
    }

    /// Writes `x` plus the shares that this rank has sent and no rank has added yet. The mean of the result over ranks is
    /// the mean of the parameters `z`, each weighted by its `w`.
    fn view(&self, parameters: &mut [f32]) {
        let weight = *self.weight.latest();
        if weight != 1.0 {
            parameters.iter_mut().for_each(|z| *z *= weight);
        }
        self.in_flight.add_to(parameters, true);
    }

    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        let mut x = Vec::new();
        self.numerator(parameters, &mut x);
        self.in_flight.add_to(&mut x, false);
        Some(x)
    }

    fn report(&self, report: &mut Report) {
        (report.seconds, report.traffic) = (Some(self.seconds), Some(self.traffic));
    }
}

/// Settings of [`Sgp`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "sgp",
    help = "parameters, mixed with neighbors at every step: exponential[+PEERS], ring, complete, or edges 0>1;1>2;2>0",
    representatives("sgp:exponential", "sgp:exponential+2", "sgp:exponential,staleness=2")
)]
pub struct SgpConfig {
    /// Graph of the ranks that a rank sends to.
    pub graph: Graph,
    /// Steps that messages are in flight: 0, or up to 8.
    #[setting(range = "[0, 8]")]
    pub staleness: usize,
}

impl StrategySettings for SgpConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&[], "sends parameters uncompressed")), sends: Sends::AsTheyAre }
    }

    fn build(&self, _: &Exchange, _: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Sgp::new(self.graph.clone(), world)?.with_staleness(self.staleness)))
    }

    fn min_ranks(&self, _: &Exchange) -> usize {
        1
    }

    fn channels(&self) -> usize {
        usize::from(self.staleness > 0)
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some("sends parameters uncompressed")
    }

    fn dense_reason(&self) -> Option<&'static str> {
        Some("sends parameters uncompressed")
    }
}

#[cfg(test)]
mod tests;
