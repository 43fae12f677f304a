//! NoLoCo: local steps, then an outer momentum step towards the mean of two ranks.
//!
//! **Why, and when not.** An exchange takes one message to one other rank, whatever the size of the world: no all-reduce, no ring, and no wait for
//! the slowest of all ranks. For many ranks on links with high latency. Replicas differ, and with few ranks
//! [DiLoCo](briquette_core::sync::diloco) exchanges hardly more bytes and keeps replicas equal.
//!
//! **Method.** A rank steps alone for `H` steps from `φ_i` to `θ_i`. At the end of the period, a random permutation, the same on all ranks, pairs the
//! ranks:
//!
//! ```text
//! δ_i ← α·δ_i + β·((θ_i + θ_j)/2 − φ_i)        φ_i ← φ_i + δ_i        θ_i ← φ_i
//! ```
//!
//! The second term is the pair's mean progress `(θ_i − φ_i + θ_j − φ_j)/2` plus the pull `(φ_i + φ_j)/2 − φ_i` of replicas towards each other. Both
//! have the factor `β`, so a rank needs only its partner's parameters `θ_j`. The outer momentum is heavy ball. In a world with an odd number of ranks, one random
//! rank has no partner and takes the step with its own parameters.
//!
//! | setting | equivalent to |
//! |---|---|
//! | two ranks, `α` 0, `β` 1 | Local SGD, if ranks have equally many samples |
//!
//! **On the wire.** `4d` bytes to one rank, every `H` steps.
//!
//! **Properties.** Replicas differ; the model to evaluate is their mean. Pair averages conserve `Σ θ` up to rounding; the outer step moves it unless `α` is 0
//! and `β` is 1. Replicas stay close only for small settings: with many ranks, the variance between them grows without bound above about `α` = 0.8 at
//! `β` = 0.7, and from `β` = 2 at `α` = 0. Ranks agree on a header about every hundredth step. A rank whose values are not finite stops all ranks.
//!
//! **State.** `φ_i` and `δ_i`, rank-local. If the world size changes, both are dropped, and the run continues from the mean.
//!
//! **Knobs.** `period` `H`, steps, default 50, or less if the run is known to have fewer than 20 periods; `momentum` `α` in [0, 1), default 0.5; `rate`
//! `β` in (0, 2), default 0.7.
//!
//! **Deviations.** The paper uses a separate factor `γ` for the pull. Here `γ = β`, as in the authors' program; a different `γ` would require sending `φ_j`
//! too. Groups of more than two ranks, and the routing of activations through a pipeline, are not included. Ranks count equally, whatever their numbers of
//! samples.
//!
//! **Reference.** J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy, C. Nies, *NoLoCo: No-all-reduce Low Communication Training Method for Large
//! Models*, 2025 (arXiv 2506.10911). The equations are those of the authors' program.
//!
//! ```
//! use briquette_core::Key;
//! use briquette_zoo::sync::no_loco::partner;
//! let partners: Vec<_> = (0..4).map(|rank| partner(Key::new(1), rank, 4)).collect();
//! assert!((0..4).all(|rank| partners[partners[rank].unwrap()] == Some(rank) && partners[rank] != Some(rank)));
//! let alone = (0..5).filter(|rank| partner(Key::new(1), *rank, 5).is_none());
//! assert_eq!(alone.count(), 1);
//! ```

use briquette_core::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::{CommError, ConfigError, SyncError, world_of};
use briquette_core::report::{ExchangeSeconds, Report};
use briquette_core::shards::shuffle;
use briquette_core::state::Staged;
use briquette_core::sync::{
    Context, Momenta, Plan, SyncStrategy, check_own,
    rounds::{in_rounds, period_of},
};
use briquette_core::{Key, Layout, Session, Traffic, stateful};

use super::periods::Periods;

/// Settings of NoLoCo; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "no-loco",
    help = "PERIOD local steps (50, fewer in a short run), then an outer step towards the mean of a random pair of ranks",
    representatives("no-loco:3", "no-loco:2,momentum=0,rate=1")
)]
pub struct NoLoCo {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// The outer momentum.
    #[setting(default = 0.5, range = "[0, 1)")]
    pub momentum: f32,
    /// The outer learning rate.
    #[setting(default = 0.7, range = "(0, 2)")]
    pub rate: f32,
}

