//! Stochastic gradient push: every rank steps, and mixes parameters with a few neighbors instead of with all ranks.
//!
//! **Why, and when not.** A step costs one message to each of a few peers, whatever the world size: no ring, no header, no
//! barrier, one latency. Replicas differ, and information needs about `log₂ W` steps to reach every rank, so a step makes
//! slightly less progress than with an exact mean. With few ranks and a fast network, exact means are better. A rank waits for
//! the messages of its current step: an occasional straggler delays its neighbors, and other ranks only through them.
//!
//! **Method.** The parameters that a rank trains and evaluates are `z = x / w`:
//!
//! | paper | here |
//! |---|---|
//! | `x^½ = x − γ·∇F(z)` | the inner optimizer's step of `z`, added to `x` |
//! | send `(p·x^½, p·w)` to the out-neighbors, `p = 1/(out + 1)` | to the peers of this step, keeping the own share |
//! | `x = Σ p_ij x_j^½`, `w = Σ p_ij w_j`, `z = x / w` | summed in the order own share, then by rank |
//!
//! On the directed exponential graph (the default) rank `i` sends at step `k` to rank `i + 2^(k mod ⌈log₂ W⌉)`. If the number
//! of ranks is a power of two, ranks without gradients agree exactly after `log₂ W` steps. If all ranks have the same number of
//! out-neighbors, `w` stays 1; on other graphs it corrects for ranks that receive more than they send.
//!
//! **Overlap.** With a `staleness` of `τ`, messages travel while ranks compute, and are added `τ` steps after the step at which
//! they were sent. Shares in flight are missing from both `x` and `w`, so `z` is correct; without the weights it would not be.
//! With `p` peers `w` is near `(p + 1)/(p + 1 + τp)`, and a step of the optimizer moves `z` by `1/w` times as much: `1 + τ/2`
//! with one peer. So the largest stable rate is `w` times that of SGD.
//!
//! A run starts as if messages had always been in flight. Otherwise nothing would arrive during the first `τ` steps, and `w`
//! would fall to `(p + 1)^−τ`. Each rank keeps a share `w` (as above) of its initial `x` and gets the rest back in `τ` equal
//! parts, one a step, until the first messages arrive.
//!
//! **On the wire.** `4d + 4` bytes to each peer: the share of `x`, then that of `w`.
//!
//! **Properties.** Conserves `Σ x` and `Σ w = W`, including shares in flight, up to rounding. Replicas differ at every step:
//! the model to evaluate is `Σ x / W`, the exact mean. Ranks agree on a header only at every hundredth step; between headers, a
//! rank whose values are not finite stops, and the others with it. `DataParallel`, which must know whether every rank has
//! another batch, waits for all ranks at every step.
//!
//! **State.** A rank's own `z` as last returned, and `w`; its last `τ` shares, which a resumed run sends again. If the world
//! size changes, all of it is dropped, and the run restarts from the mean.
//!
//! **Knobs.** `graph`: `exponential` (the default), `exponential+p` for `p` out-neighbors a step, `ring`, `complete`, or the
//! edges of a fixed graph, `0>1;1>2;2>0`, which must connect every rank to every other. `staleness`, steps up to 8, default 0.
//!
//! **Deviations.** The paper adds a message as soon as it arrives, at most `τ` steps late; here exactly `τ` steps late, so that
//! a run is reproducible to the bit. In both, no other rank waits for one that is slow for less than `τ` steps. The paper
//! starts with `w = 1` and nothing in flight.
//!
//! **Reference.** M. Assran, N. Loizou, N. Ballas, M. Rabbat, *Stochastic Gradient Push for Distributed Deep Learning*, ICML 2019
//! (arXiv 1811.10792), algorithms 1 and 2.
//!
//! ```
//! use briquette_core::sync::{Graph, Sgp, SyncStrategy};
//! let graph = Graph::default();
//! assert_eq!((0..4).map(|step| graph.peers(step, 5, 6)).collect::<Vec<_>>(), [[0], [1], [3], [0]]);
//! assert!("0>1".parse::<Graph>()?.check(2).is_err()); // nothing comes back from rank 1
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod in_flight;

use self::in_flight::InFlight;
use super::graph::Graph;
use super::{Agrees, Context, HEADER_STEPS, Momenta, Plan, SyncStrategy, check_own};
use crate::config::{Described, Exchange, Sends, StrategySettings, StrategyTraits};
use crate::error::{CommError, ConfigError, SyncError};
use crate::report::{ExchangeSeconds, Report};
use crate::state::Staged;
use crate::stateful;
use crate::{Frame, Layout, Session, Traffic};

/// Mixes parameters with neighbors; see the [module](self).
#[derive(Debug)]
pub struct Sgp {
    graph: Graph,
    in_flight: InFlight,
    /// `z` as last returned; empty before the first step, when it equals `x`.
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

    /// Sets the staleness (Overlap SGP): messages are added this many steps after the step at which they were sent.
    #[must_use]
    pub fn with_staleness(mut self, steps: usize) -> Self {
        self.in_flight.staleness = steps;
        self
    }

    /// Returns this rank's push-sum weight `w`.
    pub fn weight(&self) -> f32 {
        *self.weight.now()
    }

    /// Computes `x`: a change of `z` by the inner optimizer is the same change of `x`.
    fn numerator(&self, z: &[f32], out: &mut Vec<f32>) {
        out.clear();
        match (self.weight(), self.shown.now()) {
            (1.0, _) => out.extend_from_slice(z),
            (w, shown) => out.extend(z.iter().zip(shown).map(|(z, shown)| w * shown + (z - shown))),
        }
    }

    /// Sends shares of `x` and of the weight, and adds the shares that arrive, of this or of an earlier step. Returns the new
    /// weight.
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
        Plan { agrees, parameters: true, ..Plan::ALONE }
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
        self.seconds = ExchangeSeconds { exchange: comm.now() - start, ..ExchangeSeconds::default() };
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

    /// Writes `x` plus the shares that it has sent and no rank has added. Its mean over ranks is the mean of the parameters,
    /// each weighted by its weight.
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
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SgpConfig {
    /// Graph of the ranks that a rank sends to.
    pub graph: Graph,
    /// Steps that messages are in flight: 0, or up to 8.
    pub staleness: usize,
}

impl Described for SgpConfig {
    const NAME: &'static str = "sgp";
    const SETTINGS: &'static str = "GRAPH[,staleness=0]";
    const HELP: &'static str =
        "parameters, mixed with neighbours at every step: exponential[+PEERS], ring, complete, or edges 0>1;1>2;2>0";

    fn check(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.staleness <= 8, "staleness of sgp", "at most 8", self.staleness)
    }

    fn representatives() -> Vec<Self> {
        let of = |peers, staleness| SgpConfig { graph: Graph::Exponential { peers }, staleness };
        vec![of(1, 0), of(2, 0), of(1, 2)]
    }
}

impl StrategySettings for SgpConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&[], "sends parameters as they are")), sends: Sends::AsTheyAre }
    }

    fn build(&self, _: &Exchange, _: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Sgp::new(self.graph.clone(), world)?.with_staleness(self.staleness)))
    }

    fn fewest_ranks(&self, _: &Exchange) -> usize {
        1
    }

    fn channels(&self) -> usize {
        usize::from(self.staleness > 0)
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some("sends parameters as they are")
    }

    fn dense_because(&self) -> Option<&'static str> {
        Some("sends parameters as they are")
    }
}

#[cfg(test)]
mod tests;