/// The default period.
const USUAL: u64 = 50;
/// Reason why parameters have no compressor and no feedback.
const UNCOMPRESSED: &str = "sends parameters uncompressed";

impl NoLoCo {
    fn periods(&self) -> Periods {
        Periods { period: self.period.unwrap_or(USUAL), offset: 0 }
    }

    /// Returns the next `φ` and `δ` of one value, for the mean `θ` of the pair.
    fn advance(&self, anchor: f32, mean: f32, momentum: f32) -> (f32, f32) {
        let next = self.momentum * momentum + self.rate * (mean - anchor);
        (anchor + next, next)
    }
}

/// Returns the rank with which a rank averages, for the shared key of a step; `None` if the number of ranks is odd and this
/// one is left over.
pub fn partner(key: Key, rank: usize, world: usize) -> Option<usize> {
    let mut order: Vec<usize> = (0..world).collect();
    shuffle(&mut order, key);
    let place = order.iter().position(|other| *other == rank)?;
    order.get(place ^ 1).copied()
}

impl StrategySettings for NoLoCo {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&[], UNCOMPRESSED)), sends: Sends::AsTheyAre }
    }

    fn build(&self, _: &Exchange, _: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        self.check()?;
        if world < 2 {
            let why = "it averages pairs of ranks";
            return Err(ConfigError::conflict(
                "strategy no-loco",
                world_of(world),
                why,
                "use more ranks, or strategy diloco",
            ));
        }
        let (start, anchor, momentum, mean, seconds, traffic) = Default::default();
        Ok(Box::new(Pairs { settings: *self, start, anchor, momentum, mean, seconds, traffic }))
    }

    fn min_ranks(&self, _: &Exchange) -> usize {
        2
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some(UNCOMPRESSED)
    }

    fn dense_reason(&self) -> Option<&'static str> {
        Some(UNCOMPRESSED)
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.periods().period)
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        in_rounds(self.period, (USUAL, period_of(USUAL, steps)), steps, |period| {
            NoLoCo { period: Some(period), ..*self }.into()
        })
    }
}

/// Outer steps of pairs.
#[derive(Debug)]
struct Pairs {
    settings: NoLoCo,
    /// Parameters at the beginning, until the first step.
    start: Vec<f32>,
    /// `φ`.
    anchor: Staged<Vec<f32>>,
    /// `δ`.
    momentum: Staged<Vec<f32>>,
    /// Mean parameters of the pair, during the exchange.
    mean: Vec<f32>,
    seconds: ExchangeSeconds,
    traffic: Traffic,
}

stateful! {
    impl Stateful for Pairs {
        anchor: vector("anchor").rank_local(Drop),
        momentum: vector("momentum").rank_local(Drop),
    }
    after_load: Self::restart;
    after_commit: |it| it.start = Vec::new();
}

impl Pairs {
    /// Begins with the current parameters if the loaded state was dropped.
    fn restart(&mut self) {
        if self.anchor.now().is_empty() {
            self.anchor.set(std::mem::take(&mut self.start));
        }
    }

    /// Averages `mean`, this rank's parameters, with those of its partner. Both ranks get the same bits.
    fn average(&mut self, key: Key, comm: &mut Session) -> Result<(), CommError> {
        comm.scope().operation = "average with a partner";
        if let Some(other) = partner(key, comm.rank(), comm.world()) {
            let mut own = comm.pool().take_for(4 * self.mean.len());
            own.extend(self.mean.iter().flat_map(|v| v.to_le_bytes()));
            let message = comm.swap_long(&[other], own, &[other])?.remove(0);
            let (expected, got, during, rank) = (4 * self.mean.len(), message.len(), *comm.scope(), comm.rank());
            if got != expected {
                return Err(CommError::Size { rank, other, during, expected, got });
            }
            let values = message.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            self.mean.iter_mut().zip(values).for_each(|(mean, other)| *mean = 0.5 * *mean + 0.5 * other);
            comm.pool().put(message);
        }
        comm.flush()?;
        comm.scope().operation = "";
        Ok(())
    }
}

impl SyncStrategy for Pairs {
    fn plan(&self, step: u64) -> Plan {
        self.settings.periods().plan(step)
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.start = parameters.to_vec();
        self.anchor.set(parameters.to_vec());
        self.momentum.set(Vec::new());
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let (step, before, start) = (cx.agreed_step.step, comm.traffic(), comm.now());
        let failed = |source| SyncError::Reduce { step, source };
        self.mean.clone_from(parameters);
        self.average(cx.key.step(step).purpose("no-loco"), comm).map_err(|error| failed(error.into()))?;
        self.momentum.fit(parameters.len()).map_err(failed)?;
        let (anchor, next_anchor) = self.anchor.both();
        let (momentum, next_momentum) = self.momentum.both();
        next_anchor.clear();
        for (((anchor, mean), momentum), next) in anchor.iter().zip(&self.mean).zip(momentum).zip(next_momentum) {
            let (to, by) = self.settings.advance(*anchor, *mean, *momentum);
            next_anchor.push(to);
            *next = by;
        }
        check_own(next_anchor, cx, comm)?;
        parameters.copy_from_slice(next_anchor);
        self.anchor.stage();
        self.momentum.stage();
        self.seconds = ExchangeSeconds::exchanging(comm.now() - start);
        self.traffic = comm.traffic() - before;
        Ok(Momenta::Keep)
    }

    /// Returns the parameters; right after an outer step, the pair's mean, towards which the step was taken.
    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        let has_stepped = self.mean.len() == parameters.len() && self.anchor.now() == parameters;
        Some(if has_stepped { self.mean.clone() } else { parameters.to_vec() })
    }

    fn report(&self, report: &mut Report) {
        (report.seconds, report.traffic) = (Some(self.seconds), Some(self.traffic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::config::Config;
    use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
    use briquette_core::reduce::AgreedStep;
    use briquette_core::state::Stateful;
    use briquette_core::sync::periodic::Periodic;

    const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };
    const START: [f32; 10] = [3.0; 10];

    fn run(text: &str, world: usize, sgd: Sgd) -> Vec<Vec<f32>> {
        crate::install();
        let config: Config = text.parse().unwrap();
        train(world, || config.build(&Layout::flat(START.len()), world).unwrap(), &START, (sgd, &noisy))
    }

    /// Two ranks from 0, which come to 4 and 8, and then to 7 and 9: α = ½, β = ½.
    #[test]
    fn golden() {
        let ranks = briquette_core::comm::Local::run(2, |mut comm| {
            let layout = Layout::flat(1);
            let settings = NoLoCo { period: Some(1), momentum: 0.5, rate: 0.5 };
            let mut pairs = settings.build(&Exchange::default(), &layout, 2).unwrap();
            pairs.begin(&[0.0]);
            let mut seen = Vec::new();
            for (step, values) in [(0, [4.0, 8.0]), (1, [7.0, 9.0])] {
                let mut x = vec![values[comm.rank()]];
                let agreed_step = AgreedStep { step, ..AgreedStep::default() };
                let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
                pairs.after_step(&mut x, &cx, &mut comm).unwrap();
                pairs.commit();
                seen.push(x[0]);
            }
            Ok::<_, CommError>(seen)
        });
        // δ = ½·6 = 3, φ = 3; then δ = 1.5 + ½·(8 − 3) = 4, φ = 7.
        assert!(ranks.into_iter().all(|seen| seen == Ok(vec![3.0, 7.0])));
    }

    /// In f64, in one thread, as two terms.
    #[test]
    fn it_is_the_recursion_of_progress_and_pull() {
        let ours = run("strategy=no-loco:4", 5, SGD);
        let (alpha, beta) = (0.5, 0.7);
        let (mut theta, mut phi, mut delta) =
            (vec![vec![3.0_f64; 10]; 5], vec![vec![3.0_f64; 10]; 5], vec![vec![0.0; 10]; 5]);
        for step in 0..SGD.steps {
            for (rank, x) in theta.iter_mut().enumerate() {
                let here: Vec<f32> = x.iter().map(|x| *x as f32).collect();
                let gradient = noisy(rank, step, &here);
                x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= f64::from(SGD.rate) * f64::from(g));
            }
            if (step + 1) % 4 != 0 {
                continue;
            }
            let key = Key::new(5).step(step).purpose("no-loco");
            let (before, slow) = (theta.clone(), phi.clone());
            for rank in 0..5 {
                let other = partner(key, rank, 5).unwrap_or(rank);
                for i in 0..10 {
                    let progress = (before[rank][i] - slow[rank][i] + before[other][i] - slow[other][i]) / 2.0;
                    let pull = (slow[rank][i] + slow[other][i]) / 2.0 - slow[rank][i];
                    delta[rank][i] = alpha * delta[rank][i] + beta * progress + beta * pull;
                    phi[rank][i] += delta[rank][i];
                }
            }
            theta.clone_from(&phi);
        }
        let near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-4;
        assert!(ours.iter().zip(&theta).all(|(ours, x)| ours.iter().zip(x).all(near)), "{ours:?}");
    }

    #[test]
    fn two_ranks_without_momentum_are_local_sgd() {
        let local = train(2, || Periodic::new(4).unwrap(), &START, (SGD, &noisy));
        let pairs = run("strategy=no-loco:4,momentum=0,rate=1", 2, SGD);
        let close = |a: &Vec<f32>, b: &Vec<f32>| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(pairs.iter().zip(&local).all(|(a, b)| close(a, b)));
    }

    /// Claim: as good as an all-reduce. With linear gradients the mean of the replicas does not depend on the pairs. Replicas stay close: their
    /// spread is 0.004, without exchanges 0.05, and with the momentum 0.9 of DiLoCo 0.14.
    #[test]
    fn pairs_are_as_good_as_an_all_reduce() {
        let end = |text: &str| {
            let ranks = run(text, 16, Sgd { steps: 800, ..SGD });
            let centre = mean(&ranks);
            let squares = ranks.iter().flat_map(|x| x.iter().zip(&centre)).map(|(x, m)| (f64::from(*x) - m).powi(2));
            (loss(&centre), squares.sum::<f64>() / 160.0)
        };
        let [(pairs, spread), (all, _), (_, alone), (_, fast)] =
            ["no-loco:20", "diloco:20,momentum=0.5", "local-sgd:1000", "no-loco:20,momentum=0.9"]
                .map(|text| end(&format!("strategy={text}")));
        assert!((pairs - all).abs() < 0.05 * all, "{pairs} against {all}");
        assert!(spread < 0.1 * alone && fast > 2.0 * alone, "{spread}, {alone} alone, {fast} with much momentum");
    }

    #[test]
    fn pairs_are_disjoint_and_change() {
        for world in 2..20 {
            for step in 0..10 {
                let key = Key::new(3).step(step);
                let partners: Vec<_> = (0..world).map(|rank| partner(key, rank, world)).collect();
                let mutual = |(rank, other): (usize, &Option<usize>)| match other {
                    Some(other) => *other != rank && partners[*other] == Some(rank),
                    None => world % 2 == 1,
                };
                assert!(partners.iter().enumerate().all(mutual), "{partners:?}");
                assert_eq!(partners.iter().filter(|other| other.is_none()).count(), world % 2);
            }
        }
        let seen: std::collections::HashSet<_> = (0..100).map(|step| partner(Key::new(3).step(step), 0, 6)).collect();
        assert_eq!(seen.len(), 5, "every other rank in turn");
    }

    #[test]
    fn settings_and_worlds_out_of_range_are_refused() {
        for (settings, words) in [
            (NoLoCo { period: Some(0), ..NoLoCo::default() }, "period of no-loco must be at least 1"),
            (NoLoCo { momentum: 1.0, ..NoLoCo::default() }, "momentum of no-loco must be in [0, 1)"),
            (NoLoCo { rate: 0.0, ..NoLoCo::default() }, "rate of no-loco must be"),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = NoLoCo::default().build(&Exchange::default(), &Layout::flat(1), 1).err().unwrap().to_string();
        assert!(error.contains("no-loco") && error.contains("pairs of ranks"), "{error}");
    }
}
